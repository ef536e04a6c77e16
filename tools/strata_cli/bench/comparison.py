"""Two engines measured in turns (A B A B ...), so that what disturbs the machine disturbs both."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

STRATA = "STRATA"
INNODB = "InnoDB"


@dataclass(frozen=True)
class Sample:
    """One measurement of one engine, in the unit of its row."""

    value: float
    p99_ms: float | None = None
    cpu_us: float | None = None  # of the server, for one transaction
    stolen: float | None = None  # share of the machine's time that its host gave to others


@dataclass
class Row:
    """A line of the table: one workload, the engines' samples by round.

    Above 1, a ratio always speaks for STRATA: where less is better, it is InnoDB / STRATA.
    """

    workload: str
    threads: int
    dataset: str
    unit: str
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    less_is_better: bool = False
    # Why an engine has no value, by engine: "timeout", "not supported".
    notes: dict[str, str] = field(default_factory=dict)

    def value(self, engine: str) -> float | None:
        samples = self.samples.get(engine)
        return median(sample.value for sample in samples) if samples else None

    def p99(self, engine: str) -> float | None:
        return _median(sample.p99_ms for sample in self.samples.get(engine, []))

    def cpu_us(self, engine: str) -> float | None:
        return _median(sample.cpu_us for sample in self.samples.get(engine, []))

    @property
    def stolen(self) -> float | None:
        return _median(sample.stolen for samples in self.samples.values() for sample in samples)

    @property
    def ratio(self) -> float | None:
        return self._for_us(self.value(STRATA), self.value(INNODB))

    def _for_us(self, ours: float | None, theirs: float | None) -> float | None:
        return _quotient(theirs, ours) if self.less_is_better else _quotient(ours, theirs)

    @property
    def p99_ratio(self) -> float | None:
        return _quotient(self.p99(STRATA), self.p99(INNODB))

    @property
    def cpu_ratio(self) -> float | None:
        return _quotient(self.cpu_us(STRATA), self.cpu_us(INNODB))

    @property
    def spread(self) -> tuple[float, float] | None:
        """The smallest and the largest ratio of two measurements made one after the other."""
        pairs = zip(self.samples.get(STRATA, []), self.samples.get(INNODB, []), strict=False)
        known = [self._for_us(ours.value, theirs.value) for ours, theirs in pairs]
        ratios = [ratio for ratio in known if ratio is not None]
        return (min(ratios), max(ratios)) if ratios else None

    def as_json(self) -> dict[str, object]:
        return {
            "workload": self.workload,
            "threads": self.threads,
            "dataset": self.dataset,
            "strata": self.value(STRATA),
            "innodb": self.value(INNODB),
            "ratio": self.ratio,
            "p99_ratio": self.p99_ratio,
            "cpu_ratio": self.cpu_ratio,
            "stolen": self.stolen,
            "unit": self.unit,
            "better": "less" if self.less_is_better else "more",
            "spread": self.spread,
            "notes": self.notes,
            "rounds": {engine: [sample.value for sample in samples] for engine, samples in self.samples.items()},
        }


def _quotient(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours is not None and theirs else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def in_turns(row: Row, engines: Sequence[str], rounds: int, measure: Callable[[str], Sample]) -> Row:
    """Odd rounds go the other way round, so that neither engine always runs behind the other one's leftovers."""
    for number in range(rounds):
        for engine in engines if number % 2 == 0 else list(reversed(engines)):
            row.samples.setdefault(engine, []).append(measure(engine))
    return row
