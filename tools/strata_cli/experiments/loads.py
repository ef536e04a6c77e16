"""The loads of the experiments on memory nodes: how each is prepared in a database, and what it says when it has run."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from .. import paths
from ..bench import sysbench, tpcc, tpch
from ..bench.comparison import INNODB, STRATA
from ..bench.servers import database
from ..bench.sysbench import UNIFORM, Bench, Workload
from ..server import Server
from ..shell import Outcome, StrataError
from .courses import EVERY_SECOND
from .legobase import PRODUCTION, TPCC, TPCH, Plan

LIMIT_S = 300.0  # beyond the time of a run
PRODUCTION_SCRIPT = paths.ROOT / "bench" / "sysbench" / "production.lua"
QUERY_LIMIT_S = 300.0


@dataclass
class Target:
    """A database as its clients see it."""

    server: Server
    socket_of: Server  # whose socket leads to the server, whichever it is now
    environment: Mapping[str, str]  # of the clients
    slower: float  # so many times, as they see it
    pages_read: Callable[[], int]  # from beyond the local pool, so far


@dataclass
class Measured:
    rate: float
    p99_ms: float | None = None
    queries: dict[str, float] | None = None
    gets: dict[str, float] | None = None


class Load:
    unit = "transactions/s"

    def prepare(self, target: Target) -> None:
        raise NotImplementedError

    def run(self, target: Target, threads: int, seconds: int) -> Measured:
        raise NotImplementedError

    def run_each_second(self, target: Target, threads: int, seconds: int) -> tuple[Path, bool]:
        """Returns where it says what it did each second, and whether it kept its server until its end."""
        raise StrataError("this load says nothing of each second")


class Sysbench(Load):
    """Its read_write, or the mix of a production load, rows chosen evenly."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._script = PRODUCTION_SCRIPT if plan.load == PRODUCTION else None

    def _bench(self, target: Target) -> Bench:
        bench = Bench(target.socket_of, self._plan.tables, self._plan.rows)
        bench.environment = target.environment
        return bench

    def prepare(self, target: Target) -> None:
        self._bench(target).load(STRATA)

    def _run(self, target: Target, threads: int, limit_s: float, *more: str) -> Outcome:
        bench, wanted = self._bench(target), (UNIFORM, *more)
        if self._script is not None:
            return bench.run_script(STRATA, self._script, threads, limit_s * target.slower, *wanted)
        return bench.run_for(STRATA, Workload.read_write, threads, limit_s * target.slower, *wanted)

    def run(self, target: Target, threads: int, seconds: int) -> Measured:
        sample = sysbench.parse(self._run(target, threads, seconds + LIMIT_S, f"--time={seconds}"))
        return Measured(sample.value, sample.p99_ms)

    def run_each_second(self, target: Target, threads: int, seconds: int) -> tuple[Path, bool]:
        log = sysbench.log_of(self._script or f"oltp_{Workload.read_write}", "run", STRATA)
        log.unlink(missing_ok=True)
        try:
            self._run(target, threads, seconds + 60, f"--time={seconds}", EVERY_SECOND)
        except StrataError:
            if not log.exists():
                raise
            return log, False
        return log, True


class Tpcc(Load):
    unit = "new orders/min"

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def _driver(self, target: Target) -> tpcc.Driver:
        plan = tpcc.Plan(
            engines=(STRATA,), warehouses=self._plan.warehouses, threads=self._plan.threads, seconds=self._plan.seconds
        )
        return tpcc.Driver(target.server, plan)

    def prepare(self, target: Target) -> None:
        tpcc.build_driver()
        target.server.query(f"CREATE USER IF NOT EXISTS {tpcc.USER}@'127.0.0.1'")
        target.server.query(f"GRANT ALL ON *.* TO {tpcc.USER}@'127.0.0.1'")
        self._driver(target).run(STRATA, 7200, "prepare", "--no-check")

    def run(self, target: Target, threads: int, seconds: int) -> Measured:
        sample = self._driver(target).measure(STRATA, seconds)
        return Measured(sample.value, sample.p99_ms)


class Tpch(Load):
    """Each query, one after the other. Answers must be those that InnoDB gives of the same data, in the first database
    that is prepared."""

    unit = "queries/s"

    def __init__(self, plan: Plan) -> None:
        self._plan = tpch.Plan(engines=(STRATA,), scale=plan.scale, limit_s=QUERY_LIMIT_S)
        self._expected: dict[int, tpch.Rows] = {}

    def _bench(self, target: Target, *engines: str) -> tpch.Bench:
        return tpch.Bench(target.server, replace(self._plan, engines=engines), tpch.generated(self._plan.scale))

    def prepare(self, target: Target) -> None:
        bench = self._bench(target, STRATA)
        if not self._expected:
            self._ask_innodb(target)
        bench.load(STRATA)
        bench.analyze(STRATA)

    def _ask_innodb(self, target: Target) -> None:
        name, bench = database(INNODB), self._bench(target, INNODB)
        target.server.query(f"CREATE DATABASE IF NOT EXISTS {name}")
        bench.load(INNODB)
        bench.analyze(INNODB)
        for number in self._plan.queries:
            self._expected[number], _ = _answer(bench, INNODB, number)
        target.server.query(f"DROP DATABASE {name}")

    def run(self, target: Target, threads: int, seconds: int) -> Measured:
        """All of them, again and again until the time is over; medians."""
        bench, began = self._bench(target, STRATA), time.monotonic()
        took: dict[str, list[float]] = {}
        gets: dict[str, list[float]] = {}
        while not took or time.monotonic() - began < seconds:
            for number in self._plan.queries:
                before = target.pages_read()
                rows, took_s = _answer(bench, STRATA, number)
                if rows != self._expected[number]:
                    raise StrataError(f"Q{number}: another answer than InnoDB's")
                took.setdefault(f"Q{number}", []).append(took_s)
                gets.setdefault(f"Q{number}", []).append(target.pages_read() - before)
        queries = {name: median(each) for name, each in took.items()}
        reads = {name: float(median(each)) for name, each in gets.items()}
        return Measured(len(queries) / sum(queries.values()), queries=queries, gets=reads)


def _answer(bench: tpch.Bench, engine: str, number: int) -> tuple[tpch.Rows, float]:
    rows, took_s = bench.ask(engine, number)
    if rows is None:
        raise StrataError(f"Q{number} took more than {QUERY_LIMIT_S:.0f} s in {engine}")
    return rows, took_s


def load_of(plan: Plan) -> Load:
    made: dict[str, Callable[[Plan], Any]] = {TPCC: Tpcc, TPCH: Tpch}
    found: Load = made.get(plan.load, Sysbench)(plan)
    return found
