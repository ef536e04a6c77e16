"""Runs cases: generates, executes on both sides, stops at the first difference nobody excuses."""

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from .compare import Difference
from .excused import Conditions, Excuses
from .families import Families, is_family
from .generator import Generator
from .pair import Pair
from .plans import hangs_on_the_plan
from .step import Step
from .transactions import Transactions

PairMaker = Callable[[], Pair]


@dataclass
class Failure:
    steps: list[Step]  # the last one is where the sides differ
    differences: list[Difference]

    @property
    def signature(self) -> tuple[str, ...]:
        """What must stay while the case shrinks: the kinds of difference and the kind of statement."""
        kinds = sorted({difference.kind for difference in self.differences})
        codes = [text.split(" ")[0] for d in self.differences if d.kind == "error" for text in (d.strata, d.innodb)]
        return (self.steps[-1].verb, *kinds, *codes)


@dataclass
class CaseResult:
    statements: int = 0
    refused: int = 0  # statements that failed on both sides alike
    seconds: float = 0.0
    failure: Failure | None = None
    error_codes: dict[int, int] = field(default_factory=dict)


def run_case(
    make_pair: PairMaker,
    excuses: Excuses,
    seed: int,
    statements: int,
    *,
    long_keys: bool = False,
    families: bool = False,
    servers: int = 1,
) -> CaseResult:
    began = time.monotonic()
    family = families or (not long_keys and is_family(seed))
    generator = Families(seed, statements) if family else Generator(seed, statements, long_keys, engine_numbers=servers == 1)
    places = random.Random(f"servers {seed}")
    pair = make_pair()
    result = CaseResult()
    transactions = Transactions()
    conditions = _conditions(pair, transactions)
    done: list[Step] = []
    try:
        while (step := generator.next()) is not None:
            step = replace(step, server=places.randrange(servers))
            done.append(step)
            answer, found = pair.run(step)
            if answer.error:
                result.refused += 1
                result.error_codes[answer.error] = result.error_codes.get(answer.error, 0) + 1
            left, rollback = excuses.sort(step, found, conditions) if found else ([], False)
            if left:
                result.failure = Failure(done, left)
                break
            if rollback and not transactions.is_open(step.session):
                result.failure = Failure(done, found)  # What one side did cannot be taken back.
                break
            generator.learn(step, answer)
            transactions.learn(step, answer, found)
            if rollback:
                undo = Step("ROLLBACK", step.session, server=step.server)
                done.append(undo)
                pair.run(undo)
                generator.rolled_back(step.session)
                transactions.ended(step.session)
    finally:
        result.statements = pair.executed
        result.seconds = time.monotonic() - began
        pair.close()
    return result


def replay(make_pair: PairMaker, excuses: Excuses, steps: Iterable[Step]) -> Failure | None:
    """The statements again, in fresh schemas. When the rollback that an excuse asks for is missing, nothing is learnt."""
    pair = make_pair()
    done: list[Step] = []
    transactions = Transactions()
    conditions = _conditions(pair, transactions)
    undo: Step | None = None
    try:
        for step in steps:
            if undo is not None and (step.sql, step.session) != (undo.sql, undo.session):
                return None
            done.append(step)
            answer, found = pair.run(step)
            left, rollback = excuses.sort(step, found, conditions) if found else ([], False)
            if left:
                return Failure(done, left)
            if rollback and not transactions.is_open(step.session):
                return None
            undo = Step("ROLLBACK", step.session) if rollback else None
            transactions.learn(step, answer, found)
    finally:
        pair.close()
    return None


def _conditions(pair: Pair, transactions: Transactions) -> Conditions:
    """What the rules of excused.toml can ask about a statement."""
    return {
        "plan": partial(hangs_on_the_plan, pair),
        "another-stopped-by-lock": transactions.another_was_stopped,
        "gaps-may-matter": transactions.gaps_may_matter,
    }
