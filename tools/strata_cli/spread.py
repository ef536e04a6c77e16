"""A port for several servers that write the same tables: each statement of a client goes to one of them, chosen at random.

For tests of others that know of one server only. A program sees what it would see of one: what it has set is set on all, an open
transaction stays where it began (without autocommit: all from one COMMIT or ROLLBACK to the next, since nothing that a server
answers tells of savepoints), and so does, for good, a connection that uses what a server keeps for a connection alone (temporary
tables, prepared statements, LOCK TABLES, variables that statements assign). Users with passwords stay where they are, since only
the server that has sent the challenge knows the answer.
"""

import contextlib
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

# Commands of the protocol, and what servers answer.
QUIT, INIT_DB, QUERY, FIELD_LIST, STATISTICS, PING, RESET_CONNECTION, SET_OPTION = 1, 2, 3, 4, 9, 14, 31, 27
OK, LOCAL_FILE, END, ERROR = 0x00, 0xFB, 0xFE, 0xFF
IN_TRANSACTION, AUTOCOMMIT, MORE_RESULTS = 0x0001, 0x0002, 0x0008
# Capabilities that a greeting must not offer: encryption, compression, rows that end without an END packet.
SSL, COMPRESS, DEPRECATE_EOF = 1 << 11, 1 << 5, 1 << 24
LONG_PASSWORD, WITH_SCHEMA, LENGTH_OF_PROOF, SECURE_PROOF = 1 << 0, 1 << 3, 1 << 21, 1 << 15
MOST = (1 << 24) - 1  # bytes of a packet; a longer one goes on in the next
UNKNOWN_DATABASE = 1049
KNOWN_TO_ALL_S = 20.0  # a new database
CONNECT_TIMEOUT_S = 10.0

REMARKS = re.compile(rb"^(?:\s|/\*[^!M].*?\*/|--\s[^\n]*\n|#[^\n]*\n)+", re.DOTALL)
# What is the server's alone, for as long as the connection lasts.
STAYS = re.compile(
    rb"""\A\W*(?:LOCK\s|UNLOCK\s|HANDLER\s|PREPARE\s|EXECUTE\s|DEALLOCATE\s|XA\s|FLUSH\s|KILL\s|CHANGE\s|START\s+SLAVE
                 |SET\s+(?:STATEMENT|TRANSACTION|PASSWORD|DEFAULT)\b|SHOW\s+(?:(?:GLOBAL|SESSION|LOCAL)\s+)?(?:STATUS|PROFILE|BINARY|MASTER|SLAVE)|SHOW\s.*PROCESSLIST)
        |\bTEMPORARY\b|:=|\bINTO\s+@|_LOCK\s*\(|CONNECTION_ID\s*\(|\bPROCESSLIST\b|\b(?:GLOBAL|SESSION)_STATUS\b|\bINSERT_ID\s*=|\bOUTFILE\b
        |NEXTVAL|LASTVAL|PREVIOUS\s+VALUE|NEXT\s+VALUE|\bPERSISTENT\b|\bUUID_SHORT|\bPROCEDURE\b.*@|\bFUNCTION\b.*@|\bTRIGGER\b.*@""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
EVERYWHERE = re.compile(rb"\A\W*(?:SET\s|USE\s)", re.IGNORECASE)
# What leaves neither a transaction nor a savepoint; by itself, not followed by another statement.
ENDS = re.compile(rb"\A\W*(?:COMMIT|ROLLBACK)(?:\s+WORK)?(?:\s+AND\s+NO\s+CHAIN)?(?:\s+NO\s+RELEASE)?[\s;]*\Z", re.IGNORECASE)
# What is about the statement before it.
AFTER_THE_LAST = re.compile(
    rb"\A\W*(?:SHOW\s+(?:WARNINGS|ERRORS|COUNT)|GET\s)|\bROW_COUNT\s*\(|FOUND_ROWS\s*\(|@@(?:warning|error)_count", re.IGNORECASE
)
AFTER_THE_NUMBER = re.compile(rb"\bLAST_INSERT_ID\s*\(\s*\)|@@(?:last_insert_id|identity)\b|\bIS\s+NULL\b", re.IGNORECASE)
OF_A_DATABASE = re.compile(rb"\A\W*(?:CREATE|DROP|ALTER)\s+(?:OR\s+REPLACE\s+)?(?:DATABASE|SCHEMA)\b", re.IGNORECASE)
# What is everywhere a moment later only.
HEARD_OF_LATER = re.compile(
    rb"""\A\W*(?:(?:CREATE|DROP|ALTER|RENAME)\s+(?:\w+\s*=\s*\S+\s+|OR\s+REPLACE\s+|SQL\s+SECURITY\s+\w+\s+)*
                 (?:VIEW|PROCEDURE|FUNCTION|PACKAGE|USER|ROLE|EVENT|SERVER|DATABASE|SCHEMA)\b
        |GRANT\s|REVOKE\s)|\bDEFINER\b""",
    re.IGNORECASE | re.VERBOSE,
)
HEARD_OF_S = 1.5


class Ended(Exception):
    """One end has closed the connection."""


class Wire:
    """Packets of one connection, as they are: a head of four bytes, and what follows."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._rest = b""

    def _exactly(self, count: int) -> bytes:
        while len(self._rest) < count:
            piece = self.socket.recv(1 << 16)
            if not piece:
                raise Ended
            self._rest += piece
        found, self._rest = self._rest[:count], self._rest[count:]
        return found

    def packet(self) -> bytes:
        """With its heads; of a long one all that follow."""
        whole = b""
        while True:
            head = self._exactly(4)
            length = int.from_bytes(head[:3], "little")
            whole += head + self._exactly(length)
            if length < MOST:
                return whole

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    @property
    def rest(self) -> bytes:
        found, self._rest = self._rest, b""
        return found


def framed(body: bytes, number: int) -> bytes:
    return len(body).to_bytes(3, "little") + bytes([number]) + body


def without_extras(greeting: bytes) -> bytes:
    """A server's greeting that offers only what is understood here."""
    body = bytearray(greeting[4:])
    at = body.index(0, 1) + 1 + 4 + 8 + 1  # behind version, id and the first part of the challenge
    low = int.from_bytes(body[at : at + 2], "little") | LONG_PASSWORD  # with it: no extensions of MariaDB's
    high = int.from_bytes(body[at + 5 : at + 7], "little")
    offered = (low | high << 16) & ~(SSL | COMPRESS | DEPRECATE_EOF)
    body[at : at + 2] = (offered & 0xFFFF).to_bytes(2, "little")
    body[at + 5 : at + 7] = (offered >> 16).to_bytes(2, "little")
    body[at + 8 + 6 : at + 8 + 10] = bytes(4)
    return framed(bytes(body), greeting[3])


def proves_nothing(hello: bytes) -> bool:
    """The client's first packet names a user without a password."""
    body = hello[4:]
    capabilities = int.from_bytes(body[:4], "little")
    at = body.index(0, 32) + 1
    if capabilities & (LENGTH_OF_PROOF | SECURE_PROOF):
        return body[at] == 0
    return body[at : at + 1] in (b"", b"\0")


def length_coded(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where the next thing begins."""
    first = data[at]
    if first < 0xFB:
        return first, at + 1
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


@dataclass
class Answer:
    """To a statement. `status`: of the last result; None: an error."""

    packets: list[bytes] = field(default_factory=list)
    status: int | None = None
    number: int = 0  # LAST_INSERT_ID
    error: int = 0


class Backend:
    """A client's connection to one of the servers."""

    def __init__(self, address: Callable[[], socket.socket]) -> None:
        self.wire = Wire(address())
        self.greeting = self.wire.packet()

    def log_in(self, hello: bytes) -> bytes:
        """The server's answer: anything but OK is an error, or asks for more than can be answered here."""
        self.wire.send(hello)
        return self.wire.packet()

    def ask(self, command: bytes, client: Wire | None) -> Answer:
        """`client`: to whom a LOCAL INFILE is passed on."""
        self.wire.send(command)
        kind = command[4]
        answer = Answer()
        if kind == FIELD_LIST:
            self._until_end(answer)
            return answer
        while True:
            first = self._take(answer)
            if kind == STATISTICS:
                answer.status = 0
                return answer
            if first[4] == ERROR:
                answer.status, answer.error = None, int.from_bytes(first[5:7], "little")
                return answer
            if first[4] == OK:
                _, at = length_coded(first, 5)
                answer.number, at = length_coded(first, at)
                answer.status = int.from_bytes(first[at : at + 2], "little")
            elif first[4] == END:
                answer.status = int.from_bytes(first[7:9], "little")
            elif first[4] == LOCAL_FILE:
                self._pass_file(answer, client)
                continue
            else:
                self._until_end(answer)
                if answer.error == 0:
                    self._until_end(answer)
                if answer.error != 0:
                    return answer
            if not (answer.status or 0) & MORE_RESULTS:
                return answer

    def _take(self, answer: Answer) -> bytes:
        packet = self.wire.packet()
        answer.packets.append(packet)
        return packet

    def _until_end(self, answer: Answer) -> None:
        while True:
            packet = self._take(answer)
            if packet[4] == END and len(packet) < 4 + 9:
                answer.status = int.from_bytes(packet[7:9], "little")
                return
            if packet[4] == ERROR:
                answer.status, answer.error = None, int.from_bytes(packet[5:7], "little")
                return

    def _pass_file(self, answer: Answer, client: Wire | None) -> None:
        if client is None:
            raise Ended
        client.send(b"".join(answer.packets))
        answer.packets.clear()
        while True:
            piece = client.packet()
            self.wire.send(piece)
            if len(piece) == 4:
                return


class Client:
    """One connection of a program. In a thread of its own."""

    def __init__(self, spread: "Spread", connection: socket.socket, draw: random.Random) -> None:
        self._spread = spread
        self._client = Wire(connection)
        self._draw = draw
        self._backends: list[Backend] = []
        self._here = 0  # where the last statement was
        self._numbered = 0  # where the last number was given
        self._autocommit = True
        self._keeps = False  # the server of the last statement may keep a transaction, or savepoints, of this connection

    def serve(self) -> None:
        try:
            if self._connect():
                while self._one():
                    pass
            else:
                self._pipe()
        except (Ended, OSError):
            pass
        finally:
            for backend in self._backends:
                backend.wire.close()
            self._client.close()

    # --- how it begins -------------------------------------------------------------------------------------------

    def _connect(self) -> bool:
        """False: this one stays at the first server it came to."""
        addresses = self._spread.addresses
        first = self._draw.randrange(len(addresses))
        mine = Backend(addresses[first])
        self._backends = [mine]
        self._client.send(without_extras(mine.greeting))
        hello = self._client.packet()
        answered = mine.log_in(hello)
        self._client.send(answered)
        if answered[4] != OK or not proves_nothing(hello):
            return False
        others = []
        for address in addresses[:first] + addresses[first + 1 :]:
            other = Backend(address)
            others.append(other)
            if other.log_in(hello)[4] != OK:  # an account, or a database, that is not known there yet
                for one in others:
                    one.wire.close()
                return False
        self._backends = [*others[:first], mine, *others[first:]]
        self._here = self._numbered = first
        return True

    def _pipe(self) -> None:
        """Both ways, byte by byte, with the one server that it is at."""
        backend = self._backends[self._here].wire
        client = self._client
        backend.send(client.rest)
        client.send(backend.rest)

        def back() -> None:
            with contextlib.suppress(OSError):
                while piece := backend.socket.recv(1 << 16):
                    client.socket.sendall(piece)
            client.close()

        thread = threading.Thread(target=back, daemon=True)
        thread.start()
        with contextlib.suppress(OSError):
            while piece := client.socket.recv(1 << 16):
                backend.socket.sendall(piece)
        backend.close()
        thread.join()

    # --- statement by statement ------------------------------------------------------------------------------------

    def _one(self) -> bool:
        command = self._client.packet()
        kind, text = command[4], REMARKS.sub(b"", command[5:])
        if kind == QUIT:
            return False
        known = kind in (INIT_DB, QUERY, FIELD_LIST, STATISTICS, PING, RESET_CONNECTION, SET_OPTION)
        if not known or (kind == QUERY and STAYS.search(text)):
            self._spread.count_stay()
            self._backends[self._here].wire.send(command)
            self._pipe()
            return False
        everywhere = kind in (INIT_DB, RESET_CONNECTION, SET_OPTION) or (kind == QUERY and bool(EVERYWHERE.match(text)))
        if everywhere:
            answer = self._everywhere(command, kind == INIT_DB or text[:3].upper() == b"USE")
        else:
            self._here = self._choose(kind, text)
            answer = self._backends[self._here].ask(command, self._client)
        self._note_what_is_kept(kind, text, answer, everywhere)
        if answer.number != 0:
            self._numbered = self._here
        self._spread.count(self._here)
        if kind == QUERY and answer.status is not None:
            self._let_others_hear(text)
        self._client.send(b"".join(answer.packets))
        return True

    def _note_what_is_kept(self, kind: int, text: bytes, answer: Answer, everywhere: bool) -> None:
        """Without autocommit any statement begins a transaction, one that fails too, and SAVEPOINT without a flag for it."""
        if answer.status is not None and kind != STATISTICS:
            self._autocommit = bool(answer.status & AUTOCOMMIT)
            in_transaction = bool(answer.status & IN_TRANSACTION)
            if self._autocommit or in_transaction or ENDS.match(text):
                self._keeps = in_transaction
                return
        if not self._autocommit and kind == QUERY and not everywhere:
            self._keeps = True

    def _choose(self, kind: int, text: bytes) -> int:
        if self._keeps or kind != QUERY or AFTER_THE_LAST.search(text):
            return self._here
        if AFTER_THE_NUMBER.search(text):
            return self._numbered
        return self._draw.randrange(len(self._backends))

    def _everywhere(self, command: bytes, names_database: bool) -> Answer:
        """As where the connection is. A database that one server knows the others are waited for."""
        answer = self._backends[self._here].ask(command, None)
        for number, backend in enumerate(self._backends):
            if number == self._here:
                continue
            until = time.monotonic() + KNOWN_TO_ALL_S
            while (
                backend.ask(command, None).error == UNKNOWN_DATABASE != answer.error
                and names_database
                and time.monotonic() < until
            ):
                time.sleep(0.1)
        return answer

    def _let_others_hear(self, text: bytes) -> None:
        if HEARD_OF_LATER.search(text):
            time.sleep(HEARD_OF_S)


class Spread:
    """Listens on 127.0.0.1:port until closed."""

    def __init__(self, ports: Sequence[int], seed: int) -> None:
        self.addresses: list[Callable[[], socket.socket]] = [_to(port) for port in ports]
        self.statements = [0] * len(ports)
        self.stayed = 0
        self._draws = random.Random(seed)
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def count(self, server: int) -> None:
        with self._lock:
            self.statements[server] += 1

    def count_stay(self) -> None:
        with self._lock:
            self.stayed += 1

    def told(self) -> str:
        spread = ", ".join(f"{count:,}" for count in self.statements)
        return f"statements of each server: {spread}; {self.stayed:,} connections stayed at one from some statement on"

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                draw = random.Random(self._draws.getrandbits(64))
                threading.Thread(target=Client(self, connection, draw).serve, daemon=True).start()


def _to(port: int) -> Callable[[], socket.socket]:
    def connect() -> socket.socket:
        made = socket.create_connection(("127.0.0.1", port), timeout=CONNECT_TIMEOUT_S)
        made.settimeout(None)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    return connect
