"""The statements of the manual (docs/manual, blocks marked sql) do what stands there: `-- error N` behind one says that it fails
with that error, all others succeed. The blocks of a page run one after the other, in a database of its own, in one session."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest
from strata_cli import paths
from strata_cli.server import Server, Settings, choose_port

MANUAL = paths.ROOT / "docs" / "manual"
PAGES = sorted(path for path in MANUAL.rglob("*.md") if "```sql\n" in path.read_text())
BLOCK = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STATEMENT = re.compile(r"(.+?);[ ]*(?:-- error (\d+)[^\n]*)?\n", re.DOTALL)
# So that what a page shows has something to be shown of.
BEFORE = "CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(20), KEY (a)); INSERT INTO t VALUES (1, 1, 'x'), (2, 2, 'y');\n"


def statements_of(text: str) -> Iterator[tuple[str, int]]:
    for block in BLOCK.findall(text):
        for found in STATEMENT.finditer(block):
            yield found[1].strip(), int(found[2] or 0)


def outcome(cursor: "pymysql.cursors.Cursor", statement: str) -> tuple[int, str]:
    try:
        cursor.execute(statement)
        cursor.fetchall()
    except pymysql.MySQLError as error:
        return int(error.args[0]), str(error.args[1])
    return 0, ""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    folder = paths.BUILD / "e2e" / "manual"
    shutil.rmtree(folder, ignore_errors=True)
    running = Server(folder)
    running.start(Settings(port=choose_port(None, 23506)), extra=["--log-bin=binlog", "--server-id=1"])
    yield running
    running.kill()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_statements_of_a_page(page: Path, server: Server) -> None:
    database = f"manual_{page.stem}"
    server.query(f"CREATE DATABASE {database}")
    connection = server.connect(database=database, autocommit=True)
    wrong = []
    with connection, connection.cursor() as cursor:
        for statement in BEFORE.split(";"):
            outcome(cursor, statement)
        for statement, wanted in statements_of(page.read_text()):
            number, text = outcome(cursor, statement)
            if number != wanted:
                wrong.append(f"{statement}: {number} {text}, not {wanted}")
    server.query(f"DROP DATABASE {database}")
    assert wrong == []


def test_a_statement_is_found_with_its_error() -> None:
    text = "```sql\nCREATE TABLE t (\n  a INT\n);\nDROP TABLE u;  -- error 1051\n```\n\n    SELECT 1;\n"
    assert list(statements_of(text)) == [("CREATE TABLE t (\n  a INT\n)", 0), ("DROP TABLE u", 1051)]
