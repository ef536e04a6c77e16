"""What a restore makes its target of: a hidden folder beside it, which gets the target's name when all is well; and what is
looked at before that."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .cluster import Cluster
from .server import Server
from .shell import StrataError

LOCK = "restore.lock"
CHECKED_AT_ONCE = 50


def refuse_too_little_room(place: Path, needed: int) -> None:
    free = shutil.disk_usage(place).free
    if needed > free:
        raise StrataError(f"{place} has room for {free / 1e6:.0f} MB, and {needed / 1e6:.0f} MB are needed. Nothing was restored")


@contextmanager
def hidden_folder(to: Path) -> Iterator[Path]:
    """Removed unless it has got another name. One restore at a time makes the same target."""
    hidden = to.parent / f".{to.name}.restoring"
    hidden.mkdir(exist_ok=True)
    with (hidden / LOCK).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StrataError(f"another restore to {to} is under way") from None
        try:
            _end_what_runs(hidden)  # Of a restore that was ended by kill -9.
            for left in hidden.iterdir():
                if left.name != LOCK:
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
            yield hidden
            (to / LOCK).unlink()
        finally:
            if hidden.exists():
                _end_what_runs(hidden)
                shutil.rmtree(hidden, ignore_errors=True)


def _end_what_runs(hidden: Path) -> None:
    if Cluster(hidden).exists():
        cluster = Cluster(hidden)
        cluster.kill()
        for node in cluster.memory.values():
            node.wipe()
    Server(hidden).kill()


def check_tables(server: Server) -> int:
    """CHECK TABLE of every table of STRATA; returns how many there are."""
    tables = server.query("SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE ENGINE = 'STRATA'")
    names = [f"`{schema.replace('`', '``')}`.`{table.replace('`', '``')}`" for schema, table in tables]
    problems = []
    for begin in range(0, len(names), CHECKED_AT_ONCE):
        rows = server.query(f"CHECK TABLE {', '.join(names[begin : begin + CHECKED_AT_ONCE])}", read_timeout=None)
        problems += [
            f"{row[0]}: {row[3]}" for row in rows if row[2] != "note" and row[3] not in ("OK", "Table is already up to date")
        ]
    if problems:
        raise StrataError(f"what was restored does not pass CHECK TABLE: {'; '.join(problems[:10])}. Nothing was restored")
    return len(names)
