"""Which sessions have a transaction open, which of those met a lock on both sides, which may hold locks on gaps in InnoDB."""

import re

from .compare import Difference
from .step import Step
from .wire import Answer

IN_TRANSACTION = 1
LOCK_WAIT_TIMEOUT = 1205
DUPLICATE = 1062
PLAIN_INSERT = re.compile(r"^INSERT (IGNORE )?INTO (?!.*(SELECT|ON DUPLICATE KEY))", re.DOTALL)
WHOLE_TABLE = re.compile(r"^(DELETE FROM|UPDATE) \w+( SET (?!.*(WHERE|SELECT|ORDER BY|LIMIT)).*)?$", re.DOTALL)
LOCKS_NOTHING = re.compile(r"^(BEGIN|START TRANSACTION|SAVEPOINT|SET )")


class Transactions:
    def __init__(self) -> None:
        self._open: set[int] = set()
        # A lock conflict ends the statement only. The engines may have met it at different rows; earlier locks stay.
        self._stopped_by_lock: set[int] = set()
        self._may_lock_gaps: set[int] = set()

    def learn(self, step: Step, answer: Answer, found: list[Difference]) -> None:
        if not _locks_rows_only(step, answer):
            self._may_lock_gaps.add(step.session)
        if answer.ok:
            if answer.status & IN_TRANSACTION:
                self._open.add(step.session)
            else:
                self.ended(step.session)
        elif answer.error == LOCK_WAIT_TIMEOUT and not found and self.is_open(step.session):
            self._stopped_by_lock.add(step.session)

    def ended(self, session: int) -> None:
        self._open.discard(session)
        self._stopped_by_lock.discard(session)
        self._may_lock_gaps.discard(session)

    def is_open(self, session: int) -> bool:
        return session in self._open

    def another_was_stopped(self, step: Step) -> bool:
        return bool(self._stopped_by_lock - {step.session})

    def gaps_may_matter(self, step: Step) -> bool:
        """Not if each open transaction of another session has inserted rows, or met duplicates of a primary key, and nothing
        else: what it has locked then are rows, and a statement that wants every row must meet them on both sides."""
        others = self._open - {step.session}
        return bool(others & self._may_lock_gaps) or WHOLE_TABLE.search(step.sql) is None


def _locks_rows_only(step: Step, answer: Answer) -> bool:
    if LOCKS_NOTHING.search(step.sql):
        return True
    if PLAIN_INSERT.search(step.sql) is None:
        return False
    met = [str(warning[2]) for warning in answer.warnings if warning[1] == str(DUPLICATE)]
    if len(met) != answer.warning_count or answer.error not in (0, DUPLICATE):
        return False
    return all("'PRIMARY'" in message for message in [*met, *([answer.message] if answer.error else [])])
