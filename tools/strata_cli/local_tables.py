"""Tables that only one compute node of a cluster has: those of other engines, and sequences. Another node will not have them."""

from collections.abc import Iterable
from pathlib import Path

from .server import Server
from .shell import StrataError

SHARED_ENGINE = b"STRATA"
SERVERS_OWN = ("mysql", "sys", "performance_schema", "information_schema")
SHOWN_MOST = 10


def of_server(server: Server) -> list[str]:
    """Their names, as database.table; empty for a server that is no compute node: there every table is where it belongs."""
    if not server.settings().cluster:
        return []
    return in_folder(server.data / "mysql")


def in_folder(folder: Path) -> list[str]:
    """By what their definition files say, so that it does not take a running server."""
    found = []
    for path in sorted(folder.glob("*/*.frm")):
        if path.parent.name in SERVERS_OWN or path.name.startswith("#"):
            continue
        try:
            engine = engine_of(path.read_bytes())
        except OSError:  # gone meanwhile
            continue
        if engine not in (b"", SHARED_ENGINE):
            found.append(f"{_plain(path.parent.name)}.{_plain(path.stem)}")
    return found


def engine_of(definition: bytes) -> bytes:
    """Empty: not the definition of a table (a view's, say), or of none that names its engine."""
    if definition[:2] != b"\xfe\x01" or len(definition) < 64 or _number(definition, 55, 4) == 0:
        return b""
    keys = _number(definition, 14, 2)
    keys = _number(definition, 47, 4) if keys == 0xFFFF else keys
    connection = _number(definition, 6, 2) + keys + _number(definition, 16, 2)
    engine = connection + 2 + _number(definition, connection, 2)
    return definition[engine + 2 : engine + 2 + _number(definition, engine, 2)]


def refuse_loss(servers: Iterable[Server], what: str, lose: bool) -> None:
    """All of them are named."""
    if lose:
        return
    found = {server: tables for server in servers if (tables := of_server(server))}
    if not found:
        return
    told = "; ".join(f"{server.data} has tables that only this server has ({_shown(tables)})" for server, tables in found.items())
    to_do = "Move them to the database with ALTER TABLE ... ENGINE=STRATA, or say --lose-local-tables"
    raise StrataError(f"{what}: {told}. {to_do}")


def _shown(tables: list[str]) -> str:
    return ", ".join(tables[:SHOWN_MOST]) + (f" and {len(tables) - SHOWN_MOST} more" if len(tables) > SHOWN_MOST else "")


def _number(definition: bytes, at: int, count: int) -> int:
    return int.from_bytes(definition[at : at + count], "little")


def _plain(encoded: str) -> str:
    """A file's name as SQL has it: @ and four hexadecimal digits for what file names do not hold. Others stay as they are."""
    parts = encoded.split("@")
    plain = parts[0]
    for part in parts[1:]:
        try:
            plain += chr(int(part[:4], 16)) + part[4:]
        except ValueError:
            plain += "@" + part
    return plain
