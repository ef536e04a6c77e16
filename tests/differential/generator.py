"""The statements of a case, one after the other: definitions, changes, queries, transactions on one to three sessions.

Everything follows from the seed and from InnoDB's answers (what succeeded is in the model). With several sessions every change is
inside a transaction, and tables are only redefined while no transaction is open: nothing can block.
"""

import random

from .changes import Changes
from .definitions import Definitions
from .queries import Queries
from .schema import Schema
from .step import Step
from .transactions import IN_TRANSACTION
from .wire import Answer

ISOLATION = ("READ COMMITTED", "REPEATABLE READ", "REPEATABLE READ", "READ UNCOMMITTED")  # The last: not with VIRTUAL columns.
STRICT = "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
SQL_MODES = (
    STRICT,
    STRICT,
    "",
    "",
    "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE",
    "NO_AUTO_VALUE_ON_ZERO",
    "PAD_CHAR_TO_FULL_LENGTH",
)
MULTI_RANGE = (
    "optimizer_switch='mrr=on,mrr_sort_keys=on'",
    "optimizer_switch='mrr=on,join_cache_bka=on', join_cache_level=8",
)
OPTIMIZER = (
    "optimizer_switch='index_condition_pushdown=off'",
    "optimizer_switch='index_merge_sort_intersection=on'",
    "optimizer_switch='rowid_filter=off'",
    "optimizer_switch='materialization=off,semijoin=off'",
    "optimizer_switch=DEFAULT, join_cache_level=DEFAULT",
)
VERIFY_EVERY = 70
LONG_KEYS_CHANCE = 0.12


class Generator:
    def __init__(self, seed: int, steps: int, long_keys: bool = False, engine_numbers: bool = True) -> None:
        self._rng = rng = random.Random(f"case {seed}")
        self._schema = Schema()
        self._queries = Queries(rng, self._schema)
        self._changes = Changes(rng, self._schema, self._queries)
        self._definitions = Definitions(rng, self._schema)
        self._sessions = rng.choice((1, 1, 1, 2, 3))
        # Not together: see the README.
        self._definitions.virtual_columns = self._sessions == 1 and rng.random() < 0.6
        self._definitions.engine_numbers = engine_numbers
        self._definitions.long_keys = long_keys or rng.random() < LONG_KEYS_CHANCE
        # Of keys that begin alike for longer than an entry keeps, a locking scan may lock some that are outside of its range.
        self._definitions.long_primary_keys = self._sessions == 1
        self._isolation = ISOLATION[: 3 if self._definitions.virtual_columns else 4]
        self._optimizer = OPTIMIZER if self._definitions.virtual_columns else OPTIMIZER + MULTI_RANGE
        self._changes.concurrent = self._sessions > 1
        self._open = [False] * self._sessions  # in a transaction
        self._savepoints: list[list[str]] = [[] for _ in range(self._sessions)]
        self._queue: list[Step] = []
        self._left = steps
        self._since_verified = 0
        self._prelude()

    def next(self) -> Step | None:
        """The next statement; None at the end."""
        if not self._queue:
            if self._left <= 0 and not self._finish():
                return None
            if not self._queue:
                self._choose()
        self._left -= 1
        return self._queue.pop(0)

    def learn(self, step: Step, answer: Answer) -> None:
        if answer.ok:
            self._open[step.session] = bool(answer.status & IN_TRANSACTION)
            if not self._open[step.session]:
                self._savepoints[step.session].clear()
            if step.effect is not None:
                step.effect()

    def rolled_back(self, session: int) -> None:
        self._open[session] = False
        self._savepoints[session].clear()

    # --- what comes next ---------------------------------------------------------------------------------------

    def _prelude(self) -> None:
        mode = self._mode()
        for session in range(self._sessions):
            self._queue.append(Step(f"SET SESSION sql_mode='{mode}'", session))
            if self._rng.random() < 0.3:
                self._queue.append(Step(f"SET SESSION {self._rng.choice(self._optimizer)}", session))

    def _mode(self) -> str:
        mode = self._rng.choice(SQL_MODES)
        self._changes.zero_is_a_value = "NO_AUTO_VALUE_ON_ZERO" in mode
        return mode

    def _finish(self) -> bool:
        """Ends what is open, then compares every table; False once that is done."""
        if self._left <= -1_000_000:
            return False
        self._left = -1_000_000
        self._end_all()
        self._queries.in_transaction = False
        self._verify_all(0)
        return bool(self._queue)

    def _choose(self) -> None:
        rng = self._rng
        session = rng.randrange(self._sessions)
        self._queries.in_transaction = self._open[session]
        self._since_verified += 1
        if len(self._schema.tables) < 2:
            self._define(session)
            return
        if self._since_verified > VERIFY_EVERY:
            self._since_verified = 0
            if self._sessions > 1:
                self._end_all()
            self._verify_all(session)
            return
        roll = rng.random()
        if self._sessions > 1:
            self._choose_concurrent(session, roll)
        elif roll < 0.10:
            self._define(session)
        elif roll < 0.20:
            self._transaction(session)
        elif roll < 0.215:
            self._queue.append(Step(f"SET SESSION sql_mode='{self._mode()}'", session))
        elif roll < 0.225:
            self._queue.append(Step(f"SET SESSION {rng.choice(self._optimizer)}", session))
        elif roll < 0.62:
            self._queue.append(self._changes.change())
        else:
            self._queue.append(self._queries.select(self._locking(session)))

    def _choose_concurrent(self, session: int, roll: float) -> None:
        if not any(self._open) and roll < 0.15:
            self._define(session)
        elif not any(self._open) and roll < 0.35:
            self._fill(session)
        elif roll < 0.04:
            self._end_all()
        elif not self._open[session]:
            self._begin(session)
        elif roll < 0.16:
            self._transaction(session)
        elif roll < 0.55:
            self._put(self._changes.change(), session)
        else:
            self._put(self._queries.select(), session)

    def _put(self, step: Step, session: int) -> None:
        self._queue.append(Step(step.sql, session, step.ordered, step.effect))

    def _define(self, session: int) -> None:
        self._put(self._definitions.define(), session)
        self._savepoints[session].clear()

    def _fill(self, session: int) -> None:
        """Rows for several sessions to work on."""
        self._changes.concurrent = False
        self._put(self._changes.change(), session)
        self._changes.concurrent = True

    def _locking(self, session: int) -> str:
        return self._rng.choice((" FOR UPDATE", " LOCK IN SHARE MODE", "")) if self._rng.random() < 0.1 else ""

    # --- transactions ------------------------------------------------------------------------------------------

    def _begin(self, session: int) -> None:
        rng = self._rng
        if rng.random() < 0.7:
            self._queue.append(Step(f"SET TRANSACTION ISOLATION LEVEL {rng.choice(self._isolation)}", session))
        roll = rng.random()
        start = (
            "BEGIN"
            if roll < 0.7
            else "START TRANSACTION WITH CONSISTENT SNAPSHOT"
            if roll < 0.93
            else "START TRANSACTION READ ONLY"
        )
        self._queue.append(Step(start, session))

    def _transaction(self, session: int) -> None:
        rng = self._rng
        if not self._open[session]:
            self._begin(session)
            return
        names = self._savepoints[session]
        roll = rng.random()
        if roll < 0.35:
            self._queue.append(Step("COMMIT", session))
        elif roll < 0.5:
            self._queue.append(Step("ROLLBACK", session))
        elif roll < 0.75 or not names:
            name = rng.choice(("s1", "s2", "s3"))
            names.append(name)
            self._queue.append(Step(f"SAVEPOINT {name}", session))
        elif roll < 0.95:
            self._queue.append(Step(f"ROLLBACK TO SAVEPOINT {rng.choice(names)}", session))
        else:
            self._queue.append(Step(f"RELEASE SAVEPOINT {rng.choice(names)}", session))

    def _end_all(self) -> None:
        for session, is_open in enumerate(self._open):
            if is_open:
                self._queue.append(Step(self._rng.choice(("COMMIT", "COMMIT", "ROLLBACK")), session))

    def _verify_all(self, session: int) -> None:
        for table in self._schema.tables.values():
            for step in self._queries.verification(table):
                self._put(step, session)
