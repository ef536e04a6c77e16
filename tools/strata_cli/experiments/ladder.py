"""One experiment on the storage ladder: clusters of several variants with the same data, buffer sizes and loads.

Buffer sizes are chosen by the hit ratio they give, as in the paper, since the data is far smaller here: measured with
uniformly random point reads as the share of reads that fetch no page, on the first variant. Every variant keeps its
cluster for the whole run; its compute node is started again with each buffer size. Repeats go through the variants in
turns, every second time the other way round.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from .. import paths, setup_cmd
from ..bench import process
from ..bench.comparison import STRATA
from ..bench.servers import MIB, alone, database
from ..bench.sysbench import UNIFORM, Bench, Workload, parse, transactions
from ..cluster import FIRST_COMPUTE, Cluster
from ..shell import Outcome, StrataError, console

LOAD_POOL = 256 * MIB
LEAST_POOL = 8 * MIB  # strata_buffer_pool_size takes no less
HIT_TOLERANCE = 0.04
CALIBRATIONS_MAX = 4
QUIET_WAIT_S = 30.0  # for all processes of a cluster: nothing is left to write back then
# A compute node that starts needs pages as of the end of the log, which eager replay may be far from.
REPLAY_WAIT_S = 3600.0
READ, LIGHT, HEAVY = "read", "light", "heavy"


@dataclass(frozen=True)
class Variant:
    label: str
    profile: str
    options: tuple[str, ...] = ()  # of the compute node


@dataclass(frozen=True)
class Plan:
    name: str
    variants: tuple[Variant, ...]
    loads: tuple[str, ...]
    hit_ratios: tuple[float, ...] = (0.001, 0.4, 0.8, 0.995)
    link: str = "10g"
    tables: int = 8
    rows: int = 40_000
    threads: int = 8
    seconds: int = 6
    runs: int = 2  # of a load one after the other; without idle time between them if it is heavy
    repeats: int = 2

    def settings(self) -> dict[str, object]:
        return {
            "link": self.link,
            "tables": self.tables,
            "rows": self.rows,
            "threads": self.threads,
            "seconds": self.seconds,
            "runs": self.runs,
            "repeats": self.repeats,
        }


@dataclass(frozen=True)
class Pool:
    target: float  # hit ratio
    bytes: int
    measured: float


@dataclass
class Point:
    """One variant with one buffer size under one load."""

    variant: str
    hit_ratio: float  # the target
    load: str
    tps: list[float] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)  # summed up over its runs

    @property
    def value(self) -> float:
        return median(self.tps)


@dataclass
class Result:
    plan: Plan
    data_bytes: int
    pools: list[Pool]
    points: list[Point]

    def value(self, variant: str, hit_ratio: float, load: str) -> float:
        return self.point(variant, hit_ratio, load).value

    def point(self, variant: str, hit_ratio: float, load: str) -> Point:
        for point in self.points:
            if (point.variant, point.hit_ratio, point.load) == (variant, hit_ratio, load):
                return point
        raise StrataError(f"nothing was measured for {variant}, {hit_ratio}, {load}")


def run(plan: Plan) -> Result:
    setup_cmd.ensure_setup()
    with _sites(plan) as sites:
        for site in sites:
            console.print(f"loading {site.variant.label} ...")
            site.load()
        first = sites[0]
        data_bytes = first.data_bytes()
        pools = [_calibrate(first, data_bytes, target) for target in plan.hit_ratios]
        points = [Point(site.variant.label, pool.target, load) for site in sites for pool in pools for load in _loads(plan)]
        result = Result(plan, data_bytes, pools, points)
        for repeat in range(plan.repeats):
            for pool in pools:
                for site in sites if repeat % 2 == 0 else reversed(sites):
                    _measure(site, pool, result)
        return result


def _loads(plan: Plan) -> tuple[str, ...]:
    return (READ, *plan.loads)


def _calibrate(site: "Site", data_bytes: int, target: float) -> Pool:
    """The buffer size that gives about this hit ratio."""
    size = max(LEAST_POOL, int(data_bytes * (1.5 if target > 0.99 else target)))
    best: Pool | None = None
    for _ in range(CALIBRATIONS_MAX):
        site.restart(size)
        measured = site.hit_ratio()
        if best is None or abs(measured - target) < abs(best.measured - target):
            best = Pool(target, size, measured)
        wanted = max(LEAST_POOL, int(size * (target / measured if measured > target else 1 + (target - measured)) / MIB) * MIB)
        if abs(measured - target) <= HIT_TOLERANCE or wanted == size:
            break
        size = wanted
    assert best is not None
    console.print(f"  buffer {best.bytes / MIB:,.0f} MiB: hit ratio {best.measured:.1%} (wanted {target:.1%})")
    return best


def _measure(site: "Site", pool: Pool, result: Result) -> None:
    site.restart(pool.bytes)
    site.warm_up()
    for load in _loads(result.plan):
        point = result.point(site.variant.label, pool.target, load)
        before = site.counters()
        for _ in range(result.plan.runs):
            if load != HEAVY:
                site.wait_until_quiet()
            point.tps.append(site.tps(Workload.read_only if load == READ else Workload.write_only))
        for name, value in site.counters().items():
            point.counters[name] = point.counters.get(name, 0) + value - before.get(name, 0)
    values = ", ".join(f"{load} {result.value(site.variant.label, pool.target, load):,.0f}/s" for load in _loads(result.plan))
    console.print(f"  {site.variant.label}, {pool.target:.1%} hits: {values}")


# --- one variant's cluster -------------------------------------------------------------------------------------


@contextmanager
def _sites(plan: Plan) -> Iterator[list["Site"]]:
    folder = paths.BUILD / "bench" / "experiment"
    with alone(folder.parent / "lock"), ExitStack() as stack:
        sites = []
        for number, variant in enumerate(plan.variants):
            site = Site(plan, variant, folder / f"{number}-{variant.profile}")
            stack.callback(site.end)
            console.print(f"starting {variant.label} ({variant.profile}) ...")
            site.start()
            sites.append(site)
        yield sites


class Site:
    def __init__(self, plan: Plan, variant: Variant, folder: Path) -> None:
        self.variant = variant
        self._plan = plan
        self._cluster = Cluster(folder)

    def start(self) -> None:
        self.end()
        self._cluster = Cluster(self._cluster.data)
        self._cluster.compute_options = self._options(LOAD_POOL)
        self._cluster.start(self.variant.profile)
        server = self._cluster.computes[FIRST_COMPUTE]
        server.query(f"CREATE DATABASE IF NOT EXISTS {database(STRATA)}")
        self._bench = Bench(server, self._plan.tables, self._plan.rows)

    def end(self) -> None:
        self._cluster.stop()
        if self._cluster.exists() and not self._cluster.running():
            self._cluster.wipe()

    def load(self) -> None:
        self._bench.load(STRATA)
        self._query(f"ANALYZE TABLE {', '.join(f'{database(STRATA)}.sbtest{n}' for n in range(1, self._plan.tables + 1))}")

    def data_bytes(self) -> int:
        rows = self._query(f"SELECT SUM(data_length) FROM information_schema.tables WHERE table_schema = '{database(STRATA)}'")
        return int(rows[0][0])

    def restart(self, pool_bytes: int) -> None:
        if not process.wait_until_quiet(self._cpu_s, REPLAY_WAIT_S):
            raise StrataError(f"{self.variant.label}: the storage nodes still replay after {REPLAY_WAIT_S:.0f} s")
        self._cluster.stop_part(FIRST_COMPUTE)
        self._cluster.compute_options = self._options(pool_bytes)
        self._cluster.start_part(FIRST_COMPUTE)

    def _options(self, pool_bytes: int) -> tuple[str, ...]:
        return (
            f"--strata-buffer-pool-size={pool_bytes}",
            f"--strata-link={self._plan.link}",
            "--max-connections=500",
            "--performance-schema=OFF",
            *self.variant.options,
        )

    def hit_ratio(self) -> float:
        """Of reads of one row: the share that fetched no page, once the buffer is full of what such reads bring."""
        self.warm_up()
        before = self.counters()["buffer_pool_reads"]
        outcome = self._run(Workload.point_select, max(2, self._plan.seconds // 2))
        return max(0.0, 1 - (self.counters()["buffer_pool_reads"] - before) / transactions(outcome))

    def warm_up(self) -> None:
        """Until a second of random reads brings hardly any more new pages than the one before."""
        brought = [0.0]
        for _ in range(self._plan.seconds):
            before = self.counters()["buffer_pool_reads"]
            outcome = self._run(Workload.point_select, 1)
            brought.append((self.counters()["buffer_pool_reads"] - before) / transactions(outcome))
            if len(brought) > 2 and brought[-1] >= 0.9 * brought[-2]:
                return

    def tps(self, workload: Workload) -> float:
        return parse(self._run(workload, self._plan.seconds)).value

    def _run(self, workload: Workload, seconds: int) -> Outcome:
        return self._bench.run_for(STRATA, workload, self._plan.threads, seconds + 300, f"--time={seconds}", UNIFORM)

    def counters(self) -> dict[str, int]:
        """What storage nodes (all of them together) and the compute node have counted."""
        found = {name.removeprefix("Strata_").lower(): int(value) for name, value in self._status() if value.isdigit()}
        for node in self._cluster.storage.values():
            values = node.status().get("values", {})
            for name, value in values.items():
                found[f"storage_{name}"] = found.get(f"storage_{name}", 0) + int(value)
        return found

    def _status(self) -> list[tuple[str, str]]:
        return [(str(name), str(value)) for name, value in self._query("SHOW GLOBAL STATUS LIKE 'Strata%'")]

    def _query(self, text: str) -> list[tuple[Any, ...]]:
        return self._cluster.computes[FIRST_COMPUTE].query(text)

    def wait_until_quiet(self) -> None:
        process.wait_until_quiet(self._cpu_s, QUIET_WAIT_S)

    def _cpu_s(self) -> float:
        return sum(process.cpu_s(pid) for part in self._cluster.parts().values() if (pid := part.pid()) is not None)
