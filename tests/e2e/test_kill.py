"""KILL, KILL QUERY and max_statement_time end a statement that waits for storage nodes, within seconds, and end nothing else: a
COMMIT that waits for its quorum is carried through."""

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
import pytest
from pausing import pause
from strata_cli import paths
from strata_cli.cluster import FIRST_COMPUTE, Cluster
from strata_cli.server import TEST_BINLOG, Server
from strata_cli.waiting import wait_until

FOLDER = paths.BUILD / "e2e" / "kill"
DATA = FOLDER / "cluster"
INTERRUPTED, TIMED_OUT = 1317, 1969


def strata(*arguments: object) -> None:
    command = [str(paths.ROOT / "strata"), *(str(argument) for argument in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(TEST_BINLOG, raising=False)  # with one a commit waits while it is prepared: readers need not wait for it
    shutil.rmtree(FOLDER, ignore_errors=True)
    yield
    Cluster(DATA).kill()
    shutil.rmtree(FOLDER, ignore_errors=True)


@contextmanager
def standing_still(*names: str) -> Iterator[None]:
    pids = [Cluster(DATA).storage[name].pid() for name in names]
    try:
        for pid in pids:
            assert pid is not None
            pause(pid)
        yield
    finally:
        for pid in pids:
            if pid is not None:
                os.kill(pid, signal.SIGCONT)


class Client:
    """One connection, whose statements run in a thread."""

    def __init__(self, server: Server) -> None:
        self.connection = server.connect(database="test", autocommit=True, read_timeout=90)
        self.id = self.connection.thread_id()  # type: ignore[no-untyped-call]
        self.answer: Any = None
        self._thread = threading.Thread()

    def execute(self, sql: str) -> Any:
        try:
            with self.connection.cursor() as cursor:
                cursor.execute(sql)
                return list(cursor.fetchall())
        except pymysql.Error as error:
            return error.args[0]

    def send(self, sql: str) -> None:
        self.answer = None

        def run() -> None:
            self.answer = self.execute(sql)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def waits(self) -> bool:
        return self._thread.is_alive()

    def reap(self, timeout_s: float) -> Any:
        self._thread.join(timeout_s)
        assert not self.waits(), f"no answer within {timeout_s} s"
        return self.answer


def state_of(control: Client, client: Client) -> str:
    rows = control.execute(
        f"SELECT STATE, COMMAND FROM information_schema.PROCESSLIST WHERE ID = {client.id} AND COMMAND = 'Query'"
    )
    return str(rows[0][0]) if rows else ""


def kill_and_reap(control: Client, client: Client, how: str) -> Any:
    assert wait_until(lambda: state_of(control, client) != "", 10)
    assert client.waits()
    assert control.execute(f"KILL {how} {client.id}") == []
    return client.reap(10)


def test_reads_that_wait_for_storage_nodes_can_be_killed() -> None:
    strata("up", "--data", DATA, "--profile", "logdb-mv-sr")
    server = Cluster(DATA).computes[FIRST_COMPUTE]
    for sql in (
        "CREATE TABLE t (id INT PRIMARY KEY, v INT) ENGINE=STRATA",
        "INSERT INTO t VALUES (1, 1), (2, 2)",
        "CREATE TABLE cold (id INT PRIMARY KEY, v VARCHAR(600)) ENGINE=STRATA",
        "INSERT INTO cold SELECT seq, REPEAT('x', 600) FROM seq_1_to_3000",
    ):
        server.query(sql, database="test", autocommit=True)
    control, writer, reader = Client(server), Client(server), Client(server)
    with standing_still("s1", "s3"):
        writer.send("UPDATE t SET v = v + 1 WHERE id = 1")
        assert wait_until(lambda: state_of(control, writer) == "Commit", 10)
        # What is committed within the reader's snapshot and not yet on a quorum must be waited for.
        reader.send("SELECT v FROM t WHERE id = 1")
        assert kill_and_reap(control, reader, "QUERY") == INTERRUPTED
        assert reader.execute("SELECT v FROM t WHERE id = 2") == [(2,)], "the kill of one statement ended the next"
        reader.send("SET STATEMENT max_statement_time = 0.2 FOR SELECT v FROM t WHERE id = 1")
        assert reader.reap(10) == TIMED_OUT
        gone = Client(server)
        gone.send("SELECT v FROM t WHERE id = 1")
        kill_and_reap(control, gone, "CONNECTION")
        # So is a row lock of the transaction that waits.
        reader.send("UPDATE t SET v = 9 WHERE id = 1")
        assert kill_and_reap(control, reader, "QUERY") == INTERRUPTED
        # The commit goes on whatever its client is told.
        assert control.execute(f"KILL QUERY {writer.id}") == []
        assert writer.waits()
    writer.reap(30)
    assert wait_until(lambda: reader.execute("SELECT v FROM t WHERE id = 1") == [(2,)], 30)

    # Pages that are not in memory, with nobody there to give them.
    strata("node", "stop", FIRST_COMPUTE, "--data", DATA)
    strata("node", "start", FIRST_COMPUTE, "--data", DATA)
    control, reader = Client(server), Client(server)
    with standing_still("s1", "s2", "s3"):
        for sql in ("SELECT COUNT(*) FROM cold", "SELECT v FROM cold WHERE id = 2000"):
            reader.send(sql)
            assert kill_and_reap(control, reader, "QUERY") == INTERRUPTED
        reader.send("SET STATEMENT max_statement_time = 0.2 FOR SELECT COUNT(*) FROM cold")
        assert reader.reap(10) == TIMED_OUT
        # Two that want the same page: only one of them asks for it.
        other = Client(server)
        for client in (reader, other):
            client.send("SELECT COUNT(*) FROM cold")
        for client in (other, reader):
            assert kill_and_reap(control, client, "QUERY") == INTERRUPTED
    assert reader.execute("SELECT COUNT(*) FROM cold") == [(3000,)]
    assert reader.execute("CHECK TABLE cold, t")[0][3] == "OK"
