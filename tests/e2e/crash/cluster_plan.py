"""What one run of the campaign does to a cluster, derived from its seed alone."""

import random
from dataclasses import dataclass

from strata_cli.profile_list import BY_NAME

from .plan import MEMORY_POINTS, NODE_POINTS, NTH_MAX_BY_PREFIX, NTH_MAX_DEFAULT, POOL_POINTS, SHARED_POINTS, drawn_binlog

NODES = ("s1", "s2", "s3")
ROUNDS_MIN = 4
ROUNDS_MAX = 7

# How often a kind is chosen. "corrupt" is not among them: it ends a run, for the node has lost something for good.
KINDS = {
    "compute_kill": 4,  # kill -9; the next server starts in the same folder or in an empty one
    "compute_point": 5,  # it dies at a named fault point
    "recovery_point": 2,  # it is killed, and the next one dies while it recovers
    "compute_pause": 1,  # it stands still for longer than its lease, and goes on
    "takeover": 2,  # while it stands still another one takes its place; then it goes on and must answer nothing
    "node_kill": 4,
    "node_kill_in_recovery": 2,  # of compute, which was killed
    "node_point": 6,
    "node_wipe": 3,  # kill -9, and its folder is gone; until it is whole again no other node is struck
    "node_wipe_point": 2,  # and it dies at a fault point while it makes itself whole
    "node_pause": 2,
    "quorum_kill": 2,  # two nodes at once: nothing is acknowledged until one is back
    "all_kill": 2,  # compute, nodes and etcd at once
    "etcd_kill": 2,
    "etcd_pause": 1,
    "full_disk": 2,
    "compute_error": 4,  # errors without a crash at a fault point; everything lives on
    "node_error": 3,
    "node_io": 2,  # input and output fail on the disk of one storage node
    "link_cut": 2,  # between one node and everybody else; both ends live, and neither hears of it
    "link_slow": 1,
    "quorum_cut": 1,  # two of them at once
}
# Where there is a memory node between compute and storage.
MEMORY_KINDS = {
    "memory_kill": 4,  # kill -9; what it holds is in its pool's file
    "memory_kill_in_recovery": 2,  # of compute, which was killed
    "memory_stop": 3,  # it stands still for less, or for more, than compute waits
    "memory_wipe": 3,  # kill -9, and all that it held is gone
    "memory_point": 5,  # it dies at a fault point of its own
    "memory_cut": 2,  # nothing goes through between it and compute, for less or for more than compute waits
    "memory_slow": 1,
    "memory_both": 3,  # it and compute at once
    "memory_both_wipe": 3,  # and all that it held is gone
}
# How many memory nodes a run has, whether each page is on two of them, and how often that is drawn.
MEMORY_SETUPS = {"one": (1, False), "two": (2, False), "backup": (2, True)}
MEMORY_WEIGHTS = (4, 2, 3)
MEMORY_LINKS = ("memory_cut", "memory_slow")
MEMORY_OF_TWO = ("memory_kill", "memory_wipe", "memory_both", "memory_both_wipe")  # if there are two, sometimes
LINKS = ("link_cut", "link_slow", "quorum_cut")  # These need relays between the processes.
OF_NODES = ("quorum_kill", "full_disk", *LINKS)
OF_TWO_NODES = ("quorum_kill", "quorum_cut")
MAY_BE_FRESH = (
    *("compute_kill", "compute_point", "recovery_point", "node_kill_in_recovery", "node_point", "all_kill"),
    *("memory_kill_in_recovery", "memory_both", "memory_both_wipe"),
)
# Where a page has one version a node keeps pages in files of its own and passes through what the kernel does with its page files.
SINGLE_POINTS = ("page_write_before", "page_write_half", "page_write_after", "double_write_done", "node_pages_write")
NOT_IN_SINGLE = ("node_scan",)
# What a compute node of a cluster does not pass: it has no files.
LOCAL_POINTS = ("wal_segment_create", "page_write", "double_write", "checkpoint_before_sync", "space_delete")
# Where compute writes the pages, nodes keep them in files and replay nothing.
LOCAL_POINTS_WRITTEN = ("wal_segment_create", "page_write", "double_write")
WRITTEN_POINTS = ("page_write_before", "page_write_half", "page_write_after", "double_write_done", "node_copy_pages")
NOT_IN_WRITTEN = ("node_scan", "node_replay", "node_pages_write", "node_checkpoint", "node_copy_begun", "node_copy_whole")
NODE_IO_RULES = (
    *(
        "write,sync /log/",
        "read /log/",
        "name /log/",
        "write,sync /pages/",
        "read /pages/",
        "write,sync /written/",
        "read /written/",
    ),
    "read,write,sync,name /",
)
# Nobody may learn the outcome before the next start, and readers wait for it: no error that comes by itself.
NEVER_KNOWN = ("commit_before_persist", "commit_before_publish")
ERRORS = ("compute_error", "node_error", "node_io")
# What a node passes when it copies pages: where it makes them from the log itself only one that was wiped does.
COPY_POINTS = "node_copy_"

NODE_NTH_MAX = {
    "node_log_before_write": 150,
    "node_log_after_write": 150,
    "node_log_after_sync": 150,
    "node_log_segment": 3,
    "node_log_control": 4,
    "node_log_sealed": 1,
    "node_log_begun": 1,
    "node_log_truncated": 2,
    "node_scan": 60,
    "node_replay": 60,
    "node_pages_write": 4,
    "node_checkpoint": 3,
    "node_copy_begun": 1,
    "node_copy_pages": 5,
    "node_copy_whole": 1,
    "page_write": 40,
}
MEMORY_NTH_MAX = {"memnode_put": 150, "memnode_before_reply": 300, "memnode_write": 20}
# Passed only when a compute node takes the log over.
AT_TAKE_OVER = ("node_log_sealed", "node_log_begun")


@dataclass(frozen=True)
class Strike:
    kind: str
    node: str = ""  # the storage or memory node that is struck, or the first of two
    other: str = ""  # the second
    fault: str = ""  # STRATA_FAULT of whoever is to die at a point
    work_s: float = 0.5  # the clients work for so long before
    down_s: float = 0.5  # and for so long before what was struck is back
    fresh: bool = False  # the next compute node starts in an empty folder

    def text(self) -> str:
        parts = [self.kind, self.node, self.other, self.fault, "fresh" if self.fresh else ""]
        return " ".join(part for part in parts if part)


@dataclass(frozen=True)
class ClusterRound:
    strikes: tuple[Strike, ...]
    work_s: float  # after the last strike
    end: str  # "drain": the clients end their transactions; "kill", "fresh": compute is killed while they work
    without: str  # this storage node is away during the checks; "": none

    def text(self) -> str:
        away = f" without {self.without}" if self.without else ""
        return f"{', '.join(strike.text() for strike in self.strikes)}; {self.end}{away}"


@dataclass(frozen=True)
class ClusterPlan:
    seed: int
    profile: str
    power_loss: bool  # A storage node that dies loses what it had not synced
    small: bool  # Tiny caches, segments and intervals everywhere
    rounds: tuple[ClusterRound, ...]
    binlog: bool = False  # The compute nodes keep binary logs, which are compared with the tables
    memory_nodes: int = 0
    memory_backup: bool = False  # Each page is on two of them

    @property
    def faults(self) -> int:
        return sum(len(round_.strikes) for round_ in self.rounds)

    @property
    def strikes_links(self) -> bool:
        return any(strike.kind in (*LINKS, *MEMORY_LINKS) for round_ in self.rounds for strike in round_.strikes)

    @property
    def brings_errors(self) -> bool:
        return any(strike.kind in ERRORS for round_ in self.rounds for strike in round_.strikes)

    @property
    def may_stop_undo(self) -> bool:
        """A server that was taken over, or has lost its memory node's pages, cannot undo a statement that fails because of it."""
        kinds = {*MEMORY_KINDS, "takeover"}
        return any(strike.kind in kinds for round_ in self.rounds for strike in round_.strikes)

    @property
    def memory_setup(self) -> str:
        """Empty: one memory node, or none."""
        if self.memory_nodes < 2:
            return ""
        return f"{self.memory_nodes} memory nodes{' with the same pages' if self.memory_backup else ''}"

    def text(self) -> str:
        kind = "power loss" if self.power_loss else "kill -9"
        rounds = "\n".join(f"  round {number}: {round_.text()}" for number, round_ in enumerate(self.rounds, 1))
        extra = "".join(
            f", {word}"
            for word, said in (("small", self.small), ("binlog", self.binlog), (self.memory_setup, self.memory_setup))
            if said
        )
        return f"{self.profile}, {kind}{extra}, {self.faults} faults\n{rounds}"


def make_cluster_plan(
    seed: int,
    profile: str,
    fault_points: list[str],
    *,
    only: str | None = None,
    force_power_loss: bool = False,
    faults_max: int | None = None,
    binlog: str = "draw",
    memory: str = "draw",
) -> ClusterPlan:
    """`only`: a kind of fault, or a fault point. `faults_max` cuts the plan off; what is left is as it would be without."""
    rng = random.Random(f"cluster plan {profile} {seed}")
    power_loss = rng.random() < 0.5
    small = rng.random() < 0.7
    nodes, backup = _memory_setup(seed, profile, memory)
    chooser = _Chooser(seed, profile, rng, fault_points, only, nodes)
    rounds = [_round(chooser, rng) for _ in range(rng.randint(ROUNDS_MIN, ROUNDS_MAX))]
    if only == "corrupt" or (only is None and rng.random() < 0.5):
        rounds.append(ClusterRound((Strike("corrupt", rng.choice(NODES)),), rng.uniform(0.2, 0.6), "drain", ""))
    logged = drawn_binlog(profile, seed, binlog)
    return ClusterPlan(seed, profile, force_power_loss or power_loss, small, _first(rounds, faults_max), logged, nodes, backup)


def _memory_setup(seed: int, profile: str, memory: str) -> tuple[int, bool]:
    if not BY_NAME[profile].has_memory_nodes:
        return 0, False
    rng = random.Random(f"memory nodes {profile} {seed}")
    drawn = rng.choices(list(MEMORY_SETUPS), MEMORY_WEIGHTS)[0]
    if not BY_NAME[profile].pages_are_written:  # Copies only, of which none is made twice.
        if memory == "backup":
            raise ValueError(f"memory nodes of profile {profile} have no backup")
        drawn = "two" if drawn == "backup" else drawn
    return MEMORY_SETUPS[drawn if memory == "draw" else memory]


def _first(rounds: list[ClusterRound], faults_max: int | None) -> tuple[ClusterRound, ...]:
    kept: list[ClusterRound] = []
    left = faults_max if faults_max is not None else 1_000_000
    for round_ in rounds:
        if left < len(round_.strikes):
            break
        left -= len(round_.strikes)
        kept.append(round_)
    return tuple(kept)


def _round(chooser: "_Chooser", rng: random.Random) -> ClusterRound:
    strikes = [chooser.strike()]
    if rng.random() < 0.7:
        strikes.append(chooser.strike())
    end = rng.choices(("drain", "kill", "fresh"), (5, 4, 1))[0]
    without = rng.choice(NODES) if rng.random() < 0.3 else ""
    return ClusterRound(tuple(strikes), rng.uniform(0.1, 0.4), end, without)


class _Chooser:
    def __init__(
        self, seed: int, profile: str, rng: random.Random, fault_points: list[str], only: str | None, memory_nodes: int
    ) -> None:
        self._rng = rng
        self._memory = [f"memory-{number + 1}" for number in range(memory_nodes)]
        self._memory_rng = random.Random(f"struck memory nodes {profile} {seed}")
        self._kinds = dict(KINDS)
        with_memory = BY_NAME[profile].has_memory_nodes
        if with_memory:
            self._kinds |= MEMORY_KINDS
        local = LOCAL_POINTS_WRITTEN if BY_NAME[profile].pages_are_written else LOCAL_POINTS
        elsewhere = (NODE_POINTS, MEMORY_POINTS, SHARED_POINTS, *local, *(() if with_memory else POOL_POINTS))
        kernel = [p for p in fault_points if not p.startswith(elsewhere)]
        self._points = {
            "compute_point": [p for p in kernel if not p.startswith("recovery")],
            "recovery_point": [p for p in kernel if p.startswith("recovery")],
            "node_point": [p for p in fault_points if _is_passed_by_node(p, profile)],
            "compute_error": [p for p in kernel if not p.startswith(("recovery", *NEVER_KNOWN))],
            "node_error": [p for p in fault_points if _is_passed_by_node(p, profile)],
            "memory_point": [p for p in fault_points if with_memory and _is_passed_by_memory_node(p, profile)],
            "node_wipe_point": [p for p in fault_points if _is_passed_by_copier(p, profile)],
        }
        if only in self._kinds:
            self._kinds = {only: 1}
        elif only == "corrupt":
            self._kinds = {"node_kill": 1}
        elif only is not None:
            self._points = {kind: [only] if only in points else [] for kind, points in self._points.items()}
            self._kinds = {kind: 1 for kind, points in self._points.items() if points}
        for kind, points in self._points.items():
            if not points:
                self._kinds.pop(kind, None)
        if not self._kinds:
            raise ValueError(f"{only} is no kind of fault and no fault point that profile {profile} passes")
        # Walks through the list with the seed, so that a campaign of some length strikes every point.
        self._next = dict.fromkeys((*self._points, "node_io"), 5 * seed)

    def strike(self) -> Strike:
        rng = self._rng
        kind = rng.choices(list(self._kinds), list(self._kinds.values()))[0]
        node, other = rng.sample(NODES, 2)
        if kind in MEMORY_KINDS:
            node, other = self._memory_nodes(kind)
        return Strike(
            kind,
            node if kind.startswith(("node_", "memory_")) or kind in OF_NODES else "",
            other if kind in (*OF_TWO_NODES, *MEMORY_KINDS) else "",
            self._fault(kind),
            work_s=rng.uniform(0.15, 0.6),
            down_s=rng.uniform(0.2, 0.8),
            fresh=rng.random() < 0.35 and kind in MAY_BE_FRESH,
        )

    def _memory_nodes(self, kind: str) -> tuple[str, str]:
        """Mostly one of them; the other with it in some of the kinds that end processes."""
        one, *others = self._memory_rng.sample(self._memory, len(self._memory))
        both = bool(others) and kind in MEMORY_OF_TWO and self._memory_rng.random() < 0.25
        return one, others[0] if both else ""

    def _fault(self, kind: str) -> str:
        if kind == "node_io":
            self._next[kind] += 1
            return NODE_IO_RULES[self._next[kind] % len(NODE_IO_RULES)]
        if kind not in self._points:
            return ""
        points = self._points[kind]
        self._next[kind] += 1
        point = points[self._next[kind] % len(points)]
        of_node = kind in ("node_point", "node_wipe_point", "node_error")
        limits = {**NTH_MAX_BY_PREFIX, **NODE_NTH_MAX} if of_node else {**NODE_NTH_MAX, **NTH_MAX_BY_PREFIX}
        limits = MEMORY_NTH_MAX if kind == "memory_point" else limits
        highest = next((n for prefix, n in limits.items() if point.startswith(prefix)), NTH_MAX_DEFAULT)
        passes = 1 if kind == "recovery_point" else self._rng.randint(1, max(1, highest // 4) if kind in ERRORS else highest)
        how = "" if kind not in ERRORS else ":error" if self._rng.random() < 0.2 else ":fail"
        return f"{point}:{passes}{how}"


def _is_passed_by_memory_node(point: str, profile: str) -> bool:
    """It writes to storage nodes only where those take pages."""
    return point.startswith(MEMORY_POINTS) and (BY_NAME[profile].pages_are_written or not point.startswith("memnode_write"))


def _is_passed_by_node(point: str, profile: str) -> bool:
    traits = BY_NAME[profile]
    if traits.pages_are_written:
        return point in WRITTEN_POINTS or (point.startswith("node_") and not point.startswith(NOT_IN_WRITTEN))
    if point in SINGLE_POINTS:
        return traits.has_one_version
    if point.startswith(COPY_POINTS) or point in WRITTEN_POINTS:
        return False
    return point.startswith("node_") and not (traits.has_one_version and point in NOT_IN_SINGLE)


def _is_passed_by_copier(point: str, profile: str) -> bool:
    return point.startswith(COPY_POINTS) and not (BY_NAME[profile].pages_are_written and point.startswith(NOT_IN_WRITTEN))
