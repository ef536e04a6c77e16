"""What the clients know about their transactions, kept in a file outside the server.

A line is written before the transaction starts (`begin`) and one when its outcome is known (`ack`, `abort`). A
transaction whose COMMIT was sent and never answered stays unknown: after recovery it may be there or not, never half.
"""

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Ledger:
    """Thread-safe. Transaction ids are unique within a ledger."""

    path: Path
    acked: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    begun: dict[int, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._latch = threading.Lock()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a", buffering=1)

    def begin(self, txn: int, what: list[Any]) -> None:
        with self._latch:
            self.begun[txn] = what
            self._write("begin", txn, what)

    def ack(self, txn: int) -> None:
        with self._latch:
            self.acked.add(txn)
            self._write("ack", txn)

    def abort(self, txn: int) -> None:
        with self._latch:
            self.aborted.add(txn)
            self._write("abort", txn)

    def unknown(self) -> set[int]:
        return self.begun.keys() - self.acked - self.aborted

    def _write(self, event: str, txn: int, what: list[Any] | None = None) -> None:
        self._file.write(json.dumps([event, txn] if what is None else [event, txn, what]) + "\n")

    def close(self) -> None:
        self._file.close()

    @classmethod
    def read(cls, path: Path) -> "Ledger":
        """A ledger as another process left it; an unfinished last line counts as not written."""
        ledger = cls(path)
        for line in path.read_text().split("\n")[:-1]:
            event, txn, *rest = json.loads(line)
            if event == "begin":
                ledger.begun[txn] = rest[0]
            else:
                (ledger.acked if event == "ack" else ledger.aborted).add(txn)
        return ledger


def missing_and_wrong(ledger: Ledger, present: set[int], name: str) -> list[str]:
    """The promise of durability: every acknowledged transaction is there, no rolled back or unheard-of one is."""
    problems: list[str] = []
    if lost := ledger.acked - present:
        problems.append(f"{name}: {len(lost)} acknowledged transactions are lost, e.g. {sorted(lost)[:5]}")
    if risen := ledger.aborted & present:
        problems.append(f"{name}: {len(risen)} rolled back transactions are there, e.g. {sorted(risen)[:5]}")
    if strangers := present - ledger.begun.keys():
        problems.append(f"{name}: {len(strangers)} transactions nobody began, e.g. {sorted(strangers)[:5]}")
    return problems
