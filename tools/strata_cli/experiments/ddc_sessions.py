"""A database that knows nothing of far memory, with all its memory local, or some, or with a disk to spill to: for ddc.py.

Both databases are the same to whoever measures: statements with names are asked, several clients at once if wished, and what was
fetched or read meanwhile is counted.
"""

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .. import farmem, farmem_monetdb
from ..bench import tpch
from ..farmem_postgres import QUERY_TIMEOUT_S, Postgres
from ..shell import StrataError
from ..waiting import wait_until

ALL_LOCAL, FAR, DISK = "all local", "far", "disk"  # where what does not fit goes
PAGE = 4096
MIB = 1 << 20
LOAD_TIMEOUT_S = 1200.0
STATS_TIMEOUT_S = 60.0
END_TIMEOUT_S = 120.0
SPILL_BYTES = "8G"
PEAK = "SELECT substring(pg_read_file('/proc/self/status') from 'VmHWM:\\s+(\\d+)');\n"


class TooMuchError(StrataError):
    """It did not get through with what it has: killed for want of memory, or not done in time."""


@dataclass(frozen=True)
class Setup:
    label: str
    way: str = ALL_LOCAL
    local_bytes: int = 0  # of far memory; where there is a disk: of all memory, without `outside_bytes`
    policy: str = "fifo"
    prefetch: int = 0
    pool_mib: int = 0  # what MonetDB believes to have; 0: all there is
    outside_bytes: int = 0  # what the program had beside its far memory, and has to have beside its limit, too
    disk_iops: int = 0
    link: str = "none"


@dataclass(frozen=True)
class Counted:
    faults: int = 0
    fetched_bytes: int = 0
    outside_bytes: int = 0

    def since(self, before: "Counted") -> "Counted":
        return Counted(self.faults - before.faults, self.fetched_bytes - before.fetched_bytes, self.outside_bytes)


@dataclass(frozen=True)
class Asked:
    seconds: float
    answer: str
    peak_bytes: int = 0


class Session(Protocol):
    def ask(self, text: str, *, with_peak: bool = False) -> Asked: ...

    def ask_at_once(self, streams: Sequence[Sequence[str]]) -> list[list[Asked]]: ...

    def counted(self) -> Counted: ...


def _prefix(setup: Setup, place: farmem.Place, mode: str, stats: Path, folder: Path) -> list[str]:
    """`mode`: of far memory, where there is some."""
    stats.unlink(missing_ok=True)
    if setup.way == ALL_LOCAL:
        return []
    common: dict[str, Any] = {"quiet": True, "stats": stats}
    if setup.way == DISK:
        options = farmem.Options(
            mode=farmem.DISK,
            local=str(setup.local_bytes + setup.outside_bytes),
            far=SPILL_BYTES,
            disk_folder=folder,
            disk_iops=setup.disk_iops,
            **common,
        )
        return farmem.run_command(None, options, [])
    options = farmem.Options(
        mode=mode, local=str(setup.local_bytes), policy=setup.policy, prefetch=setup.prefetch, link=setup.link, **common
    )
    return farmem.run_command(place, options, [])


def _counted(setup: Setup, stats: Path) -> Counted:
    """As of now: the file is written each second."""
    if setup.way == ALL_LOCAL:
        return Counted()
    asked = time.time()
    if not wait_until(lambda: stats.exists() and stats.stat().st_mtime > asked, STATS_TIMEOUT_S, every_s=0.05):
        raise TooMuchError("strata-farmem does not write its statistics")
    processes = json.loads(stats.read_text())["processes"]

    def total(name: str) -> int:
        return sum(int(process[name]) for process in processes)

    fetched = total("fetched") * PAGE if setup.way == DISK else total("bytes_in")
    return Counted(total("faults"), fetched, total("outside_anonymous_bytes_max"))


def _kib(file: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in file.read_text().splitlines() if line.startswith(name + ":"))


class Monet:
    """MonetDB within a process of its own, in memory. It begins with all tables loaded."""

    def __init__(self, setup: Setup, place: farmem.Place, folder: Path, scale: float) -> None:
        self._setup, self._stats = setup, folder / "far.json"
        self._log = folder / "monetdb.log"
        command = farmem_monetdb.command(tpch.generated(scale), tpch.SOURCES / "schema.sql", setup.pool_mib)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*_prefix(setup, place, farmem.UFFD, self._stats, folder), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=farmem_monetdb.environment(),
                start_new_session=True,
            )
        try:
            if self._line(LOAD_TIMEOUT_S) != "ready":
                raise TooMuchError(f"MonetDB did not load: {self._said()}")
        except BaseException:
            self.close()
            raise

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-1000:]

    def _line(self, timeout_s: float) -> str:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        if not readable:
            raise TooMuchError(f"not done in {timeout_s:g} s")
        line = self._process.stdout.readline().decode().strip()
        if not line:
            raise TooMuchError(f"it ended: {self._said()}")
        return line

    def ask_at_once(self, streams: Sequence[Sequence[str]]) -> list[list[Asked]]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([list(texts) for texts in streams]).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise TooMuchError(f"it ended: {self._said()}") from None
        answers = json.loads(self._line(QUERY_TIMEOUT_S))
        return [[Asked(one["seconds"], f"{one['rows']} {one['digest']}") for one in stream] for stream in answers]

    def ask(self, text: str, *, with_peak: bool = False) -> Asked:
        folder = Path(f"/proc/{self._process.pid}")
        if with_peak:
            (folder / "clear_refs").write_text("5")  # what is resident at most begins anew,
            (folder / "clear_refs").write_text("1")  # and what has been touched
        ((asked,),) = self.ask_at_once([[text]])
        if not with_peak:
            return asked
        touched = _kib(folder / "smaps_rollup", "Referenced")
        gone_again = _kib(folder / "status", "VmHWM") - _kib(folder / "status", "VmRSS")
        return Asked(asked.seconds, asked.answer, (touched + max(0, gone_again)) * 1024)

    def counted(self) -> Counted:
        return _counted(self._setup, self._stats)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.terminate()  # strata-farmem passes it on
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_TIMEOUT_S)
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class PostgresSession:
    """PostgreSQL on a data folder that is there."""

    def __init__(self, setup: Setup, place: farmem.Place, server: Postgres, data_bytes: int) -> None:
        self._setup, self._server = setup, server
        self._stats = server.folder / "far.json"
        # A table of more than a quarter of the buffers would be read past them. With a disk to spill to a server is set up for
        # the memory that it has.
        roomy = {"shared_buffers": f"{max(128, 4 * data_bytes // MIB)}MB", "work_mem": "256MB"}
        small = {"shared_buffers": f"{max(1024, setup.local_bytes // 2048)}kB", "work_mem": "4MB"}
        server.start(small if setup.way == DISK else roomy, _prefix(setup, place, farmem.FUSE, self._stats, server.folder))

    def ask(self, text: str, *, with_peak: bool = False) -> Asked:
        started = time.monotonic()
        try:
            said = self._server.query(text + (PEAK if with_peak else ""))
        except subprocess.TimeoutExpired:
            raise TooMuchError(f"not done in {QUERY_TIMEOUT_S:g} s") from None
        seconds = time.monotonic() - started
        if not with_peak:
            return Asked(seconds, said)
        lines = said.splitlines(keepends=True)
        return Asked(seconds, "".join(lines[:-1]), int(lines[-1]) * 1024)

    def ask_at_once(self, streams: Sequence[Sequence[str]]) -> list[list[Asked]]:
        with ThreadPoolExecutor(len(streams)) as clients:
            return list(clients.map(lambda texts: [self.ask(text) for text in texts], streams))

    def counted(self) -> Counted:
        return _counted(self._setup, self._stats)

    def close(self) -> None:
        self._server.stop()


def forget_files(folder: Path) -> None:
    """The system's cache has none of them afterwards; of nobody else's anything is changed."""
    for file in filter(Path.is_file, folder.rglob("*")):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def closing(session: "Monet | PostgresSession") -> Iterator[Session]:
    try:
        yield session
    finally:
        session.close()


def same_answers(known: dict[str, str], name: str, answer: str, where: str) -> None:
    """What one setup answers, all do."""
    if known.setdefault(name, answer) != answer:
        raise StrataError(f"{name}, {where}: another answer than before")
