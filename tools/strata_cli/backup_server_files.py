"""Files of the server itself, of a running server's data directory, that belong into a backup.

They are copied twice: while everything works, and again those that have changed, at the moment of the cut, when BACKUP STAGE
BLOCK_COMMIT holds whoever would change them. So that moment is short.
"""

import fnmatch
from pathlib import Path

from . import local_tables
from .changing_files import ChangingFiles
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
NAMED_MOST = 10


class ServerFiles(ChangingFiles):
    """Copies <datadir> to `to`, but for what is not the server's own or not a backup's. One thread."""

    copied_anew = (".MYI", ".MYD")

    def __init__(self, datadir: Path, to: Path, engine_folder: str, logs: list[str]) -> None:
        """`logs`: beginnings of the names of binary and relay logs."""
        super().__init__(datadir, to)
        self._engine_folder = engine_folder
        self._logs = [f"{Path(name).name}.*" for name in logs if name and Path(name).parent in (Path(), datadir)]

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

    def takes_folder(self, name: str, *, top: bool) -> bool:
        return not (top and (name == self._engine_folder or _matches(name, LEFT_OUT_FOLDERS)))

    def takes_file(self, name: str, *, top: bool) -> bool:
        if _matches(name, LEFT_OUT_EVERYWHERE):
            return False
        if not top:
            return True
        if _matches(name, LEFT_OUT_TOP) or _matches(name, self._logs):
            return False
        return not name.endswith(".log") or name.startswith("ddl_recovery")


def _matches(name: str, patterns: tuple[str, ...] | list[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
