"""What a server's binary log says, applied to an InnoDB server: afterwards both must hold the same rows.

Two-phase commit promises that a transaction is in the binary log and in the table, or in neither; the one that was in doubt at a
crash included, once the server has recovered.
"""

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from strata_cli import paths
from strata_cli.server import Server, Settings

from . import xa
from .session import Session

MIRROR_OPTIONS = (
    *("--skip-log-bin", "--skip-networking", "--max-allowed-packet=1G"),
    *("--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0"),
)
NO_PRESET = "none"  # It has no plugin.
APPLY_TIMEOUT_S = 240
DUMP_TIMEOUT_S = 120
SHOWN = 4
TORN = re.compile(r"truncated|read error|Could not read entry", re.IGNORECASE)


class Mirror:
    """A private InnoDB server, started when it is needed first. Not thread-safe."""

    def __init__(self, folder: Path, database: str) -> None:
        self._server = Server(folder)
        self._database = database
        self._applied = ""  # The last binlog file that was.

    def close(self) -> None:
        self._server.kill()
        shutil.rmtree(self._server.data, ignore_errors=True)

    def copy(self, source: Server) -> None:
        """Becomes what the server holds now; from here on it follows. Nobody may write."""
        if self._server.pid() is None or self._server.query("XA RECOVER"):
            self._server.kill()
            shutil.rmtree(self._server.data, ignore_errors=True)
            self._server.start(Settings(preset=NO_PRESET, engine="InnoDB"), extra=MIRROR_OPTIONS)
        source.query("FLUSH BINARY LOGS")
        self._applied = _binlogs(source.datadir)[-2]
        self._server.query(f"DROP DATABASE IF EXISTS {self._database}")
        self._server.query(f"CREATE DATABASE {self._database}")
        dump = [_program("mariadb-dump"), "--no-defaults", f"--socket={source.socket}", "--user=root", "--single-transaction"]
        self._apply([*dump, "--hex-blob", self._database], DUMP_TIMEOUT_S)

    def follow(self, source: Server, excused: set[str]) -> list[str]:
        """Applies what the server has logged since, and says how both differ. Nobody writes; nothing is prepared."""
        source.query("FLUSH BINARY LOGS")
        files = _binlogs(source.datadir)
        self._follow_files([source.datadir / name for name in files[:-1] if name > self._applied])
        self._applied = files[-2]
        problems = differences(source, self._server, self._database, excused)
        if not problems and excused:
            self.copy(source)
        return problems

    def follow_left_behind(self, folder: Path, acknowledged: dict[str, set[int]]) -> list[str]:
        """Of a server that is gone for good: its binlog says no less than what its clients were told."""
        self._follow_files([folder / name for name in _binlogs(folder) if name > self._applied])
        problems = []
        with Session(self._server, self._database) as session:
            for query, acked in acknowledged.items():
                present = {row[0] for row in session.execute(query, ())}
                if lost := sorted(acked - present):
                    problems.append(f"binlog: {len(lost)} acknowledged transactions are not in it, e.g. {lost[:SHOWN]} ({query})")
        return problems

    def _follow_files(self, files: list[Path]) -> None:
        for file in files:
            self._apply([_program("mariadb-binlog"), "--no-defaults", str(file)], APPLY_TIMEOUT_S)

    def _apply(self, writer: list[str], timeout_s: float) -> None:
        """What the program prints, with the engine's name replaced: row events and quoted values never hold such a clause."""
        sed = ["sed", "s/ENGINE=STRATA/ENGINE=InnoDB/I"]
        reader = [_program("mariadb"), "--no-defaults", f"--socket={self._server.socket}", "--user=root"]
        reader += ["--binary-mode", "--max-allowed-packet=1G", self._database]
        with tempfile.TemporaryFile() as said_to:
            printing = subprocess.Popen(writer, stdout=subprocess.PIPE, stderr=said_to)
            replacing = subprocess.Popen(sed, stdin=printing.stdout, stdout=subprocess.PIPE)
            try:
                done = subprocess.run(reader, stdin=replacing.stdout, capture_output=True, text=True, timeout=timeout_s)
                code = printing.wait(timeout_s)
            finally:
                for process in (printing, replacing):
                    process.kill()
                    process.wait()
            said_to.seek(0)
            said = said_to.read().decode(errors="replace")
        # Killed while it wrote an event that nobody had been told of.
        torn = code != 0 and TORN.search(said) is not None
        if done.returncode != 0 or (code != 0 and not torn):
            raise AssertionError(f"binlog: {Path(writer[0]).name} | mariadb failed: {said[-500:]}{done.stderr[-1000:]}")


def differences(source: Server, mirror: Server, database: str, excused: set[str]) -> list[str]:
    """Table by table, row by row, in the order of the key."""
    with Session(source, database) as one, Session(mirror, database) as other:
        tables, copies = _tables(one) - excused, _tables(other) - excused
        problems = [f"binlog: table {name} is only in the {'tables' if name in tables else 'binlog'}" for name in tables ^ copies]
        for table in sorted((tables & copies) - xa.TABLES.keys()):
            problems += _difference(one, other, table)
    return problems


def _difference(one: Session, other: Session, table: str) -> list[str]:
    query, key_columns = _all_rows(one, table)
    columns, copied = ([row[0] for row in session.execute(f"SHOW COLUMNS FROM `{table}`")] for session in (one, other))
    if columns != copied:
        return [f"binlog: {table} has the columns {columns}, by the binlog {copied}"]
    rows, copies = one.execute(query), other.execute(query)
    if rows == copies:
        return []
    here, there = Counter(rows), Counter(copies)
    shown = f"{', '.join(key_columns)}, checksum"
    return [
        f"binlog: {table} has {len(rows)} rows, by the binlog {len(copies)};"
        f" only in the table {_some(here - there)}, only by the binlog {_some(there - here)} ({shown})"
    ]


def _some(rows: "Counter[Any]") -> str:
    return f"{rows.total()}, e.g. {sorted(rows, key=str)[:SHOWN]}"


def _all_rows(session: Session, table: str) -> tuple[str, list[str]]:
    """Key and checksum of every row; without a key the checksums are in order."""
    columns = [row[0] for row in session.execute(f"SHOW COLUMNS FROM `{table}`")]
    key = [row[4] for row in session.execute(f"SHOW INDEX FROM `{table}`") if row[2] == "PRIMARY"] or columns[:2]
    row_hash = "CRC32(CONCAT_WS('|', " + ", ".join(f"IFNULL(`{column}`, 'NULL')" for column in columns) + "))"
    shown = ", ".join(f"`{column}`" for column in key)
    return f"SELECT {shown}, {row_hash} AS h FROM `{table}` ORDER BY {shown}, h", key


def _tables(session: Session) -> set[str]:
    return {row[0] for row in session.execute("SHOW TABLES")}


def _binlogs(folder: Path) -> list[str]:
    """By name, which is by age; the last is being written."""
    return sorted(path.name for path in folder.glob("binlog.[0-9]*"))


def _program(name: str) -> str:
    return str(paths.MARIADB_ROOT / "usr" / "bin" / name)
