"""Measuring the plans of legobase.py: clusters and servers with the same data, restarted with each local share, loaded, struck
and moved.

Each kind of profile keeps its database for the whole run. Repeats go through the setups in turns, every second time the other way
round.
"""

import math
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pymysql

from .. import compute_move, paths, setup_cmd
from ..bench import process, tpcc
from ..bench.comparison import STRATA
from ..bench.results import commit
from ..bench.servers import MIB, alone, database, machine
from ..bench.sysbench import UNIFORM, Bench, Workload, parse
from ..cluster import FIRST_COMPUTE, Cluster, Wishes
from ..server import Server, Settings, choose_port
from ..shell import StrataError, console
from ..waiting import wait_until
from .ladder import LEAST_POOL, LOAD_POOL, undisturbed
from .legobase import OWN, POOLED, TPCC, Phase, Plan, Result, Run, Setup, profile_of

WARM_UP_S = 5
QUIET_S = 60.0
COMMIT_LIMIT_S = 300.0
LOOK_S = 0.01
BEHIND = 3  # times as long behind a crash as before it
SAME_RATE = 0.9
SAME_RATE_S = 3  # For so long, to count.
STEP_S = 1.0  # between cores taken away, in place
STEPS = 6
PORT = 23_706
EVERY_SECOND = "--report-interval=1"
SYSBENCH_LOG = paths.LOGS / f"bench-oltp_{Workload.read_write}-run-{STRATA}.log"
EACH_SECOND = re.compile(r"^\[ \d+s \] thds: \d+ tps: ([\d.]+)", re.MULTILINE)


def run(plan: Plan, repeats: int, lock: Path | None, keep: Callable[[Result], None]) -> Result:
    setup_cmd.ensure_setup()
    with _deployments(plan) as found:
        for deployment in found.values():
            with undisturbed(lock):
                console.print(f"loading {deployment.profile} ...")
                deployment.load()
        result = Result(plan, next(iter(found.values())).data_bytes(), [], [commit()], machine())
        for number in range(repeats):
            for setup in plan.setups if number % 2 == 0 else reversed(plan.setups):
                with undisturbed(lock):
                    measured = _measure(found[setup.kind], plan, setup, result.data_bytes)
                result.runs.append(measured)
                console.print(f"  {setup.label}: {measured.tps:,.0f}/s {_shown(measured)}", markup=False)
            keep(result)
        return result


def _shown(run: Run) -> str:
    return ", ".join(f"{name} {value:,.2f}" for name, value in (run.marks or {}).items())


def _measure(deployment: "Deployment", plan: Plan, setup: Setup, data_bytes: int) -> Run:
    deployment.restart(max(LEAST_POOL, int(setup.share * data_bytes / MIB) * MIB), setup.options)
    deployment.warm_up(WARM_UP_S)
    process.wait_until_quiet(deployment.cpu_s, QUIET_S)
    if plan.phases:
        return phased(deployment, plan, setup)
    if plan.crashes:
        return crashed(deployment, plan, setup)
    tps, p99_ms = deployment.measure(plan.seconds)
    return Run(setup.label, tps, p99_ms)


# --- a crash -------------------------------------------------------------------------------------------------------


def crashed(deployment: "Deployment", plan: Plan, setup: Setup) -> Run:
    load = _Background(partial(deployment.go_on, plan.threads, (1 + BEHIND) * plan.seconds))
    load.wait(plan.seconds)
    until_commit_s = deployment.crash(setup.loses_memory)
    series = load.series()
    half = plan.seconds // 2
    before = median(series[half : max(half + 1, plan.seconds - 1)] or [0.0])
    back = plan.seconds + until_commit_s
    marks = {"crash_s": float(plan.seconds), "until_commit_s": until_commit_s, "warm_up_s": warm_up_s(series, before, back)}
    return Run(setup.label, before, series=series, marks=marks)


def warm_up_s(series: list[float], before: float, back_s: float) -> float:
    """From the first commit until the rate is nearly what it was, for some seconds; as long as was looked if it never is."""
    begin = int(back_s)
    for second in range(begin, len(series) - SAME_RATE_S + 1):
        if all(rate >= SAME_RATE * before for rate in series[second : second + SAME_RATE_S]):
            return max(0.0, second - back_s)
    return max(0.0, len(series) - back_s)


def each_second(log: Path) -> list[float]:
    return [float(rate) for rate in EACH_SECOND.findall(log.read_text())]


def series_of(run: Callable[[int], Path], seconds: int) -> list[float]:
    """Of a load that ends when it loses its server, and is started again until its time is over: no transaction in between.

    `run`: for at most so many seconds; returns what it said, of each second."""
    series, began = [0.0] * seconds, time.monotonic()
    while (left := seconds - (time.monotonic() - began)) >= 1:
        second = seconds - math.ceil(left)
        for rate in each_second(run(int(left))):
            if second < seconds:
                series[second] = rate
            second += 1
    return series[: seconds - 1]  # sysbench seldom says anything of its last one.


class _Background:
    """A load that goes on while something is done to its server."""

    def __init__(self, load: Callable[[], list[float]]) -> None:
        self._series: list[float] | None = None
        self._error: StrataError | None = None
        self._thread = threading.Thread(target=self._run, args=(load,), daemon=True)
        self._thread.start()

    def _run(self, load: Callable[[], list[float]]) -> None:
        try:
            self._series = load()
        except StrataError as error:
            self._error = error

    def wait(self, seconds: float) -> None:
        self._thread.join(seconds)
        if not self._thread.is_alive():
            raise self._error or StrataError("the load ended before its time")

    def series(self) -> list[float]:
        self._thread.join()
        if self._series is None:
            raise self._error or StrataError("the load did not end well")
        return self._series


# --- moves ---------------------------------------------------------------------------------------------------------


def phased(deployment: "Deployment", plan: Plan, setup: Setup) -> Run:
    """Each phase begins with its load; the compute node follows a quarter later, as somebody who watches it would do."""
    there = process_cores()
    series: list[float] = []
    marks: dict[str, float] = {}
    used, before = 0.0, plan.phases[0]
    deployment.use_cores(before.cores * there)
    for number, phase in enumerate(plan.phases, 1):
        load = _Background(partial(deployment.go_on, phase.threads, plan.seconds))
        delay = plan.seconds / 4
        if phase.cores != before.cores:
            load.wait(delay)
            used += delay * before.cores * there
            used += _follow(deployment, phase, before, number, marks) * there
            used += (plan.seconds - delay - marks[f"change_{number}_s"]) * phase.cores * there
        else:
            used += plan.seconds * phase.cores * there
        of_phase = load.series()
        marks[f"phase_{number}_tps"] = median(of_phase[len(of_phase) // 2 :] or [0.0])
        series += of_phase
        before = phase
    most = max(phase.cores for phase in plan.phases) * there * plan.seconds * len(plan.phases)
    marks |= {"core_seconds": used, "saved": 1 - used / most}
    return Run(setup.label, median(series or [0.0]), series=series, marks=marks)


def _follow(deployment: "Deployment", phase: Phase, before: Phase, number: int, marks: dict[str, float]) -> float:
    """Returns what it took meanwhile: seconds, times the share of the cores it had."""
    began, there, took = time.monotonic(), process_cores(), 0.0
    if phase.moves:
        marks[f"gap_{number}_s"] = deployment.move(phase.cores * there)
        took = (time.monotonic() - began) * phase.cores
    else:
        for step in range(1, STEPS + 1):
            cores = before.cores + (phase.cores - before.cores) * step / STEPS
            deployment.use_cores(cores * there)
            threading.Event().wait(STEP_S)
            took += STEP_S * cores
    marks[f"change_{number}_s"] = time.monotonic() - began
    return took


def process_cores() -> int:
    return int(str(machine()["cores"]))


# --- the databases -------------------------------------------------------------------------------------------------


@contextmanager
def _deployments(plan: Plan) -> Iterator[dict[str, "Deployment"]]:
    folder = paths.BUILD / "bench" / "legobase"
    with alone(folder.parent / "lock"), ExitStack() as stack:
        found: dict[str, Deployment] = {}
        for kind in dict.fromkeys(setup.kind for setup in plan.setups):
            profile = profile_of(kind)
            console.print(f"starting {profile} ...")
            deployment = (ServerAlone if kind == OWN else WholeCluster)(plan, profile, folder / kind)
            stack.callback(deployment.end)
            deployment.start()
            found[kind] = deployment
        yield found


class Deployment:
    """A database of one profile with all its processes."""

    def __init__(self, plan: Plan, profile: str, folder: Path) -> None:
        self.profile = profile
        self._plan = plan
        self._folder = folder

    # What differs between a server and a cluster.

    def server(self) -> Server:
        raise NotImplementedError

    def start(self) -> None:
        raise NotImplementedError

    def restart(self, pool_bytes: int, options: tuple[str, ...]) -> None:
        raise NotImplementedError

    def launch_again(self, loses_memory: bool) -> None:
        """After kill -9, at once."""
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError

    def cpu_s(self) -> float:
        raise NotImplementedError

    def use_cores(self, cores: float) -> None:
        raise StrataError(f"{self.profile} does not change its cores")

    def move(self, cores: float) -> float:
        raise StrataError(f"{self.profile} does not move")

    # What does not.

    def _options(self, pool_bytes: int, options: tuple[str, ...] = ()) -> tuple[str, ...]:
        usual = (f"--strata-buffer-pool-size={pool_bytes}", f"--strata-link={self._plan.link}")
        return (*usual, "--max-connections=500", "--performance-schema=OFF", *options)

    def _bench(self) -> Bench:
        return Bench(self.server(), self._plan.tables, self._plan.rows)

    def _driver(self) -> tpcc.Driver:
        plan = tpcc.Plan(
            engines=(STRATA,), warehouses=self._plan.warehouses, threads=self._plan.threads, seconds=self._plan.seconds
        )
        return tpcc.Driver(self.server(), plan)

    def _query(self, text: str) -> list[tuple[Any, ...]]:
        return self.server().query(text)

    def load(self) -> None:
        self._query(f"CREATE DATABASE IF NOT EXISTS {database(STRATA)}")
        self._query("CREATE TABLE IF NOT EXISTS test.witness (id INT PRIMARY KEY, n BIGINT NOT NULL) ENGINE=STRATA")
        self.server().query("REPLACE INTO test.witness VALUES (1, 0)", autocommit=True)
        if self._plan.load == TPCC:
            tpcc.build_driver()
            self._query(f"CREATE USER IF NOT EXISTS {tpcc.USER}@'127.0.0.1'")
            self._query(f"GRANT ALL ON *.* TO {tpcc.USER}@'127.0.0.1'")
            self._driver().run(STRATA, 7200, "prepare", "--no-check")
        else:
            self._bench().load(STRATA)

    def data_bytes(self) -> int:
        rows = self._query(
            f"SELECT SUM(data_length + index_length) FROM information_schema.tables WHERE table_schema = '{database(STRATA)}'"
        )
        return int(rows[0][0])

    def warm_up(self, seconds: int) -> None:
        self.measure(seconds)

    def measure(self, seconds: int) -> tuple[float, float | None]:
        plan = self._plan
        if plan.load == TPCC:
            sample = self._driver().measure(STRATA, seconds)
        else:
            outcome = self._bench().run_for(
                STRATA, Workload.read_write, plan.threads, seconds + 300, f"--time={seconds}", UNIFORM
            )
            sample = parse(outcome)
        return sample.value, sample.p99_ms

    def go_on(self, threads: int, seconds: int) -> list[float]:
        """A load that outlives its server: what it does each second."""

        def run(left: int) -> Path:
            try:
                self._bench().run_for(STRATA, Workload.read_write, threads, left + 60, f"--time={left}", UNIFORM, EVERY_SECOND)
            except StrataError:  # It has lost its server.
                wait_until(self._is_there, left, LOOK_S)
            return SYSBENCH_LOG

        return series_of(run, seconds)

    def _is_there(self) -> bool:
        try:
            self.server().connect(connect_timeout=1).close()
        except pymysql.MySQLError:
            return False
        return True

    def crash(self, loses_memory: bool) -> float:
        """Returns the seconds until it commits again."""
        self.server().kill()
        began = time.monotonic()
        self.launch_again(loses_memory)
        if not wait_until(self._commits, COMMIT_LIMIT_S, LOOK_S):
            raise StrataError(f"no commit within {COMMIT_LIMIT_S:.0f} s of the start:\n{self.server().log_tail()}")
        return time.monotonic() - began

    def _commits(self) -> bool:
        if end := self.server().ended():
            raise StrataError(f"mariadbd ended while starting ({end}):\n{self.server().log_tail()}")
        try:
            self.server().query("UPDATE test.witness SET n = n + 1 WHERE id = 1", autocommit=True)
        except pymysql.MySQLError:
            return False
        return True


class ServerAlone(Deployment):
    def __init__(self, plan: Plan, profile: str, folder: Path) -> None:
        super().__init__(plan, profile, folder)
        self._server = Server(folder)
        self._settings = Settings(port=choose_port(None, PORT), engine=STRATA)
        self._extra: tuple[str, ...] = self._options(LOAD_POOL)

    def server(self) -> Server:
        return self._server

    def start(self) -> None:
        self.end()
        self._server.start(self._settings, extra=self._extra)
        self._query("CREATE DATABASE IF NOT EXISTS test")

    def restart(self, pool_bytes: int, options: tuple[str, ...]) -> None:
        self._server.stop()
        self._extra = self._options(pool_bytes, options)
        self._server.start(self._settings, extra=self._extra)

    def launch_again(self, loses_memory: bool) -> None:
        self._server.launch(self._settings, extra=self._extra)

    def end(self) -> None:
        self._server.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def cpu_s(self) -> float:
        pid = self._server.pid()
        return process.cpu_s(pid) if pid is not None else 0.0


class WholeCluster(Deployment):
    def __init__(self, plan: Plan, profile: str, folder: Path) -> None:
        super().__init__(plan, profile, folder)
        self._cluster = Cluster(folder)
        self._cluster.lease_s = 2  # Of a killed server; its start waits for the end of it otherwise.

    def server(self) -> Server:
        return self._cluster.computes[self._cluster.serving_compute() or FIRST_COMPUTE]

    def _bench(self) -> Bench:
        """Over the cluster's socket, which stays when the compute node moves."""
        return Bench(self._cluster.computes[FIRST_COMPUTE], self._plan.tables, self._plan.rows)

    def start(self) -> None:
        self.end()
        self._cluster = Cluster(self._folder)
        self._cluster.lease_s = 2
        self._cluster.compute_options = self._options(LOAD_POOL)
        wishes = Wishes(memory=self._plan.memory) if self._pooled() else None
        self._cluster.start(self.profile, wishes=wishes)

    def _pooled(self) -> bool:
        return any(profile_of(setup.kind) == self.profile and setup.kind == POOLED for setup in self._plan.setups)

    def restart(self, pool_bytes: int, options: tuple[str, ...]) -> None:
        serving = self._cluster.serving_compute()
        if serving is not None:
            self._cluster.stop_part(serving)
        self._cluster.compute_options = self._options(pool_bytes, options)
        self._cluster.start_part(FIRST_COMPUTE)

    def launch_again(self, loses_memory: bool) -> None:
        if loses_memory:
            for node in self._cluster.memory.values():
                node.kill()
                node.wipe_pools()
                node.launch()
            for node in self._cluster.memory.values():
                node.wait_ready()
        server = self._cluster.computes[FIRST_COMPUTE]
        server.launch(self._cluster.compute_settings(FIRST_COMPUTE, server.settings().port))

    def use_cores(self, cores: float) -> None:
        pid = self.server().pid()
        if pid is not None:
            self.server().use_cores(pid, cores)
        self._cluster.set_compute(None, cores)

    def move(self, cores: float) -> float:
        return compute_move.move(self._cluster, None, None, Wishes(cores=cores), lambda _: None).gap_s

    def end(self) -> None:
        self._cluster.stop()
        if self._cluster.exists() and not self._cluster.running():
            self._cluster.wipe()

    def cpu_s(self) -> float:
        parts = self._cluster.parts().values()
        return sum(process.cpu_s(pid) for part in parts if (pid := part.pid()) is not None)
