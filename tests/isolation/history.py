"""What clients did and saw, as a list of transactions; JSON lines on disk.

Every key holds a list. Transactions append values to lists and read lists; no value is appended twice to one list. So a list
tells which appends came before which, and a read tells which version it has seen.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class Level(StrEnum):
    RU = "RU"
    RC = "RC"
    RR = "RR"
    SER = "SER"


class Mode(StrEnum):
    plain = "plain"
    share = "share"
    update = "update"


class End(StrEnum):
    committed = "committed"  # the server said so
    aborted = "aborted"
    unknown = "unknown"  # the connection broke while the server was committing


@dataclass
class Read:
    """Lists, or only their lengths (an index that covers the count). Keys that were asked for and not found are absent here."""

    keys: list[int]
    mode: Mode
    sent: float
    moves: bool = False  # through an index whose entries move when a list grows
    how: str = ""  # index and condition, for people
    lists: dict[int, list[int]] | None = None
    lengths: dict[int, int] | None = None


@dataclass
class Append:
    """`hit`: how many of the keys were there and got the value; -1: the statement failed, or nobody knows."""

    keys: list[int]
    value: int
    sent: float
    hit: int


@dataclass
class Savepoint:
    """Undoing goes back to the savepoint with the same number."""

    number: int
    undo: bool = False


Operation = Read | Append | Savepoint


@dataclass
class Transaction:
    client: int
    level: Level
    began: float
    single: bool = False  # one statement in autocommit mode
    snapshot_at: float | None = None  # WITH CONSISTENT SNAPSHOT
    end: End = End.aborted
    ended: float = 0.0  # when the client knew
    operations: list[Operation] = field(default_factory=list)


@dataclass
class History:
    transactions: list[Transaction] = field(default_factory=list)
    final: dict[int, list[int]] = field(default_factory=dict)  # read when everybody had ended
    snapshot_isolation: bool = False  # REPEATABLE READ refuses to write over what its snapshot does not show
    problems: list[str] = field(default_factory=list)  # what the clients themselves found wrong
    about: dict[str, str | int] = field(default_factory=dict)


KINDS: dict[str, type[Operation]] = {"read": Read, "append": Append, "savepoint": Savepoint}
NAMES = {kind: name for name, kind in KINDS.items()}


def save(history: History, path: Path) -> None:
    with path.open("w") as out:
        head = {"about": history.about, "snapshot_isolation": history.snapshot_isolation, "problems": history.problems}
        print(json.dumps(head), file=out)
        for transaction in history.transactions:
            line = asdict(transaction)
            line["operations"] = [{"kind": NAMES[type(op)], **asdict(op)} for op in transaction.operations]
            print(json.dumps(line), file=out)
        print(json.dumps({"final": history.final}), file=out)


def load(path: Path) -> History:
    lines = list(_lines(path))
    history = History(about=lines[0]["about"], snapshot_isolation=lines[0]["snapshot_isolation"], problems=lines[0]["problems"])
    history.final = _by_key(lines[-1]["final"])
    for line in lines[1:-1]:
        operations = [_operation(op) for op in line.pop("operations")]
        line |= {"level": Level(line["level"]), "end": End(line["end"])}
        history.transactions.append(Transaction(**line, operations=operations))
    return history


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open() as source:
        for line in source:
            yield json.loads(line)


def _operation(line: dict[str, Any]) -> Operation:
    kind = KINDS[line.pop("kind")]
    if kind is Read:
        line["mode"] = Mode(line["mode"])
        for name in ("lists", "lengths"):
            line[name] = None if line[name] is None else _by_key(line[name])
    return kind(**line)


def _by_key(values: dict[str, Any]) -> dict[int, Any]:
    return {int(key): value for key, value in values.items()}
