"""A small client of the server's text protocol: it keeps answers as the bytes that came, so comparing them is cheap.

Sending and receiving are apart: two engines can work on the same statement at the same time. Not thread-safe.
"""

import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path

PACKET_MOST = 0xFFFFFF
COM_QUERY = b"\x03"
# LONG_PASSWORD, LONG_FLAG, PROTOCOL_41, TRANSACTIONS, SECURE_CONNECTION, PLUGIN_AUTH: no EOF deprecation, no multi-statements.
CAPABILITIES = 0x1 | 0x4 | 0x200 | 0x2000 | 0x8000 | 0x80000
UTF8MB4_GENERAL_CI = 45
TIMEOUT_S = 120.0

# What the two engines must agree on of the server's status flags; the others tell of plans (no index used ...).
STATUS_COMPARED = 0x1 | 0x2 | 0x8  # in a transaction, autocommit, more results


class ServerLost(Exception):
    """The connection broke: the server crashed or was killed."""


@dataclass(slots=True)
class Answer:
    """What a statement brought; rows and column definitions are payloads as sent."""

    error: int = 0
    sqlstate: str = ""
    message: str = ""
    affected: int = 0
    insert_id: int = 0
    status: int = 0
    warning_count: int = 0
    info: bytes = b""
    columns: list[bytes] | None = None
    rows: list[bytes] = field(default_factory=list)
    warnings: list[tuple[str | None, ...]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.error == 0

    def values(self) -> list[tuple[str | None, ...]]:
        return [decode_row(row) for row in self.rows]


class Connection:
    def __init__(self, socket_path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(TIMEOUT_S)
        self._socket.connect(str(socket_path))
        self._input = self._socket.makefile("rb")
        self._log_in()

    def close(self) -> None:
        self._input.close()
        self._socket.close()

    def query(self, sql: str) -> Answer:
        self.send(sql)
        return self.receive()

    def send(self, sql: str) -> None:
        payload = COM_QUERY + sql.encode()
        if len(payload) >= PACKET_MOST:
            raise ValueError("statement too long")
        try:
            self._socket.sendall(struct.pack("<I", len(payload)) + payload)
        except OSError as error:
            raise ServerLost(str(error)) from error

    def receive(self) -> Answer:
        first = self._packet()
        if first[0] == 0xFF:
            return _error(first)
        if first[0] == 0x00:
            return _ok(first)
        answer = Answer(columns=[])
        assert answer.columns is not None
        for _ in range(_length(first, 0)[0] or 0):
            answer.columns.append(self._packet())
        self._packet()  # EOF behind the column definitions
        rows = answer.rows
        while True:
            packet = self._packet()
            if packet[0] == 0xFE and len(packet) < 9:
                answer.warning_count, answer.status = struct.unpack_from("<HH", packet, 1)
                return answer
            if packet[0] == 0xFF:
                failed = _error(packet)
                failed.columns = answer.columns
                return failed
            rows.append(packet)

    def _packet(self) -> bytes:
        payload = b""
        while True:
            try:
                header = self._input.read(4)
                size = int.from_bytes(header[:3], "little")
                part = self._input.read(size) if len(header) == 4 else b""
            except OSError as error:
                raise ServerLost(str(error)) from error
            if len(header) < 4 or len(part) < size:
                raise ServerLost("the connection ended")
            payload += part
            if size < PACKET_MOST:
                return payload

    def _log_in(self) -> None:
        greeting = self._packet()
        if greeting[0] == 0xFF:
            raise ServerLost(_error(greeting).message)
        reply = struct.pack("<IIB23x", CAPABILITIES, 1 << 24, UTF8MB4_GENERAL_CI) + b"root\0\0mysql_native_password\0"
        self._socket.sendall(struct.pack("<I", len(reply) | 1 << 24) + reply)
        answer = self._packet()
        if answer[0] != 0x00:
            raise ServerLost("login refused")


def _length(data: bytes, at: int) -> tuple[int | None, int]:
    """A length-encoded number (None: NULL) and where it ends."""
    first = data[at]
    if first < 0xFB:
        return first, at + 1
    if first == 0xFB:
        return None, at + 1
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def _error(packet: bytes) -> Answer:
    return Answer(
        error=struct.unpack_from("<H", packet, 1)[0],
        sqlstate=packet[4:9].decode(),
        message=packet[9:].decode(errors="replace"),
    )


def _ok(packet: bytes) -> Answer:
    affected, at = _length(packet, 1)
    insert_id, at = _length(packet, at)
    status, warnings = struct.unpack_from("<HH", packet, at)
    return Answer(affected=affected or 0, insert_id=insert_id or 0, status=status, warning_count=warnings, info=packet[at + 4 :])


def decode_row(packet: bytes) -> tuple[str | None, ...]:
    values: list[str | None] = []
    at = 0
    while at < len(packet):
        size, at = _length(packet, at)
        if size is None:
            values.append(None)
        else:
            values.append(packet[at : at + size].decode(errors="backslashreplace"))
            at += size
    return tuple(values)


def column_name(definition: bytes) -> str:
    """The name in a column definition: behind catalog, schema, table and original table."""
    at = 0
    for _ in range(4):
        size, at = _length(definition, at)
        at += size or 0
    size, at = _length(definition, at)
    return definition[at : at + (size or 0)].decode(errors="replace")
