"""Does slower time give the same figures? One server on one core, under several factors, which must agree with the undilated one.

`monolithic`, sysbench's read_only and write_only, one client and several: rate, mean latency, CPU time and log bytes of a
transaction. Undilated, server and sysbench have a real core each; dilated, a virtual one. It is for a quiet machine: run before a
series of experiments, whose results then carry the largest deviation.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from .. import dilation, paths, setup_cmd
from ..dilation import CLIENT, Emulation, Wish
from ..server import START_TIMEOUT_S, Server, Settings, choose_port
from ..shell import Outcome, StrataError, console
from . import process, results
from .comparison import STRATA
from .servers import MIB, PORT, Memory, alone, database, machine
from .sysbench import UNIFORM, Bench, Workload, parse, transactions

FILE = paths.BUILD / "experiments" / "same-figures.json"
SERVER = "server"
DEVIATION_MAX = 0.05
OTHERS_MAX = 0.1  # cores that other programs may use while it is not dilated


@dataclass(frozen=True)
class Plan:
    factors: tuple[float, ...] = (1.0, 4.0, 8.0)
    threads: tuple[int, ...] = (1, 8)
    seconds: int = 10
    tables: int = 4
    rows: int = 20_000


@dataclass(frozen=True)
class Figures:
    factor: float
    workload: str
    threads: int
    rate: float
    latency_ms: float
    cpu_us: float  # of a transaction
    log_bytes: float  # of a transaction
    void: str = ""


MEASURES = ("rate", "latency_ms", "cpu_us", "log_bytes")


def deviations(rows: list[Figures]) -> dict[tuple[float, str, int, str], float]:
    """From the figures of the smallest factor, as a share of them."""
    found = {}
    least = min((row.factor for row in rows), default=1.0)
    base = {(row.workload, row.threads): row for row in rows if row.factor == least}
    for row in rows:
        if row.factor == least:
            continue
        for measure in MEASURES:
            before, now = getattr(base[row.workload, row.threads], measure), getattr(row, measure)
            found[row.factor, row.workload, row.threads, measure] = now / before - 1 if before else 0.0
    return found


def worst(rows: list[Figures]) -> float:
    return max((abs(share) for share in deviations(rows).values()), default=0.0)


def run(plan: Plan, json_file: Path = FILE) -> float:
    setup_cmd.ensure_setup()
    rows = list(_rows(plan))
    content = results.measured([asdict(row) for row in rows], asdict(plan), machine())
    results.put({**content, "deviation_max": worst(rows), "void_runs": sum(bool(row.void) for row in rows)}, json_file)
    for (factor, workload, threads, measure), share in deviations(rows).items():
        if abs(share) > DEVIATION_MAX:
            console.print(f"  {workload}, {threads} clients, {factor:g} times slower: {measure} differs by {share:+.1%}")
    console.print(f"largest deviation: {worst(rows):.1%} ({paths.relative(json_file.resolve())})")
    return worst(rows)


def last_deviation() -> float | None:
    """Of the last time that it was asked on this machine."""
    try:
        said = json.loads(FILE.read_text())
        return float(said["deviation_max"]) if said["machine"] == machine() and not said["void_runs"] else None
    except (OSError, ValueError, KeyError):
        return None


def _rows(plan: Plan) -> Iterator[Figures]:
    with _loaded_server(plan) as (server, bench):
        for factor in plan.factors:
            emulation = Emulation(Wish(factor, ((CLIENT, 1), ("compute", 1))), server.data.parent / "emulated")
            _restart(server, emulation)
            bench.environment = emulation.environment(CLIENT, CLIENT)
            with _pinned(0 if factor > 1 else 1):
                for workload in (Workload.read_only, Workload.write_only):
                    for threads in plan.threads:
                        row = _measure(server, bench, emulation, plan, workload, threads)
                        console.print(f"  {_line(row)}")
                        yield row


def _line(row: Figures) -> str:
    said = f"{row.rate:,.0f}/s, {row.latency_ms:.2f} ms, CPU {row.cpu_us:,.0f} us, log {row.log_bytes:,.0f} bytes"
    return (
        f"{row.factor:g} times slower, {row.workload}, {row.threads} clients: {said}{f'; VOID: {row.void}' if row.void else ''}"
    )


@contextmanager
def _loaded_server(plan: Plan) -> Iterator[tuple[Server, Bench]]:
    server = Server(paths.BUILD / "bench" / "same-figures" / "data")
    with alone(server.data.parent / "lock"):
        server.stop()
        shutil.rmtree(server.data, ignore_errors=True)
        try:
            server.start(_settings(), extra=_options())
            server.query(f"CREATE DATABASE {database(STRATA)}")
            bench = Bench(server, plan.tables, plan.rows)
            bench.load(STRATA)
            yield server, bench
        finally:
            server.stop()


def _settings() -> Settings:
    return Settings(port=choose_port(None, PORT), engine=STRATA)


def _options() -> list[str]:
    return Memory(pool_bytes=256 * MIB, log_bytes=256 * MIB).options_alone(STRATA)


def _restart(server: Server, emulation: Emulation) -> None:
    server.stop()
    if emulation.wish.dilated:
        emulation.begin()
    environment = emulation.environment(SERVER, "compute")
    with _pinned(0):
        server.start(_settings(), env=environment, extra=_options(), timeout_s=START_TIMEOUT_S * emulation.factor)


@contextmanager
def _pinned(core: int) -> Iterator[None]:
    """What is started within it stays on that core, if the machine has another one; dilated programs may be anywhere."""
    before = os.sched_getaffinity(0)
    cores = sorted(before)
    os.sched_setaffinity(0, {cores[core % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _measure(server: Server, bench: Bench, emulation: Emulation, plan: Plan, workload: Workload, threads: int) -> Figures:
    limit_s = (plan.seconds + 60) * emulation.factor
    bench.run_for(STRATA, workload, threads, limit_s, "--time=2", UNIFORM)  # warm
    before, cpu_s = _log_bytes(server), _cpu_s(server, emulation)
    used, ours_s = process.MachineTime.now(), _ours_s(server)
    with dilation.watched(emulation if emulation.wish.dilated else None) as validity:
        outcome = bench.run_for(STRATA, workload, threads, limit_s, f"--time={plan.seconds}", UNIFORM)
    others = (used.used_since() - (_ours_s(server) - ours_s)) / outcome.seconds
    count = transactions(outcome)
    judged = validity()
    undilated = f"other programs used {others:.2f} cores" if others > OTHERS_MAX else ""
    return Figures(
        emulation.factor,
        workload,
        threads,
        parse(outcome).value,
        _mean_ms(outcome),
        (_cpu_s(server, emulation) - cpu_s) * 1e6 / count,
        (_log_bytes(server) - before) / count,
        (judged.why_void or "") if judged else undilated,
    )


def _mean_ms(outcome: Outcome) -> float:
    found = re.search(r"Latency \(ms\):.*?avg:\s+([\d.]+)", outcome.log.read_text(), re.DOTALL)
    if not found:
        raise StrataError(f"sysbench printed no latency ({paths.relative(outcome.log)})")
    return float(found[1])


def _log_bytes(server: Server) -> int:
    return int(server.query("SHOW GLOBAL STATUS LIKE 'Strata_log_lsn'")[0][1])


def _ours_s(server: Server) -> float:
    """Real CPU time of the server and of the clients that have ended."""
    pid, times = server.pid(), os.times()
    return (process.cpu_s(pid) if pid is not None else 0.0) + times.children_user + times.children_system


def _cpu_s(server: Server, emulation: Emulation) -> float:
    """As charged, where it is dilated: without what the library's own sleeps take."""
    if emulation.wish.dilated:
        return emulation.nodes()[SERVER].cpu_s
    pid = server.pid()
    return process.cpu_s(pid) if pid is not None else 0.0
