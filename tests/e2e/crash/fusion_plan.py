"""What one run of the campaign does to a cluster of several servers that write the same tables, derived from its seed alone."""

import random
from dataclasses import dataclass

from .cluster_plan import LOCAL_POINTS_WRITTEN, NEVER_KNOWN
from .plan import ELSEWHERE, NTH_MAX_BY_PREFIX, NTH_MAX_DEFAULT, SHARED_POINTS, drawn_binlog

PROFILE = "fusion"
SERVERS = 3
STORAGE_NODES = 3
ROUNDS_MIN = 3
ROUNDS_MAX = 5
# How often a kind is chosen, and for how long it lasts in seconds. What is away is started again afterwards, in its folder.
KINDS: dict[str, tuple[int, float, float]] = {
    "server_kill": (5, 0.0, 6.0),  # shorter, or longer, than the others take to end what it left
    "server_point": (5, 0.0, 5.0),  # it dies at a named fault point
    "server_error": (3, 0.3, 1.5),  # the point fails for a while, and the server lives on or says that it cannot
    "two_kill": (3, 0.0, 6.0),
    "all_servers_kill": (2, 0.0, 3.0),
    "recovery_kill": (2, 0.2, 1.5),  # its next life, too, after so long
    "adopter_kill": (2, 2.0, 4.0),  # and after so long the two others, one of which ends what the first left
    "server_pause": (1, 0.2, 1.5),  # it stands still for less than its lease
    "server_long_pause": (3, 2.5, 8.0),  # or for longer: the others go on without it
    "memory_kill": (3, 0.0, 3.0),
    "memory_and_server_kill": (2, 0.0, 3.0),
    "memory_pause": (1, 0.2, 1.0),
    "memory_long_pause": (2, 2.5, 6.0),
    "storage_kill": (3, 0.0, 5.0),
    "storage_pause": (1, 0.3, 6.0),
    "quorum_kill": (2, 0.2, 5.0),  # two of the three
    "quorum_pause": (2, 0.5, 6.0),
    "etcd_kill": (1, 0.0, 6.0),
    "etcd_and_server_kill": (1, 0.0, 5.0),
    "everything_kill": (3, 0.0, 0.5),
}
LEASE_LOST_S = 1.0  # A strike of the memory node, or of a quorum, that is shorter is none that a lease must survive.
ERRORS = ("server_error",)


@dataclass(frozen=True)
class FusionStrike:
    kind: str
    servers: tuple[int, ...]  # all of them, in the order in which they are struck and started; a kind takes the first ones
    nodes: tuple[int, ...]  # storage nodes, likewise
    fault: str  # of the point's kinds: STRATA_FAULT
    work_s: float  # the clients work for so long before
    down_s: float  # until what was struck is back

    def text(self) -> str:
        return " ".join(part for part in (self.kind, self.fault) if part)


# As campaigns of other clusters say it; a backup is none, since nothing is kept twice.
SECOND_MEMORY = {"one": False, "two": True, "backup": True}


@dataclass(frozen=True)
class FusionRound:
    strikes: tuple[FusionStrike, ...]
    work_s: float  # after the last strike
    end: str  # "drain": the clients end their transactions; "kill": all servers are killed while they work
    stop: bool  # After the checks all servers end in order and are started again.

    def text(self) -> str:
        return f"{', '.join(strike.text() for strike in self.strikes)}; {self.end}{', stop' if self.stop else ''}"


@dataclass(frozen=True)
class FusionPlan:
    seed: int
    slots: int  # of the memory node
    pool: str  # a server's buffer pool
    small: bool  # Checkpoints and segments come all the time
    rounds: tuple[FusionRound, ...]
    binlog: bool = False
    profile: str = PROFILE
    second_memory: bool = False  # Two memory nodes, of which one waits.

    @property
    def faults(self) -> int:
        return sum(len(round_.strikes) for round_ in self.rounds)

    def text(self) -> str:
        rounds = "\n".join(f"  round {number}: {round_.text()}" for number, round_ in enumerate(self.rounds, 1))
        words = {"small": self.small, "binlog": self.binlog, "two memory nodes": self.second_memory}
        extra = "".join(f", {word}" for word, said in words.items() if said)
        return f"{self.profile}, {self.slots} slots, {self.pool} each{extra}, {self.faults} faults\n{rounds}"


def make_fusion_plan(
    seed: int,
    fault_points: list[str],
    *,
    only: str | None = None,
    faults_max: int | None = None,
    binlog: str = "draw",
    profile: str = PROFILE,
    memory: str = "draw",
) -> FusionPlan:
    """`only`: a kind of fault, or a fault point. `faults_max` cuts the plan off; what is left is as it would be without."""
    rng = random.Random(f"fusion plan {seed}")
    slots, pool = rng.choice(((2048, "32M"), (512, "8M"), (2048, "8M")))
    small = rng.random() < 0.7
    chooser = _Chooser(seed, rng, fault_points, only)
    rounds: list[FusionRound] = []
    left = faults_max if faults_max is not None else 1_000_000
    for _ in range(rng.randint(ROUNDS_MIN, ROUNDS_MAX)):
        round_ = _round(chooser, rng)
        if left > 0:
            strikes = round_.strikes[:left]
            rounds.append(FusionRound(strikes, round_.work_s, round_.end, round_.stop))
            left -= len(strikes)
    second = SECOND_MEMORY[memory] if memory != "draw" else random.Random(f"second memory node {seed}").random() < 0.5
    return FusionPlan(seed, slots, pool, small, tuple(rounds), drawn_binlog(profile, seed, binlog), profile, second)


def _round(chooser: "_Chooser", rng: random.Random) -> FusionRound:
    strikes = [chooser.strike()]
    while len(strikes) < 3 and rng.random() < 0.5:
        strikes.append(chooser.strike())
    end = rng.choices(("drain", "kill"), (5, 2))[0]
    return FusionRound(tuple(strikes), rng.uniform(0.2, 1.5), end, rng.random() < 0.2)


class _Chooser:
    def __init__(self, seed: int, rng: random.Random, fault_points: list[str], only: str | None) -> None:
        self._rng = rng
        self._weights = {kind: weight for kind, (weight, _, _) in KINDS.items()}
        elsewhere = (*(prefix for prefix in ELSEWHERE if prefix != SHARED_POINTS), *LOCAL_POINTS_WRITTEN, "recovery")
        usable = [p for p in fault_points if not p.startswith(elsewhere)]
        self._points = {"server_point": usable, "server_error": [p for p in usable if p not in NEVER_KNOWN]}
        if only in self._weights:
            self._weights = {only: 1}
        elif only is not None:
            self._points = {kind: [only] if only in points else [] for kind, points in self._points.items()}
            self._weights = {kind: 1 for kind, points in self._points.items() if points}
        self._weights = {kind: weight for kind, weight in self._weights.items() if self._points.get(kind, [""])}
        if not self._weights:
            raise ValueError(f"{only} is no kind of fault and no fault point that one of several servers passes")
        # Walks through the list with the seed, so that a campaign of some length strikes every point.
        self._next = 7 * seed

    def strike(self) -> FusionStrike:
        rng = self._rng
        kind = rng.choices(list(self._weights), list(self._weights.values()))[0]
        _, shortest, longest = KINDS[kind]
        servers = tuple(rng.sample(range(SERVERS), SERVERS))
        nodes = tuple(rng.sample(range(STORAGE_NODES), STORAGE_NODES))
        return FusionStrike(kind, servers, nodes, self._fault(kind), rng.uniform(0.2, 2.0), rng.uniform(shortest, longest))

    def _fault(self, kind: str) -> str:
        if kind not in self._points:
            return ""
        points = self._points[kind]
        self._next += 1
        point = points[self._next % len(points)]
        highest = next((n for prefix, n in NTH_MAX_BY_PREFIX.items() if point.startswith(prefix)), NTH_MAX_DEFAULT)
        passes = self._rng.randint(1, max(1, highest // 4))
        how = "" if kind not in ERRORS else ":error" if self._rng.random() < 0.3 else ":fail"
        return f"{point}:{passes}{how}"
