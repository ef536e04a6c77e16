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
from .comparisons import Bar, bar, mark_of, quotient, ratio, to_first_phase, values_of
from .openaurora import Finding

TITLE = "PolarDB-MP: A Multi-Primary Cloud-Native Database via Disaggregated Shared Memory"
PROFILE = OF_SEVERAL_WRITERS[0]
READ_ONLY, READ_WRITE, WRITE_ONLY = "read_only", "read_write", "write_only"
PRODUCTION, INSERTS = "production", "inserts"
SCALING, INDEXES, RECOVERY, GROWTH = "scaling", "indexes", "recovery", "growth"
INDEXES_MAX = 8
VICTIM, SURVIVOR = "compute-1", "compute-2"
BEHIND = 3  # times as long behind a kill as before it
PAPERS_SERVERS = 8  # of which its text gives ratios
# To one server, of eight: by load and percent shared (Figure 7; Figure 11, whose servers have 28 cores).
OF_EIGHT = {(READ_WRITE, 100): 5.4, (WRITE_ONLY, 100): 3.0, (READ_WRITE, 50): 5.64, (WRITE_ONLY, 30): 4.62}
NEARLY = 0.8  # of linear, or of what it was


@dataclass(frozen=True)
class Setup(comparisons.Setup):
    load: str
    servers: int
    shared: int = 0  # percent of the choices of a table
    indexes: int = 0  # secondary ones
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
    rows: int = 10_000
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
        names = ("tables", "rows", "threads", "seconds", "link", "pool", "memory", "lease_s")
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
        if self.kind == SCALING:
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
    def why_not_dilated(self) -> str:
        """Why its times cannot be emulated; empty: they can."""
        if self.kind == RECOVERY:
            return "a start after kill -9 is mostly reading and waiting for what is not dilated: disks and the registry"
        return ""

    @property
    def setups(self) -> list[Setup]:
        if self.kind == SCALING:
            return [
                Setup(scaling_label(load, shared, servers), load, servers, shared)
                for servers in self.nodes
                for load in self.loads
                for shared in self.shared
            ]
        if self.kind == INDEXES:
            return [Setup(indexes_label(count), INSERTS, self.most_servers, indexes=count) for count in self.indexes]
        if self.kind == RECOVERY:
            again = Setup(STARTED_AGAIN, self.loads[0], 2, self.shared[0])
            return [again, replace(again, label=STAYS_DOWN, restarts=False)]
        return [Setup(GROWING, self.loads[0], self.most_servers, self.shared[0])]


STARTED_AGAIN, STAYS_DOWN, GROWING = "killed and started at once", "killed, another one takes over", "servers are added"


def scaling_label(load: str, shared: int, servers: int) -> str:
    return f"{load}, {shared} % shared, {servers} {'server' if servers == 1 else 'servers'}"


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


Result = comparisons.Result[Plan, Run]
Experiment = comparisons.Experiment[Plan, Result]


def alone_of(run: Run) -> float:
    return run.alone_ms or 0.0


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
