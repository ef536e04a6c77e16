"""A server that dies in the middle of an ALTER in place: the index is there or not, and no file is left of what is not."""

from pathlib import Path

import pymysql
import pytest
from strata_cli.server import Server, Settings, choose_port

ROWS = 2000


def start(data: Path, fault: str | None) -> Server:
    server = Server(data)
    server.start(Settings(port=choose_port(None, 23506)), env={"STRATA_FAULT": fault} if fault else None)
    return server


@pytest.mark.parametrize(
    ("fault", "there"),
    [
        ("index_build_half:1", False),
        ("index_build_done:1", False),
        ("ddl_before_commit:2", False),  # the first one is CREATE TABLE
        ("ddl_after_commit:2", True),
    ],
)
def test_dies_during_add_index(data: Path, fault: str, there: bool) -> None:
    server = start(data, fault)
    server.query("CREATE DATABASE test")
    server.query("CREATE TABLE t (a INT PRIMARY KEY, b INT)", database="test")
    server.query(f"INSERT INTO t SELECT seq, seq % 7 FROM seq_1_to_{ROWS}", database="test", autocommit=True)
    pages = len(list(data.rglob("space-*.pages")))
    with pytest.raises(pymysql.err.OperationalError):
        server.query("ALTER TABLE t ADD INDEX (b), ALGORITHM=INPLACE", database="test")
    assert server.wait_exit(20)

    server = start(data, None)
    index = server.query("SHOW INDEX FROM t WHERE Key_name = 'b'", database="test")
    assert bool(index) == there
    assert server.query("SELECT COUNT(*) FROM t IGNORE INDEX (b)" if there else "SELECT COUNT(*) FROM t", database="test") == [
        (ROWS,)
    ]
    assert server.query("CHECK TABLE t EXTENDED", database="test")[0][3] == "OK"
    assert [file.name for file in data.rglob("*.frm") if file.parent.name == "test"] == ["t.frm"]
    assert not [file for folder in data.rglob("sort") if folder.is_dir() for file in folder.iterdir()]
    server.query("ALTER TABLE t ADD INDEX again (b), ALGORITHM=INPLACE", database="test")
    assert server.stop()
    assert len(list(data.rglob("space-*.pages"))) == pages + 1 + there
