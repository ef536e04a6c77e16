"""One experiment on the storage ladder: clusters of several variants with the same data, buffer sizes and loads.

Buffer sizes are chosen by the hit ratio they give, as in the paper, since the data is far smaller here: measured with
uniformly random point reads as the share of reads that fetch no page, on the first variant. Every variant keeps its
cluster for the whole run; its compute node is started again with each buffer size. Repeats go through the variants in
turns, every second time the other way round. Nothing is measured while another variant's storage nodes still replay.

Loads: `read` is read_only once everything is written back and replayed. `light` is short runs of write_only, each
after as much idle time as it takes to write everything back; `heavy` is runs of write_only without idle time. A
checkpoint interval of seconds stands for the paper's minutes: it is longer than heavy writes take to fill the buffer with
changes, as there.

With `dilation` above 1 the nodes, and sysbench as a node of clients, are emulated (../dilation.py): each has cores of its own,
and all times and rates are in emulated time. Data is loaded before that begins. A run that came too late is void: it is
repeated, and counted as void where that does not help.

What takes long is done in parts (`Course`): some hit ratios now, others later, added to what was measured before; and
while others use the machine, a lock can be held for each part that must not be disturbed.
"""

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from .. import dilation, mariadb_packages, paths, setup_cmd
from ..bench import process, same_figures
from ..bench.comparison import STRATA
from ..bench.results import commit
from ..bench.servers import MIB, alone, database, machine
from ..bench.sysbench import UNIFORM, Bench, Workload, parse, transactions
from ..cluster import FIRST_COMPUTE, Cluster
from ..dilation import Emulation, Validity, Wish
from ..process import BackgroundProcess
from ..shell import Outcome, StrataError, console
from ..waiting import wait_until
from .courses import NODE_LEASE_S, not_void, undisturbed

FOLDER = paths.BUILD / "bench" / "experiment"
LOAD_POOL = 256 * MIB
LEAST_POOL = 8 * MIB  # strata_buffer_pool_size takes no less
HIT_TOLERANCE = 0.04
CALIBRATIONS_MAX = 4
IDLE_S_MAX = 30.0  # between light runs, as in the paper
# A compute node that starts needs pages as of the end of the log, which eager replay may be far from.
REPLAY_WAIT_S = 3600.0
READ, LIGHT, HEAVY = "read", "light", "heavy"


@dataclass(frozen=True)
class Variant:
    label: str
    profile: str
    options: tuple[str, ...] = ()  # of the compute node
    node_options: tuple[str, ...] = ()  # of storage nodes


@dataclass(frozen=True)
class Plan:
    name: str
    variants: tuple[Variant, ...]
    loads: tuple[str, ...]
    hit_ratios: tuple[float, ...] = (0.001, 0.4, 0.8, 0.995)
    link: str = "10g"
    tables: int = 8
    rows: int = 20_000
    threads: int = 8
    seconds: int = 4  # of a run of reads or heavy writes
    heavy_runs: int = 2
    light_seconds: int = 1  # changes fewer pages than all but the smallest buffer has
    light_runs: int = 3
    checkpoint_s: int = 5
    dilation: float = 1.0
    cores: Mapping[str, int] = field(default_factory=dict)  # of emulated nodes, by kind

    def settings(self) -> dict[str, object]:
        """Measurements with the same ones can be added to each other."""
        return {
            "link": self.link,
            "tables": self.tables,
            "rows": self.rows,
            "threads": self.threads,
            "seconds": self.seconds,
            "heavy_runs": self.heavy_runs,
            "light_seconds": self.light_seconds,
            "light_runs": self.light_runs,
            "checkpoint_s": self.checkpoint_s,
            **self.wish().settings(),
        }

    def wish(self) -> Wish:
        return Wish(self.dilation, tuple(self.cores.items()))

    @property
    def all_loads(self) -> tuple[str, ...]:
        return (READ, *self.loads)


@dataclass(frozen=True)
class Course:
    """How a plan is gone through."""

    hit_ratios: tuple[float, ...]  # of the plan's
    repeats: int = 1
    before: "Result | None" = None  # to be added to
    lock: Path | None = None  # held while something must not be disturbed
    keep: Callable[["Result"], None] = lambda _: None  # called with what there is so far


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
    tps: list[float] = field(default_factory=list)  # of each run
    transactions: int = 0  # of all runs
    void: list[str] = field(default_factory=list)  # why runs that are among them are void
    late_share_max: float = 0.0
    cores_used_max: float = 0.0  # real ones, by all programs
    counters: dict[str, int] = field(default_factory=dict)  # summed up over its runs

    @property
    def value(self) -> float:
        return median(self.tps)

    def per_transaction(self, *counters: str) -> float:
        return sum(self.counters.get(name, 0) for name in counters) / self.transactions if self.transactions else 0.0

    def per_second(self, *counters: str) -> float:
        elapsed_us = self.counters.get("elapsed_us", 0)
        return sum(self.counters.get(name, 0) for name in counters) * 1e6 / elapsed_us if elapsed_us else 0.0


@dataclass
class Result:
    plan: Plan
    data_bytes: int
    pools: list[Pool]
    points: list[Point]
    commits: list[str] = field(default_factory=list)
    machine: dict[str, object] = field(default_factory=machine)
    undilated_because: str = ""  # although it was to be dilated
    same_figures: float | None = None  # how much dilated and undilated figures differed before

    def value(self, variant: str, hit_ratio: float, load: str) -> float:
        return self.point(variant, hit_ratio, load).value

    def point(self, variant: str, hit_ratio: float, load: str) -> Point:
        for point in self.points:
            if (point.variant, point.hit_ratio, point.load) == (variant, hit_ratio, load) and point.tps:
                return point
        raise StrataError(f"nothing was measured for {variant}, {hit_ratio}, {load}")

    def has(self, hit_ratio: float) -> bool:
        """Whether everything was measured with this buffer."""
        here = [point for point in self.points if point.hit_ratio == hit_ratio]
        return bool(here) and all(point.tps for point in here)

    def rounds(self, pool: Pool) -> int:
        """How often all variants have been measured with it."""
        return min(len(point.tps) for point in self.points if (point.hit_ratio, point.load) == (pool.target, READ))

    def add_pool(self, pool: Pool) -> None:
        self.pools = sorted([*self.pools, pool], key=lambda one: one.target)
        self.points += [Point(variant.label, pool.target, load) for variant in self.plan.variants for load in self.plan.all_loads]


def chosen_hit_ratios(plan: Plan, text: str | None) -> tuple[float, ...]:
    if text is None:
        return plan.hit_ratios
    try:
        chosen = tuple(float(word) for word in text.split(","))
    except ValueError:
        chosen = ()
    if not chosen or not set(chosen) <= set(plan.hit_ratios):
        raise StrataError(f"--hit-ratios {text}: there is {', '.join(str(ratio) for ratio in plan.hit_ratios)}")
    return chosen


def run(plan: Plan, course: Course) -> Result:
    setup_cmd.ensure_setup()
    plan, undilated_because = _possible(plan, course)
    with _sites(plan) as sites:
        for site in sites:
            with undisturbed(course.lock):
                console.print(f"loading {site.variant.label} ...")
                site.load()
        result = course.before or Result(plan, sites[0].data_bytes(), [], [])
        result.undilated_because = undilated_because
        result.commits = sorted({*result.commits, commit()})
        if plan.wish().dilated:
            result.same_figures = same_figures.last_deviation()
            for site in sites:
                with undisturbed(course.lock):
                    site.begin_dilation()
        for target in course.hit_ratios:
            if all(pool.target != target for pool in result.pools):
                with undisturbed(course.lock):
                    result.add_pool(_calibrate(sites[0], result.data_bytes, target))
        for _ in range(course.repeats):
            for pool in (pool for pool in result.pools if pool.target in course.hit_ratios):
                for site in sites if result.rounds(pool) % 2 == 0 else reversed(sites):
                    with undisturbed(course.lock):
                        for one in sites:
                            one.wait_until_replayed()
                        _measure(site, pool, result)
                course.keep(result)
        return result


def _possible(plan: Plan, course: Course) -> tuple[Plan, str]:
    """The plan, without dilation where programs cannot be dilated, and why."""
    if not plan.wish().dilated:
        return plan, ""
    programs: list[str | Path] = [mariadb_packages.mariadbd(), paths.storenode_path("release"), "sysbench"]
    why = dilation.why_impossible(programs, FOLDER / "dilation")
    if why is None:
        return plan, ""
    if course.before is not None:
        raise StrataError(f"what is added to is dilated, and this machine cannot: {why}")
    console.print(f"[yellow]not dilated:[/] {why}; all figures are in real time")
    return replace(plan, dilation=1.0, cores={}), why


def _calibrate(site: "Site", data_bytes: int, target: float) -> Pool:
    """The buffer size that gives about this hit ratio."""
    size = max(LEAST_POOL, int(data_bytes * (1.5 if target > 0.99 else target)))
    best: Pool | None = None
    for _ in range(CALIBRATIONS_MAX):
        site.restart(size)
        measured = site.hit_ratio()
        if best is None or abs(measured - target) < abs(best.measured - target):
            best = Pool(target, size, measured)
        wanted = max(LEAST_POOL, int(size * min(2.0, target / max(measured, 0.001)) / MIB) * MIB)
        if abs(measured - target) <= HIT_TOLERANCE or wanted == size:
            break
        size = wanted
    assert best is not None
    console.print(f"  buffer {best.bytes / MIB:,.0f} MiB: hit ratio {best.measured:.1%} (wanted {target:.1%})")
    return best


def _measure(site: "Site", pool: Pool, result: Result) -> None:
    site.restart(pool.bytes)
    site.warm_up()
    points = [point for point in result.points if (point.variant, point.hit_ratio) == (site.variant.label, pool.target)]
    for point in points:
        count = {HEAVY: result.plan.heavy_runs, LIGHT: result.plan.light_runs}.get(point.load, 1)
        for _ in range(count):
            _measured(site, point.load, result.plan).add_to(point)
    values = ", ".join(f"{point.load} {point.value:,.0f}/s" for point in points)
    console.print(f"  {site.variant.label}, {pool.target:.1%} hits: {values}")


def _measured(site: "Site", load: str, plan: Plan) -> "Run":
    """A run that is not void, if there is one."""
    return not_void(lambda: _one_run(site, load, plan))


def _one_run(site: "Site", load: str, plan: Plan) -> "Run":
    if load == HEAVY:
        return site.measure(Workload.write_only, plan.seconds)
    if load == LIGHT:
        return site.after_idle(Workload.write_only, plan.light_seconds)
    return site.after_idle(Workload.read_only, plan.seconds)


@dataclass(frozen=True)
class Run:
    tps: float
    transactions: int
    counters: dict[str, int]  # by how much they grew
    validity: Validity | None = None  # of a dilated one

    @property
    def void(self) -> str:
        """Why; empty: it is not."""
        return (self.validity.why_void or "") if self.validity else ""

    def add_to(self, point: Point) -> None:
        point.tps.append(self.tps)
        point.transactions += self.transactions
        for name, grown in self.counters.items():
            point.counters[name] = point.counters.get(name, 0) + grown
        if self.validity:
            point.late_share_max = max(point.late_share_max, self.validity.late_share)
            point.cores_used_max = max(point.cores_used_max, self.validity.cores_used)
        if self.void:
            point.void.append(self.void)


# --- one variant's cluster -------------------------------------------------------------------------------------


@contextmanager
def _sites(plan: Plan) -> Iterator[list["Site"]]:
    folder = FOLDER
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
        self._program: list[str | Path] = [paths.storenode_path("release"), *variant.node_options]
        self._emulation = Emulation(plan.wish(), folder.with_name(f"{folder.name}-emulated")) if plan.wish().dilated else None
        if plan.wish().dilated:
            self._program += ["--lease", str(math.ceil(NODE_LEASE_S * plan.dilation))]  # The registry counts real seconds.
        self._cluster = Cluster(folder, program=self._program)

    def start(self) -> None:
        self.end()
        self._cluster = Cluster(self._cluster.data, program=self._program)
        self._cluster.emulation = self._emulation
        self._cluster.compute_options = self._options(LOAD_POOL)
        self._cluster.start(self.variant.profile)
        server = self._cluster.computes[FIRST_COMPUTE]
        server.query(f"CREATE DATABASE IF NOT EXISTS {database(STRATA)}")
        self._bench = Bench(server, self._plan.tables, self._plan.rows)

    def begin_dilation(self) -> None:
        """Once all is loaded."""
        assert self._emulation is not None
        self.wait_until_replayed()
        self._cluster.stop()
        self._emulation.begin()
        self._bench.environment = self._emulation.environment(dilation.CLIENT, dilation.CLIENT)
        self._cluster.start(self.variant.profile)

    def end(self) -> None:
        self._cluster.stop()
        if self._emulation:
            self._emulation.end()
        if self._cluster.exists() and not self._cluster.running():
            self._cluster.wipe()

    def load(self) -> None:
        self._bench.load(STRATA)
        self._query(f"ANALYZE TABLE {', '.join(f'{database(STRATA)}.sbtest{n}' for n in range(1, self._plan.tables + 1))}")

    def data_bytes(self) -> int:
        rows = self._query(f"SELECT SUM(data_length) FROM information_schema.tables WHERE table_schema = '{database(STRATA)}'")
        return int(rows[0][0])

    def restart(self, pool_bytes: int) -> None:
        self.wait_until_replayed()
        self._cluster.stop_part(FIRST_COMPUTE)
        self._cluster.compute_options = self._options(pool_bytes)
        self._cluster.start_part(FIRST_COMPUTE)

    def wait_until_replayed(self) -> None:
        """Until all its processes have nothing left to do."""
        if not process.wait_until_quiet(self._emulated_cpu_s, REPLAY_WAIT_S):
            raise StrataError(f"{self.variant.label}: the storage nodes still replay after {REPLAY_WAIT_S:.0f} s")

    def _options(self, pool_bytes: int) -> tuple[str, ...]:
        return (
            f"--strata-buffer-pool-size={pool_bytes}",
            f"--strata-checkpoint-interval={self._plan.checkpoint_s}",
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

    def measure(self, workload: Workload, seconds: int) -> Run:
        before, used, began = self.counters(), process.MachineTime.now(), time.monotonic()
        ours_before_s = self._cpu_s() + _children_s()
        with dilation.watched(self._emulation) as validity:
            outcome = self._run(workload, seconds)
        elapsed_s, used_s = time.monotonic() - began, used.used_since()
        after = self.counters()
        ours_s = self._cpu_s() + _children_s() - ours_before_s
        after["elapsed_us"] = int(elapsed_s / self._plan.dilation * 1e6)
        after["others_cpu_us"] = max(0, int((used_s - ours_s) * 1e6))
        grown = {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}
        return Run(parse(outcome).value, transactions(outcome), grown, validity())

    def after_idle(self, workload: Workload, seconds: int) -> Run:
        """Once a checkpoint has written back, or needs not, all that was changed so far."""
        end = self.counters()["log_lsn"]
        idle_s_max = IDLE_S_MAX * self._plan.dilation
        wait_until(lambda: self.counters()["log_checkpoint_lsn"] >= end, idle_s_max, every_s=0.5)
        process.wait_until_quiet(self._emulated_cpu_s, idle_s_max)
        return self.measure(workload, seconds)

    def _run(self, workload: Workload, seconds: int) -> Outcome:
        limit_s = (seconds + 300) * self._plan.dilation
        return self._bench.run_for(STRATA, workload, self._plan.threads, limit_s, f"--time={seconds}", UNIFORM)

    def counters(self) -> dict[str, int]:
        """What storage nodes (all of them together) and the compute node have counted, and their CPU time."""
        found = {name.removeprefix("Strata_").lower(): int(value) for name, value in self._status() if value.isdigit()}
        found["compute_cpu_us"] = _cpu_us([self._cluster.computes[FIRST_COMPUTE]])
        found["storage_cpu_us"] = _cpu_us(self._cluster.storage.values())
        for node in self._cluster.storage.values():
            values = node.status().get("values")
            if values is None:
                raise StrataError(f"{self.variant.label}: {node.name} does not say what it has counted")
            for name, value in values.items():
                found[f"storage_{name}"] = found.get(f"storage_{name}", 0) + int(value)
        return found

    def _status(self) -> list[tuple[str, str]]:
        return [(str(name), str(value)) for name, value in self._query("SHOW GLOBAL STATUS LIKE 'Strata%'")]

    def _query(self, text: str) -> list[tuple[Any, ...]]:
        return self._cluster.computes[FIRST_COMPUTE].query(text)

    def _cpu_s(self) -> float:
        return _cpu_us(self._cluster.parts().values()) / 1e6

    def _emulated_cpu_s(self) -> float:
        """CPU time for a second of emulated time, seen from outside. The registry is not emulated."""
        if self._emulation is None:
            return self._cpu_s()
        parts = [part for name, part in self._cluster.parts().items() if name != "etcd"]
        return self._plan.dilation * _cpu_us(parts) / 1e6


def _children_s() -> float:
    """CPU time of sysbench."""
    times = os.times()
    return times.children_user + times.children_system


def _cpu_us(parts: Iterable[BackgroundProcess]) -> int:
    return int(1e6 * sum(process.cpu_s(pid) for part in parts if (pid := part.pid()) is not None))
