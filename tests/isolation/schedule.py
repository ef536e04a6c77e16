"""Runs one interleaving of several connections, statement by statement. Not thread-safe.

Statements are sent in the order of the schedule. Before the next one goes out every earlier one is either answered or blocked, so
a run comes out the same every time. Blocked is not guessed by a timeout: the server's thread of that connection has taken the
statement and sleeps, without a context switch, several looks in a row. A step of a blocked session waits for that session only.
"""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
from pymysql.constants import CLIENT
from strata_cli.server import Server

Row = tuple[Any, ...]

LOOKS = 4
BETWEEN_LOOKS_S = 0.005
PATIENCE_MOST = 5.0
ANSWER_TIMEOUT_S = 20.0
DEADLOCK = 1213
ROW_CHANGED = 1020  # snapshot isolation


def patience() -> float:
    """On a busy machine a thread that is not blocked may sleep longer: for another one that does not get a processor."""
    return min(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)), PATIENCE_MOST)


class ScheduleError(Exception):
    """The schedule did not run as it should: an unexpected error, or a wait without an end."""


@dataclass(frozen=True)
class Step:
    session: int
    sql: str
    label: str = ""


@dataclass
class Outcome:
    rows: dict[str, list[Row]] = field(default_factory=dict)  # what labelled SELECTs showed
    affected: dict[str, int] = field(default_factory=dict)  # rows that labelled changes touched
    committed: set[int] = field(default_factory=set)
    errors: dict[int, int] = field(default_factory=dict)  # session: code
    waited: bool = False
    final: dict[int, int] = field(default_factory=dict)

    def ended_well(self, *sessions: int) -> bool:
        return all(session in self.committed for session in sessions)


class Session:
    """One connection and the thread that waits for its answers."""

    def __init__(self, server: Server, database: str, settings: Sequence[str]) -> None:
        self._connection = server.connect(database=database, autocommit=True, client_flag=CLIENT.FOUND_ROWS)
        self._executor = ThreadPoolExecutor(1)
        for sql in settings:
            self._execute(sql)
        pid = server.pid()
        tid = self._execute("SELECT tid FROM information_schema.processlist WHERE id = CONNECTION_ID()")[0][0][0]
        self._task = Path(f"/proc/{pid}/task/{tid}")
        self._switches_at_send = 0
        self._running: tuple[Step, Future[tuple[list[Row], int]]] | None = None
        self.deferred: list[Step] = []
        self.failed = False

    def _execute(self, sql: str) -> tuple[list[Row], int]:
        with self._connection.cursor() as cursor:
            affected = cursor.execute(sql)
            return list(cursor.fetchall()), affected

    def send(self, step: Step) -> None:
        assert self._running is None
        self._switches_at_send = self._switches()[1]
        self._running = (step, self._executor.submit(self._execute, step.sql))

    @property
    def busy(self) -> bool:
        return self._running is not None

    def take(self) -> tuple[Step, tuple[list[Row], int] | pymysql.MySQLError] | None:
        """The step that is done now, if any."""
        if self._running is None or not self._running[1].done():
            return None
        step, future = self._running
        self._running = None
        error = future.exception()
        if error is None:
            return step, future.result()
        if isinstance(error, pymysql.MySQLError):
            return step, error
        raise error

    def _switches(self) -> tuple[str, int]:
        status = dict(line.split(":\t", 1) for line in (self._task / "status").read_text().splitlines() if ":\t" in line)
        switches = int(status["voluntary_ctxt_switches"]) + int(status["nonvoluntary_ctxt_switches"])
        return status["State"][0], switches

    def settle(self) -> bool:
        """Waits until the statement is answered (False) or blocked (True)."""
        assert self._running is not None
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        between_s = BETWEEN_LOOKS_S * patience()
        seen: tuple[str, int] | None = None
        same = 0
        while not self._running[1].done():
            now = self._switches()
            asleep = now[0] == "S" and now[1] > self._switches_at_send
            same = same + 1 if asleep and now == seen else 0
            if same >= LOOKS:
                return True
            seen = now
            if time.monotonic() > deadline:
                raise ScheduleError(f"no answer: {self._running[0].sql}")
            wait([self._running[1]], between_s if asleep else 0.001)
        return False

    def close(self) -> None:
        self._connection.close()
        self._executor.shutdown()


class Runner:
    def __init__(self, connect: Callable[[], Session]) -> None:
        self._connect = connect
        self._sessions: dict[int, Session] = {}
        self._outcome = Outcome()

    def run(self, steps: Sequence[Step]) -> Outcome:
        try:
            for number in sorted({step.session for step in steps}):
                self._sessions[number] = self._connect()
            for step in steps:
                session = self._sessions[step.session]
                session.deferred.append(step)
                self._settle_all()
            self._finish()
        finally:
            for session in self._sessions.values():
                session.close()
        return self._outcome

    def _settle_all(self) -> None:
        """Everybody answered or blocked; whoever is no longer blocked has done what was put off."""
        moved = True
        while moved:
            moved = False
            for number, session in self._sessions.items():
                while session.deferred and not session.busy:
                    self._send(number, session)
                    moved = True
            # Sessions are looked at last: an answer of one may have freed another.
            for number, session in self._sessions.items():
                if not session.busy:
                    continue
                if session.settle():
                    self._outcome.waited = True
                    continue
                self._note(number, session)
                moved = True

    def _send(self, number: int, session: Session) -> None:
        step = session.deferred.pop(0)
        if session.failed:  # its transaction is gone
            return
        session.send(step)
        if not session.settle():
            self._note(number, session)
        else:
            self._outcome.waited = True

    def _note(self, number: int, session: Session) -> None:
        taken = session.take()
        assert taken is not None
        step, answer = taken
        if isinstance(answer, pymysql.MySQLError):
            code = int(answer.args[0])
            if code not in (DEADLOCK, ROW_CHANGED):
                raise ScheduleError(f"session {number}: {step.sql}: {answer}") from answer
            self._outcome.errors[number] = code
            session.failed = True
            return
        rows, affected = answer
        if step.label:
            self._outcome.rows[step.label] = rows
            self._outcome.affected[step.label] = affected
        if step.sql == "commit":
            self._outcome.committed.add(number)

    def _finish(self) -> None:
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        self._settle_all()
        while stuck := [number for number, session in self._sessions.items() if session.busy]:
            if time.monotonic() < deadline:
                self._settle_all()
                continue
            raise ScheduleError(f"sessions {stuck} wait for ever")
