"""Copies a folder that somebody writes to: once while it changes, and again what has changed, while its writer is held. So the
writer is held for a moment only, however large the folder is."""

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .shell import StrataError

# A change within the same tick of the clock leaves a file's time as it is.
SURE_AFTER_NS = 2_000_000_000
TICK_S = 0.02
COPIES_MAX = 20
COPIES_MAX_BUSY = 3


@dataclass(frozen=True)
class Seen:
    inode: int
    size: int
    changed_ns: int
    copied_ns: int  # when the copying began


class ChangingFiles:
    """Copies `source` to `to`, which is there. One thread."""

    # Memory maps change these without a new time stamp.
    copied_anew: tuple[str, ...] = ()

    def __init__(self, source: Path, to: Path) -> None:
        self._from = source
        self._to = to
        self._seen: dict[Path, Seen] = {}
        self._folders: set[Path] = set()

    def takes_folder(self, name: str, *, top: bool) -> bool:
        """Of those below; at the `top`, or deeper."""
        return True

    def takes_file(self, name: str, *, top: bool) -> bool:
        return True

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
            shutil.rmtree(self._to / name, ignore_errors=True)  # A folder that was dropped.
        return copied

    def _names(self) -> Iterator[Path]:
        for place, folders, names in os.walk(self._from):
            here = Path(place).relative_to(self._from)
            top = here == Path()
            folders[:] = sorted(name for name in folders if self.takes_folder(name, top=top))
            for name in folders:
                if (Path(place) / name).is_symlink():
                    raise StrataError(f"{Path(place) / name} is a symbolic link, which a backup does not follow")
            (self._to / here).mkdir(exist_ok=True)
            self._folders.add(here)
            for name in names:
                if not self.takes_file(name, top=top):
                    continue
                path = Path(place) / name
                if path.is_symlink():
                    raise StrataError(f"{path} is a symbolic link, which a backup does not follow")
                if path.is_file():
                    yield here / name

    def _copy_if_changed(self, name: Path, copies_max: int, must: bool) -> bool:
        before = self._seen.get(name)
        now = self._look(name, time.time_ns())
        same = before is not None and (before.inode, before.size, before.changed_ns) == (now.inode, now.size, now.changed_ns)
        if (
            same
            and before is not None
            and name.suffix not in self.copied_anew
            and now.changed_ns + SURE_AFTER_NS < before.copied_ns
        ):
            return False
        for _ in range(copies_max):
            if now.changed_ns + TICK_S * 1e9 > now.copied_ns:
                time.sleep(TICK_S)  # So that a change from now on shows.
            copy_file(self._from / name, self._to / name)
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


def copy_file(source: Path, target: Path) -> None:
    with source.open("rb", buffering=0) as read, target.open("wb", buffering=0) as written:
        while chunk := read.read(1 << 20):
            rest = memoryview(chunk)
            while rest:
                rest = rest[written.write(rest) :]
