"""A client thread: one transaction after the other until it is told to stop or the server is gone."""

import random
import threading
from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

from .session import RETRY, Connector, Excused, Refused, ServerGone, Session

# A transaction id is worker * TXNS_PER_WORKER + number, so ids never meet.
TXNS_PER_WORKER = 1_000_000_000
RECONNECT_S = 0.05


class Worker(threading.Thread, ABC):
    """`failure` is set when the server answered something it must not; a broken connection is no failure."""

    def __init__(self, server: Connector, database: str, number: int, rng: random.Random) -> None:
        super().__init__(daemon=True, name=f"{type(self).__name__}-{number}")
        self.number = number
        self.rng = rng
        self.done = 0
        self.failure: str | None = None
        self.stays = False  # Comes back with a new session when one breaks, if it knows where it is.
        self.pace_s = 0.0  # between two transactions
        self._server = server
        self._database = database
        self._halt = threading.Event()

    @abstractmethod
    def step(self, session: Session) -> None:
        """One transaction. Raises ServerGone when the connection breaks."""

    def begin_session(self, session: Session) -> None:
        """Before the first transaction of each session."""
        level = self.rng.choice(["READ COMMITTED", "REPEATABLE READ"])
        session.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")

    def abandon(self, session: Session) -> None:
        """After a retryable or excused error: forget the transaction."""
        session.rollback()

    def halt(self) -> None:
        self._halt.set()

    def is_settled(self) -> bool:
        """Whether the next transaction can be made without knowing what became of the last."""
        return True

    def run(self) -> None:
        try:
            while not self._serve() and self.stays and self.is_settled():
                if self._halt.wait(RECONNECT_S):
                    break
        except Exception as error:  # Whatever it is, the campaign must report it.
            self.failure = f"{self.name}: {error!r}"

    def _serve(self) -> bool:
        """One session. False: it broke."""
        try:
            with Session(self._server, self._database) as session:
                self.begin_session(session)
                while not self._halt.is_set():
                    self._one(session)
        except ServerGone:
            return False
        return True

    def _one(self, session: Session) -> None:
        try:
            self.step(session)
            self.done += 1
            if self.pace_s:
                self._halt.wait(self.pace_s)
        except Refused as error:
            if error.code not in RETRY and not isinstance(error, Excused):
                raise
            self.abandon(session)


Item = TypeVar("Item")


class StateWorker(Worker, Generic[Item]):
    """Knows what its rows are. `committed` survives it: the next round's worker starts from what verify() settled."""

    rollback_chance: ClassVar[float]

    def __init__(
        self, server: Connector, database: str, number: int, rng: random.Random, state: dict[int, Item], next_id: int
    ) -> None:
        super().__init__(server, database, number, rng)
        self.committed = dict(state)
        self.candidate: dict[int, Item] | None = None  # The state after a COMMIT that was sent and not answered.
        self.next_id = max(next_id, number * TXNS_PER_WORKER)

    def is_settled(self) -> bool:
        return self.candidate is None

    @abstractmethod
    def change(self, session: Session, work: dict[int, Item]) -> None:
        """The statements of one transaction; `work` follows them."""

    def step(self, session: Session) -> None:
        work = dict(self.committed)
        self.change(session, work)
        if self.rng.random() < self.rollback_chance:
            session.rollback()
            return
        self.candidate = work
        try:
            session.commit()
        except Refused:
            self.candidate = None
            raise
        self.committed, self.candidate = work, None
