"""Finding processes, for tests that kill them."""

from pathlib import Path


def pid_listening(address: str) -> int:
    """The process that listens on ``host:port`` of this machine."""
    port = int(address.rpartition(":")[2])
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    sockets = {
        f"socket:[{fields[9]}]"
        for table in tables
        if table.exists()
        for fields in map(str.split, table.read_text().splitlines()[1:])
        if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == "0A"  # listening
    }
    for process in Path("/proc").glob("[0-9]*"):
        if sockets & set(_links(process / "fd")):
            return int(process.name)
    raise LookupError(f"nobody listens on {address}")


def _links(directory: Path) -> list[str]:
    try:
        return [str(link.readlink()) for link in directory.iterdir()]
    except OSError:
        return []  # it has ended, or is somebody else's
