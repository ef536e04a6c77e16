"""PostgreSQL 15 with a data folder of its own, unmodified, for experiments with far memory: its processes share one piece of
memory (`shared_buffers` and what belongs to it), which `--mode fuse` makes far.

It refuses to run as root, and mode fuse needs root: the server runs as `nobody` then.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import farmem_postgres_packages as packages
from .bench import tpch
from .shell import StrataError
from .waiting import wait_until

NOBODY = 65534
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 120.0
KILL_TIMEOUT_S = 60.0
QUERY_TIMEOUT_S = 900.0
# No just-in-time compilation (the package's has a library of its own), and nothing that happens by itself while one measures.
# A huge page is local as a whole, so there are none. Parallel queries share memory that has a name, which stays local.
SETTINGS = {
    "listen_addresses": "",
    "jit": "off",
    "autovacuum": "off",
    "fsync": "off",
    "huge_pages": "off",
    "shared_memory_type": "mmap",
    "max_parallel_workers_per_gather": "0",
    "max_connections": "10",
}


class Postgres:
    """One data folder, and the server on it while it runs. Its socket's path must be short: so must the folder's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "postgres.log"

    def make(self) -> None:
        """An empty database. A folder that is there is removed."""
        shutil.rmtree(self.data, ignore_errors=True)
        self.data.mkdir(parents=True)
        if os.geteuid() == 0:
            os.chown(self.data, NOBODY, NOBODY)
        command = ["initdb", "-D", str(self.data), "-A", "trust", "-U", "postgres", "--locale=C", "-E", "UTF8", "--no-sync"]
        done = subprocess.run(_unprivileged(command), capture_output=True, text=True, env=_environment(), cwd="/")
        if done.returncode != 0:
            raise StrataError(f"initdb: {done.stdout}{done.stderr}")

    def command(self, settings: Mapping[str, str]) -> list[str]:
        pairs = {**SETTINGS, "unix_socket_directories": str(self.data), **settings}.items()
        flags = [word for name, value in pairs for word in ("-c", f"{name}={value}")]
        return _unprivileged(["postgres", "-D", str(self.data), *flags])

    def start(self, settings: Mapping[str, str], prefix: Sequence[str] = ()) -> None:
        """`prefix`: a program that runs it, as strata-farmem."""
        with self.log.open("ab") as log:
            command = [*prefix, *self.command(settings)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment(), cwd="/", start_new_session=True
            )
        if not wait_until(self._answers, START_TIMEOUT_S, every_s=0.1):
            self.kill()
            raise StrataError(f"PostgreSQL did not start:\n{self.log.read_text(errors='replace')[-2000:]}")

    def _answers(self) -> bool:
        if self.process.poll() is not None:
            raise StrataError(f"PostgreSQL did not start:\n{self.log.read_text(errors='replace')[-2000:]}")
        return self._psql(["-c", "SELECT 1"], 30.0).returncode == 0

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The server's, or that of the program that runs it."""
        assert self._process is not None
        return self._process

    def stop(self) -> int:
        """Ends it in order, within some time; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_TIMEOUT_S)
        return self.kill()

    def kill(self) -> int:
        if self.process.poll() is None:
            self.process.kill()
        try:
            return self.process.wait(KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise StrataError(f"process {self.process.pid} was killed and does not end") from None

    def _psql(self, arguments: Sequence[str], timeout_s: float, said: str | None = None) -> "subprocess.CompletedProcess[str]":
        command = [str(packages.program("psql")), "-X", "-q", "-h", str(self.data), "-U", "postgres", "-At", *arguments]
        return subprocess.run(command, input=said, capture_output=True, text=True, env=_environment(), timeout=timeout_s)

    def query(self, text: str, timeout_s: float = QUERY_TIMEOUT_S) -> str:
        """Runs statements; what the last ones answer, a line for each row. Blocks."""
        done = self._psql(["-v", "ON_ERROR_STOP=1", "-f", "-"], timeout_s, text)
        if done.returncode != 0:
            raise StrataError(f"PostgreSQL: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def load_tpch(self, scale: float) -> None:
        """TPC-H's tables with their keys and indexes, and statistics of them."""
        data = tpch.generated(scale)
        tables, indexes = statements_of("\n;".join(tpch.schema()))
        self.query(tables)
        for table in tpch.TABLES:
            rows = re.sub(r"\|$", "", (data / f"{table}.tbl").read_text(), flags=re.MULTILINE)
            self.query(f"COPY {table} FROM STDIN (DELIMITER '|');\n{rows}\\.\n")
        self.query(indexes + "VACUUM ANALYZE;\nCHECKPOINT;\n")


def statements_of(schema: str) -> tuple[str, str]:
    """The bench's schema in PostgreSQL's words: the tables, and the indexes, which MariaDB has inside of the tables."""
    indexes = []
    tables = []
    for match in re.finditer(r"CREATE TABLE (\w+) \((.*?)\n\)", schema, re.DOTALL):
        lines = [line.strip().rstrip(",") for line in match[2].splitlines() if line.strip()]
        inside = [line for line in lines if not line.startswith("INDEX")]
        tables.append(f"CREATE TABLE {match[1]} ({', '.join(inside)});\n")
        for line in lines:
            if index := re.match(r"INDEX (\w+) (\(.*\))", line):
                indexes.append(f"CREATE INDEX {index[1]} ON {match[1]} {index[2]};\n")
    return "".join(tables), "".join(indexes)


def tpch_query(number: int, scale: float) -> str:
    """In PostgreSQL's words: an interval's number is a string there."""
    return re.sub(r"INTERVAL (\d+) (\w+)", r"INTERVAL '\1' \2", tpch.query_text(number, scale)).rstrip().rstrip(";") + ";\n"


def timed(server: Postgres, text: str) -> tuple[float, str]:
    started = time.monotonic()
    said = server.query(text)
    return time.monotonic() - started, said


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C", "LD_LIBRARY_PATH": str(packages.libraries())}


def as_nobody(command: Sequence[str]) -> list[str]:
    """Of root: the same, with no rights."""
    return ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "--", *command]


def _unprivileged(command: Sequence[str]) -> list[str]:
    program = [str(packages.program(command[0])), *command[1:]]
    return as_nobody(program) if os.geteuid() == 0 else program
