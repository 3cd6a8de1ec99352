"""What a worker's loop needs of its channels to peers."""

from typing import Protocol

from upriver.ids import WorkerId
from upriver.protocol.peers import Envelope


class PeerChannels(Protocol):
    """Of :class:`upriver.net.peers.Peers`, perhaps behind a lease."""

    def send(self, to: WorkerId, envelope: Envelope) -> None:
        """Put on the channel to a peer. Raises ClusterError if there is none."""

    def flush(self) -> None: ...
