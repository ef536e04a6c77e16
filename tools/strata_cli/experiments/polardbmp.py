"""Figures of "PolarDB-MP: A Multi-Primary Cloud-Native Database via Disaggregated Shared Memory" (2024): what is set up, how
it is loaded, and what the paper found.

The paper has servers of 8 cores each, 40 tables of a million rows for each of them, a memory node reached over RDMA of 100 Gb/s,
and machines of their own; here each group has some thousand rows, and all processes share one machine, in real time or as
emulated nodes (../dilation.py). Isolation is read committed, as there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import mean, median

from ..cluster import SERVERS_MAX
from ..dilation import Wish
from ..profile_list import OF_SEVERAL_WRITERS
from ..shell import StrataError
from . import comparisons
from .comparisons import Bar, Spread, bar, mark_of, quotient, ratio, to_first_phase, values_of
from .openaurora import Finding

TITLE = "PolarDB-MP: A Multi-Primary Cloud-Native Database via Disaggregated Shared Memory"
PROFILE = OF_SEVERAL_WRITERS[0]
READ_ONLY, READ_WRITE, WRITE_ONLY = "read_only", "read_write", "write_only"
PRODUCTION, INSERTS = "production", "inserts"
TATP, TPCC = "tatp", "tpcc"  # our own mixes, on tables of their own
SCALING, SYSTEMS, INDEXES, RECOVERY, GROWTH = "scaling", "systems", "indexes", "recovery", "growth"
GALERA = "galera"
COMPARED = (PROFILE, GALERA)  # of SYSTEMS, in turns
INDEXES_MAX = 8
VICTIM, SURVIVOR = "compute-1", "compute-2"
BEHIND = 3  # times as long behind a kill as before it
PAPERS_SERVERS = 8  # of which its text gives ratios
# To one server, of eight: by load and percent shared (Figure 7; Figure 11, whose servers have 28 cores).
OF_EIGHT = {(READ_WRITE, 100): 5.4, (WRITE_ONLY, 100): 3.0, (READ_WRITE, 50): 5.64, (WRITE_ONLY, 30): 4.62}
NEARLY = 0.8  # of linear, or of what it was
OF_32 = 24.0  # Figure 9: times the new orders of one server
SLIGHTLY = 1.5  # times as long, at most: Figure 9's 95th percentile increases "slightly"
# What is published of systems that are not obtainable, to one server, by servers (§5.3): by load and percent shared.
TAURUS, AURORA, POLAR = "Taurus-MM", "Aurora-MM, less than", "PolarDB-MP"
PUBLISHED: dict[str, dict[tuple[str, int], dict[int, float]]] = {
    TAURUS: {(READ_WRITE, 50): {4: 1.5, 8: 1.88}, (WRITE_ONLY, 30): {4: 1.5, 8: 1.5}},
    AURORA: {(READ_WRITE, 10): {2: 1.5, 4: 1.5}, (WRITE_ONLY, 10): {2: 1.0, 4: 1.0}},
    POLAR: {(READ_WRITE, 50): {8: 5.64}, (WRITE_ONLY, 30): {8: 4.62}},
}
TO_TAURUS = {(READ_WRITE, 50): 3.17, (WRITE_ONLY, 30): 4.02}  # PolarDB-MP's throughput to Taurus-MM's, eight servers


@dataclass(frozen=True)
class Setup(comparisons.Setup):
    load: str
    servers: int
    shared: int = 0  # percent of the choices of a table
    indexes: int = 0  # secondary ones
    system: str = PROFILE
    restarts: bool = True  # The server that is killed is started again at once.


@dataclass(frozen=True)
class Plan:
    name: str
    kind: str
    loads: tuple[str, ...]
    nodes: tuple[int, ...]  # servers
    shared: tuple[int, ...] = (0,)
    indexes: tuple[int, ...] = (0,)
    tables: int = 4  # of a group
    rows: int = 10_000  # of a table; TATP: subscribers of each server; TPC-C: items
    warehouses: int = 2  # of each server
    threads: int = 8  # of each server
    seconds: int = 8  # of a run; before a kill, and BEHIND times as long behind it; of each number of servers
    link: str = "none"
    pool: str = "128M"  # of each server
    memory: str = "512M"
    lease_s: int = 10  # of a server: so long the others wait for one that was killed
    dilation: float = 1.0
    cores: Mapping[str, int] = field(default_factory=dict)  # of emulated nodes, by kind
    quick: Mapping[str, object] = field(default_factory=dict)  # What is smaller in a short run.

    def settings(self) -> dict[str, object]:
        """All that `changed` takes."""
        lists = {"loads": self.loads, "nodes": self.nodes, "shared": self.shared, "indexes": self.indexes}
        of_tpcc = ("warehouses",) if TPCC in self.loads else ()
        names = ("tables", "rows", "threads", "seconds", "link", "pool", "memory", "lease_s", *of_tpcc)
        return {
            **{name: list(values) for name, values in lists.items()},
            **{name: getattr(self, name) for name in names},
            **self.wish().settings(),
        }

    def changed(self, settings: Mapping[str, object]) -> "Plan":
        lists = {name: tuple(value) for name, value in settings.items() if isinstance(value, (list, tuple))}
        plan: Plan = replace(self, **{**settings, **lists})  # type: ignore[arg-type]
        if why := plan._why_wrong():
            raise StrataError(why)
        return plan

    def _why_wrong(self) -> str:
        """Empty: it can be measured."""
        if not 1 <= self.most_servers <= SERVERS_MAX:
            return f"--nodes: there are at most {SERVERS_MAX} servers"
        if not all(0 <= percent <= 100 for percent in self.shared):
            return "--shared: percentages, as in 0,50,100"
        if self.warehouses < 1:
            return "--warehouses: one of each server at least"
        if self.kind == SYSTEMS and len(self.shared) != len(self.loads):
            return f"--shared: {self.name} takes a percentage for each of {', '.join(self.loads)}"
        if self.loads == (TPCC,) and self.shared != (0,):
            return "--shared: how much TPC-C shares is in its specification"
        if self.kind in (SCALING, SYSTEMS):
            in_order = self.nodes[0] == 1 and list(self.nodes) == sorted(set(self.nodes))
            return "" if in_order else "--nodes: ratios are to one server: 1 first, then more, as in 1,2,4"
        if self.kind == RECOVERY and self.nodes != (2,):
            return f"--nodes: {self.name} has two servers"
        return "" if len(self.nodes) == len(self.shared) == 1 else f"--nodes, --shared: {self.name} takes one number"

    def shortened(self) -> "Plan":
        return self.changed(self.quick)

    def wish(self) -> Wish:
        return Wish(self.dilation, tuple(self.cores.items()))

    @property
    def most_servers(self) -> int:
        return max(self.nodes)

    @property
    def shared_group(self) -> int:
        return self.most_servers + 1

    @property
    def mixes(self) -> list[tuple[str, int]]:
        """Loads, and percentages shared: each with each, or one for each load."""
        if self.kind == SYSTEMS:
            return list(zip(self.loads, self.shared, strict=True))
        return [(load, shared) for load in self.loads for shared in self.shared]

    @property
    def is_own_mix(self) -> bool:
        """Not sysbench's: on tables of its own, which can be checked."""
        return self.loads in ((TATP,), (TPCC,))

    @property
    def unit(self) -> str:
        return "new orders/min" if self.loads == (TPCC,) else "transactions/s"

    @property
    def percentile(self) -> int:
        """Of the time that transactions take: which one is said."""
        return 95 if TPCC in self.loads else 99

    @property
    def why_not_dilated(self) -> str:
        """Why its times cannot be emulated; empty: they can."""
        if self.kind == RECOVERY:
            return "a start after kill -9 is mostly reading and waiting for what is not dilated: disks and the registry"
        return ""

    @property
    def setups(self) -> list[Setup]:
        if self.kind in (SCALING, SYSTEMS):
            systems = COMPARED if self.kind == SYSTEMS else (PROFILE,)
            return [
                Setup(self.label(load, shared, servers, system), load, servers, shared, system=system)
                for servers in self.nodes
                for load, shared in self.mixes
                for system in systems
            ]
        if self.kind == INDEXES:
            return [Setup(indexes_label(count), INSERTS, self.most_servers, indexes=count) for count in self.indexes]
        if self.kind == RECOVERY:
            again = Setup(STARTED_AGAIN, self.loads[0], 2, self.shared[0])
            return [again, replace(again, label=STAYS_DOWN, restarts=False)]
        return [Setup(GROWING, self.loads[0], self.most_servers, self.shared[0])]

    def label(self, load: str, shared: int, servers: int, system: str = PROFILE) -> str:
        said = scaling_label(load, shared, servers)
        return f"{system}: {said}" if self.kind == SYSTEMS else said


STARTED_AGAIN, STAYS_DOWN, GROWING = "killed and started at once", "killed, another one takes over", "servers are added"


def scaling_label(load: str, shared: int, servers: int) -> str:
    of_load = load if load == TPCC else f"{load}, {shared} % shared"
    return f"{of_load}, {servers} {'server' if servers == 1 else 'servers'}"


def indexes_label(count: int) -> str:
    return f"{count or 'no'} secondary {'index' if count == 1 else 'indexes'}"


@dataclass
class Run:
    """One measurement of one setup."""

    setup: str
    tps: float
    p99_ms: float | None = None
    alone_ms: float | None = None  # mean latency of one client by itself
    costs: dict[str, float] = field(default_factory=dict)  # of a transaction, and of the machine
    series: dict[str, list[float]] | None = None  # transactions a second of each server, each second
    marks: dict[str, float] | None = None  # what happened when, in seconds; how long it took
    void: str = ""  # why, of a dilated run
    p95_ms: float | None = None  # where the paper has this one


Result = comparisons.Result[Plan, Run]
Experiment = comparisons.Experiment[Plan, Result]


def alone_of(run: Run) -> float:
    return run.alone_ms or 0.0


def p95_of(run: Run) -> float:
    return run.p95_ms or 0.0


def cpu_us_of_transaction(run: Run) -> float:
    """Of all nodes, which does not depend on who else uses the cores as rates do."""
    return sum(run.costs.get(f"{kind}_cpu_us", 0.0) for kind in ("compute", "memory", "storage"))


def _figure_7(result: Result) -> list[Finding | Bar]:
    """§5.2; where 50 and 30 % are shared §5.3, whose servers are larger. The text gives ratios of eight servers."""
    plan, most = result.plan, result.plan.most_servers
    found: list[Finding | Bar] = []
    if most == 1:
        return found
    for load in plan.loads:
        for shared in plan.shared:
            ours = quotient(result, scaling_label(load, shared, most), scaling_label(load, shared, 1))
            what = f"{load}, {shared} % shared: {most} servers to one"
            if load == READ_ONLY or shared == 0:
                found.append(bar(what, float(most), ours, more=True, goal=NEARLY * most))
            elif (load, shared) in OF_EIGHT:
                paper = OF_EIGHT[load, shared]
                same = most == PAPERS_SERVERS
                told = "" if same else f" (in the paper {paper:g} times with {PAPERS_SERVERS})"
                goal = paper if same else max(1.0, paper / PAPERS_SERVERS * most)
                found.append(bar(what + told, paper if same else None, ours, more=True, goal=goal))
    for load, of_eight in ((READ_WRITE, 5.4), (WRITE_ONLY, 3.0)):
        if load in plan.loads and {0, 100} <= set(plan.shared):
            ours = quotient(result, scaling_label(load, 100, most), scaling_label(load, 0, most))
            what = f"{load}, {most} servers: all shared to nothing shared (the paper's with {PAPERS_SERVERS})"
            found.append(ratio(what, of_eight / PAPERS_SERVERS, ours))
    return found


def _figure_8(result: Result) -> list[Finding | Bar]:
    """§5.2: linear, since no server touches what another one does, which costs nothing more. What is shared all the same the
    paper does not have."""
    plan = result.plan
    found: list[Finding | Bar] = []
    for shared in plan.shared:
        for servers in plan.nodes[1:]:
            label, one = scaling_label(TATP, shared, servers), scaling_label(TATP, shared, 1)
            what = f"TATP, {shared} % of anybody's subscribers: {servers} servers to one"
            paper = None if shared else float(servers)
            found.append(bar(what, paper, quotient(result, label, one), more=True, goal=NEARLY * servers))
            if not shared:
                cpu = quotient(result, label, one, cpu_us_of_transaction)
                found.append(bar(f"CPU time of a transaction, {servers} servers to one", 1.0, cpu, goal=1 / NEARLY))
    return found


def _figure_9(result: Result) -> list[Finding | Bar]:
    """§5.2: near-linear to 24 servers, 24 times of one with 32, and a 95th percentile that increases slightly."""
    found: list[Finding | Bar] = []
    for servers in result.plan.nodes[1:]:
        label, one = scaling_label(TPCC, 0, servers), scaling_label(TPCC, 0, 1)
        told = f" (in the paper {OF_32:g} times with 32)"
        what = f"new orders a minute, {servers} servers to one{told}"
        found.append(bar(what, None, quotient(result, label, one), more=True, goal=NEARLY * servers))
        slower = quotient(result, label, one, p95_of)
        found.append(bar(f"95th percentile, {servers} servers to one", None, slower, goal=SLIGHTLY))
    return found


def _of_systems(result: Result, load: str, shared: int) -> tuple[Spread, Spread, Spread, Spread]:
    """Scaling of fusion and of Galera to most servers, of one to the other; and throughput of one to the other there."""
    plan, most = result.plan, result.plan.most_servers
    ours, ours_one = (plan.label(load, shared, servers) for servers in (most, 1))
    theirs, theirs_one = (plan.label(load, shared, servers, GALERA) for servers in (most, 1))
    scales, others = quotient(result, ours, ours_one), quotient(result, theirs, theirs_one)

    def divided(one: float, other: float) -> float:
        return one / other if other > 0 else 0.0

    to_others = Spread(
        divided(scales.value, others.value), divided(scales.least, others.most), divided(scales.most, others.least)
    )
    return scales, others, to_others, quotient(result, ours, theirs)


def _figure_11(result: Result) -> list[Finding | Bar]:
    """§5.3. Taurus-MM is not obtainable: its ratios are published ones, and Galera is what is measured here."""
    plan, most = result.plan, result.plan.most_servers
    found: list[Finding | Bar] = []
    for load, shared in plan.mixes if most > 1 else []:
        scales, others, to_others, faster = _of_systems(result, load, shared)
        mix, paper = f"{load}, {shared} % shared", OF_EIGHT.get((load, shared))
        if paper is not None:
            taurus, same = PUBLISHED[TAURUS][load, shared][PAPERS_SERVERS], most == PAPERS_SERVERS
            told = f"in the paper {paper:g} with {PAPERS_SERVERS}, Taurus-MM {taurus:g}"
            goal = paper if same else max(1.0, paper / PAPERS_SERVERS * most)
            found.append(bar(f"{mix}: {most} servers to one ({told})", paper if same else None, scales, more=True, goal=goal))
            found.append(bar(f"{mix}: {most} servers of Galera to one, no more than fusion", None, others, goal=scales.value))
            what = f"{mix}: scaling to Galera's (paper: Taurus-MM's, {PAPERS_SERVERS} servers)"
            found.append(ratio(what, paper / taurus, to_others))
            what = f"{mix}, {most} servers: rate to Galera's (paper: Taurus-MM's, {PAPERS_SERVERS} servers)"
            found.append(ratio(what, TO_TAURUS[load, shared], faster))
    return found


def _figure_12(result: Result) -> list[Finding | Bar]:
    """§5.3, few conflicts. Its text says of Aurora-MM that four servers bring less than half of one more where there are reads,
    and less than one server where there are none; of PolarDB-MP and Taurus-MM that they are before it, without numbers."""
    plan, most = result.plan, result.plan.most_servers
    found: list[Finding | Bar] = []
    for load, shared in plan.mixes if most > 1 else []:
        scales, others, to_others, faster = _of_systems(result, load, shared)
        mix, aurora = f"{load}, {shared} % shared", PUBLISHED[AURORA].get((load, shared), {}).get(4)
        if aurora is not None:
            what = f"{mix}: {most} servers to one (Aurora-MM's less than {aurora:g} times with 4)"
            found.append(bar(what, None, scales, more=True, goal=aurora))
        found.append(bar(f"{mix}: {most} servers of Galera to one, no more than fusion", None, others, goal=scales.value))
        found.append(bar(f"{mix}: scaling to that of Galera", None, to_others, more=True, goal=1.0))
        found.append(bar(f"{mix}, {most} servers: throughput to Galera's", None, faster, more=True, goal=1.0))
    return found


def _figure_10(result: Result) -> list[Finding | Bar]:
    """§5.2, the production load: near-linear."""
    return [
        bar(
            f"rate with {number} servers to that of the first",
            float(number),
            to_first_phase(result, GROWING, number),
            more=True,
            goal=NEARLY * number,
        )
        for number in range(2, result.plan.most_servers + 1)
    ]


def _figure_13(result: Result) -> list[Finding | Bar]:
    """§5.4. Of eight it says that the other systems keep less than a fifth, and PolarDB-MP "acceptable" throughput."""
    none, counts = indexes_label(0), result.plan.indexes
    found: list[Finding | Bar] = []
    if 0 not in counts:
        return found
    for count in counts[1:]:
        label = indexes_label(count)
        ours, goal = quotient(result, label, none), {1: 0.8, INDEXES_MAX: 0.2}.get(count)
        if goal is not None:
            what = f"throughput with {label} to that without"
            found.append(bar(what, 0.8 if count == 1 else None, ours, more=True, goal=goal))
            slower = quotient(result, label, none, alone_of)
            found.append(bar(f"latency of one client with {label} to that without", None, slower, goal=1 / goal))
    return found


def _figure_14(result: Result) -> list[Finding | Bar]:
    """§5.5 (there "Figure 15"): back within ten seconds, the other one undisturbed."""
    found: list[Finding | Bar] = [
        bar("from kill -9 to the killed server's first commit", 10.0, values_of(result, STARTED_AGAIN, mark_of("back_s")), "s"),
        bar(
            "from there to nine tenths of its rate", None, values_of(result, STARTED_AGAIN, mark_of("warm_up_s")), "s", goal=10.0
        ),
    ]
    for label in (STARTED_AGAIN, STAYS_DOWN):
        ours = values_of(result, label, mark_of("survivor_share"))
        found.append(bar(f"the other server's rate meanwhile to before, {label}", 1.0, ours, more=True, goal=0.9))
    for label in (STARTED_AGAIN, STAYS_DOWN):
        ours = values_of(result, label, mark_of("takeover_s"))
        found.append(
            bar(f"until the other server commits on a row that the killed one held, {label}", None, ours, "s", goal=10.0)
        )
    return found


def summed(series: dict[str, list[float]]) -> list[float]:
    """Of all servers; one that says nothing of the last seconds does nothing in them."""
    longest = max(len(rates) for rates in series.values())
    return [sum(rates[second] for rates in series.values() if second < len(rates)) for second in range(longest)]


def survivor_share(series: list[float], killed_s: int, back_s: float) -> float:
    """The rate while the other one was away, and for three seconds at least, to the one before."""
    before = median(series[killed_s // 4 : killed_s] or [0.0])
    away = series[killed_s : killed_s + max(3, round(back_s))]
    return mean(away) / before if away and before > 0 else 0.0


EXPERIMENTS = {
    experiment.plan.name: experiment
    for experiment in (
        Experiment(
            Plan(
                "polardbmp-fig7",
                SCALING,
                (READ_ONLY, READ_WRITE, WRITE_ONLY),
                (1, 2, 4),
                (0, 10, 50, 100),
                quick={"nodes": (1, 2), "shared": (0, 100), "seconds": 4, "tables": 2, "rows": 5_000},
            ),
            "sysbench on several servers, with tables of their own and shared ones",
            "Figure 7, §5.2",
            _figure_7,
        ),
        Experiment(
            Plan(
                "polardbmp-fig8",
                SCALING,
                (TATP,),
                (1, 2, 4),
                rows=100_000,
                quick={"nodes": (1, 2), "seconds": 4, "rows": 20_000},
            ),
            "TATP on several servers, each with subscribers of its own",
            "Figure 8, §5.2",
            _figure_8,
        ),
        Experiment(
            Plan(
                "polardbmp-fig9",
                SCALING,
                (TPCC,),
                (1, 2, 4),
                rows=100_000,
                seconds=20,
                pool="512M",
                memory="1G",
                quick={"nodes": (1, 2), "seconds": 6, "rows": 10_000},
            ),
            "TPC-C without think time on several servers, each with warehouses of its own",
            "Figure 9, §5.2",
            _figure_9,
        ),
        Experiment(
            Plan(
                "polardbmp-fig10",
                GROWTH,
                (PRODUCTION,),
                (4,),
                seconds=30,
                quick={"seconds": 10, "tables": 2, "rows": 5_000},
            ),
            "Three inserts, two updates and five selects, and servers that are added on line",
            "Figure 10, §5.2",
            _figure_10,
        ),
        Experiment(
            Plan(
                "polardbmp-fig11",
                SYSTEMS,
                (READ_WRITE, WRITE_ONLY),
                (1, 2, 4),
                (50, 30),
                quick={"nodes": (1, 2), "seconds": 4, "tables": 2, "rows": 5_000},
            ),
            "Much shared: profile fusion beside Galera, and published ratios of Taurus-MM",
            "Figure 11, §5.3",
            _figure_11,
        ),
        Experiment(
            Plan(
                "polardbmp-fig12",
                SYSTEMS,
                (READ_WRITE, WRITE_ONLY),
                (1, 2, 4),
                (10, 10),
                quick={"nodes": (1, 2), "seconds": 4, "tables": 2, "rows": 5_000},
            ),
            "Little shared: profile fusion beside Galera, and published ratios of Aurora-MM",
            "Figure 12, §5.3",
            _figure_12,
        ),
        Experiment(
            Plan(
                "polardbmp-fig13",
                INDEXES,
                (INSERTS,),
                (2,),
                indexes=(0, 1, 2, 4, 8),
                rows=50_000,
                quick={"seconds": 4, "rows": 20_000},
            ),
            "Random inserts on several servers into a table with secondary indexes",
            "Figure 13, §5.4",
            _figure_13,
        ),
        Experiment(
            Plan(
                "polardbmp-fig14",
                RECOVERY,
                (READ_WRITE,),
                (2,),
                seconds=15,
                lease_s=5,
                quick={"seconds": 8, "tables": 2, "rows": 5_000},
            ),
            "kill -9 of one of two servers under load",
            "Figure 14, §5.5",
            _figure_14,
        ),
    )
}
