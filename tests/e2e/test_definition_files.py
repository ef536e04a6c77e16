"""The .frm files, copies of the dictionary: a disk that cannot take one fails no statement, and a kill leaves none that lies."""

from pathlib import Path

import pymysql
import pytest
from strata_cli.server import Server, Settings, choose_port

NOT_A_SEQUENCE = 4090


def start(data: Path, fault: str | None) -> Server:
    server = Server(data)
    server.start(Settings(port=choose_port(None, 23506)), env={"STRATA_FAULT": fault} if fault else None)
    return server


def files(data: Path) -> list[str]:
    return sorted(path.name for path in (data / "mysql" / "test").iterdir() if path.suffix == ".frm")


def tables(server: Server) -> list[str]:
    return sorted(str(row[0]) for row in server.query("SHOW TABLES", database="test"))


def make_table(server: Server) -> None:
    server.query("CREATE DATABASE test")
    server.query("CREATE TABLE t (a INT PRIMARY KEY, b INT)", database="test")
    server.query("INSERT INTO t VALUES (1, 1), (2, 2)", database="test", autocommit=True)


@pytest.mark.parametrize(
    ("statement", "table"),
    [
        ("CREATE TABLE u (a INT)", "u"),
        ("CREATE OR REPLACE TABLE t (x INT)", "t"),
        ("ALTER TABLE t ADD COLUMN c INT, ALGORITHM=COPY", "t"),
    ],
)
def test_a_full_disk_fails_no_statement(data: Path, statement: str, table: str) -> None:
    server = start(data, None)
    make_table(server)
    assert server.stop()
    server = start(data, "definition_file_write:1:error")
    server.query(statement, database="test")
    assert f"{table}.frm" not in files(data)
    assert "cannot write ./test/" in server.log.read_text()
    with pytest.raises(pymysql.err.Error) as refused:
        server.query(f"DROP SEQUENCE {table}", database="test")
    assert refused.value.args[0] == NOT_A_SEQUENCE
    server.query(f"SELECT * FROM {table}", database="test")
    assert f"{table}.frm" in files(data), "it is written as soon as it can be"
    assert not [name for name in files(data) if name.startswith("#")]
    assert server.stop()


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("CREATE TABLE u (a INT)", "definition_file_write:1"),
        ("ALTER TABLE t ADD COLUMN c INT, ALGORITHM=COPY", "definition_file_write:1"),
        ("ALTER TABLE t ADD COLUMN c INT, ALGORITHM=COPY", "alter_swap_commit:1"),
        ("ALTER TABLE t ADD INDEX (b)", "ddl_after_commit:1"),
        ("RENAME TABLE t TO u", "ddl_after_commit:1"),
        ("DROP TABLE t", "ddl_after_commit:1"),
    ],
)
def test_a_kill_leaves_no_file_that_lies(data: Path, statement: str, fault: str) -> None:
    server = start(data, None)
    make_table(server)
    assert server.stop()
    server = start(data, fault)
    with pytest.raises(pymysql.err.OperationalError):
        server.query(statement, database="test")
    assert server.wait_exit(20)

    server = start(data, None)
    assert files(data) == [f"{table}.frm" for table in tables(server)]
    for table in tables(server):
        from_file = server.query(
            f"SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA='test' AND TABLE_NAME='{table}'"
        )
        opened = server.query(f"SHOW COLUMNS FROM {table}", database="test")
        assert [row[0] for row in from_file] == [row[0] for row in opened]
        assert server.query(f"CHECK TABLE {table} EXTENDED", database="test")[0][3] == "OK"
    server.query("DROP DATABASE test")
    assert not (data / "mysql" / "test").exists()
    assert server.stop()
