"""Benchmarks of our own for servers that write the same tables: scripts for sysbench (bench/sysbench), which count what they have
committed, and tables that are checked against it afterwards.

What a server loses or invents shows up in the checks that each benchmark names: of the tables by themselves, and of how they
have grown, which must be what the clients have counted.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Protocol

from ..shell import StrataError

Ask = Callable[[str], list[tuple[Any, ...]]]  # One statement, which is committed.
Facts = dict[str, int]
TALLY = re.compile(r"^tally (\w+) (\d+)$", re.MULTILINE)


class OwnMix(Protocol):
    @property
    def script(self) -> str:
        """Its name in bench/sysbench."""

    @property
    def transactions(self) -> tuple[str, ...]:
        """The names by which it counts them."""

    def options(self, shared: int, servers: int) -> list[str]:
        """Of the script, for the first so many servers."""

    def load(self, ask: Ask) -> None: ...

    def facts(self, ask: Ask) -> Facts:
        """Of the tables, to be compared with later ones."""

    def problems(self, ask: Ask, before: Facts, counted: Mapping[str, int]) -> list[str]:
        """What does not fit, of the tables, of what they were and of what was counted since."""

    def rate(self, transactions: float, counted: Mapping[str, int]) -> float:
        """What is compared. `transactions`: a second, of what was counted."""


def tallied(mix: OwnMix, text: str, transactions: int) -> Counter[str]:
    """What all threads of a run have counted, from what it printed; sysbench has counted `transactions`."""
    found: Counter[str] = Counter()
    for name, number in TALLY.findall(text):
        found[name] += int(number)
    told = sum(found[name] for name in mix.transactions)
    if told != transactions:
        raise StrataError(f"{mix.script}: the threads tell of {told:,} transactions, and sysbench of {transactions:,}")
    return found


def asked(ask: Ask, questions: Mapping[str, str]) -> Facts:
    """Of questions whose answer is one number; NULL is none."""
    return {what: whole(ask(question)[0][0]) for what, question in questions.items()}


def whole(value: Decimal | int | float | None) -> int:
    number = int(value or 0)
    if value is not None and number != value:
        raise ValueError(f"{value} is no whole number")
    return number


def differences(wanted: Mapping[str, int], found: Mapping[str, int]) -> list[str]:
    return [f"{what}: {found[what]:,}, and {number:,} wanted" for what, number in wanted.items() if found[what] != number]
