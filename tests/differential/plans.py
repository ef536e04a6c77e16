"""Whether an answer hangs on the plan: the server itself decides, and both engines say the same once they are told the plan.

The query is repeated with every table read whole, and with each index of each table forced; subqueries both materialized and
looked up row by row. If the engines agree each time, and
both answers that were found different are among those of InnoDB alone, the optimizer's choice is all that differs: a key was cut
or converted for a look-up (ref access) where a scan compares whole values.
"""

import re

from .compare import common
from .pair import Pair
from .step import Step
from .wire import Answer

TABLE = re.compile(r"\b(?:FROM|JOIN|STRAIGHT_JOIN)\s+(t\d+(?:\s+(?!LEFT|IGNORE|FORCE|USE)[ab]\b)?)")
HINTED = re.compile(r"\b(IGNORE|FORCE|USE) INDEX\b")
VARIANTS_MOST = 40
SCAN = "USE INDEX ()"
SUBQUERY = re.compile(r"\bIN \(SELECT |\b(?:ALL|ANY) \(SELECT ")
STRATEGIES = ("materialization=on,in_to_exists=off", "materialization=off,in_to_exists=on")


def hangs_on_the_plan(pair: Pair, step: Step) -> bool:
    if step.verb != "SELECT" or HINTED.search(step.sql):
        return False
    strata, innodb = (_rows(answer) for answer in pair.ask(step))
    answers: set[tuple[bytes, ...]] = set()
    for sql in variants(step.sql, {table: _indexes(pair, step.session, table) for table in _tables(step.sql)}):
        ours, theirs = pair.ask(Step(sql, step.session))
        if not ours.ok or not theirs.ok or _rows(ours) != _rows(theirs):
            return False
        answers.add(_rows(theirs))
    return strata != innodb and {strata, innodb} <= answers


def variants(sql: str, indexes: dict[str, list[str]]) -> list[str]:
    """The query with all tables scanned; then with one index of one table forced. All that with each way to do a subquery."""
    found = _variants(sql, indexes)[:VARIANTS_MOST]
    if not SUBQUERY.search(sql):
        return found
    return [f"SET STATEMENT optimizer_switch='{way}' FOR {variant}" for way in STRATEGIES for variant in found]


def _variants(sql: str, indexes: dict[str, list[str]]) -> list[str]:
    places = list(TABLE.finditer(sql))
    found = [_hinted(sql, places, [SCAN] * len(places))]
    for place, match in enumerate(places):
        for index in indexes[match[1].split()[0]]:
            hints = [SCAN] * len(places)
            hints[place] = f"FORCE INDEX ({index})"
            found.append(_hinted(sql, places, hints))
    return found


def _hinted(sql: str, places: list[re.Match[str]], hints: list[str]) -> str:
    for match, hint in reversed(list(zip(places, hints, strict=True))):
        sql = f"{sql[: match.end(1)]} {hint}{sql[match.end(1) :]}"
    return sql


def _tables(sql: str) -> set[str]:
    return {match[1].split()[0] for match in TABLE.finditer(sql)}


def _indexes(pair: Pair, session: int, table: str) -> list[str]:
    _, shown = pair.ask(Step(f"SHOW INDEX FROM {table}", session))
    return list(dict.fromkeys(str(row[2]) for row in shown.values()))


def _rows(answer: Answer) -> tuple[bytes, ...]:
    return tuple(sorted(common(row) for row in answer.rows))
