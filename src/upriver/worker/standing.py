"""Where the keys of a lookup stand: whether all are kept here for certain, and as of the end of one epoch."""

import numpy as np

from upriver.protocol.strategies import maps_of
from upriver.state.vectors import Mask
from upriver.vnodes import vnodes_of
from upriver.worker.following import Following
from upriver.worker.share import Share
from upriver.xxh64 import Hashes


def all_stay(phase: Following, share: Share, hash64: Hashes) -> bool:
    """Whether all of these keys are kept here, and not about to move."""
    return bool(that_stay(phase, share, hash64).all())


def that_stay(phase: Following, share: Share, hash64: Hashes) -> Mask:
    """Which of these keys are kept here, and not about to move. Who has lost a peer while keys move keeps nothing for
    certain (W4)."""
    maps = maps_of(share.migrator.phase)
    if not maps or (len(maps) > 1 and not phase.peers):
        return np.zeros(len(hash64), np.bool_)
    vnodes = vnodes_of(hash64, len(maps[0].owners))
    stay: Mask = maps[0].owners_of(vnodes) == phase.me
    for vnode_map in maps[1:]:
        stay &= vnode_map.owners_of(vnodes) == phase.me
    return stay


def is_between_epochs(phase: Following) -> bool:
    """Whether keys are as of the end of the epoch that this worker reflects, but such as were filled up to a later
    one."""
    if phase.reading is not None or phase.reflected != phase.applied or phase.reflected < phase.arrived:
        return False
    return not any(epoch > phase.applied and counts.total() for epoch, counts in phase.counts.items())


def are_ahead(phase: Following, share: Share, hash64: Hashes) -> bool:
    """Whether some of these present keys were filled up to a later epoch than this worker reflects."""
    return share.partial is not None and bool((share.partial.through(hash64) > phase.reflected).any())
