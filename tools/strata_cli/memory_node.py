"""A memory node of a cluster on this machine (daemon_process.py says what is in its folder), and where its pools lie.

Pools are files that compute nodes map: on tmpfs, where it is there and has room, for then they are memory and nothing else. A
pool outlives the process that serves it, not the machine: what is in it is made again of the log and what storage nodes have.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import paths
from .daemon_process import DaemonProcess
from .shell import StrataError

DEFAULT_MEMORY = "512M"
LEAST_BYTES = 8 << 20
# Of one that several servers share: 2 MiB for the transactions of each server, and of each that has ended and may not be over
# yet (src/memnode/fusion); the rest is for their pages.
SHARED_LEAST_BYTES = 64 << 20
SHARED_TABLES_BYTES = 32 << 20
PAGE_BYTES = 16 << 10
ROOM_SHARE = 0.8  # Of what tmpfs has left: the rest of the machine lives of that memory, too.
TMPFS = Path("/dev/shm")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def bytes_of(size: str) -> int:
    """512M and the like. Raises StrataError."""
    found = re.fullmatch(r"(\d+)([KMGT]?)", size.strip().upper())
    if not found:
        raise StrataError(f"'{size}' is no size; as in 512M or 4G")
    return int(found[1]) * UNITS[found[2]]


def memory_of(size: str) -> str:
    """The same size; refused when no pool of it would be of use."""
    if bytes_of(size) < LEAST_BYTES:
        raise StrataError(f"a memory node needs {LEAST_BYTES >> 20}M at least, not {size}")
    return size.strip().upper()


def shared_slots_of(size: str) -> int:
    """So many pages that several servers share have room in a memory node of that size. Raises StrataError."""
    if bytes_of(size) < SHARED_LEAST_BYTES:
        raise StrataError(f"a memory node that several servers share needs {SHARED_LEAST_BYTES >> 20}M at least, not {size}")
    return (bytes_of(size) - SHARED_TABLES_BYTES) // PAGE_BYTES


@dataclass(frozen=True)
class MemorySettings:
    port: int  # For the nodes' own protocol.
    http_port: int  # For health, status and metrics.
    memory: str  # Of all pools together, as in 512M.
    pools: Path
    registry: str
    cluster: str
    secret: Path
    shared_slots: int = 0  # Pages that several servers share.


class MemoryNode(DaemonProcess):
    """One folder and the process that serves it, if any. Not thread-safe."""

    kind = "memnode"

    def __init__(self, name: str, folder: Path, settings: MemorySettings, program: Sequence[str | Path]) -> None:
        self.settings = settings
        super().__init__(name, folder, program)
        self.socket = paths.socket_path(self.folder, f"{self.kind}.sock")

    def ports(self) -> tuple[int, int]:
        return self.settings.port, self.settings.http_port

    def flags(self) -> list[str]:
        """A socket first: who is on this machine maps the pool. The port is for others, and for what is between them."""
        settings = self.settings
        given: list[tuple[str, str | Path]] = [
            ("--registry", settings.registry),
            ("--cluster", settings.cluster),
            ("--secret-file", settings.secret),
            ("--memory", settings.memory),
            ("--pools", settings.pools),
            ("--listen", f"unix:{self.socket}"),
            ("--listen", self.address()),
        ]
        if settings.shared_slots:
            given.append(("--fusion-slots", str(settings.shared_slots)))
        return [str(part) for flag in given for part in flag]

    def prepare(self) -> None:
        super().prepare()
        # Gone with the last start of the machine, if it is on tmpfs.
        for folder in (self.settings.pools.parent, self.settings.pools):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def pool_bytes(self) -> int:
        """What its pools take of tmpfs, or of the disk."""
        files = [path for path in self.settings.pools.rglob("*") if path.is_file()] if self.settings.pools.is_dir() else []
        return sum(path.stat().st_blocks * 512 for path in files)

    def wipe_pools(self) -> None:
        """What its memory held is lost, as when its machine is started again."""
        if self.pid() is not None:
            raise StrataError(f"{self.name} is still running")
        shutil.rmtree(self.settings.pools, ignore_errors=True)
        with contextlib.suppress(OSError):  # Not there, or pools of other nodes are.
            self.settings.pools.parent.rmdir()

    def wipe(self) -> None:
        self.wipe_pools()
        self.socket.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def place_of_pools(data: Path, tmpfs: Path = TMPFS) -> Path:
    """Where the pools of a cluster in `data` are if they are on tmpfs, each node in a folder of its own."""
    return tmpfs / f"strata-{os.getuid()}-{paths.hash_of(data)}"


def choose_pools(data: Path, name: str, memory: str, tmpfs: Path = TMPFS, taken: int = 0) -> Path:
    """For a node that is made now: on tmpfs, or beside what else it has. `taken`: bytes of pools that are about to be there, too.

    Pools that lie there are of a node whose cluster's folder was removed by hand: they go."""
    shutil.rmtree(place_of_pools(data, tmpfs) / name, ignore_errors=True)
    try:
        there = tmpfs.is_dir() and os.access(tmpfs, os.W_OK | os.X_OK)
        room = shutil.disk_usage(tmpfs).free * ROOM_SHARE - taken if there else 0
    except OSError:
        room = 0
    return place_of_pools(data, tmpfs) / name if bytes_of(memory) <= room else data / "memory" / name / "pools"
