"""When epochs were committed, as a worker tells it with its answers: read in the lake's manifests."""

from upriver.errors import LakeError
from upriver.ids import Epoch
from upriver.lake.lake import Lake, Manifest

COMMITS_MAX = 64
"""Epochs whose commit times a worker remembers: the last ones."""


class CommitTimes:
    """Of one worker. One thread notes, any may ask."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._times: dict[Epoch, float | None] = {}
        """Replaced, and never changed."""

    def note(self, manifest: Manifest) -> None:
        """The worker has read an epoch's manifest."""
        self._note(manifest.epoch, manifest.committed_at)

    def of(self, epoch: Epoch) -> float | None:
        """In seconds since 1970; ``None`` if there is no such epoch, or the lake does not tell.

        Reads the manifest, once, of an epoch of which the worker did not read the rows: the last one of a checkpoint,
        or one that came before it was asked for anything.
        """
        if epoch not in self._times and epoch > 0:
            try:
                self.note(self._lake.manifest(epoch))
            except (LakeError, OSError):
                self._note(epoch, None)
        return self._times.get(epoch)

    def _note(self, epoch: Epoch, committed_at: float | None) -> None:
        times = {**self._times, epoch: committed_at}
        self._times = dict(list(times.items())[-COMMITS_MAX:])
