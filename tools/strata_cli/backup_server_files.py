"""Files of the server itself, of a running server's data directory, that belong into a backup.

They are copied twice: while everything works, and again those that have changed, at the moment of the cut, when BACKUP STAGE
BLOCK_COMMIT holds whoever would change them. So that moment is short.
"""

import fnmatch
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import local_tables
from .shell import StrataError

# Of other engines whose files may be copied while BACKUP STAGE holds their writers.
COPIED_ENGINES = (b"", b"STRATA", b"Aria", b"MyISAM", b"CSV", b"MEMORY", b"MRG_MyISAM", b"ARCHIVE", b"SEQUENCE", b"BLACKHOLE")
# InnoDB holds a few tables of the server's own here; restored folders get empty ones. The rest belongs to one running server.
LEFT_OUT_TOP = (
    *("ibdata*", "ib_logfile*", "ib_buffer_pool", "ibtmp*", "undo[0-9]*", "ib_*.dblwr"),
    *("master.info", "master-*.info", "relay-log.info", "relay-log-*.info", "multi-master.info"),
    *("*-relay-bin.*", "tc.log", "ddl.log", "*.pid", "*.sock", "*.err", "core", "core.*"),
)
LEFT_OUT_EVERYWHERE = ("*.ibd", "*.isl")
LEFT_OUT_FOLDERS = ("#innodb_*", "#rocksdb", "lost+found")
# Memory maps change these without a new time stamp.
COPIED_ANEW = (".MYI", ".MYD")
# A change within the same tick of the clock leaves a file's time as it is.
SURE_AFTER_NS = 2_000_000_000
TICK_S = 0.02
COPIES_MAX = 20
COPIES_MAX_BUSY = 3
NAMED_MOST = 10


@dataclass(frozen=True)
class Seen:
    inode: int
    size: int
    changed_ns: int
    copied_ns: int  # when the copying began


class ServerFiles:
    """Copies <datadir> to `to`, but for what is not the server's own or not a backup's. One thread."""

    def __init__(self, datadir: Path, to: Path, engine_folder: str, logs: list[str]) -> None:
        """`logs`: beginnings of the names of binary and relay logs."""
        self._from = datadir
        self._to = to
        self._engine_folder = engine_folder
        self._logs = [f"{Path(name).name}.*" for name in logs if name and Path(name).parent in (Path(), datadir)]
        self._seen: dict[Path, Seen] = {}
        self._folders: set[Path] = set()

    def refuse_other_engines(self) -> None:
        """Tables that neither the engine's backup nor copies of files hold."""
        others = []
        for path in sorted(self._from.glob("*/*.frm")):
            if path.parent.name in local_tables.SERVERS_OWN or path.name.startswith("#"):
                continue
            try:
                engine = local_tables.engine_of(path.read_bytes())
            except OSError:  # gone meanwhile
                continue
            if engine not in COPIED_ENGINES:
                others.append(f"{path.parent.name}.{path.stem} ({engine.decode(errors='replace')})")
        if others:
            more = f" and {len(others) - NAMED_MOST} more" if len(others) > NAMED_MOST else ""
            raise StrataError(
                f"tables of other engines would not be in the backup: {', '.join(others[:NAMED_MOST])}{more}. Move them with"
                " ALTER TABLE ... ENGINE=STRATA, or back this server up with mariadb-dump"
            )

    def copy(self, *, writers_held: bool) -> int:
        """What is new or changed since the last call; what has gone goes. Returns how many files were copied.

        Unless writers are held, a file that never keeps still is left for the last call, which must have it.
        """
        present: set[Path] = set()
        copied = 0
        self._folders.clear()
        for name in self._names():
            try:
                copied += self._copy_if_changed(name, COPIES_MAX if writers_held else COPIES_MAX_BUSY, writers_held)
            except FileNotFoundError:  # dropped meanwhile
                (self._to / name).unlink(missing_ok=True)
                continue
            present.add(name)
        for name in [name for name in self._seen if name not in present]:
            del self._seen[name]
            (self._to / name).unlink(missing_ok=True)
        for name in {path.relative_to(self._to) for path in self._to.rglob("*") if path.is_dir()} - self._folders:
            shutil.rmtree(self._to / name, ignore_errors=True)  # A database that was dropped.
        return copied

    def _names(self) -> Iterator[Path]:
        for place, folders, names in os.walk(self._from):
            here = Path(place).relative_to(self._from)
            top = here == Path()
            folders[:] = sorted(
                name for name in folders if not (top and (name == self._engine_folder or _matches(name, LEFT_OUT_FOLDERS)))
            )
            for name in folders:
                if (Path(place) / name).is_symlink():
                    raise StrataError(f"{Path(place) / name} is a symbolic link, which a backup does not follow")
            (self._to / here).mkdir(exist_ok=True)
            self._folders.add(here)
            for name in names:
                if _matches(name, LEFT_OUT_EVERYWHERE) or (top and self._is_left_out(name)):
                    continue
                path = Path(place) / name
                if path.is_symlink():
                    raise StrataError(f"{path} is a symbolic link, which a backup does not follow")
                if path.is_file():
                    yield here / name

    def _is_left_out(self, name: str) -> bool:
        if _matches(name, LEFT_OUT_TOP) or _matches(name, self._logs):
            return True
        return name.endswith(".log") and not name.startswith("ddl_recovery")

    def _copy_if_changed(self, name: Path, copies_max: int, must: bool) -> bool:
        before = self._seen.get(name)
        now = self._look(name, time.time_ns())
        same = before is not None and (before.inode, before.size, before.changed_ns) == (now.inode, now.size, now.changed_ns)
        if same and before is not None and name.suffix not in COPIED_ANEW and now.changed_ns + SURE_AFTER_NS < before.copied_ns:
            return False
        for _ in range(copies_max):
            if now.changed_ns + TICK_S * 1e9 > now.copied_ns:
                time.sleep(TICK_S)  # So that a change from now on shows.
            _copy_file(self._from / name, self._to / name)
            after = self._look(name, now.copied_ns)
            if after == now:
                self._seen[name] = now
                return True
            now = self._look(name, time.time_ns())
        if not must:
            self._seen.pop(name, None)
            (self._to / name).unlink()  # It is torn.
            return False
        raise StrataError(f"{self._from / name} changes all the time; it could not be copied")

    def _look(self, name: Path, at_ns: int) -> Seen:
        found = (self._from / name).stat()
        return Seen(found.st_ino, found.st_size, found.st_mtime_ns, at_ns)


def _matches(name: str, patterns: tuple[str, ...] | list[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _copy_file(source: Path, target: Path) -> None:
    with source.open("rb", buffering=0) as read, target.open("wb", buffering=0) as written:
        while chunk := read.read(1 << 20):
            rest = memoryview(chunk)
            while rest:
                rest = rest[written.write(rest) :]
