"""A statement of a case, and what may be expected of its answer."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Step:
    sql: str
    session: int = 0
    # The statement names a total order: rows come in it, and rows are visited in it (warnings "at row N").
    ordered: bool = False
    # What a success changes in the generator's model; nothing to whoever replays the statement.
    effect: Any = None
    server: int = 0  # With several: where it goes, unless a transaction is open elsewhere.

    @property
    def verb(self) -> str:
        return self.sql.split(None, 1)[0].upper()
