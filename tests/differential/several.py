"""STRATA on several servers that write the same tables (profile fusion), InnoDB on one server of its own.

Each statement goes to the server that its step names; one of an open transaction goes where that began. So what one client has
committed on a server has to be there at once on the next one that it asks: definitions, rows, and locks that are gone.
"""

import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from fusion_cluster import Several
from strata_cli.server import Server
from strata_cli.several_health import is_fenced, tells_of_its_lease
from strata_cli.waiting import wait_until

from .compare import SCHEMA_INNODB, SCHEMA_STRATA
from .pair import SETTINGS, Pair, SessionPair, Side, made_ready
from .step import Step
from .target import OPTIONS, Target
from .transactions import IN_TRANSACTION
from .wire import Answer, Connection

SLOTS, POOL = 2048, "32M"
SLOTS_SMALL, POOL_SMALL = 512, "8M"
# That a shared lock has gone other servers hear a moment after the commit is answered: who wants the row waits for that. It is
# the same error in the end where the lock stays, because nobody else goes on meanwhile.
SETTINGS_SEVERAL = SETTINGS.replace("strata_lock_wait_timeout=0", "strata_lock_wait_timeout=1")
ANSWERS_TIMEOUT_S = 120.0
DATABASE_TIMEOUT_S = 60.0


class LeaseLost(Exception):
    """The machine was too busy: a server had no lease for a while, and said so. The case says nothing."""


def done(control: Connection, sql: str) -> Answer:
    answer = control.query(sql)
    if tells_of_its_lease(answer.message):
        raise LeaseLost(answer.message)
    if not answer.ok:
        raise RuntimeError(f"{sql}: {answer.message}")
    return answer


class SeveralConnections:
    """A session of one client on all servers: what it sets, it sets on each. Not thread-safe."""

    def __init__(self, connections: Sequence[Side]) -> None:
        self._all = connections
        self._here = 0
        self._stays = False
        self._sent = ""

    def go_to(self, server: int) -> None:
        """For the next statements, unless a transaction is open."""
        if not self._stays:
            self._here = server % len(self._all)

    def query(self, sql: str) -> Answer:
        self.send(sql)
        return self.receive()

    def send(self, sql: str) -> None:
        self._sent = sql
        for connection in self._receivers():
            connection.send(sql)

    def receive(self) -> Answer:
        answers = {id(connection): connection.receive() for connection in self._receivers()}
        answer = answers[id(self._all[self._here])]
        if self._is_session_wide():
            answer = next((other for other in answers.values() if not other.ok), answer)
        if tells_of_its_lease(answer.message):
            raise LeaseLost(answer.message)
        if answer.ok:
            self._stays = bool(answer.status & IN_TRANSACTION) or self._sent.startswith("SET TRANSACTION ")
        return answer

    def close(self) -> None:
        for connection in self._all:
            connection.close()

    def _is_session_wide(self) -> bool:
        return self._sent.startswith(("SET SESSION ", "USE "))

    def _receivers(self) -> Sequence[Side]:
        return self._all if self._is_session_wide() else [self._all[self._here]]


class SeveralPair(Pair):
    def __init__(self, sockets: list[Path], innodb: Path) -> None:
        self._sockets = sockets
        super().__init__(innodb)

    def _make_schemas(self) -> None:
        """A new database is on all servers within about a second: it is made once, and then emptied."""
        with closing(Connection(self._socket_path)) as innodb:
            for sql in (f"DROP DATABASE IF EXISTS {SCHEMA_INNODB}", f"CREATE DATABASE {SCHEMA_INNODB}"):
                done(innodb, sql)
        with closing(Connection(self._sockets[0])) as strata:
            done(strata, f"CREATE DATABASE IF NOT EXISTS {SCHEMA_STRATA}")
            tables = [row[0] for row in done(strata, f"SHOW TABLES FROM {SCHEMA_STRATA}").values()]
            done(strata, "SET foreign_key_checks=0")
            for table in tables:
                done(strata, f"DROP TABLE {SCHEMA_STRATA}.{table}")
        for socket in self._sockets:
            with closing(Connection(socket)) as other:
                if not wait_until(lambda other=other: other.query(f"USE {SCHEMA_STRATA}").ok, DATABASE_TIMEOUT_S):  # type: ignore[misc]
                    raise RuntimeError(f"database {SCHEMA_STRATA} is not there in {DATABASE_TIMEOUT_S:.0f} s at {socket}")
                if left := done(other, f"SHOW TABLES FROM {SCHEMA_STRATA}").values():
                    raise RuntimeError(f"tables that were dropped: {left} at {socket}")

    def _made_session(self) -> SessionPair:
        strata = SeveralConnections([Connection(socket) for socket in self._sockets])
        made_ready(strata, SCHEMA_STRATA, "STRATA", SETTINGS_SEVERAL)
        return SessionPair(strata, made_ready(Connection(self._socket_path), SCHEMA_INNODB, "InnoDB"), together=True)

    def _session_of(self, step: Step) -> SessionPair:
        session = super()._session_of(step)
        assert isinstance(session.strata, SeveralConnections)
        session.strata.go_to(step.server)
        return session


class SeveralTarget(Target):
    """The private server has InnoDB's tables only."""

    def __init__(self, folder: Path, preset: str, servers: int, small: bool, profile: str) -> None:
        super().__init__(folder, preset, ("STRATA", "InnoDB"))
        self._profile = profile
        self._folder = folder / "several"
        self._preset = preset
        self._count = servers
        self._small = small
        self._cluster: Several | None = None

    @property
    def _servers(self) -> list[Server]:
        assert self._cluster is not None
        return self._cluster.servers

    def start(self) -> None:
        super().start()
        if self._cluster is not None:
            self._cluster.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        slots, pool = (SLOTS_SMALL, POOL_SMALL) if self._small else (SLOTS, POOL)
        options = (*OPTIONS, f"--strata-buffer-pool-size={pool}")
        self._cluster = Several(self._folder, preset=self._preset, slots=slots, server_options=options, profile=self._profile)
        for _ in range(self._count):
            self._cluster.add()

    def stop(self, keep: bool = False) -> None:
        super().stop(keep)
        if self._cluster is not None:
            self._cluster.kill()
        if not keep:
            shutil.rmtree(self._folder, ignore_errors=True)

    def pair(self) -> Pair:
        """Fresh schemas; a fresh cluster too when the last case crashed one of its servers."""
        if self._server.pid() is None or any(server.pid() is None for server in self._servers):
            self.crashes += 1
            self._server.kill()
            self.start()
        return SeveralPair([server.socket for server in self._servers], self._server.socket)

    def recover(self) -> None:
        """After a lease was lost. Who is fenced is started again."""
        assert self._cluster is not None
        for server in self._servers:
            if is_fenced(server):
                server.kill()
                self._cluster.start(server)
            assert wait_until(lambda server=server: _answers(server), ANSWERS_TIMEOUT_S), server.log_tail()  # type: ignore[misc]

    def log_tail(self) -> str:
        logs = [f"{server.data.name}:\n{server.log_tail(40)}" for server in self._servers]
        return "\n".join([super().log_tail(), *logs])


def _answers(server: Server) -> bool:
    try:
        connection = Connection(server.socket)
        answer = connection.query(f"CREATE OR REPLACE TABLE {SCHEMA_STRATA}.answers (n INT) ENGINE=STRATA")
        connection.close()
    except OSError:
        return False
    return answer.ok
