"""What is promised with the binary log on: an acknowledged commit outlives the server that has the binary log (in a cluster) or
is found there (on one machine), nothing prepared is left for an operator to decide, and the binary log gives up no part of itself
that recovery still needs."""

import fcntl
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from strata_cli import paths
from strata_cli.cluster import FIRST_COMPUTE, Cluster
from strata_cli.server import TEST_BINLOG, Server, Settings, choose_port
from strata_cli.shell import StrataError
from strata_cli.waiting import wait_until

FOLDER = paths.BUILD / "e2e" / "binary-log"
BINLOG = ("--log-bin=bin", "--server-id=1", "--sync-binlog=1", "--binlog-format=ROW")
# Makes writes and syncs of files with FAIL_MATCH in their path fail while the file FAIL_TRIGGER exists.
FAILING_DISK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>
static int fails(int fd) {
  const char* trigger = getenv("FAIL_TRIGGER");
  char link[64], path[512];
  if (trigger == NULL || access(trigger, F_OK) != 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  if (strstr(path, getenv("FAIL_MATCH")) == NULL) return 0;
  errno = EIO;
  return 1;
}
int fdatasync(int fd) {
  static int (*real)(int);
  if (real == NULL) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
  return fails(fd) ? -1 : real(fd);
}
ssize_t pwrite64(int fd, const void* bytes, size_t count, off_t offset) {
  static ssize_t (*real)(int, const void*, size_t, off_t);
  if (real == NULL) real = (ssize_t(*)(int, const void*, size_t, off_t))dlsym(RTLD_NEXT, "pwrite64");
  return fails(fd) ? -1 : real(fd, bytes, count, offset);
}
ssize_t pwrite(int fd, const void* bytes, size_t count, off_t offset) { return pwrite64(fd, bytes, count, offset); }
"""


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(TEST_BINLOG, raising=False)  # each test says itself when there is one
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    yield
    Server(FOLDER / "one").kill()
    Cluster(FOLDER / "cluster").kill()
    shutil.rmtree(FOLDER, ignore_errors=True)


@pytest.fixture
def one() -> Server:
    return Server(FOLDER / "one")


def start(server: Server, *options: str, env: dict[str, str] | None = None) -> None:
    server.start(Settings(port=choose_port(None, 23506)), extra=options, env=env)


def rows(server: Server) -> list[int]:
    return [row[0] for row in server.query("SELECT a FROM test.t ORDER BY a")]


def insert(server: Server, *keys: int) -> None:
    for key in keys:
        server.query(f"INSERT INTO test.t VALUES ({key})", autocommit=True)


def crash_in(server: Server, key: int) -> None:
    """Inserts the row, in which the server ends by an armed fault point."""
    with pytest.raises(Exception, match=r"Lost connection|gone away|reset by peer"):
        insert(server, key)
    assert wait_until(lambda: server.pid() is None, 20)


def log_says(server: Server, text: str) -> bool:
    return any(text in line for line in server.log_lines())


def test_a_failed_sync_is_no_checkpoint(one: Server) -> None:
    """A row that is in the binary log and not yet in the engine's log: the disk of that one fails, and the server rotates the
    binary log. The row is there after a restart, also after one that was asked for: the server then ends without closing it."""
    source, library, trigger = (FOLDER / name for name in ("failing_disk.c", "failing_disk.so", "trigger"))
    source.write_text(FAILING_DISK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    env = {"LD_PRELOAD": str(library), "FAIL_TRIGGER": str(trigger), "FAIL_MATCH": "#strata/log/"}
    start(one, *BINLOG, env=env)
    one.query("CREATE DATABASE test")
    one.query("CREATE TABLE test.t (a INT PRIMARY KEY)")
    insert(one, 1)
    trigger.touch()
    with pytest.raises(Exception, match=r"read only|error"):  # Its prepare meets the failed disk, or the row before did.
        insert(one, 2)
        insert(one, 3)
    one.query("FLUSH BINARY LOGS")
    one.query("FLUSH BINARY LOGS")
    assert wait_until(lambda: log_says(one, "the checkpoint of the binary log waits"), 20)
    with one.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINLOG EVENTS IN 'bin.000003'")
        checkpoints = [event[5] for event in cursor.fetchall() if event[2] == "Binlog_checkpoint"]
    assert checkpoints == ["bin.000001"]
    in_binlog = [row for row in rows(one) if row != 3]
    assert one.stop(30)
    assert log_says(one, "ends here as by a crash")
    trigger.unlink()
    start(one, *BINLOG)
    assert rows(one) == in_binlog
    # Of a log that works, checkpoints arrive by themselves.
    insert(one, 4)
    one.query("FLUSH BINARY LOGS")
    last = one.query("SHOW MASTER STATUS")[0][0]

    def passed() -> bool:
        return any(event[2] == "Binlog_checkpoint" and event[5] == last for event in one.query(f"SHOW BINLOG EVENTS IN '{last}'"))

    assert wait_until(passed, 20)


def test_on_one_machine_the_engine_waits_for_the_binary_log_that_decides(one: Server) -> None:
    start(one, *BINLOG)
    one.query("CREATE DATABASE test")
    one.query("CREATE TABLE test.t (a INT PRIMARY KEY)")
    insert(one, 1)
    assert one.stop()
    # In the binary log, prepared in the engine's, and no more.
    start(one, *BINLOG, env={"STRATA_FAULT": "commit_before_persist:1"})
    crash_in(one, 2)
    # Neither without a binary log nor with another one, though that has to be recovered, too.
    start(one)
    assert not one.has_strata() and log_says(one, "is not here (log_bin is off or names another one")
    one.kill()
    other = ("--log-bin=other", *BINLOG[1:])
    start(one, *other)
    assert not one.has_strata()
    one.kill()
    # Nor does the server recover a binary log, that one or the right one, while the engine cannot start.
    with pytest.raises(StrataError, match="has to be recovered"):
        start(one, *other)
    with (one.datadir / "#strata" / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StrataError, match=r"in use by another process(.|\n)*has to be recovered"):
            start(one, *BINLOG)
    start(one, *BINLOG)
    assert rows(one) == [1, 2]
    # What does not go into the binary log cannot be found there.
    one.query("CREATE TABLE test.i (a INT PRIMARY KEY) ENGINE=InnoDB")
    statements = ("SET sql_log_bin = 0", "BEGIN", "INSERT INTO test.i VALUES (3)", "INSERT INTO test.t VALUES (3)", "COMMIT")
    with one.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        one.kill()
    start(one, *BINLOG)
    assert rows(one) == [1, 2, 3]


def test_what_tc_log_would_decide_is_rolled_back(one: Server) -> None:
    """Without a binary log, of a transaction that changed two engines; also when log_bin has been switched on since."""
    for options in ((), BINLOG):
        start(one)
        one.query("CREATE OR REPLACE DATABASE test")
        one.query("CREATE TABLE test.t (a INT PRIMARY KEY)")
        one.query("CREATE TABLE test.i (a INT PRIMARY KEY) ENGINE=InnoDB")
        assert one.stop()
        start(one, env={"STRATA_FAULT": "prepare_after_persist:1"})
        with (
            pytest.raises(Exception, match=r"Lost connection|gone away"),
            one.connect() as connection,
            connection.cursor() as cursor,
        ):
            for statement in ("BEGIN", "INSERT INTO test.i VALUES (1)", "INSERT INTO test.t VALUES (1)", "COMMIT"):
                cursor.execute(statement)
        assert wait_until(lambda: one.pid() is None, 20)
        start(one, *options)  # InnoDB, which prepares second, has nothing to recover.
        one.query("INSERT INTO test.t VALUES (1)", autocommit=True)
        assert one.stop()
        shutil.rmtree(one.data)


def test_a_database_that_moves_needs_no_binary_log() -> None:
    cluster = Cluster(FOLDER / "cluster")
    cluster.lease_s = 2
    cluster.compute_options = BINLOG
    cluster.start("logdb-mv-sr")
    first = cluster.computes[FIRST_COMPUTE]
    first.query("CREATE TABLE test.t (a INT PRIMARY KEY)")
    first.query("SET GLOBAL gtid_slave_pos = '7-8-9'")  # Of a replica, that is committed with its rows.
    insert(first, *range(20))
    first.kill()  # With no pause: nothing has written the log since the last commit, but the commit itself.
    second = cluster.add_compute(FOLDER / "second", None)
    assert rows(second) == list(range(20))
    assert second.query("SELECT @@gtid_slave_pos") == [("7-8-9",)]
    # One that is prepared and no more blocks nobody: the next server, without a binary log, decides.
    second.kill()
    second.start(second.settings(), env={"STRATA_FAULT": "prepare_after_persist:1"})
    crash_in(second, 20)
    cluster.compute_options = ()
    third = cluster.add_compute(FOLDER / "third", None)
    assert log_says(third, "1 transaction(s) that were prepared and not committed are rolled back")
    insert(third, 20)
    # The first one, come back with its old binary log, has nothing to say to it.
    third.kill()
    first.start(first.settings())
    assert rows(first) == list(range(21))
    # The same binary log decides.
    assert first.stop()
    first.start(first.settings(), env={"STRATA_FAULT": "prepare_after_persist:1"})
    crash_in(first, 21)
    first.start(first.settings())
    assert log_says(first, "Found 1 prepared transaction(s) in STRATA")
    insert(first, 21)
