"""A client's side of boards: those of workers on its machine, and lookups that are found there."""

import mmap
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from upriver.client.asking import Found, KeySet, Lookup
from upriver.errors import UpriverError
from upriver.ids import Epoch, WorkerId
from upriver.net.heart import now
from upriver.net.lookup import Answered
from upriver.net.remote import Connection
from upriver.net.routing import Routing, ViewRoute
from upriver.plan.plan import schema_to_json
from upriver.runtime.boards import BOARD, machine
from upriver.state.board_layout import BoardLayout, Raw
from upriver.state.board_reader import BoardReader
from upriver.state.vectors import Positions
from upriver.vnodes import vnodes_of

LOOKUPS_MIN = 16
"""Lookups of a view that a client has asked workers for when it asks for their boards."""
VAIN_MAX, VAIN_EVERY = 64, 16
"""After so many lookups of a view in a row that boards did not have, one of so many looks there. (A look takes a tenth
of what a client's lookup takes.)"""
AGAIN_S, REFUSED_S = 1.0, 30.0
"""Seconds after which a worker is asked again for a board that it has closed, or has not given."""
ASKING = "upriver-boards"
"""Name of the thread that asks."""
REACH_S_MAX = 2.0
"""Seconds that a worker has for its answer."""

_Whose = tuple[str, str]
"""Address of the worker, and name of the view."""


class BoardFinder:
    """A client's. Usable by many threads. connection: to a worker, for calls. clock: seconds, by which workers are
    asked again."""

    def __init__(self, connection: Callable[[str], Connection], clock: Callable[[], float] = time.monotonic) -> None:
        self._connection = connection
        self._clock = clock
        self._lock = threading.Lock()
        """Held by who changes what follows."""
        self._readers: Mapping[_Whose, BoardReader] = {}
        """Those that were given; replaced, and never changed."""
        self._vain: dict[str, int] = {}
        """By view: lookups in a row that boards did not have. By no lock: a few more or less are no matter."""
        self._asked: dict[str, int] = {}
        """By view: lookups that workers were asked since boards were asked for."""
        self._not_before: dict[_Whose, float] = {}
        """When it is asked for again."""
        self._is_reaching = False
        self._is_closed = machine() is None

    def find(self, lookup: Lookup, asked: KeySet, routing: Routing) -> Found | None:
        """The rows of these keys, if all of them are on boards, as of the end of one epoch."""
        readers, view = self._readers, lookup.view
        if not readers or not len(asked.hash64):
            return None
        vain = self._vain.get(view, 0)
        looks = vain < VAIN_MAX or vain % VAIN_EVERY == 0
        found = self._found(readers, lookup, asked, routing) if looks else None
        self._vain[view] = vain + 1 if found is None else 0
        return found

    def _found(
        self, readers: Mapping[_Whose, BoardReader], lookup: Lookup, asked: KeySet, routing: Routing
    ) -> Found | None:
        rows_of: list[tuple[Positions, Raw]] = []
        epochs: set[Epoch] = set()
        owners = routing.vnode_map.owners_of(vnodes_of(asked.hash64, len(routing.vnode_map.owners)))
        for owner in np.bincount(owners).nonzero()[0].tolist():
            reader = readers.get((routing.addresses.get(WorkerId(owner), ""), lookup.view))
            if reader is None or not reader.layout.schema.equals(lookup.route.schema):
                return None
            (places,) = (owners == owner).nonzero()
            found = reader.find(asked.hash64[places])
            if found is None:
                return None
            (raw, epoch), layout = found, reader.layout
            rows_of.append((places, raw))
            epochs.add(epoch)
        if len(epochs) > 1 or min(epochs) < (lookup.at_least or 0):
            return None
        rows = layout.rows(_in_order(rows_of, len(owners)))
        if not all(rows.column(name).equals(key) for name, key in zip(layout.key, asked.keys.columns, strict=True)):
            return None  # two keys have one hash
        answered = Answered(rows, epoch, routing.vnode_map.version, relayed=False, held_up=False)
        return Found(asked, answered, asked.places)

    def asked(self, lookup: Lookup, routing: Routing) -> None:
        """Workers were asked for keys of this view: they may have boards. Does not wait for them."""
        if self._is_closed:
            return
        with self._lock:
            lookups = self._asked[lookup.view] = self._asked.get(lookup.view, 0) + 1
            if lookups < LOOKUPS_MIN or self._is_reaching:
                return
            self._asked[lookup.view] = 0
            wanted = [address for address in routing.addresses.values() if self._lacks((address, lookup.view))]
            if not wanted:
                return
            self._is_reaching = True
        reach = partial(self._reach, lookup.view, lookup.route, wanted)
        threading.Thread(target=reach, name=ASKING, daemon=True).start()

    def _lacks(self, whose: _Whose) -> bool:
        """Whether there is no board, and it is time to ask for one. With the lock held."""
        reader = self._readers.get(whose)
        if reader is not None and not reader.is_closed:
            return False
        return self._not_before.get(whose, 0.0) <= self._clock()

    def _reach(self, view: str, route: ViewRoute, addresses: Sequence[str]) -> None:
        """Ask workers for the board of a view."""
        try:
            for address in addresses:
                reader = None
                with suppress(UpriverError, OSError):  # who cannot be reached is asked for keys, and then all comes out
                    reader = self._given(address, view, route)
                self._note(address, view, reader)
        finally:
            self._is_reaching = False

    def _given(self, address: str, view: str, route: ViewRoute) -> BoardReader | None:
        wish = {"view": view, "view_schema": schema_to_json(route.schema), "key": list(route.key), "machine": machine()}
        told = self._connection(address).act(BOARD, wish, timeout=REACH_S_MAX)
        if not told:
            return None
        layout = BoardLayout(route.schema, route.key, int(told["buckets"]))
        file = os.open(f"/proc/{int(told['process'])}/fd/{int(told['file'])}", os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(file).st_size != layout.nbytes:
                return None  # another process has that number by now
            reader = BoardReader(layout, mmap.mmap(file, layout.nbytes), now)
        finally:
            os.close(file)
        return reader if reader.name.hex() == told["name"] else None

    def _note(self, address: str, view: str, reader: BoardReader | None) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._not_before[address, view] = self._clock() + (REFUSED_S if reader is None else AGAIN_S)
            others = {whose: known for whose, known in self._readers.items() if whose != (address, view)}
            self._readers = others if reader is None else {**others, (address, view): reader}

    def keep_only(self, addresses: Collection[str]) -> None:
        """Forget the boards of all other workers."""
        with self._lock:
            self._readers = {whose: reader for whose, reader in self._readers.items() if whose[0] in addresses}
            self._not_before = {whose: when for whose, when in self._not_before.items() if whose[0] in addresses}

    def close(self) -> None:
        """Find nothing any more."""
        with self._lock:
            self._is_closed = True
            self._readers = {}


def _in_order(parts: Sequence[tuple[Positions, Raw]], count: int) -> Raw:
    """So many rows, each in its place. Rows of one schema lie alike, on whatever board."""
    rows = np.empty(count, parts[0][1].dtype)
    for places, raw in parts:
        rows[places] = raw
    return rows
