"""The anomaly matrix: MATRIX.md says what each engine does at each level; this runs it and compares."""

import re
from dataclasses import dataclass
from pathlib import Path

from strata_cli.server import Server

from .cases import CASES, Case
from .schedule import DEADLOCK, Outcome, Runner, Session

DATABASE = "matrix"
TABLE_FILE = Path(__file__).with_name("MATRIX.md")
LEVELS = {"RU": "READ UNCOMMITTED", "RC": "READ COMMITTED", "RR": "REPEATABLE READ", "SER": "SERIALIZABLE"}


@dataclass(frozen=True)
class Column:
    engine: str
    level: str
    snapshot_isolation: bool = False  # strata_snapshot_isolation, innodb_snapshot_isolation

    @property
    def title(self) -> str:
        return f"{self.engine} {self.level}" + ("+SI" if self.snapshot_isolation else "")


COLUMNS = (
    *(Column("STRATA", level) for level in LEVELS),
    Column("STRATA", "RR", snapshot_isolation=True),
    *(Column("InnoDB", level) for level in LEVELS),
    Column("InnoDB", "RR", snapshot_isolation=True),
)
KINDS = {"v without a key": False, "v with a key": True}


def run_case(server: Server, case: Case, column: Column, keyed: bool) -> Outcome:
    settings = [
        f"SET SESSION TRANSACTION ISOLATION LEVEL {LEVELS[column.level]}",
        *(f"SET SESSION {engine}_snapshot_isolation={int(column.snapshot_isolation)}" for engine in ("innodb", "strata")),
    ]
    with server.connect(autocommit=True) as control, control.cursor() as cursor:
        for sql in (
            f"CREATE DATABASE IF NOT EXISTS {DATABASE}",
            f"DROP TABLE IF EXISTS {DATABASE}.t",
            f"CREATE TABLE {DATABASE}.t (id INT PRIMARY KEY, v INT{', KEY (v)' if keyed else ''}) ENGINE={column.engine}",
            f"INSERT INTO {DATABASE}.t VALUES (1, 10), (2, 20)",
        ):
            cursor.execute(sql)
        outcome = Runner(lambda: Session(server, DATABASE, settings)).run(case.steps(keyed))
        cursor.execute(f"SELECT id, v FROM {DATABASE}.t")
        outcome.final = {int(row[0]): int(row[1]) for row in cursor.fetchall()}
    return outcome


def verdict(case: Case, outcome: Outcome) -> str:
    """`yes` or `no`: did it occur; and what the sessions noticed: a wait, a deadlock, an error."""
    occurred = "yes" if case.occurred(outcome) else "no"
    if not outcome.errors:
        return f"{occurred}, waits" if outcome.waited else occurred
    return f"{occurred}, deadlock" if DEADLOCK in outcome.errors.values() else f"{occurred}, error"


# --- the table -----------------------------------------------------------------------------------------------------

Key = tuple[str, str, str]  # kind, case, column title


def read_expected(text: str) -> dict[Key, str]:
    expected: dict[Key, str] = {}
    kind = ""
    titles: list[str] = []
    for line in text.splitlines():
        if heading := re.fullmatch(r"## Table: (.+)", line):
            kind, titles = heading[1], []
        elif line.startswith("## "):
            kind = ""
        elif kind and line.startswith("|") and not line.startswith("|--"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if titles:
                expected |= {(kind, cells[0], title): cell for title, cell in zip(titles, cells[1:], strict=True)}
            else:
                titles = cells[1:]
    return expected


def render(found: dict[Key, str]) -> str:
    """The tables as MATRIX.md has them, for a change of cases."""
    lines: list[str] = []
    for kind in KINDS:
        titles = [column.title for column in COLUMNS]
        lines += [f"## Table: {kind}", "", "| case | " + " | ".join(titles) + " |", "|---" * (len(titles) + 1) + "|"]
        lines += [f"| {c.name} | " + " | ".join(found[kind, c.name, title] for title in titles) + " |" for c in CASES]
        lines.append("")
    return "\n".join(lines)


def differences(expected: dict[Key, str]) -> set[Key]:
    """Where the table says that STRATA lets something happen that InnoDB does not."""
    return {
        (kind, case, title)
        for (kind, case, title), cell in expected.items()
        if title.startswith("STRATA")
        and cell.startswith("yes")
        and expected[kind, case, title.replace("STRATA", "InnoDB")].startswith("no")
    }


def explained(text: str) -> set[tuple[str, str]]:
    """The pairs (case, level) that the section on differences explains: `- **case** at levels: why`."""
    pairs: set[tuple[str, str]] = set()
    for case, levels in re.findall(r"^- \*\*(.+?)\*\* at ([A-Z+, ]+):", text, re.MULTILINE):
        pairs |= {(case, level.strip()) for level in levels.split(",")}
    return pairs


def run_matrix(server: Server, columns: tuple[Column, ...] = COLUMNS) -> dict[Key, str]:
    return {
        (kind, case.name, column.title): verdict(case, run_case(server, case, column, keyed))
        for kind, keyed in KINDS.items()
        for case in CASES
        for column in columns
    }
