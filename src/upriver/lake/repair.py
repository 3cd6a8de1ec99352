"""Repair: a damaged segment gives way to what it was made of, while that is still there (docs/internals/lake.md).

A segment says nothing that its parts do not say: the smaller segments and manifests of its epochs, or the same segment
before it was rewritten. They stay for some time after it was made (``segments.grace``). So a start, before anything
reads the lake, removes the file of a damaged segment whose parts are whole. All readers find the parts then, and
compaction makes the segment again. Of a damaged segment without parts nothing is removed.
"""

import logging
from collections.abc import Iterator, Set

from upriver.errors import CorruptFile, NotRead
from upriver.ids import Epoch
from upriver.lake.lake import Lake, OwnedLake, segment_path, supplement_path
from upriver.lake.spans import EpochSpan, parts_of, single
from upriver.state.runs import check_length

_LOG = logging.getLogger("upriver.lake")


def replace_damaged(lake: OwnedLake) -> list[str]:
    """Remove the segments that readers use and that are damaged, if their parts are whole. Nothing else may use the
    lake meanwhile. Returns what was wrong with each, naming files. Raises LakeInUse."""
    replaced: list[str] = []
    tried: set[EpochSpan] = set()
    while (found := next(_replaceable(lake, tried), None)) is not None:
        span, why = found
        tried.add(span)
        lake.check_owner()
        try:
            lake.files.remove(lake.path_of(segment_path(span)))
        except OSError:
            continue  # no file, for example: a reader gets the error
        channels = [channel for channel in lake.supplement_channels() if span in lake.supplemented(channel)]
        lake.files.remove_all(lake.path_of(supplement_path(channel, span)) for channel in channels)
        replaced.append(f"epochs {span.first} to {span.last} are read apart, until they are a segment again: {why}")
        _LOG.warning("%s", replaced[-1])
    return replaced


def _replaceable(lake: Lake, tried: Set[EpochSpan]) -> Iterator[tuple[EpochSpan, str]]:
    """The damaged segments that readers use and whose parts can be used, each with its damage."""
    there, last = {*map(single, lake.numbers("epochs")), *lake.segments()}, lake.last_epoch()
    for span in lake.spans(last):
        if span not in tried and (parts := parts_of(there, span, last)):
            why = _damage_of(lake, span)
            if why is not None and all(_can_be_used(lake, there, part, last) for part in parts):
                yield span, why


def _can_be_used(lake: Lake, there: Set[EpochSpan], span: EpochSpan, as_of: Epoch) -> bool:
    """Whether a span is whole, or can give way to parts that are."""
    if _damage_of(lake, span) is None:
        return True
    parts = parts_of(there, span, as_of)
    return bool(parts) and all(_can_be_used(lake, there - {span}, part, as_of) for part in parts)


def _damage_of(lake: Lake, span: EpochSpan) -> str | None:
    """Why a manifest or segment cannot be read, or that a run of it is not there in its whole length."""
    try:
        for runs in lake.epochs(span).runs.values():
            for run in runs:
                check_length(run, lake.read_into(run.path, []))
    except (CorruptFile, NotRead) as error:
        return str(error)
    return None
