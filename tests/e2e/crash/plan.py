"""What one run of the campaign does, derived from its seed alone."""

import random
from dataclasses import dataclass

# How often a point is passed before it strikes: a log write happens often, a TRUNCATE's last step seldom.
NTH_MAX_BY_PREFIX = {
    "wal_segment": 2,
    "wal_": 250,
    "commit_": 250,
    "page_write": 60,
    "undo_": 20,
    "purge": 60,
    "split": 15,
    "rollback": 12,
    "overflow": 40,
    "ddl_": 10,
    "prepare": 60,
}
NTH_MAX_DEFAULT = 3
# Fault points that a server by itself does not pass.
NODE_POINTS = "node_"  # a storage node's
MEMORY_POINTS = "memnode_"  # a memory node's
POOL_POINTS = ("memory_", "lego_")  # of a compute node with a memory node behind it
SHARED_POINTS = "statistics_"  # of one of several servers that write
ELSEWHERE = (NODE_POINTS, MEMORY_POINTS, *POOL_POINTS, SHARED_POINTS)
ROUNDS_MAX = 3


@dataclass(frozen=True)
class Round:
    work_s: float
    fault: str | None  # STRATA_FAULT of the working server; None: kill -9 after work_s
    recovery_fault: str | None  # STRATA_FAULT of the server that recovers: it crashes too, then recovery runs again
    drain: bool  # The clients end their transactions before the kill: nothing is in doubt, and a hang is seen
    clean_stop: bool  # After the checks: stop cleanly, or kill the recovered server as well


@dataclass(frozen=True)
class Plan:
    seed: int
    power_loss: bool
    small: bool  # A tiny buffer pool and log: pages are evicted and checkpoints taken all the time
    rounds: tuple[Round, ...]
    binlog: bool = False  # The server keeps a binary log, which is compared with the tables


BINLOG_SHARE = 0.4
BINLOG = ("draw", "on", "off")


def drawn_binlog(name: str, seed: int, wanted: str) -> bool:
    """`wanted`: one of BINLOG. The rest of a plan does not depend on it."""
    if wanted == "draw":
        return random.Random(f"binlog {name} {seed}").random() < BINLOG_SHARE
    return wanted == "on"


def make_plan(
    seed: int,
    fault_points: list[str],
    *,
    force_power_loss: bool = False,
    rounds_max: int = ROUNDS_MAX,
    binlog: str = "draw",
) -> Plan:
    rng = random.Random(f"plan {seed}")
    rounds = tuple(_round(seed, number, rng, fault_points) for number in range(rng.randint(1, rounds_max)))
    small = rng.random() < 0.6
    return Plan(seed, force_power_loss or seed % 3 == 0, small, rounds, drawn_binlog("plan", seed, binlog))


def _round(seed: int, number: int, rng: random.Random, fault_points: list[str]) -> Round:
    during_work = [p for p in fault_points if not p.startswith("recovery")]
    during_recovery = [p for p in fault_points if p.startswith("recovery")]
    fault = None
    if during_work and rng.random() < 0.65:
        # Walks through the list with the seed, so that a campaign of some length strikes every point.
        fault = _spec(during_work[(seed + 11 * number) % len(during_work)], rng)
    recovery_fault = None
    if during_recovery and rng.random() < 0.25:
        recovery_fault = _spec(rng.choice(during_recovery), rng)
    work_s = rng.uniform(0.25, 1.2) if fault is None else 1.6
    drain = fault is None and rng.random() < 0.3
    return Round(work_s, fault, recovery_fault, drain, clean_stop=rng.random() < 0.7)


def _spec(point: str, rng: random.Random) -> str:
    highest = next((n for prefix, n in NTH_MAX_BY_PREFIX.items() if point.startswith(prefix)), NTH_MAX_DEFAULT)
    return f"{point}:{rng.randint(1, highest)}"
