"""The end of an ALTER that copies is one commit. When it fails, the ALTER fails and the table is as it was."""

from pathlib import Path

import pymysql
import pytest
from strata_cli.server import Server, Settings, choose_port

ROWS = 500
ALTER = "ALTER TABLE t ADD COLUMN c INT, ALGORITHM=COPY"


def start(data: Path, fault: str | None) -> Server:
    server = Server(data)
    server.start(Settings(port=choose_port(None, 23506)), env={"STRATA_FAULT": fault} if fault else None)
    return server


def make_table(server: Server) -> None:
    server.query("CREATE DATABASE test")
    server.query("CREATE TABLE t (a INT PRIMARY KEY, b INT)", database="test")
    server.query(f"INSERT INTO t SELECT seq, seq % 7 FROM seq_1_to_{ROWS}", database="test", autocommit=True)


def check_columns(server: Server, columns: list[str]) -> None:
    assert [row[0] for row in server.query("SHOW COLUMNS FROM t", database="test")] == columns
    assert server.query("SELECT COUNT(*), SUM(a) FROM t", database="test") == [(ROWS, ROWS * (ROWS + 1) // 2)]
    assert server.query("CHECK TABLE t EXTENDED", database="test")[0][3] == "OK"
    assert [row[0] for row in server.query("SHOW TABLES", database="test")] == ["t"]


def test_a_swap_that_cannot_be_committed_is_not_acknowledged(data: Path) -> None:
    server = start(data, "alter_swap_commit:1:error")
    make_table(server)
    pages = len(list(data.rglob("space-*.pages")))
    with pytest.raises(pymysql.err.Error):
        server.query(ALTER, database="test")
    check_columns(server, ["a", "b"])
    server.query(ALTER, database="test")
    check_columns(server, ["a", "b", "c"])
    assert server.stop()

    server = start(data, None)
    check_columns(server, ["a", "b", "c"])
    assert server.stop()
    assert len(list(data.rglob("space-*.pages"))) == pages, "the copy that was given up is left"


@pytest.mark.parametrize(
    ("statement", "commit"),
    [
        ("CREATE TABLE u (a INT PRIMARY KEY)", 1),
        ("RENAME TABLE t TO u", 1),
        ("DROP TABLE t", 1),
        ("TRUNCATE TABLE t", 1),
        ("ALTER TABLE t ADD INDEX (b), ALGORITHM=INPLACE", 1),
        (ALTER, 1),
        (ALTER, 3),  # the swap; before it, the copy is made and filled
    ],
)
def test_ddl_of_unknown_outcome_loses_its_connection(data: Path, statement: str, commit: int) -> None:
    server = start(data, None)
    make_table(server)
    assert server.stop()
    server = start(data, f"commit_before_publish:{commit}:error")
    connection = server.connect(database="test")
    try:
        with pytest.raises(pymysql.err.Error), connection.cursor() as cursor:
            cursor.execute(statement)
        with pytest.raises(pymysql.err.Error):
            connection.ping(reconnect=False)
    finally:
        connection.close()
    server.kill()

    server = start(data, None)
    tables = [row[0] for row in server.query("SHOW TABLES", database="test")]
    for table in tables:
        assert server.query(f"CHECK TABLE {table} EXTENDED", database="test")[0][3] == "OK"
    if commit == 3:  # the fault is behind the write of the log
        check_columns(server, ["a", "b", "c"])
    assert server.stop()


def test_dies_before_the_swap_is_committed(data: Path) -> None:
    server = start(data, "alter_swap_commit:1")
    make_table(server)
    with pytest.raises(pymysql.err.OperationalError):
        server.query(ALTER, database="test")
    assert server.wait_exit(20)

    server = start(data, None)
    columns = [row[0] for row in server.query("SHOW COLUMNS FROM t", database="test")]
    check_columns(server, columns)  # the server's recovery may finish an ALTER that nobody was told of
    server.query("ALTER TABLE t ADD COLUMN d INT, ALGORITHM=COPY", database="test")
    check_columns(server, [*columns, "d"])
    assert server.stop()
