"""Errors without a crash: what one run does to a server that goes on living, derived from its seed alone."""

import random
from dataclasses import dataclass

from .plan import ELSEWHERE, NTH_MAX_BY_PREFIX, NTH_MAX_DEFAULT, drawn_binlog

ROUNDS_MIN = 2
ROUNDS_MAX = 4
# Folders and files below the engine's folder, and operations on them (src/io/README.md).
IO_RULES = (
    "write,sync log/",
    "name log/",
    "write pages/",
    "write,sync pages/",
    "read pages/",
    "name pages/",
    "read,write sort",
    "write,sync control",
    "write,sync,read,name",
)
FULL = "full"
IO = "io"
POINT = "point"
KINDS = {FULL: 3, IO: 5, POINT: 8}
ROLLBACK_TOO = 0.35  # So often rollbacks fail besides.
# The log has ended, or nobody may learn an outcome before the next start: the server lives and acknowledges nothing.
ENDS_THE_LOG = ("wal_before", "wal_after", "commit_before_persist", "commit_before_publish")
# Passed while a server starts, by a storage node, or only by one that dies there.
NOT_HERE = ("recovery", *ELSEWHERE)


@dataclass(frozen=True)
class Trouble:
    kind: str
    what: str  # the rule of a failing disk; the specs of fault points, one a line
    lasts_s: float
    work_s: float  # before it, and for as long after the grace time

    @property
    def ends_the_log(self) -> bool:
        return any(spec.startswith(ENDS_THE_LOG) for spec in self.what.split("\n"))

    def text(self) -> str:
        return " ".join(part for part in (self.kind, self.what.replace("\n", " + ")) if part)


@dataclass(frozen=True)
class ErrorsPlan:
    seed: int
    small: bool
    troubles: tuple[Trouble, ...]
    binlog: bool = False

    def text(self) -> str:
        extra = [word for word, said in (("small", self.small), ("binlog", self.binlog)) if said]
        return ", ".join([*(trouble.text() for trouble in self.troubles), *extra])


def error_points(fault_points: list[str]) -> list[str]:
    return [point for point in fault_points if not point.startswith(NOT_HERE)]


def make_errors_plan(seed: int, fault_points: list[str], *, only: str | None = None, binlog: str = "draw") -> ErrorsPlan:
    """`only`: a kind, or a fault point."""
    rng = random.Random(f"errors {seed}")
    small = rng.random() < 0.6
    points = error_points(fault_points)
    troubles = tuple(_trouble(seed, number, rng, points, only) for number in range(rng.randint(ROUNDS_MIN, ROUNDS_MAX)))
    return ErrorsPlan(seed, small, troubles, drawn_binlog("errors", seed, binlog))


def _trouble(seed: int, number: int, rng: random.Random, points: list[str], only: str | None) -> Trouble:
    kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
    # Walk through the lists with the seed, so that a campaign of some length strikes everything.
    point, rule = points[(seed * 3 + 11 * number) % len(points)], IO_RULES[(seed + 2 * number) % len(IO_RULES)]
    if only in KINDS:
        kind = str(only)
    elif only is not None:
        kind, point = POINT, only
    specs = [rule] if kind == IO else [point_spec(point, rng)] if kind == POINT else []
    if rng.random() < ROLLBACK_TOO and point != "rollback_half":
        specs += [f"rollback_half:{rng.randint(1, 3)}:fail"]
    return Trouble(kind, "\n".join(specs), rng.uniform(0.4, 1.4), rng.uniform(0.3, 0.6))


def point_spec(point: str, rng: random.Random) -> str:
    highest = next((n for prefix, n in NTH_MAX_BY_PREFIX.items() if point.startswith(prefix)), NTH_MAX_DEFAULT)
    return f"{point}:{rng.randint(1, max(1, highest // 4))}:{'error' if rng.random() < 0.2 else 'fail'}"
