"""Two schemas of one private server, one with tables in STRATA, one in InnoDB; sessions come in pairs."""

import re
from pathlib import Path
from typing import Protocol, TypeVar

from .compare import SCHEMA_INNODB, SCHEMA_STRATA, Difference, compare
from .step import Step
from .wire import Answer, Connection, ServerLost

SCHEMAS = ((SCHEMA_STRATA, "STRATA"), (SCHEMA_INNODB, "InnoDB"))
# Nothing waits for a row lock: who would, fails at once, and a case runs the same way every time. The clock stands still.
# Both engines copy on ALTER, so that the rows affected agree. Sort keys are long enough for all levels of a collation.
SETTINGS = (
    "SET SESSION innodb_lock_wait_timeout=0, strata_lock_wait_timeout=0, lock_wait_timeout=5, alter_algorithm='COPY',"
    " max_error_count=65535, time_zone='+00:00', timestamp=1700000000.25, group_concat_max_len=1000000,"
    " innodb_strict_mode=OFF, max_sort_length=65536"
)
LOCAL_TABLE = "is kept in engine InnoDB by this server alone"
WARNINGS = re.compile(rb"Warnings: (\d+)")


class Side(Protocol):
    """What a Connection is."""

    def query(self, sql: str) -> Answer: ...
    def send(self, sql: str) -> None: ...
    def receive(self) -> Answer: ...
    def close(self) -> None: ...


AnySide = TypeVar("AnySide", bound=Side)


def made_ready(side: AnySide, schema: str, engine: str, settings: str = SETTINGS) -> AnySide:
    for sql in (settings, f"SET SESSION default_storage_engine={engine}", f"USE {schema}"):
        if not (answer := side.query(sql)).ok:
            raise RuntimeError(f"{sql}: {answer.message}")
    return side


class SessionPair:
    """The same session on both sides."""

    def __init__(self, strata: Side, innodb: Side, together: bool) -> None:
        self.strata = strata
        self._sides = (strata, innodb)
        self._together = together

    def run(self, sql: str) -> tuple[Answer, Answer]:
        strata, innodb = self._both(sql)
        if strata.warning_count or innodb.warning_count:
            shown = self._both("SHOW WARNINGS")
            strata.warnings, innodb.warnings = shown[0].values(), shown[1].values()
            if self._together:
                _forget_local(innodb)
        return strata, innodb

    def _both(self, sql: str) -> tuple[Answer, Answer]:
        first, second = self._sides
        if not self._together:
            return first.query(sql), second.query(sql)
        first.send(sql)
        second.send(sql)
        return first.receive(), second.receive()

    def close(self) -> None:
        for side in self._sides:
            side.close()


def _forget_local(innodb: Answer) -> None:
    """Beside a cluster the server warns of a table in another engine that it is this server's alone."""
    kept = [row for row in innodb.warnings if LOCAL_TABLE not in (row[2] or "")]
    gone = len(innodb.warnings) - len(kept)
    innodb.info = WARNINGS.sub(lambda found: b"Warnings: %d" % (int(found[1]) - gone), innodb.info)
    innodb.warning_count -= gone
    innodb.warnings = kept


class Pair:
    """Fresh schemas and the sessions of one case. `engines` differ from the usual only in tests of the runner itself."""

    def __init__(self, socket_path: Path, engines: tuple[str, str] = ("STRATA", "InnoDB")) -> None:
        self._socket_path = socket_path
        self._engines = engines
        self._sessions: dict[int, SessionPair] = {}
        self.executed = 0
        self._make_schemas()

    def _make_schemas(self) -> None:
        control = Connection(self._socket_path)
        for schema, _ in SCHEMAS:
            for sql in (f"DROP DATABASE IF EXISTS {schema}", f"CREATE DATABASE {schema}"):
                if not (answer := control.query(sql)).ok:
                    raise RuntimeError(f"{sql}: {answer.message}")
        control.close()

    def run(self, step: Step) -> tuple[Answer, list[Difference]]:
        """InnoDB's answer, and how STRATA's differs."""
        self.executed += 1
        try:
            strata, innodb = self._session_of(step).run(step.sql)
        except ServerLost as lost:
            return Answer(error=2013), [Difference("lost", f"the server is gone: {lost}", "")]
        return innodb, compare(step, strata, innodb)

    def ask(self, step: Step) -> tuple[Answer, Answer]:
        """Both answers, not compared."""
        self.executed += 1
        return self._session_of(step).run(step.sql)

    def _session_of(self, step: Step) -> SessionPair:
        session = self._sessions.get(step.session)
        if session is None:
            session = self._sessions[step.session] = self._made_session()
        return session

    def _made_session(self) -> SessionPair:
        sides = [
            made_ready(Connection(self._socket_path), schema, engine)
            for (schema, _), engine in zip(SCHEMAS, self._engines, strict=True)
        ]
        # InnoDB's DDL locks its dictionary, and here nobody waits for a lock: two of it at once would fail.
        return SessionPair(sides[0], sides[1], together=self._engines[0] != self._engines[1])

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()
