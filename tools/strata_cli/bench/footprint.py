"""What a workload costs beside time: log and data written, disk, memory, CPU; how long restarts and warm-up take.

Each engine runs in a server of its own here, with the other one off or tiny: a process's memory and CPU then are the engine's.
Both have the same pool and the same room for the log. Where a figure comes from:

    log bytes       how far the engine's LSN moved
    data bytes      pages the engine wrote x 16 KiB, InnoDB's doublewrite buffer included, until no page was dirty any more
    CPU             the kernel's CPU clock of the process, per transaction of the client
    disk            blocks allocated to the engine's files, undo included, the log not; after a clean stop

write_bytes in /proc/<pid>/io is not used: where the file system caches files in large folios, the kernel counts a folio of up to
a megabyte for each small write into it, though the disk only gets the changed blocks.
"""

import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from .. import paths, setup_cmd
from ..server import Server, Settings, choose_port
from ..shell import Outcome, StrataError, console
from ..waiting import wait_until
from . import process, report
from .comparison import INNODB, STRATA, Row, Sample
from .servers import IN_MEMORY, MIB, PORT, Memory, database
from .sysbench import Bench, Workload, transactions

PAGE_BYTES = 16384
CLEAN_TIMEOUT_S = 150
CHECKPOINT_S = 60  # ends within half as much again: before the time-out
START_TIMEOUT_S = 1800.0
IDLE_S = 10
QUIET_S = 2
QUIET_CPU_S = 0.02  # in that time
WARM_UP_S = 20
SHORT_RUN_S = 15
TAIL_WRITERS = 2
TAIL_TIMEOUT_S = 900
TAIL_ROWS = 2000


@dataclass(frozen=True)
class Plan:
    engines: tuple[str, ...] = (STRATA, INNODB)
    tables: int = 8
    rows: int = 100_000
    updates: int = 200_000
    threads: int = 8
    log_tail_bytes: int = 1024 * MIB

    @property
    def dataset(self) -> str:
        return f"{self.tables} x {self.rows}"

    def settings(self) -> dict[str, object]:
        return {"tables": self.tables, "rows": self.rows, "updates": self.updates, "log_tail_bytes": self.log_tail_bytes}


class Figures:
    """The rows in the order in which they were first noted; every engine notes the same ones."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.rows: dict[tuple[str, str], Row] = {}

    def note(self, engine: str, what: str, unit: str, value: float, threads: int = 1) -> None:
        fresh = Row(what, threads, self._plan.dataset, unit, less_is_better=True)
        self.rows.setdefault((what, unit), fresh).samples[engine] = [Sample(value)]
        console.print(f"  {engine}: {what}: {value:,.4g} {unit}")


def run(plan: Plan, json_file: Path | None = None, plot_file: Path | None = None) -> None:
    setup_cmd.ensure_setup()
    if not paths.plugin_path("release").exists():
        raise StrataError("ha_strata.so is not built; run ./strata build")
    figures = Figures(plan)
    for engine in plan.engines:
        with Subject(engine, plan, figures) as subject:
            subject.measure()
    report.publish(list(figures.rows.values()), plan.settings(), json_file, plot_file)


@dataclass(frozen=True)
class Counters:
    log_bytes: int
    data_bytes: int
    dirty_pages: int
    unflushed_log_bytes: int

    @staticmethod
    def read(server: Server, engine: str) -> "Counters":
        pattern = "Strata%" if engine == STRATA else "Innodb%"
        found = {name.lower(): value for name, value in server.query(f"SHOW GLOBAL STATUS LIKE '{pattern}'")}
        return Counters.of(engine, found)

    @staticmethod
    def of(engine: str, status: dict[str, str]) -> "Counters":
        def number(name: str) -> int:
            return int(status[f"{engine}_{name}".lower()])

        if engine == STRATA:
            tail = number("log_lsn") - number("log_checkpoint_lsn")
            return Counters(number("log_lsn"), number("buffer_pool_writes") * PAGE_BYTES, number("buffer_pool_dirty"), tail)
        pages = number("pages_written") + number("dblwr_pages_written")
        return Counters(number("lsn_current"), pages * PAGE_BYTES, number("buffer_pool_pages_dirty"), number("checkpoint_age"))


class Subject:
    """One engine in a server of its own, from an empty folder to the end of the measurements."""

    def __init__(self, engine: str, plan: Plan, figures: Figures) -> None:
        self._engine, self._plan, self._figures = engine, plan, figures
        self._server = Server(paths.BUILD / "bench" / "data")
        self._bench = Bench(self._server, plan.tables, plan.rows)

    def __enter__(self) -> "Subject":
        self._server.stop()
        shutil.rmtree(self._server.data, ignore_errors=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def measure(self) -> None:
        self._start(IN_MEMORY)
        self._server.query(f"CREATE DATABASE {database(self._engine)}")
        empty_bytes = self._disk_bytes_after_stop()
        self._start(IN_MEMORY)
        self._bench.load(self._engine)
        loaded_bytes = self._disk_bytes_after_stop() - empty_bytes
        self._figures.note(self._engine, "disk, after load", "MiB", loaded_bytes / MIB)
        self._workloads()
        grown_bytes = self._disk_bytes_after_stop() - empty_bytes
        self._figures.note(self._engine, "disk, after the updates", "MiB", grown_bytes / MIB)
        self._warm_up()
        self._restart_after_kill()

    # --- writes, CPU, memory, idleness -----------------------------------------------------------------------------

    def _workloads(self) -> None:
        self._start(IN_MEMORY)
        self._run(Workload.point_select, "--time=3")
        self._cost(Workload.point_select, f"--time={SHORT_RUN_S}", writes=False)
        self._note("memory, after reading", "MiB", process.resident_bytes(self._pid()) / MIB)
        self._cost(Workload.read_write, f"--time={SHORT_RUN_S}", writes=True)
        self._cost(Workload.update_index, "--time=0", f"--events={self._plan.updates}", writes=True)
        self._note("memory, after the updates", "MiB", process.resident_bytes(self._pid()) / MIB)
        self._wait_quiet()
        self._note("CPU, idle", "% of a core", self._cpu_s_during(IDLE_S) / IDLE_S * 100)

    def _cost(self, workload: Workload, *length: str, writes: bool) -> None:
        """Every run begins and ends with nothing to be written, so that it pays for all its pages and for no other's."""
        if writes:
            self._wait_clean()
        pid = self._pid()
        before, cpu_s = Counters.read(self._server, self._engine), process.cpu_s(pid)
        count = transactions(self._run(workload, *length))
        if writes:
            self._wait_clean()
        after = Counters.read(self._server, self._engine)
        threads = self._plan.threads
        self._note(f"{workload}: CPU", "us/tx", (process.cpu_s(pid) - cpu_s) * 1e6 / count, threads)
        if not writes:
            return
        self._note(f"{workload}: log", "bytes/tx", (after.log_bytes - before.log_bytes) / count, threads)
        self._note(f"{workload}: data", "bytes/tx", (after.data_bytes - before.data_bytes) / count, threads)

    def _wait_clean(self) -> None:
        """Until no page is dirty: InnoDB is told to write, STRATA does so within its checkpoint interval."""
        flush = self._engine == INNODB
        if flush:
            self._server.query("SET GLOBAL innodb_max_dirty_pages_pct = 0")
        if not wait_until(lambda: self._dirty_pages() == 0, CLEAN_TIMEOUT_S, every_s=0.5):
            console.print(f"  [yellow]{self._engine}: {self._dirty_pages()} pages still dirty after {CLEAN_TIMEOUT_S} s[/]")
        if flush:
            self._server.query("SET GLOBAL innodb_max_dirty_pages_pct = DEFAULT")

    def _dirty_pages(self) -> int:
        return Counters.read(self._server, self._engine).dirty_pages

    def _wait_quiet(self) -> None:
        """Purge and write-back are work too; an idle server is one that has none left."""
        wait_until(lambda: self._cpu_s_during(QUIET_S) < QUIET_CPU_S, CLEAN_TIMEOUT_S, every_s=0)

    def _cpu_s_during(self, seconds: float) -> float:
        cpu_s = process.cpu_s(self._pid())
        time.sleep(seconds)  # what is measured is this time
        return process.cpu_s(self._pid()) - cpu_s

    # --- warm-up ---------------------------------------------------------------------------------------------------

    def _warm_up(self) -> None:
        """A clean restart with an empty pool; the operating system may still have the files cached."""
        self._start(IN_MEMORY)
        samples: list[tuple[float, float]] = []
        ended = threading.Event()
        watch = threading.Thread(target=self._watch_questions, args=(samples, ended))
        watch.start()
        try:
            self._run(Workload.point_select, f"--time={WARM_UP_S}")
        finally:
            ended.set()
            watch.join()
        self._note("warm-up, to 90 % of steady", "s", warm_up_s(samples), self._plan.threads)
        self._server.stop()

    def _watch_questions(self, samples: list[tuple[float, float]], ended: threading.Event) -> None:
        connection = self._server.connect()
        with connection.cursor() as cursor:
            while not ended.wait(0.1):
                cursor.execute("SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'")
                samples.append((time.monotonic(), float(cursor.fetchall()[0][1])))
        connection.close()

    # --- restart after kill -9 -------------------------------------------------------------------------------------

    def _restart_after_kill(self) -> None:
        tail = self._plan.log_tail_bytes
        log_bytes = max(IN_MEMORY.log_bytes, 3 * tail)
        no_checkpoint = ["--innodb-adaptive-flushing=OFF", "--innodb-max-dirty-pages-pct=99"]
        if self._engine == STRATA:
            no_checkpoint.append("--strata-checkpoint-interval=86400")
        memory = replace(IN_MEMORY, log_bytes=log_bytes)
        self._start(memory, *no_checkpoint)
        written = self._write_tail(tail)
        before = self._sums()
        self._server.kill()
        answers_s = self._start(memory, *no_checkpoint)
        began = time.monotonic()
        self._server.query(f"UPDATE {database(self._engine)}.sbtest1 SET k = k WHERE id = 1", autocommit=True)
        self._server.query(f"UPDATE {database(self._engine)}.sbtest1 SET c = 'first' WHERE id = 1", autocommit=True)
        commits_s = answers_s + time.monotonic() - began
        if self._sums() != before:
            raise StrataError(f"{self._engine}: kill -9 lost or changed rows; the folder is {paths.relative(self._server.data)}")
        self._note("kill -9: log to replay", "MiB", written / MIB)
        self._note("kill -9: until it answers", "s", answers_s)
        self._note("kill -9: until a commit", "s", commits_s)

    def _write_tail(self, tail: int) -> int:
        """Changes rows until the log since the last checkpoint is that long."""
        ended = threading.Event()
        problems: list[str] = []
        writers = [threading.Thread(target=self._change_rows, args=(n, ended, problems)) for n in range(TAIL_WRITERS)]
        for writer in writers:
            writer.start()
        highest = 0

        def reached() -> bool:
            nonlocal highest
            now = Counters.read(self._server, self._engine).unflushed_log_bytes
            if now < highest // 2:
                problems.append(f"a checkpoint intervened after {highest // MIB} MiB of log")
            highest = max(highest, now)
            return now >= tail or bool(problems)

        try:
            if not wait_until(reached, TAIL_TIMEOUT_S, every_s=0.25):
                problems.append(f"the log grew by {highest // MIB} MiB only in {TAIL_TIMEOUT_S} s")
        finally:
            ended.set()
            for writer in writers:
                writer.join()
        if problems:
            raise StrataError(f"{self._engine}: {problems[0]}")
        return Counters.read(self._server, self._engine).unflushed_log_bytes

    def _change_rows(self, writer: int, ended: threading.Event, problems: list[str]) -> None:
        connection = self._server.connect(database=database(self._engine), autocommit=True)
        try:
            with connection.cursor() as cursor:
                first = 1
                while not ended.is_set():
                    for table in range(1 + writer, self._plan.tables + 1, TAIL_WRITERS):
                        if ended.is_set():
                            return
                        where = f"id BETWEEN {first} AND {first + TAIL_ROWS - 1}"
                        cursor.execute(f"UPDATE sbtest{table} SET k = k + 1, c = REVERSE(c) WHERE {where}")
                    first = first + TAIL_ROWS if first + TAIL_ROWS <= self._plan.rows else 1
        except Exception as error:
            problems.append(str(error))
        finally:
            connection.close()

    def _sums(self) -> list[tuple[object, ...]]:
        name = database(self._engine)
        tables = range(1, self._plan.tables + 1)
        return [row for n in tables for row in self._server.query(f"SELECT COUNT(*), SUM(k) FROM {name}.sbtest{n}")]

    # --- the server ------------------------------------------------------------------------------------------------

    def _start(self, memory: Memory, *more: str) -> float:
        self._server.stop()
        settings = Settings(port=choose_port(None, PORT), engine=self._engine)
        options = memory.options_alone(self._engine)
        if self._engine == STRATA:
            options.append(f"--strata-checkpoint-interval={CHECKPOINT_S}")
        return self._server.start(settings, extra=[*options, *more], timeout_s=START_TIMEOUT_S)

    def _pid(self) -> int:
        pid = self._server.pid()
        if pid is None:
            raise StrataError(f"the server ended; see {paths.relative(self._server.log)}")
        return pid

    def _disk_bytes_after_stop(self) -> int:
        if not self._server.stop(timeout_s=600):
            raise StrataError(f"{self._engine}: no clean stop within 600 s; see {paths.relative(self._server.log)}")
        return process.disk_bytes(*_data_files(self._server.datadir, self._engine))

    def _run(self, workload: Workload, *length: str) -> Outcome:
        return self._bench.run_for(self._engine, workload, self._plan.threads, 7200, *length)

    def _note(self, what: str, unit: str, value: float, threads: int = 1) -> None:
        self._figures.note(self._engine, what, unit, value, threads)


def _data_files(datadir: Path, engine: str) -> Sequence[Path]:
    if engine == STRATA:
        return [datadir / "#strata" / "pages"]
    return [datadir / database(engine), datadir / "ibdata1", *datadir.glob("undo*")]


def warm_up_s(samples: Sequence[tuple[float, float]], window: int = 5) -> float:
    """From the first query until the rate over `window` samples reaches 90 % of that of the second half of the run."""
    moving = [index for index in range(1, len(samples)) if samples[index][1] > samples[index - 1][1] + 1]
    if len(moving) < 4 * window:
        raise StrataError("too few samples to see a warm-up")
    run = samples[moving[0] - 1 : moving[-1] + 1]
    rates = [
        (later[0], (later[1] - sooner[1]) / (later[0] - sooner[0])) for sooner, later in zip(run, run[window:], strict=False)
    ]
    steady = median(rate for _, rate in rates[len(rates) // 2 :])
    reached = next(at for at, rate in rates if rate >= 0.9 * steady)
    return reached - run[0][0]
