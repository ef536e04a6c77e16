"""All that the clients of a run do and know, whatever serves them: their ledgers, the workers of a round, and the checks."""

import contextlib
import random
from collections.abc import Sequence
from pathlib import Path

from . import bank, bulk, ddl, events, families, items, undo, xa
from .ledger import Ledger
from .session import Connector, ServerGone, Session
from .tables import rows_are_free, verify_table
from .worker import Worker


class Failure(Exception):
    """What the run found wrong, one problem a line."""


class Workloads:
    """Not thread-safe; its workers are threads of their own."""

    def __init__(
        self,
        folder: Path,
        server: Connector,
        database: str,
        engine: str,
        *,
        bulk_rows: int = bulk.ROWS_MAX,
        ddl_too: bool = True,
        xa_rollback_too: bool = True,
    ) -> None:
        self._server = server
        self._database = database
        self._engine = engine
        self._bulk_rows = bulk_rows
        self._ddl_too = ddl_too
        self._xa_rollback_too = xa_rollback_too
        self.bank = Ledger(folder / "bank.ledger")
        self._events = Ledger(folder / "events.ledger")
        self._xa_ledger = Ledger(folder / "xa.ledger")
        self._not_logged: set[str] = set()
        self._undo = Ledger(folder / "undo.ledger")
        self._xa = xa.XaWorker(server, database, 1, random.Random(), self._xa_ledger)
        self._items = [items.ItemsWorker(server, database, n, random.Random(), {}, 0) for n in (1, 2)]
        self._bulk = bulk.BulkWorker(server, database, 1, random.Random(), {}, 0)
        self._family = families.FamiliesWorker(server, database, 1, random.Random(), {}, 0)
        self._ddl = ddl.DdlWorker(server, database, 1, random.Random(), engine, {}, 0)

    def close(self) -> None:
        for ledger in (self.bank, self._events, self._xa_ledger, self._undo):
            ledger.close()

    def create(self) -> None:
        with Session(self._server, self._database) as session:
            for workload in (bank, bulk, events, families, items, undo, xa):
                workload.create(session, self._engine)

    def workers(self, rng: random.Random) -> list[Worker]:
        """Of the next round; they go on from what the last verify() settled."""

        def own_rng() -> random.Random:
            return random.Random(rng.getrandbits(64))

        server, database = self._server, self._database
        self._items = [items.ItemsWorker(server, database, w.number, own_rng(), w.committed, w.next_id) for w in self._items]
        self._ddl = ddl.DdlWorker(server, database, 1, own_rng(), self._engine, self._ddl.catalog, self._ddl.next_name)
        self._bulk = bulk.BulkWorker(server, database, 1, own_rng(), self._bulk.committed, self._bulk.next_id)
        self._bulk.rows_max = self._bulk_rows
        self._family = families.FamiliesWorker(server, database, 1, own_rng(), self._family.committed, self._family.next_id)
        tellers = [bank.BankWorker(server, database, n, own_rng(), self.bank) for n in (1, 2, 3)]
        writers = [events.EventsWorker(server, database, n, own_rng(), self._events) for n in (1, 2)]
        self._xa = xa.XaWorker(server, database, 1, own_rng(), self._xa_ledger, rollback_too=self._xa_rollback_too)
        auditor = bank.Auditor(server, database, 1, own_rng())
        undoers = [undo.UndoWorker(server, database, n, own_rng(), self._undo) for n in (1, 2)]
        schema = [self._ddl] if self._ddl_too else []
        return [*tellers, auditor, *writers, self._xa, *self._items, self._bulk, self._family, *schema, *undoers]

    def tables(self) -> list[str]:
        """All there are, as the last verify() saw them."""
        known = (bank, events, items, bulk, families, xa, undo)
        return [*(table for workload in known for table in workload.TABLES), *sorted(self._ddl.catalog)]

    def acknowledged(self) -> dict[str, set[int]]:
        """Query that says which transactions are there, and those that must be."""
        return {
            "SELECT id FROM bank_transfers": self.bank.acked,
            "SELECT DISTINCT txn FROM notes": self._events.acked,
            "SELECT DISTINCT txn FROM undo_rows WHERE txn > 0": self._undo.acked,
        }

    def take_not_logged(self) -> set[str]:
        """Tables that the binary log need not agree with: what the verify() calls since the last time have met."""
        taken, self._not_logged = self._not_logged, set()
        return taken

    def verify(self, holders: Sequence[Connector] = ()) -> None:
        """Raises Failure. No worker runs. May be called again after ServerGone. `holders`: where several servers write, all of
        them, for each one knows of its own prepared transactions only."""
        problems: list[str] = []
        self._not_logged |= self._ddl.not_logged()
        try:
            with contextlib.ExitStack() as sessions:
                session = sessions.enter_context(Session(self._server, self._database))
                at = [sessions.enter_context(Session(holder, self._database)) for holder in holders]
                problems += xa.verify(session, self._xa_ledger, self._xa, at)
                problems += bank.verify(session, self.bank)
                problems += events.verify(session, self._events)
                problems += items.verify(session, self._items)
                problems += bulk.verify(session, self._bulk)
                problems += families.verify(session, self._family)
                problems += undo.verify(session, self._undo)
                problems += ddl.verify(session, self._ddl)
                for table in self.tables():
                    problems += verify_table(session, table)
                    problems += rows_are_free(session, table)
                if not problems:
                    self._settle(session)
        except ServerGone:
            if not problems:
                raise
        if problems:
            raise Failure("\n".join(problems))

    def _settle(self, session: Session) -> None:
        """What the clients could not know is known now."""
        for ledger, table in (
            (self.bank, "SELECT id FROM bank_transfers"),
            (self._events, "SELECT DISTINCT txn FROM notes"),
            (self._xa_ledger, "SELECT DISTINCT txn FROM xa_rows"),
            (self._undo, "SELECT DISTINCT txn FROM undo_rows WHERE txn > 0"),
        ):
            present = {row[0] for row in session.execute(table)}
            for txn in sorted(ledger.unknown()):
                (ledger.ack if txn in present else ledger.abort)(txn)
