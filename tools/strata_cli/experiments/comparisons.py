"""What the experiments of several papers have in common: setups that are measured some times each, their runs, and how ratios of
them are set beside what a paper found."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Generic, Protocol, Self, TypeVar

from ..shell import StrataError
from .courses import Dilatable
from .openaurora import Finding


@dataclass(frozen=True)
class Setup:
    """What is measured beside others."""

    label: str


class Plan(Dilatable, Protocol):
    """What an experiment sets up, and how it is loaded."""

    @property
    def setups(self) -> Sequence[Setup]: ...
    @property
    def link(self) -> str: ...
    @property
    def dilation(self) -> float: ...
    def settings(self) -> dict[str, object]:
        """All that `changed` takes of what was measured."""

    def shortened(self) -> Self: ...


class Run(Protocol):
    """One measurement of one setup."""

    @property
    def setup(self) -> str: ...
    @property
    def tps(self) -> float: ...
    @property
    def costs(self) -> dict[str, float] | None:
        """Of a transaction, and of the machine."""

    @property
    def marks(self) -> dict[str, float] | None:
        """What happened when, in seconds; how long it took."""

    @property
    def void(self) -> str:
        """Why, of a dilated run; empty: it is not."""


P = TypeVar("P", bound=Plan)
R = TypeVar("R", bound=Run)


@dataclass
class Result(Generic[P, R]):
    plan: P
    data_bytes: int
    runs: list[R]
    commits: list[str]
    machine: dict[str, object]
    notes: list[str] = field(default_factory=list)  # what else has to be known
    same_figures: float | None = None  # how much dilated and undilated figures differed before

    def of(self, label: str) -> list[R]:
        found = [run for run in self.runs if run.setup == label]
        if not found:
            raise StrataError(f"nothing was measured for {label}")
        return found

    def measured(self) -> list[str]:
        """The labels of what was, in the plan's order."""
        there = {run.setup for run in self.runs}
        return [setup.label for setup in self.plan.setups if setup.label in there]

    def is_whole(self) -> bool:
        return {run.setup for run in self.runs} == {setup.label for setup in self.plan.setups}

    def repeats(self) -> int:
        """How often all of it was measured."""
        return min(len(self.of(setup.label)) for setup in self.plan.setups) if self.is_whole() else 0

    def setup_facts(self) -> list[dict[str, object]]:
        """What is kept of each setup."""
        return [asdict(setup) for setup in self.plan.setups]


S = TypeVar("S", bound=Result[Any, Any])


def tps_of(run: Run) -> float:
    return run.tps


def mark_of(name: str) -> Callable[[Run], float]:
    return lambda run: (run.marks or {}).get(name, 0.0)


@dataclass(frozen=True)
class Spread:
    """A value, and the least and the most of the runs it is of."""

    value: float
    least: float
    most: float


def spread(values: list[float]) -> Spread:
    return Spread(median(values), min(values), max(values))


def values_of(result: Result[P, R], label: str, of: Callable[[R], float]) -> Spread:
    return spread([of(run) for run in result.of(label)])


def quotient(result: Result[P, R], above: str, below: str, of: Callable[[R], float] = tps_of, least: float = 0.0) -> Spread:
    """Of medians; least and most of those of the same turn. `least`: what is divided by is at least so much."""

    def divided(one: float, other: float) -> float:
        return one / max(other, least) if max(other, least) > 0 else 0.0

    first, second = [of(run) for run in result.of(above)], [of(run) for run in result.of(below)]
    turns = [divided(one, other) for one, other in zip(first, second, strict=False)]
    return Spread(divided(median(first), median(second)), min(turns), max(turns))


def to_first_phase(result: Result[P, R], label: str, number: int) -> Spread:
    """The rate of a phase of a run to that of its first one."""

    def rate(run: Run, of: int) -> float:
        return mark_of(f"phase_{of}_tps")(run)

    return values_of(result, label, lambda run: rate(run, number) / max(rate(run, 1), 1e-9))


@dataclass(frozen=True)
class Bar:
    """What is to be reached, what the paper says, and ours."""

    what: str
    paper: float | None  # None: it says nothing of it
    ours: float
    unit: str = ""
    more_is_better: bool = False
    goal: float | None = None  # None: the paper's
    least: float | None = None  # of the runs
    most: float | None = None

    @property
    def wanted(self) -> float:
        found = self.paper if self.goal is None else self.goal
        assert found is not None
        return found

    @property
    def agrees(self) -> bool:
        return self.ours >= self.wanted if self.more_is_better else self.ours <= self.wanted


def bar(what: str, paper: float | None, ours: Spread, unit: str = "", *, more: bool = False, goal: float | None = None) -> Bar:
    return Bar(what, paper, ours.value, unit, more, goal, ours.least, ours.most)


def ratio(what: str, paper: float, ours: Spread) -> Finding:
    return Finding(what, paper, ours.value, ours.least, ours.most)


@dataclass(frozen=True)
class Experiment(Generic[P, S]):
    plan: P
    title: str
    paper: str  # where in it
    compare: Callable[[S], list[Finding | Bar]]

    def findings(self, result: S) -> list[Finding | Bar]:
        return self.compare(result) if result.is_whole() else []
