"""What is read when something has failed for good: the cause and the remedy, from the client and from `./strata status`."""

import subprocess
from pathlib import Path

import pymysql
import pytest
from strata_cli import paths
from strata_cli.server import Server, Settings, choose_port
from strata_cli.waiting import wait_until

GOT_ERROR = 1296


def start(data: Path, fault: str | None = None, *options: str) -> Server:
    server = Server(data)
    env = {} if fault is None else {"STRATA_FAULT": fault}
    server.start(Settings(port=choose_port(None, 23506)), env=env, extra=options)
    return server


def shown_status(data: Path) -> tuple[int, str]:
    command = [str(paths.ROOT / "strata"), "status", "--data", str(data)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=paths.ROOT, timeout=60)
    return done.returncode, done.stdout


def refusal(server: Server, sql: str) -> tuple[int, str]:
    with pytest.raises(pymysql.MySQLError) as raised:
        server.query(sql, database="test", autocommit=True)
    return int(raised.value.args[0]), str(raised.value.args[1])


def test_a_log_that_has_ended(data: Path) -> None:
    server = start(data)
    server.query("CREATE DATABASE test")
    server.query("CREATE TABLE t (a INT PRIMARY KEY)", database="test")
    server.query("INSERT INTO t VALUES (1)", database="test", autocommit=True)
    assert server.query("SHOW STATUS LIKE 'strata_trouble'") == [("Strata_trouble", "")]
    assert server.stop()
    server = start(data, "wal_before_write:30:error")
    with pytest.raises(pymysql.MySQLError):  # The outcome of the last one is unknown; later ones are told why.
        for value in range(100, 200):
            server.query(f"INSERT INTO t VALUES ({value})", database="test", autocommit=True)
    code, text = refusal(server, "INSERT INTO t VALUES (3)")
    assert code == GOT_ERROR, (code, text)
    assert "the log cannot be written any more" in text and "to do: restart this server" in text, text
    assert "read only" not in text
    assert server.query("SELECT a FROM t WHERE a = 1", database="test") == [(1,)]
    exit_code, shown = shown_status(data)
    assert exit_code == 4, shown
    assert "not well: the log cannot be written any more" in shown and "to do: restart this server" in shown, shown
    server.kill()
    server = start(data)
    assert wait_until(lambda: shown_status(data)[0] == 0, 30)
    assert (1,) in server.query("SELECT * FROM t", database="test")
    assert server.stop()
