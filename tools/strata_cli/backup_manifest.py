"""What a backup consists of: manifest.json in its folder, with size and SHA-256 of every file and of itself.

    <backup>/manifest.json   written last: a folder without it is no backup
    <backup>/server/         files of the server's own data directory
    <backup>/strata/         the engine's folder as of the cut: control file, pages, log (src/engine/backup.h)
    <backup>/node/           of a cluster, instead of both: the data folder of a storage node (cluster_backup.py)

What servers that write the same tables have in their own folders is in the cluster, too; of each only the identity is kept.

A backup with a base holds only pages that have changed since that one; the others are holes of its files. Restoring it needs the
base, and the base's base.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from .process import replace_file
from .shell import StrataError

NAME = "manifest.json"
RESTORED = "strata-restored.id"  # in the server's data directory: names the restore that made it
SERVER = "server"
STRATA = "strata"
NODE = "node"
CLUSTER = "cluster"  # a manifest's kind; those of single servers have none
OF_SEVERAL = "cluster of several servers"
FORMAT = 1
CHUNK = 1 << 20
SHOWN_MOST = 5

OnBytes = Callable[[int], None]
T = TypeVar("T", bound="Described")


@dataclass
class BinaryLog:
    """What is in the backup ends here."""

    file: str
    position: int
    gtid: str


@dataclass(kw_only=True)
class Described:
    """What every manifest has."""

    format: int = FORMAT
    folders: list[str] = field(default_factory=list)
    files: dict[str, tuple[int, str]] = field(default_factory=dict)  # path in the backup: bytes, SHA-256

    def bytes(self) -> int:
        return sum(size for size, _ in self.files.values())

    def checksum(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def write(self, folder: Path) -> None:
        replace_file(folder / NAME, json.dumps({**asdict(self), "checksum": self.checksum()}, indent=1) + "\n")
        sync_folder(folder)


@dataclass
class Manifest(Described):
    """Of one server with its own files."""

    made: str
    mariadb: str
    engine_folder: str  # in the server's data directory
    database: str  # which one, and as of which restore: pages of another one's backup are no base
    log_segment_size: int
    end_lsn: int
    checkpoint_llsn: int
    binary_log: BinaryLog | None
    gtid_slave_pos: str
    since: int = 0
    base_folder: str = ""
    base_checksum: str = ""


@dataclass
class ClusterManifest(Described):
    """Of a cluster."""

    made: str
    mariadb: str
    profile: str
    node: str  # the storage node whose folder this was
    log_end: int  # of what it had of the log
    keys: dict[str, str]  # of the registry, at that moment
    memory: list[str]  # of each memory node; as in 512M
    memory_backup: bool
    buffer_pool: str
    kind: str = CLUSTER


@dataclass
class SeveralManifest(ClusterManifest):
    """Of a cluster whose servers write the same tables."""

    # Each server by name, and the identity of its folder, which has its place in the keys; empty: it was not there.
    servers: dict[str, str] = field(default_factory=dict)
    read_only: list[str] = field(default_factory=list)  # Those of them that only read.
    kind: str = OF_SEVERAL


def read(folder: Path) -> Manifest:
    held = _read(folder)
    if held.get("kind"):
        raise StrataError(f"{folder} is a backup of a {held['kind']}, not of one server")

    def make() -> Manifest:
        if held["binary_log"] is not None:
            held["binary_log"] = BinaryLog(**held["binary_log"])
        return Manifest(**held)

    return _checked(folder, held, make)


def is_of_cluster(folder: Path) -> bool:
    return _read(folder).get("kind") in (CLUSTER, OF_SEVERAL)


def read_cluster(folder: Path) -> ClusterManifest:
    held = _read(folder)
    kind = SeveralManifest if held.get("kind") == OF_SEVERAL else ClusterManifest
    return _checked(folder, held, lambda: kind(**held))


def _read(folder: Path) -> dict[str, Any]:
    path = folder / NAME
    if not folder.is_dir():
        raise StrataError(f"there is no backup {folder}")
    if not path.exists():
        raise StrataError(f"{folder} is no backup, or one that was not finished: it has no {NAME}")
    try:
        held = json.loads(path.read_text())
    except ValueError:
        held = None
    if not isinstance(held, dict):
        raise _damaged(folder)
    if isinstance(held.get("format"), int) and held["format"] > FORMAT:
        raise StrataError(f"{path} was written by a newer version; use that one")
    return held


def _checked(folder: Path, held: dict[str, Any], make: Callable[[], T]) -> T:
    """`make` uses what is in `held`."""
    try:
        checksum = held.pop("checksum")
        held["files"] = {name: (size, digest) for name, (size, digest) in held["files"].items()}
        manifest = make()
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(folder) from None
    if manifest.checksum() != checksum:
        raise _damaged(folder)
    return manifest


def _damaged(folder: Path) -> StrataError:
    return StrataError(f"{folder / NAME} is damaged; use another backup")


def database_in(datadir: Path, engine_folder: str) -> str:
    """After a restore the same database goes on another way, with the same versions of pages for other contents."""
    with (datadir / engine_folder / "control-1").open("rb") as control:
        identity = control.read(32)[24:32]  # ControlSlot::database_id of src/wal/control_file.cc
    restored = datadir / RESTORED
    return identity.hex() + (f"-{restored.read_text().strip()}" if restored.exists() else "")


def files_in(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            yield Path(place) / name


def digest_of(path: Path, on_bytes: OnBytes, *, sync: bool = False) -> str:
    """`sync`: what was read is durable, too."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as source:
        while chunk := source.read(CHUNK):
            digest.update(chunk)
            on_bytes(len(chunk))
        if sync:
            os.fsync(source.fileno())
    return digest.hexdigest()


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def describe_files(folder: Path, on_bytes: OnBytes) -> tuple[dict[str, tuple[int, str]], list[str]]:
    """Files and folders of a backup that has just been made, for its manifest; durable afterwards."""
    files = {
        str(path.relative_to(folder)): (path.stat().st_size, digest_of(path, on_bytes, sync=True))
        for path in files_in(folder)
        if path != folder / NAME
    }
    folders = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_dir())
    for name in ("", *folders):
        sync_folder(folder / name)
    return files, folders


def verify(folder: Path, manifest: Described, on_bytes: OnBytes) -> None:
    """Every file is there, as it was, and no other. Nothing is written."""
    problems = []
    for name, (size, digest) in manifest.files.items():
        path = folder / name
        if not path.is_file():
            problems.append(f"{path} is missing")
        elif path.stat().st_size != size:
            problems.append(f"{path} has {path.stat().st_size} bytes, not {size}")
        elif digest_of(path, on_bytes) != digest:
            problems.append(f"{path} is damaged: its checksum differs")
    known = {str(folder / name) for name in (*manifest.files, NAME)}
    problems += [f"{path} is none of the backup's files" for path in files_in(folder) if str(path) not in known]
    if problems:
        more = f", and {len(problems) - SHOWN_MOST} more" if len(problems) > SHOWN_MOST else ""
        raise StrataError(f"the backup {folder} is not whole: {'; '.join(problems[:SHOWN_MOST])}{more}. Nothing was restored")


def chain(folder: Path) -> list[tuple[Path, Manifest]]:
    """The backup and those that it builds on, the oldest first."""
    found = [(folder, read(folder))]
    while found[0][1].base_folder:
        place, manifest = found[0]
        named = Path(manifest.base_folder)
        base = named if named.is_dir() else place.parent / named.name  # Moved together.
        if not base.is_dir():
            raise StrataError(f"{place} holds changes since the backup {named}, which is not there")
        held = read(base)
        if held.checksum() != manifest.base_checksum:
            raise StrataError(f"{base} is another backup than the one that {place} builds on")
        found.insert(0, (base, held))
    return found
