"""Shrinks a failing case: fewer statements first (delta debugging), then fewer rows in what INSERTs there are left."""

import time
from collections.abc import Callable
from dataclasses import replace

from .step import Step

Steps = list[Step]
Fails = Callable[[Steps], bool]


class Minimiser:
    """`fails` says whether a list of statements still shows the same difference."""

    def __init__(self, fails: Fails, time_limit_s: float = 120.0) -> None:
        self._fails = fails
        self._deadline = time.monotonic() + time_limit_s
        self.tries = 0

    def minimise(self, steps: Steps) -> Steps:
        steps = self._fewer_statements(steps)
        steps = self._fewer_rows(steps)
        return self._fewer_statements(steps)

    def _still_fails(self, steps: Steps) -> bool:
        if time.monotonic() > self._deadline:
            return False
        self.tries += 1
        return self._fails(steps)

    def _fewer_statements(self, steps: Steps) -> Steps:
        """The last statement is where the sides differ: it stays."""
        size = max(1, (len(steps) - 1) // 2)
        while True:
            shrunk, steps = self._without_pieces(steps, size)
            if size == 1 and not shrunk:
                return steps
            if not shrunk or size > 1:
                size = max(1, size // 2)

    def _without_pieces(self, steps: Steps, size: int) -> tuple[bool, Steps]:
        shrunk = False
        end = len(steps) - 1
        while end > 0:
            start = max(0, end - size)
            candidate = steps[:start] + steps[end:]
            if self._still_fails(candidate):
                steps, shrunk = candidate, True
            end = start
        return shrunk, steps

    def _fewer_rows(self, steps: Steps) -> Steps:
        for position, step in enumerate(steps):
            split = split_rows(step.sql)
            if split is None:
                continue
            head, rows, tail = split
            for row in list(rows):
                fewer = [r for r in rows if r is not row]
                if not fewer:
                    break
                changed = replace(step, sql=head + ", ".join(fewer) + tail)
                candidate = [*steps[:position], changed, *steps[position + 1 :]]
                if self._still_fails(candidate):
                    steps, rows = candidate, fewer
        return steps


def split_rows(sql: str) -> tuple[str, list[str], str] | None:
    """INSERT ... VALUES (a), (b) tail, taken apart; None when there is one row or none."""
    marker = sql.find(" VALUES (")
    if marker < 0 or sql.split(None, 1)[0] not in ("INSERT", "REPLACE"):
        return None
    at = marker + len(" VALUES ")
    head, rows = sql[:at], []
    while at < len(sql) and sql[at] == "(":
        end = _closing(sql, at)
        rows.append(sql[at : end + 1])
        at = end + 1
        if sql[at : at + 3] == ", (":
            at += 2
    return (head, rows, sql[at:]) if len(rows) > 1 else None


def _closing(sql: str, at: int) -> int:
    """Where the bracket that opens at `at` closes; brackets in strings do not count."""
    depth, quoted = 0, False
    while True:
        character = sql[at]
        if quoted and character == "\\":
            at += 1
        elif character == "'":
            quoted = not quoted
        elif not quoted:
            depth += {"(": 1, ")": -1}.get(character, 0)
            if depth == 0:
                return at
        at += 1
