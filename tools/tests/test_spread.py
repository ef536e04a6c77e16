"""Which server a statement may go to, and what is passed on (spread.py), with servers that only count."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from strata_cli import spread
from strata_cli.spread import AFTER_THE_LAST, AFTER_THE_NUMBER, EVERYWHERE, HEARD_OF_LATER, STAYS, Spread, Wire, framed

OK_PACKET = bytes([spread.OK, 0, 0, spread.AUTOCOMMIT, 0, 0, 0])
ERROR_PACKET = bytes([spread.ERROR]) + (1062).to_bytes(2, "little") + b"#23000Duplicate entry"
CAPABILITIES = (1 << 9) | spread.SECURE_PROOF
GREETING = (
    b"\x0a11.0-strata\x00"
    + (7).to_bytes(4, "little")
    + b"12345678\x00"
    + (0xFFFE).to_bytes(2, "little")
    + b"\x08\x02\x00"
    + (0xFFFF).to_bytes(2, "little")
    + b"\x15"
    + bytes(6)
    + b"\xff\xff\xff\xff"
    + b"123456789012\x00mysql_native_password\x00"
)
HELLO = CAPABILITIES.to_bytes(4, "little") + (1 << 24).to_bytes(4, "little") + b"\x08" + bytes(23) + b"root\x00"


class Counting:
    """Answers every statement with OK, and keeps it. BEGIN opens a transaction, without autocommit UPDATE does so, too; COMMIT
    ends it. INSERT INTO full fails."""

    def __init__(self) -> None:
        self.statements: list[bytes] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(Wire(connection),), daemon=True).start()

    def _serve(self, client: Wire) -> None:
        client.send(framed(GREETING, 0))
        try:
            client.packet()
            client.send(framed(OK_PACKET, 2))
            in_transaction, autocommit = False, True
            while True:
                text = client.packet()[5:]
                self.statements.append(text)
                if text.startswith(b"SET autocommit"):
                    autocommit = text.endswith(b"1")
                begins = text == b"BEGIN" or (not autocommit and text.startswith(b"UPDATE"))
                in_transaction = begins or (in_transaction and text != b"COMMIT")
                status = in_transaction * spread.IN_TRANSACTION | autocommit * spread.AUTOCOMMIT
                fails = text.startswith(b"INSERT INTO full")
                client.send(framed(ERROR_PACKET if fails else bytes([spread.OK, 0, 0, status, 0, 0, 0]), 1))
        except (spread.Ended, OSError):
            client.close()


@pytest.fixture
def servers() -> Iterator[list[Counting]]:
    made = [Counting() for _ in range(3)]
    yield made
    for server in made:
        server.close()


@contextmanager
def connected(servers: list[Counting], proof: bytes = b"\x00") -> Iterator[Wire]:
    through = Spread([server.port for server in servers], seed=3)
    with closing(through), socket.create_connection(("127.0.0.1", through.port)) as connection:
        client = Wire(connection)
        client.packet()
        client.send(framed(HELLO + proof, 1))
        assert client.packet()[4] == spread.OK
        yield client


def ask(client: Wire, text: bytes, answer: int = spread.OK) -> None:
    client.send(framed(bytes([spread.QUERY]) + text, 0))
    assert client.packet()[4] == answer


def where(servers: list[Counting], text: bytes) -> list[int]:
    return [number for number, server in enumerate(servers) if text in server.statements]


def test_statements_go_to_all_servers_and_those_of_a_transaction_to_one(servers: list[Counting]) -> None:
    with connected(servers) as client:
        for number in range(60):
            ask(client, b"SELECT %d" % number)
        assert all(len(server.statements) > 5 for server in servers)
        assert sum(len(server.statements) for server in servers) == 60
        ask(client, b"BEGIN")
        for number in range(20):
            ask(client, b"UPDATE t SET a = %d" % number)
        (at,) = where(servers, b"BEGIN")
        assert all(where(servers, b"UPDATE t SET a = %d" % number) == [at] for number in range(20))
        ask(client, b"COMMIT")
        ask(client, b"SHOW WARNINGS")
        assert where(servers, b"COMMIT") == where(servers, b"SHOW WARNINGS") == [at]


@pytest.mark.parametrize("first", [b"SAVEPOINT a", b"UPDATE t SET a = 0", b"INSERT INTO full VALUES (0)", b"SELECT 0"])
def test_without_autocommit_all_up_to_the_commit_stays_at_one(servers: list[Counting], first: bytes) -> None:
    with connected(servers) as client:
        ask(client, b"SET autocommit = 0")
        for transaction in range(20):
            began = first + b" # %d" % transaction
            ask(client, began, spread.ERROR if first.startswith(b"INSERT") else spread.OK)
            ask(client, b"SET sql_mode = '%d'" % transaction)
            ask(client, b"ROLLBACK TO a # %d" % transaction)
            ask(client, b"COMMIT")
            assert where(servers, b"SET sql_mode = '%d'" % transaction) == [0, 1, 2]
            assert where(servers, began) == where(servers, b"ROLLBACK TO a # %d" % transaction)
        assert [server.statements.count(b"COMMIT") for server in servers] == [
            sum(text.startswith(first) for text in server.statements) for server in servers
        ]
        assert all(b"COMMIT" in server.statements for server in servers)


def test_what_began_without_autocommit_ends_with_it(servers: list[Counting]) -> None:
    with connected(servers) as client:
        ask(client, b"SET autocommit = 0")
        ask(client, b"SAVEPOINT a")
        ask(client, b"SET autocommit = 1")
        ask(client, b"COMMIT")
        for number in range(30):
            ask(client, b"SELECT %d" % number)
        assert all(len(server.statements) > 5 for server in servers)


def test_what_is_set_is_set_on_all(servers: list[Counting]) -> None:
    with connected(servers) as client:
        ask(client, b"SET sql_mode = ''")
        ask(client, b"USE shop")
        assert where(servers, b"SET sql_mode = ''") == where(servers, b"USE shop") == [0, 1, 2]


def test_what_a_server_keeps_for_a_connection_keeps_that_there(servers: list[Counting]) -> None:
    with connected(servers) as client:
        ask(client, b"CREATE TEMPORARY TABLE t (a INT)")
        for number in range(20):
            ask(client, b"INSERT INTO t VALUES (%d)" % number)
        (at,) = where(servers, b"CREATE TEMPORARY TABLE t (a INT)")
        assert all(where(servers, b"INSERT INTO t VALUES (%d)" % number) == [at] for number in range(20))


def test_a_user_with_a_password_stays(servers: list[Counting]) -> None:
    with connected(servers, b"\x14" + b"p" * 20) as client:
        for number in range(20):
            ask(client, b"SELECT %d" % number)
        assert sorted(len(server.statements) for server in servers) == [0, 0, 20]


@pytest.mark.parametrize(
    "text",
    [
        b"LOCK TABLES t WRITE",
        b"SELECT @a := 1",
        b"SELECT a INTO @x FROM t",
        b"XA START 'x'",
        b"SHOW STATUS LIKE 'Handler%'",
        b"SET TRANSACTION READ ONLY",
        b"SELECT GET_LOCK('a', 1)",
        b"CREATE TRIGGER x BEFORE INSERT ON t FOR EACH ROW SET @n = @n + 1",
    ],
)
def test_statements_that_stay(text: bytes) -> None:
    assert STAYS.search(text)


@pytest.mark.parametrize(
    "text", [b"SHOW TABLE STATUS", b"SELECT order_status FROM t", b"LOAD DATA LOCAL INFILE 'x' INTO TABLE t"]
)
def test_statements_that_do_not(text: bytes) -> None:
    assert not STAYS.search(text)


@pytest.mark.parametrize("text", [b"COMMIT", b"rollback work;", b"/* x */ COMMIT AND NO CHAIN"])
def test_statements_that_leave_no_savepoint(text: bytes) -> None:
    assert spread.ENDS.match(spread.REMARKS.sub(b"", text))


@pytest.mark.parametrize("text", [b"ROLLBACK TO a", b"ROLLBACK WORK TO SAVEPOINT a", b"COMMIT AND CHAIN", b"COMMIT; SAVEPOINT a"])
def test_statements_that_may(text: bytes) -> None:
    assert not spread.ENDS.match(text)


def test_kinds_of_statements() -> None:
    assert EVERYWHERE.match(b"set names utf8")
    assert AFTER_THE_LAST.search(b"SELECT ROW_COUNT()")
    assert AFTER_THE_NUMBER.search(b"SELECT last_insert_id()")
    assert HEARD_OF_LATER.search(b"CREATE OR REPLACE SQL SECURITY INVOKER VIEW v AS SELECT 1")
    assert not HEARD_OF_LATER.search(b"CREATE TABLE t (view INT)")


def test_a_greeting_offers_no_more_than_is_understood() -> None:
    body = spread.without_extras(framed(GREETING, 0))[4:]
    at = body.index(0, 1) + 14
    offered = int.from_bytes(body[at : at + 2], "little") | int.from_bytes(body[at + 5 : at + 7], "little") << 16
    assert offered & (spread.SSL | spread.COMPRESS | spread.DEPRECATE_EOF) == 0
    assert offered & spread.LONG_PASSWORD
    assert len(body) == len(GREETING)
    assert spread.length_coded(b"\xfc\x01\x02", 0) == (0x201, 3)
