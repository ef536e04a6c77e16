"""Indexes of tables that are in use come and go, and tables are copied: whatever of it a fault interrupts is done or not, and
the rows, which belong to other workers, are as those left them (tables.py compares every index with its table)."""

import random

from .session import Connector, Session
from .worker import Worker

# Table: columns that an index may be made of, and dropped.
CHOICES = {
    "items": ("version", "k"),
    "events": ("part", "kind"),
    "notes": ("part",),
    "bank_transfers": ("amount",),
    "undo_rows": ("n", "stmt"),
    "bulk": ("n",),
}
SUFFIX = "_reshaped"
COPY_SHARE = 0.25
WAIT_S = 8


class ReshapeWorker(Worker):
    """The only one that changes these tables' definitions. `pace_s` gives the others their turn."""

    def __init__(self, server: Connector, database: str, number: int, rng: random.Random) -> None:
        super().__init__(server, database, number, rng)

    def begin_session(self, session: Session) -> None:
        session.execute(f"SET SESSION lock_wait_timeout = {WAIT_S}, strata_lock_wait_timeout = {WAIT_S}")

    def step(self, session: Session) -> None:
        table = self.rng.choice(sorted(CHOICES))
        column = self.rng.choice(CHOICES[table])
        index = column + SUFFIX
        there = {row[2] for row in session.execute(f"SHOW INDEX FROM {table}")}
        session.commit()
        if self.rng.random() < COPY_SHARE:
            session.execute(f"ALTER TABLE {table} FORCE")
        elif index in there:
            session.execute(f"DROP INDEX {index} ON {table}")
        else:
            session.execute(f"CREATE INDEX {index} ON {table} ({column})")
