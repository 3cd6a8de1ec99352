"""Free memory goes back to the system."""

import os
import platform
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.worker_memory import memory_of
from upriver.runtime.memory import trim_heap, trimming_heap

BLOCK_BYTES, BLOCKS = 4_096, 20_000
LEFT_BY_A_THREAD = f"""
import os, sys, threading
import pyarrow as pa
from benchmarks.worker_memory import memory_of
from upriver.runtime.arenas import share_free_memory
from upriver.runtime.memory import trim_heap

if sys.argv[1] == "shared":
    share_free_memory()
pool = pa.system_memory_pool()
pa.allocate_buffer(30 << 20, memory_pool=pool)  # freed at once: from now on, free ends of up to twice as much are kept
done, end = threading.Event(), threading.Event()

def work():
    blocks = [b"x" * ({BLOCK_BYTES} + number % 2) for number in range({BLOCKS // 4})]
    blocks.clear()
    done.set()
    end.wait()

before = memory_of([os.getpid()]).anonymous
thread = threading.Thread(target=work)
thread.start()
done.wait()
trim_heap()
print(memory_of([os.getpid()]).anonymous - before)
end.set()
"""
ARENAS = """
import ctypes, importlib, sys

for name in sys.argv[2:]:
    importlib.import_module(name)
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""
only_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked for it")


@pytest.mark.verify
@only_glibc
def test_what_a_thread_has_freed_is_given_back_if_free_memory_is_shared() -> None:
    assert left_by_a_thread("apart") > BLOCK_BYTES * BLOCKS // 8
    assert left_by_a_thread("shared") < BLOCK_BYTES * BLOCKS // 8


def left_by_a_thread(how: str) -> int:
    """Bytes that a process has more than before, when one of its threads has freed all that it had and still runs."""
    asked = [sys.executable, "-c", LEFT_BY_A_THREAD, how]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True, env=os.environ).stdout)


@pytest.mark.verify
@only_glibc
def test_the_process_that_workers_are_forked_from_has_one_arena(tmp_path: Path) -> None:
    assert arenas_after(tmp_path, "upriver.spark.daemon") == 1
    assert arenas_after(tmp_path, "pyarrow", "upriver.spark.daemon") > 1, "Arrow begins no thread: is the rule needed?"


def arenas_after(directory: Path, *modules: str) -> int:
    """How many arenas a process has that has loaded these, one after the other."""
    told = directory / "arenas.xml"
    subprocess.run([sys.executable, "-c", ARENAS, str(told), *modules], check=True, env=os.environ)
    return told.read_text().count("<heap nr=")


@only_glibc
def test_what_is_free_below_what_is_in_use_is_given_back() -> None:
    blocks = [bytes(BLOCK_BYTES) for _ in range(BLOCKS)]
    last = blocks[-1]
    blocks.clear()
    before = memory_of([os.getpid()]).anonymous
    trim_heap()
    assert before - memory_of([os.getpid()]).anonymous > BLOCK_BYTES * BLOCKS // 2
    assert len(last) == BLOCK_BYTES


def test_memory_is_given_back_and_arrow_has_no_pool_of_its_own_until_the_block_ends() -> None:
    pool = pa.default_memory_pool().backend_name
    before = set(threading.enumerate())  # some of other tests' may end meanwhile
    with trimming_heap(pause_s=0.001):
        assert pa.default_memory_pool().backend_name == "system"
        assert len(set(threading.enumerate()) - before) == 1
    assert pa.default_memory_pool().backend_name == pool
    assert set(threading.enumerate()) <= before
