"""Compares the two answers to a statement.

Names that must differ (schema, engine) have the same length on both sides, so they can be replaced inside packets.
"""

import re
from collections import Counter
from dataclasses import dataclass

from .step import Step
from .wire import STATUS_COMPARED, Answer, column_name

SCHEMA_STRATA = "diff_s"
SCHEMA_INNODB = "diff_i"
REPLACED = ((SCHEMA_STRATA.encode(), SCHEMA_INNODB.encode()), (b"STRATA", b"InnoDB"))
WARNINGS = re.compile(rb"Warnings: \d+")
AT_ROW = re.compile(r" at row \d+")
COPY = re.compile(rb"#sql-alter-[0-9a-f]+-[0-9a-f]+(#n[0-9]+)?")  # that an ALTER makes: named after connection, and server
# The name of a foreign key that has none yet: InnoDB shows one made of the copy's.
UNNAMED_IN_COPY = re.compile(rb"`[^`]*_ibfk_(\d+)`")
SHOWN_ROWS_MOST = 4


@dataclass(frozen=True)
class Difference:
    kind: str  # error, columns, rows, order, affected, insert_id, info, status, warnings, lost
    strata: str
    innodb: str
    codes: tuple[int, ...] = ()  # warnings: of those that differ

    def __str__(self) -> str:
        return f"{self.kind}\n    strata: {self.strata}\n    innodb: {self.innodb}"


# CHECK TABLE: of entries that InnoDB is about to remove. What STRATA says must be without doubts.
INNODB_DOUBTS = b"InnoDB: "

# UNSIGNED, ZEROFILL, ENUM, SET. The others (NOT NULL, part of a key, no default ...) depend on the plan: they change on the way
# through a temporary table, and when an outer join becomes an inner one.
COLUMN_FLAGS_COMPARED = 0x20 | 0x40 | 0x100 | 0x800


def common(payload: bytes) -> bytes:
    for ours, theirs in REPLACED:
        payload = payload.replace(ours, theirs)
    if b"#sql-alter" in payload:
        payload = UNNAMED_IN_COPY.sub(rb"`_ibfk_\1`", COPY.sub(b"#sql-alter", payload))
    return payload


def compare(step: Step, strata: Answer, innodb: Answer) -> list[Difference]:
    if strata.error or innodb.error:
        return _compare_errors(step, strata, innodb)
    found = [
        Difference(kind, repr(ours), repr(theirs))
        for kind, ours, theirs in (
            ("affected", strata.affected, innodb.affected),
            ("insert_id", strata.insert_id, innodb.insert_id),
            ("info", _info(step, strata), _info(step, innodb)),
            ("status", strata.status & STATUS_COMPARED, innodb.status & STATUS_COMPARED),
        )
        if ours != theirs
    ]
    found += _compare_columns(strata, innodb)
    found += _compare_rows(step, strata, innodb)
    if strata.warning_count or innodb.warning_count:
        found += _compare_warnings(step, strata, innodb)
    return found


def _compare_errors(step: Step, strata: Answer, innodb: Answer) -> list[Difference]:
    ours, theirs = _error_text(strata, step), _error_text(innodb, step)
    return [] if ours == theirs else [Difference("error", ours, theirs)]


def _error_text(answer: Answer, step: Step) -> str:
    if answer.ok:
        return "ok"
    text = f"{answer.error} ({answer.sqlstate})"
    # Which row is met first, and so which value the message names, is only defined with an order.
    if not step.ordered:
        return text
    message = common(answer.message.encode()).decode()
    return f"{text} {message if _rows_are_numbered(step) else AT_ROW.sub('', message)}"


def _compare_columns(strata: Answer, innodb: Answer) -> list[Difference]:
    if strata.columns == innodb.columns:
        return []
    ours = [_without_plan(common(column)) for column in strata.columns or ()]
    theirs = [_without_plan(common(column)) for column in innodb.columns or ()]
    if ours == theirs and (strata.columns is None) == (innodb.columns is None):
        return []
    shown = [column_name(a or b) for a, b in zip(ours, theirs, strict=False) if a != b]
    return [Difference("columns", f"{shown}: {ours!r}", f"{theirs!r}")]


def _without_plan(definition: bytes) -> bytes:
    """The definition ends in: 2 bytes of flags, decimals, 2 bytes of nothing."""
    flags = int.from_bytes(definition[-5:-3], "little") & COLUMN_FLAGS_COMPARED
    return definition[:-5] + flags.to_bytes(2, "little") + definition[-3:]


def _compare_rows(step: Step, strata: Answer, innodb: Answer) -> list[Difference]:
    if strata.rows == innodb.rows:
        return []
    ours, theirs = [common(row) for row in strata.rows], [common(row) for row in innodb.rows]
    if ours == theirs or (step.verb == "CHECK" and ours == [row for row in theirs if INNODB_DOUBTS not in row]):
        return []
    if sorted(ours) == sorted(theirs):
        if not step.ordered:
            return []
        at = next(i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
        place = f"row {at + 1}: "
        return [Difference("order", place + _shown(strata.values()[at:]), place + _shown(innodb.values()[at:]))]
    kept = set(ours) & set(theirs)
    only_ours = [row for row, key in zip(strata.values(), ours, strict=True) if key not in kept]
    only_theirs = [row for row, key in zip(innodb.values(), theirs, strict=True) if key not in kept]
    return [
        Difference(
            "rows",
            f"{len(ours)} rows, only here: {_shown(only_ours)}",
            f"{len(theirs)} rows, only here: {_shown(only_theirs)}",
        )
    ]


def _shown(rows: list[tuple[str | None, ...]]) -> str:
    short = [tuple(v if v is None or len(v) <= 60 else v[:60] + "..." for v in row) for row in rows[:SHOWN_ROWS_MOST]]
    return ", ".join(map(repr, short)) + (" ..." if len(rows) > SHOWN_ROWS_MOST else "")


def _compare_warnings(step: Step, strata: Answer, innodb: Answer) -> list[Difference]:
    ours, theirs = _warning_texts(step, strata), _warning_texts(step, innodb)
    if _meets_rows_again(step):
        ours, theirs = sorted(set(ours)), sorted(set(theirs))
        if ours == theirs:
            return []
    if ours == theirs and strata.warning_count == innodb.warning_count:
        return []
    odd = (Counter(ours) - Counter(theirs)) + (Counter(theirs) - Counter(ours))
    codes = tuple(sorted({int(text.split(" ")[1]) for text in odd}))
    return [Difference("warnings", f"{strata.warning_count}: {ours}", f"{innodb.warning_count}: {theirs}", codes)]


def _warning_texts(step: Step, answer: Answer) -> list[str]:
    texts = [common(" ".join(v or "" for v in row).encode()).decode() for row in answer.warnings]
    if not _rows_are_numbered(step):
        texts = [AT_ROW.sub("", text) for text in texts]
    return texts if step.ordered else sorted(texts)


def _meets_rows_again(step: Step) -> bool:
    """How often a join changes the same row anew, with its warnings, depends on the order of the tables."""
    return step.verb == "UPDATE" and " JOIN " in step.sql


def _info(step: Step, answer: Answer) -> bytes:
    info = common(answer.info)
    return WARNINGS.sub(b"", info)[1:] if _meets_rows_again(step) else info


def _rows_are_numbered(step: Step) -> bool:
    """Whether rows of a SELECT that do not qualify count depends on the plan."""
    return step.ordered and " SELECT " not in step.sql
