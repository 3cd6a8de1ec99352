"""The load on the site: a process that asks for pages, and here, what these write."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from benchmarks.hand_fed import HandFedApp
from benchmarks.lobsters_answers import SiteAnswers
from benchmarks.lobsters_prober import SiteProbeTask
from benchmarks.lobsters_requests import Request
from benchmarks.lobsters_truth import Published
from upriver.errors import ClusterError

END_S_MAX = 60.0
"""Seconds for the process to end once it has said its last."""


@dataclass(frozen=True, slots=True)
class Load:
    """What became of it. missed: of each partial view, keys that were looked up and not there, after the warm-up.
    first_error: of a page that was not answered."""

    answers: SiteAnswers
    published: Sequence[Published]
    missed: Mapping[str, int]
    first_error: str | None


def bear(
    app: HandFedApp,
    requests: Sequence[Request],
    warm_up: int,
    clients: int,
    partial: Sequence[str],
    directory: Path,
) -> Load:
    """Have all pages asked for, the first ``warm_up`` of them before the others; what each writes is an epoch for each
    table. partial: views that keep what is looked up."""
    answers, errors, path = directory / "answers", directory / "prober-errors", directory / "probe.json"
    answers.mkdir()
    listed = directory / "requests.json"
    listed.write_text(json.dumps([asdict(request) for request in requests]))
    task = SiteProbeTask(
        address=app.address,
        requests=str(listed),
        warm_up=warm_up,
        clients=clients,
        partial=partial,
        result=str(answers),
    )
    path.write_text(json.dumps(asdict(task)))
    command = [sys.executable, "-m", "benchmarks.lobsters_prober", str(path)]
    with (
        errors.open("wb") as said,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True) as prober,
    ):
        assert prober.stdin is not None
        assert prober.stdout is not None
        try:
            # The token goes through a pipe: every user of the machine can read a command line.
            print(app.token, file=prober.stdin, flush=True)
            published, last = _write(app, requests, prober.stdout, prober.stdin)
            prober.wait(END_S_MAX)
        except BaseException:
            prober.kill()
            raise
    if prober.returncode != 0 or last is None:
        raise ClusterError(f"the process that asks for pages failed ({prober.returncode}):\n{errors.read_text()}")
    first_error = next(iter(errors.read_text().splitlines()), None)
    return Load(SiteAnswers.read(answers), published, last["missed"], first_error)


def _write(
    app: HandFedApp, requests: Sequence[Request], asked: IO[str], told: IO[str]
) -> tuple[list[Published], Mapping[str, Mapping[str, int]] | None]:
    """Publish what requests write, as they ask for it, until the prober ends; with the last that it says."""
    published: list[Published] = []
    for line in asked:
        said = json.loads(line)
        if not isinstance(said, int):
            return published, said
        for table, rows in requests[said].writes().items():
            fed = app.publish(rows, table)
            published.append(Published(fed.epoch, table, rows, fed.begun_at))
        print(json.dumps([said, published[-1].epoch]), file=told, flush=True)
    return published, None
