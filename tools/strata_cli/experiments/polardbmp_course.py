"""Measuring the plans of polardbmp.py on one cluster, which is kept for all repeats. They go through the setups in turns, every
second time the other way round."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import pymysql

from .. import compute_servers, paths, setup_cmd
from ..bench import same_figures
from ..bench.results import commit
from ..bench.servers import MIB, alone, machine
from ..server import Server
from ..shell import StrataError, console
from ..waiting import wait_until
from .courses import COMMIT_LIMIT_S, LOOK_S, Background, not_void, possible, undisturbed, warm_up_s
from .polardbmp import (
    BEHIND,
    GALERA,
    GROWTH,
    INDEXES,
    RECOVERY,
    SURVIVOR,
    SYSTEMS,
    TPCC,
    VICTIM,
    Plan,
    Result,
    Run,
    Setup,
    summed,
    survivor_share,
)
from .polardbmp_cluster import Primaries
from .polardbmp_galera import Replicas
from .polardbmp_servers import Measured, Servers

FOLDER = paths.BUILD / "bench" / "polardbmp"
WARM_UP_S = 3
HELD, FREE = 1, 2  # rows of the table of witnesses
END_S = 30.0  # for a thread that waits for a row, beyond its limit


def run(plan: Plan, repeats: int, lock: Path | None, keep: Callable[[Result], None]) -> Result:
    setup_cmd.ensure_setup()
    plan, notes = possible(plan, FOLDER.with_name("polardbmp-dilation"))
    with alone(FOLDER.parent / "lock"):
        primaries = Primaries(plan, FOLDER, 1 if plan.kind == GROWTH else plan.most_servers)
        replicas: Replicas | None = None
        try:
            result = _begun(primaries, plan, notes, lock)
            if plan.kind == SYSTEMS:
                replicas = Replicas(plan, FOLDER.with_name("polardbmp-galera"), primaries.emulation)
            for number in range(repeats):
                _all_setups(primaries, replicas, result, number % 2 == 1, lock)
                keep(result)
        except BaseException:
            primaries.stop()
            logs = [part.log for part in (*primaries.cluster.parts().values(), *(replicas.serving() if replicas else ()))]
            console.print("logs:", ", ".join(map(paths.relative, logs)))
            raise
        finally:
            if replicas:
                replicas.end()
        primaries.end()
        return result


def _all_setups(primaries: Primaries, replicas: Replicas | None, result: Result, backwards: bool, lock: Path | None) -> None:
    """Once. What our own mixes leave is checked behind all of them: to look at every row makes it shared by all servers, which
    the next run would have to undo."""
    plan = result.plan
    for setup in reversed(plan.setups) if backwards else plan.setups:
        with undisturbed(lock):
            if replicas is not None and setup.system == GALERA:
                measured = one_of_galera(replicas, plan, setup)
            else:
                measured = one_run(primaries, plan, setup)
        result.runs.append(measured)
        console.print(f"  {setup.label}: {measured.tps:,.1f} {plan.unit}{_shown(measured)}", markup=False)
    if plan.is_own_mix:
        primaries.use(plan.most_servers)
        primaries.check()
        console.print(f"  checked: {primaries.checked()}", markup=False)


def _begun(primaries: Primaries, plan: Plan, notes: list[str], lock: Path | None) -> Result:
    with undisturbed(lock):
        console.print("starting and loading servers ...")
        primaries.start()
        primaries.load()
    result = Result(plan, primaries.data_bytes(), [], [commit()], machine(), notes)
    console.print(f"  {result.data_bytes / MIB:,.0f} MiB of data")
    if plan.wish().dilated:
        result.same_figures = same_figures.last_deviation()
        with undisturbed(lock):
            primaries.begin_dilation()
    return result


def _shown(run: Run) -> str:
    said = [f"{name} {value:,.2f}" for name, value in (run.marks or {}).items()]
    said += [f"VOID: {run.void}"] if run.void else []
    return "".join(f", {each}" for each in said)


def one_of_galera(replicas: Replicas, plan: Plan, setup: Setup) -> Run:
    replicas.use(setup.servers)
    return not_void(lambda: scaled(replicas, plan, setup))


def one_run(primaries: Primaries, plan: Plan, setup: Setup) -> Run:
    if plan.kind in (RECOVERY, GROWTH):
        with primaries.watched() as machine:
            run = (struck if plan.kind == RECOVERY else grown)(primaries, plan, setup)
        run.costs, run.void = machine()
        return run
    primaries.use(setup.servers)
    measure = with_indexes if plan.kind == INDEXES else scaled
    return not_void(lambda: measure(primaries, plan, setup))


# --- runs of one setup after another -------------------------------------------------------------------------------


def scaled(servers: Servers, plan: Plan, setup: Setup) -> Run:
    found = _warm_measured(servers, setup, setup.servers * plan.threads, plan.seconds)
    run = Run(setup.label, found.rate, found.percentile_ms, None, found.costs, void=found.void)
    return replace(run, p99_ms=None, p95_ms=found.percentile_ms) if TPCC in plan.loads else run


def with_indexes(primaries: Primaries, plan: Plan, setup: Setup) -> Run:
    """Many clients on all servers, then one client of one of them."""
    primaries.make_wide(setup.indexes)
    many = _warm_measured(primaries, setup, setup.servers * plan.threads, plan.seconds)
    one = _warm_measured(primaries, setup, 1, plan.seconds)
    return Run(setup.label, many.rate, many.percentile_ms, one.mean_ms, many.costs, void=many.void or one.void)


def _warm_measured(of: Servers, setup: Setup, threads: int, seconds: int) -> Measured:
    servers = of.serving()
    of.run(setup.load, setup.shared, servers, threads, WARM_UP_S)
    of.wait_until_quiet()
    return of.measure(setup.load, setup.shared, servers, threads, seconds)


# --- a kill --------------------------------------------------------------------------------------------------------


def struck(primaries: Primaries, plan: Plan, setup: Setup) -> Run:
    """kill -9 of the first of two servers, which holds a row that a client of the other one then waits for."""
    primaries.use(2)
    seconds, whole = plan.seconds, (1 + BEHIND) * plan.seconds
    for name in (VICTIM, SURVIVOR):
        primaries.run(setup.load, setup.shared, [primaries.named(name)], plan.threads, WARM_UP_S)
    primaries.wait_until_quiet()
    loads = {
        name: Background(partial(primaries.go_on, name, setup.load, setup.shared, plan.threads, whole))
        for name in (VICTIM, SURVIVOR)
    }
    victim, survivor = primaries.named(VICTIM), primaries.named(SURVIVOR)
    loads[VICTIM].wait(seconds - 1)
    holder = _hold(victim)
    loads[VICTIM].wait(1)
    killed = time.monotonic()
    victim.kill()
    holder.close()
    taken_over = Moment(survivor, HELD)
    marks = {"killed_s": float(seconds)}
    if setup.restarts:
        primaries.launch(VICTIM)
        marks["back_s"] = first_commit(victim) - killed
    marks["takeover_s"] = taken_over.when() - killed
    series = {name: load.series() for name, load in loads.items()}
    if setup.restarts:
        before = median(series[VICTIM][seconds // 4 : seconds - 1] or [0.0])
        marks["warm_up_s"] = warm_up_s(series[VICTIM], before, seconds + marks["back_s"])
    else:
        primaries.use(2)  # For the next one.
    away_s = marks["back_s"] if setup.restarts else marks["takeover_s"]
    marks["survivor_share"] = survivor_share(series[SURVIVOR], seconds, away_s)
    return Run(setup.label, median(summed(series)[:seconds] or [0.0]), series=series, marks=marks)


def _hold(server: Server) -> "pymysql.connections.Connection[Any]":
    """A transaction that is open until its server is gone."""
    connection = server.connect()
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"UPDATE test.witness SET n = n + 1000 WHERE id = {HELD}")
    return connection


class Moment:
    """When a server commits on a row, which a client of its own waits for."""

    def __init__(self, server: Server, row: int) -> None:
        self._at: float | None = None
        self._thread = threading.Thread(target=self._wait, args=(server, row), daemon=True)
        self._thread.start()

    def _wait(self, server: Server, row: int) -> None:
        ends = time.monotonic() + COMMIT_LIMIT_S
        while self._at is None and time.monotonic() < ends:
            if commits(server, row):
                self._at = time.monotonic()

    def when(self) -> float:
        self._thread.join(COMMIT_LIMIT_S + END_S)
        if self._at is None:
            raise StrataError(f"nobody took over what a killed server held within {COMMIT_LIMIT_S:.0f} s")
        return self._at


def commits(server: Server, row: int) -> bool:
    """Waits for the row as long as a statement does."""
    try:
        server.query(f"UPDATE test.witness SET n = n + 1 WHERE id = {row}", autocommit=True)
    except (pymysql.MySQLError, OSError):
        return False
    return True


def first_commit(server: Server) -> float:
    """When it commits, from its start on."""

    def done() -> bool:
        if end := server.ended():
            raise StrataError(f"mariadbd ended while starting ({end}):\n{server.log_tail()}")
        return commits(server, FREE)

    if not wait_until(done, COMMIT_LIMIT_S, LOOK_S):
        raise StrataError(f"no commit within {COMMIT_LIMIT_S:.0f} s of the start:\n{server.log_tail()}")
    return time.monotonic()


# --- servers that are added ----------------------------------------------------------------------------------------


def grown(primaries: Primaries, plan: Plan, setup: Setup) -> Run:
    """A server more, with its clients, each time that so many seconds are over."""
    slower, whole = plan.dilation, plan.seconds * setup.servers
    first = primaries.first().name
    primaries.run(setup.load, setup.shared, [primaries.first()], plan.threads, WARM_UP_S)
    primaries.wait_until_quiet()
    loads: dict[str, tuple[int, Background]] = {}
    marks: dict[str, float] = {}
    began = time.monotonic()

    def now_s() -> float:
        return (time.monotonic() - began) / slower

    def begin(name: str) -> None:
        at = round(now_s())
        of_name = partial(primaries.go_on, name, setup.load, setup.shared, plan.threads, whole - at)
        loads[name] = at, Background(of_name)

    begin(first)
    for number in range(2, setup.servers + 1):
        loads[first][1].wait(max(0.0, (number - 1) * plan.seconds - now_s()) * slower)
        marks[f"added_{number}_s"] = now_s()
        added = compute_servers.add(primaries.cluster, None, None)
        marks[f"start_{number}_s"] = added.seconds / slower
        begin(added.node)
    series = {name: [0.0] * at + load.series() for name, (at, load) in loads.items()}
    for name in list(loads)[1:]:
        compute_servers.remove(primaries.cluster, name, True, lambda _: None)
    totals = summed(series)
    marks |= phases(totals, plan.seconds, setup.servers)
    return Run(setup.label, median(totals), series=series, marks=marks)


def phases(totals: list[float], seconds: int, servers: int) -> dict[str, float]:
    """The rate with each number of servers, of the second half of its time."""
    ends = {number: number * seconds for number in range(1, servers + 1)}
    return {f"phase_{number}_tps": mean(totals[end - (seconds + 1) // 2 : end] or [0.0]) for number, end in ends.items()}
