"""Deployment profiles in turns: what each rung of the storage ladder costs or brings, beside the first one named."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from .. import paths, setup_cmd
from ..cluster import Cluster
from ..profile_list import MONOLITHIC, OF_ONE_WRITER
from ..server import Server, Settings, choose_port
from ..shell import StrataError, console
from ..waiting import wait_until
from . import process, report
from .comparison import STRATA, Row, Sample, in_turns
from .servers import IN_MEMORY, PORT, alone, database
from .sysbench import CONSUMING, LOADING, Bench, Workload

PROFILES = (MONOLITHIC, *OF_ONE_WRITER)
LINKS = ("none", "1g", "10g", "30g", "rdma25g")
WARM_UP_S = 3
# Storage nodes go on with their replay when a measurement has ended: the next one begins when little of that is left.
QUIET_WAIT_S = 20.0
# What smart replay leaves alone it replays within seven checkpoints. Nothing but a little log of an idle server is left then.
SETTLE_WAIT_S = 120.0
SETTLED_BYTES = 1 << 20


@dataclass(frozen=True)
class Plan:
    profiles: tuple[str, ...]
    link: str
    workloads: tuple[Workload, ...]
    threads: tuple[int, ...]
    tables: int
    rows: int
    seconds: int
    rounds: int
    isolation: str
    settle: bool = False  # measure when all log is replayed

    def settings(self) -> dict[str, object]:
        return {
            "profiles": ",".join(self.profiles),
            "link": self.link,
            "isolation": self.isolation,
            "rounds": self.rounds,
            "rows": self.rows,
            "seconds": self.seconds,
            "settle": self.settle,
            "tables": self.tables,
        }


def chosen(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in PROFILES]
    if unknown or len(set(names)) != len(names):
        raise StrataError(f"--profiles {text}: give different ones of {', '.join(PROFILES)}, with commas between them")
    return names


def chosen_link(link: str) -> str:
    if link not in LINKS:
        raise StrataError(f"--link {link}: there is {', '.join(LINKS)}")
    return link


def run(plan: Plan, json_file: Path | None) -> None:
    setup_cmd.ensure_setup()
    rows: list[Row] = []
    with deployments(plan) as found:
        for row in _measure(plan, found):
            rows.append(row)
            save(plan, rows, json_file)
            console.print(_line(plan, row))
    console.print(table(plan.profiles, rows))
    console.print(f"transactions per second, in brackets the ratio to {plan.profiles[0]}; medians of {plan.rounds} rounds")
    if json_file:
        console.print(f"written: {paths.relative(json_file.resolve())}")


class Deployment:
    """A database of one profile, all its processes running."""

    def __init__(self, profile: str, server: Server, pids: Callable[[], list[int]], plan: Plan) -> None:
        self.profile = profile
        self.pids = pids
        self.server = server
        self.bench = Bench(server, plan.tables, plan.rows, pids)
        server.query(f"SET GLOBAL tx_isolation='{plan.isolation}'")
        server.query(f"CREATE DATABASE IF NOT EXISTS {database(STRATA)}")

    def cpu_s(self) -> float:
        return sum(process.cpu_s(pid) for pid in self.pids())

    def wait_until_settled(self) -> None:
        if self.profile != MONOLITHIC:
            wait_until(lambda: self._backlog_bytes() < SETTLED_BYTES, SETTLE_WAIT_S, every_s=1.0)

    def _backlog_bytes(self) -> int:
        return int(self.server.query("SHOW STATUS LIKE 'strata_cluster_replay_backlog_bytes'")[0][1])


@contextmanager
def deployments(plan: Plan) -> Iterator[dict[str, Deployment]]:
    folder = paths.BUILD / "bench" / "profiles"
    with alone(folder.parent / "lock"), ExitStack() as stack:
        found: dict[str, Deployment] = {}
        for profile in plan.profiles:
            console.print(f"starting {profile} ...")
            start = _start_server if profile == MONOLITHIC else _start_cluster
            found[profile] = stack.enter_context(start(profile, folder / profile, plan))
        yield found


@contextmanager
def _start_server(profile: str, folder: Path, plan: Plan) -> Iterator[Deployment]:
    server = Server(folder)
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)
    try:
        server.start(Settings(port=choose_port(None, PORT), engine=STRATA), extra=IN_MEMORY.options_alone(STRATA))
        yield Deployment(profile, server, lambda: _running([server.pid()]), plan)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _start_cluster(profile: str, folder: Path, plan: Plan) -> Iterator[Deployment]:
    cluster = Cluster(folder)
    if cluster.exists():
        cluster.stop()
        cluster.wipe()
    cluster = Cluster(folder)
    cluster.compute_options = (*IN_MEMORY.options_alone(STRATA), f"--strata-link={plan.link}")
    try:
        cluster.start(profile)
        server = cluster.computes[next(iter(cluster.computes))]
        yield Deployment(profile, server, lambda: _running(part.pid() for part in cluster.parts().values()), plan)
    finally:
        cluster.stop()
        if not cluster.running():
            cluster.wipe()


def _running(pids: Iterable[int | None]) -> list[int]:
    return [pid for pid in pids if pid is not None]


def _measure(plan: Plan, found: dict[str, Deployment]) -> Iterator[Row]:
    def in_quiet(measure: Callable[[Bench], Sample]) -> Callable[[str], Sample]:
        def one(profile: str) -> Sample:
            if plan.settle:
                for deployment in found.values():
                    deployment.wait_until_settled()
            process.wait_until_quiet(lambda: sum(part.cpu_s() for part in found.values()), QUIET_WAIT_S)
            return measure(found[profile].bench)

        return one

    for workload in (w for w in plan.workloads if w in LOADING):

        def load(bench: Bench, workload: Workload = workload) -> Sample:
            return bench.loader(workload)(STRATA)

        yield in_turns(Row(workload, 1, "memory", "rows/s"), plan.profiles, plan.rounds, in_quiet(load))
    rest = [w for w in plan.workloads if w not in LOADING]
    if not rest:
        return
    for profile in plan.profiles:
        console.print(f"loading {profile} ...")
        found[profile].bench.load(STRATA)
    for workload in sorted(rest, key=lambda w: w in CONSUMING):
        for threads in plan.threads:
            for deployment in found.values():
                if workload not in CONSUMING:
                    deployment.bench.run(STRATA, workload, threads, WARM_UP_S)

            def measure(bench: Bench, workload: Workload = workload, threads: int = threads) -> Sample:
                return bench.measure(STRATA, workload, threads, plan.seconds)

            yield in_turns(Row(workload, threads, "memory", "transactions/s"), plan.profiles, plan.rounds, in_quiet(measure))


# --- what it says ----------------------------------------------------------------------------------------------


def ratio(row: Row, profile: str, base: str) -> float | None:
    ours, theirs = row.value(profile), row.value(base)
    return ours / theirs if ours is not None and theirs else None


def spread(row: Row, profile: str, base: str) -> tuple[float, float] | None:
    """The least and greatest ratio of two measurements of one round."""
    pairs = zip(row.samples.get(profile, []), row.samples.get(base, []), strict=False)
    ratios = [ours.value / theirs.value for ours, theirs in pairs if theirs.value]
    return (min(ratios), max(ratios)) if ratios else None


def table(profiles: Sequence[str], rows: Sequence[Row]) -> Table:
    out = Table(box=None, header_style="bold")
    out.add_column("workload", no_wrap=True)
    out.add_column("clients", justify="right")
    for profile in profiles:
        out.add_column(profile, justify="right", no_wrap=True)
    for row in rows:
        out.add_row(row.workload, str(row.threads), *(_cell(row, profile, profiles[0]) for profile in profiles))
    return out


def _cell(row: Row, profile: str, base: str) -> str:
    value, quotient = row.value(profile), ratio(row, profile, base)
    if value is None:
        return ""
    return f"{value:,.0f}" if profile == base or quotient is None else f"{value:,.0f} ({quotient:.2f})"


def _line(plan: Plan, row: Row) -> str:
    values = ", ".join(f"{profile} {_cell(row, profile, plan.profiles[0])}" for profile in plan.profiles)
    return f"  {row.workload}, {row.threads} client{'s' * (row.threads != 1)}: {values} {row.unit}"


def save(plan: Plan, rows: Sequence[Row], json_file: Path | None) -> None:
    report.write([row_as_json(plan.profiles, row) for row in rows], plan.settings(), json_file)


def row_as_json(names: Sequence[str], row: Row) -> dict[str, Any]:
    base = names[0]
    return {
        "workload": row.workload,
        "threads": row.threads,
        "unit": row.unit,
        "stolen": row.stolen,
        "profiles": {
            profile: {
                "value": row.value(profile),
                "ratio": ratio(row, profile, base),
                "spread": spread(row, profile, base),
                "p99_ms": row.p99(profile),
                "cpu_us": row.cpu_us(profile),
                "rounds": [sample.value for sample in row.samples.get(profile, [])],
            }
            for profile in names
        },
    }
