"""Which sessions have a transaction open, and which of those ran into a lock on both sides."""

from .compare import Difference
from .step import Step
from .wire import Answer

IN_TRANSACTION = 1
LOCK_WAIT_TIMEOUT = 1205


class Transactions:
    def __init__(self) -> None:
        self._open: set[int] = set()
        # A lock conflict ends the statement only. The engines may have met it at different rows; earlier locks stay.
        self._stopped_by_lock: set[int] = set()

    def learn(self, step: Step, answer: Answer, found: list[Difference]) -> None:
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

    def is_open(self, session: int) -> bool:
        return session in self._open

    def another_was_stopped(self, step: Step) -> bool:
        return bool(self._stopped_by_lock - {step.session})
