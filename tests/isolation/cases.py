"""The anomalies as schedules. Names as in Adya's thesis; what each one means stands in MATRIX.md.

A case is text, one step a line: `session: [label =] statement`. Every session has begun a transaction before the first step.
The table is t (id primary key, v), with the rows (1, 10) and (2, 20); `{by_v}` becomes an index hint when v has a key. `occurred`
decides from what the sessions saw, and from the rows that are left, whether the anomaly has happened.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from .schedule import Outcome, Step

LINE = re.compile(r"(\d): (?:(\w+) = )?(.+)")


@dataclass(frozen=True)
class Case:
    name: str
    script: str
    occurred: Callable[[Outcome], bool]

    def steps(self, keyed: bool) -> list[Step]:
        parsed = []
        for line in self.script.strip().splitlines():
            match = LINE.fullmatch(line.strip())
            assert match, line
            sql = match[3].replace("{by_v}", "force index (v)" if keyed else "")
            parsed.append(Step(int(match[1]), sql, match[2] or ""))
        sessions = sorted({step.session for step in parsed})
        return [*(Step(session, "begin") for session in sessions), *parsed]


def value(outcome: Outcome, label: str) -> int | None:
    rows = outcome.rows.get(label)
    return int(rows[0][0]) if rows else None


def ids(outcome: Outcome, label: str) -> set[int]:
    return {int(row[0]) for row in outcome.rows.get(label, [])}


def _vanished(outcome: Outcome) -> bool:
    """Session 3 saw something of session 2 and later something that session 2 had overwritten."""
    seen = [value(outcome, label) for label in ("a", "b", "c", "d", "e")]
    first = next((n for n, v in enumerate(seen) if v in (12, 18)), len(seen))
    return any(v in (11, 19) for v in seen[first:])


CASES = (
    Case(
        "G0",
        """
        1: update t set v = 11 where id = 1
        2: update t set v = 12 where id = 1
        1: update t set v = 21 where id = 2
        1: commit
        2: update t set v = 22 where id = 2
        2: commit
        """,
        lambda o: (o.final[1], o.final[2]) not in ((11, 21), (12, 22)),
    ),
    Case(
        "G1a",
        """
        1: update t set v = 101 where id = 1
        2: a = select v from t where id = 1
        1: rollback
        2: b = select v from t where id = 1
        2: commit
        """,
        lambda o: 101 in (value(o, "a"), value(o, "b")),
    ),
    Case(
        "G1a unique key",
        """
        1: a = select id from t where id = 3
        2: b = select id from t where id = 3
        1: insert into t values (3, 30)
        2: insert ignore into t values (3, 31)
        1: rollback
        2: commit
        """,
        lambda o: o.ended_well(2) and o.final.get(3) != 31,
    ),
    Case(
        "G1b",
        """
        1: update t set v = 101 where id = 1
        2: a = select v from t where id = 1
        1: update t set v = 11 where id = 1
        1: commit
        2: b = select v from t where id = 1
        2: commit
        """,
        lambda o: 101 in (value(o, "a"), value(o, "b")),
    ),
    Case(
        "G1c",
        """
        1: update t set v = 11 where id = 1
        2: update t set v = 22 where id = 2
        1: a = select v from t where id = 2
        2: b = select v from t where id = 1
        1: commit
        2: commit
        """,
        lambda o: o.ended_well(1, 2) and value(o, "a") == 22 and value(o, "b") == 11,
    ),
    Case(
        "OTV",
        """
        1: update t set v = 11 where id = 1
        1: update t set v = 19 where id = 2
        2: update t set v = 12 where id = 1
        1: commit
        3: a = select v from t where id = 1
        3: b = select v from t where id = 2
        2: update t set v = 18 where id = 2
        3: c = select v from t where id = 2
        2: commit
        3: d = select v from t where id = 2
        3: e = select v from t where id = 1
        3: commit
        """,
        _vanished,
    ),
    Case(
        "PMP",
        """
        1: a = select id from t {by_v} where v = 30
        2: insert into t values (3, 30)
        2: commit
        1: b = select id from t {by_v} where v between 25 and 35
        1: commit
        """,
        lambda o: ids(o, "b") != ids(o, "a"),
    ),
    Case(
        "PMP write",
        """
        1: update t {by_v} set v = v + 10 where v > 0
        2: a = select id from t {by_v} where v = 20
        2: delete from t where v = 20
        1: commit
        2: commit
        """,
        lambda o: o.ended_well(1, 2) and ids(o, "a") != {1, 2} - o.final.keys(),
    ),
    Case(
        "P4",
        """
        1: a = select v from t where id = 1
        2: b = select v from t where id = 1
        1: update t set v = 11 where id = 1
        2: update t set v = 11 where id = 1
        1: commit
        2: commit
        """,
        lambda o: o.ended_well(1, 2) and value(o, "a") == value(o, "b") == 10,
    ),
    Case(
        "P4 for update",
        """
        1: a = select v from t where id = 1 for update
        2: b = select v from t where id = 1 for update
        1: update t set v = 11 where id = 1
        2: update t set v = 11 where id = 1
        1: commit
        2: commit
        """,
        lambda o: o.ended_well(1, 2) and value(o, "a") == value(o, "b") == 10,
    ),
    Case(
        "P4 share",
        """
        1: a = select v from t where id = 1 lock in share mode
        2: b = select v from t where id = 1 lock in share mode
        1: update t set v = 11 where id = 1
        2: update t set v = 11 where id = 1
        1: commit
        2: commit
        """,
        lambda o: o.ended_well(1, 2) and value(o, "a") == value(o, "b") == 10,
    ),
    Case(
        "P4 in one statement",
        """
        1: update t set v = v + 1 where id = 1
        2: update t set v = v + 1 where id = 1
        1: commit
        2: commit
        """,
        lambda o: o.final[1] != 12,
    ),
    Case(
        "P4 savepoint",
        """
        1: select v from t where id = 2
        1: savepoint s
        1: a = select v from t where id = 1 for update
        1: rollback to savepoint s
        2: update t set v = 11 where id = 1
        2: commit
        1: update t set v = 12 where id = 1
        1: commit
        """,
        lambda o: o.ended_well(1, 2) and o.final[1] == 12,
    ),
    Case(
        "P4 savepoint change",
        """
        1: select v from t where id = 2
        1: savepoint s
        1: update t set v = 11 where id = 1
        1: rollback to savepoint s
        2: update t set v = 11 where id = 1
        2: commit
        1: update t set v = 12 where id = 1
        1: commit
        """,
        lambda o: o.ended_well(1, 2) and o.final[1] == 12,
    ),
    Case(
        "P4 savepoint again",
        """
        1: select v from t where id = 2
        1: savepoint s
        1: update t set v = 11 where id = 1
        2: update t set v = v + 100 where id = 1
        1: rollback to savepoint s
        1: update t set v = v + 1 where id = 1
        1: commit
        2: commit
        """,
        lambda o: o.ended_well(1, 2) and o.final[1] != 111,
    ),
    Case(
        "G-single",
        """
        1: a = select v from t where id = 1
        2: b = select v from t where id = 1
        2: update t set v = 12 where id = 1
        2: update t set v = 18 where id = 2
        2: commit
        1: c = select v from t where id = 2
        1: commit
        """,
        lambda o: value(o, "a") == 10 and value(o, "c") == 18,
    ),
    Case(
        "G-single predicate",
        """
        1: a = select id from t {by_v} where v in (10, 20)
        2: update t {by_v} set v = 12 where v = 10
        2: commit
        1: b = select id from t {by_v} where v in (12, 18)
        1: commit
        """,
        lambda o: 1 in ids(o, "b"),
    ),
    Case(
        "G-single statement",
        """
        1: update t set v = v + 1 where id = 2
        2: a = select min(v), max(v) from t {by_v} where v > 0
        1: update t set v = v + 1 where id = 1
        1: commit
        2: commit
        """,
        lambda o: o.rows.get("a", [(10, 20)])[0] not in ((10, 20), (11, 21)),
    ),
    Case(
        "G-single write predicate",
        """
        1: a = select v from t where id = 1
        2: update t set v = 12 where id = 1
        2: update t set v = 18 where id = 2
        2: commit
        1: b = delete from t where v = 20
        1: commit
        """,
        lambda o: o.ended_well(1, 2) and value(o, "a") == 10 and o.affected["b"] == 0,
    ),
    Case(
        "G-single write",
        """
        1: a = select v from t where id = 1
        2: update t set v = 12 where id = 1
        2: update t set v = 18 where id = 2
        2: commit
        1: update t set v = v + 1 where id = 2
        1: commit
        """,
        lambda o: o.ended_well(1, 2) and value(o, "a") == 10 and o.final[2] == 19,
    ),
    Case(
        "G2-item",
        """
        1: a = select id from t where id in (1, 2)
        2: b = select id from t where id in (1, 2)
        1: update t set v = 11 where id = 1
        2: update t set v = 21 where id = 2
        1: commit
        2: commit
        """,
        lambda o: o.ended_well(1, 2),
    ),
    Case(
        "G2-item share",
        """
        1: a = select id from t where id in (1, 2) lock in share mode
        2: b = select id from t where id in (1, 2) lock in share mode
        1: update t set v = 11 where id = 1
        2: update t set v = 21 where id = 2
        1: commit
        2: commit
        """,
        lambda o: o.ended_well(1, 2),
    ),
    Case(
        "G2",
        """
        1: a = select id from t {by_v} where v between 30 and 50
        2: b = select id from t {by_v} where v between 30 and 50
        1: insert into t values (3, 30)
        2: insert into t values (4, 42)
        1: commit
        2: commit
        """,
        lambda o: o.ended_well(1, 2) and not ids(o, "a") and not ids(o, "b"),
    ),
    Case(
        "G2 share",
        """
        1: a = select id from t {by_v} where v between 30 and 50 lock in share mode
        2: b = select id from t {by_v} where v between 30 and 50 lock in share mode
        1: insert into t values (3, 30)
        2: insert into t values (4, 42)
        1: commit
        2: commit
        """,
        lambda o: o.ended_well(1, 2) and not ids(o, "a") and not ids(o, "b"),
    ),
    Case(
        "G2 for update",
        """
        1: a = select id from t {by_v} where v between 30 and 50 for update
        2: insert into t values (3, 30)
        2: commit
        1: b = select id from t {by_v} where v between 30 and 50 for update
        1: commit
        """,
        lambda o: ids(o, "a") != ids(o, "b"),
    ),
    Case(
        "G2 absent row",
        """
        1: a = select v from t where id = 7 for update
        2: insert into t values (7, 70)
        2: commit
        1: b = select v from t where id = 7 for update
        1: commit
        """,
        lambda o: bool(o.rows.get("b")),
    ),
    Case(
        "G2 absent row, insert",
        """
        1: select v from t where id = 7
        2: insert ignore into t values (7, 72)
        1: insert ignore into t values (7, 71)
        1: commit
        2: commit
        """,
        lambda o: o.final.get(7) != 71,
    ),
    Case(
        "G2 duplicate",
        """
        1: insert ignore into t values (1, 30)
        2: delete from t where id = 1
        2: commit
        1: a = select v from t where id = 1 lock in share mode
        1: commit
        """,
        lambda o: o.ended_well(1) and not o.rows.get("a"),
    ),
    Case(
        "G2 moved row",
        """
        1: insert into t values (3, 30)
        1: commit
        1: begin
        1: select v from t where id = 2 for update
        2: a = select id from t {by_v} where v > 0 order by v desc for update
        3: update t set v = 25 where id = 1
        3: commit
        1: commit
        2: commit
        """,
        lambda o: o.ended_well(1, 2, 3) and ids(o, "a") != {1, 2, 3},
    ),
    Case(
        "G2 read only",
        """
        1: a = select v from t where id in (1, 2)
        2: update t set v = v + 5 where id = 2
        2: commit
        3: b = select v from t where id in (1, 2)
        3: commit
        1: update t set v = 0 where id = 1
        1: commit
        """,
        lambda o: o.ended_well(1, 2, 3) and o.rows["b"] == [(10,), (25,)] and o.rows["a"] == [(10,), (20,)],
    ),
)
