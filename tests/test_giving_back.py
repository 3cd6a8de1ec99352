"""Free memory goes back to the system."""

import os
import platform
import threading

import pyarrow as pa
import pytest

from upriver.bench.worker_memory import memory_of
from upriver.shell.giving_back import give_back, giving_back

BLOCK_BYTES, BLOCKS = 4_096, 20_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked for it")
def test_what_is_free_below_what_is_in_use_is_given_back() -> None:
    blocks = [bytes(BLOCK_BYTES) for _ in range(BLOCKS)]
    last = blocks[-1]
    blocks.clear()
    before = memory_of([os.getpid()]).anonymous
    give_back()
    assert before - memory_of([os.getpid()]).anonymous > BLOCK_BYTES * BLOCKS // 2
    assert len(last) == BLOCK_BYTES


def test_memory_is_given_back_and_arrow_has_no_pool_of_its_own_until_the_block_ends() -> None:
    pool, threads = pa.default_memory_pool().backend_name, threading.active_count()
    with giving_back(pause_s=0.001):
        assert pa.default_memory_pool().backend_name == "system"
        assert threading.active_count() == threads + 1
    assert pa.default_memory_pool().backend_name == pool
    assert threading.active_count() == threads
