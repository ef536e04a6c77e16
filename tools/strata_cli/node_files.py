"""Files that say whose a data folder is (docs/data_formats.md): read, and written for a folder that is laid out from a backup."""

import secrets
import struct
from pathlib import Path

from .process import replace_file
from .shell import StrataError

STAMP = "node.stamp"  # of a storage node's folder
STORE = Path("written", "store")
STORE_MARK = struct.Struct("<8sQQI")  # magic, number, epoch, crc32c of what is before it
IDENTITY = Path("#strata", "node-identity")  # in the data directory of a server
_POLYNOMIAL = 0x82F63B78


def crc32c(data: bytes) -> int:
    """For small files only."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def random_number() -> int:
    """Not 0."""
    return secrets.randbelow((1 << 64) - 1) + 1


def rename_storage_node(folder: Path, name: str) -> int:
    """The folder, a copy of another storage node's that has never been used, is that one's; returns the number of its store of
    written pages, or 0 where pages are made from the log."""
    stamp = folder / STAMP
    lines = stamp.read_text().splitlines(keepends=True)
    text = "".join(lines[:-1])
    keys = [line.split(" ")[0] for line in lines]
    if lines[-1:] != [_checksum_line(text)] or not {"name", "identity"} <= set(keys):
        raise _damaged(stamp)
    lines[keys.index("name")] = f"name {name}\n"
    lines[keys.index("identity")] = f"identity {random_number():016x}\n"
    text = "".join(lines[:-1])
    replace_file(stamp, text + _checksum_line(text))
    if not (folder / STORE).exists():
        return 0
    magic, _, epoch = _read_mark(folder / STORE)
    number = random_number()
    _write_mark(folder / STORE, magic, number, epoch)
    return number


def number_of_store(folder: Path) -> int:
    return _read_mark(folder / STORE)[1]


def identity_of_server(datadir: Path) -> str:
    """16 hexadecimal digits; empty: there is no such folder, or nobody can tell."""
    try:
        line = (datadir / IDENTITY).read_bytes()
    except OSError:
        return ""
    parts = line.decode(errors="replace").split()
    return parts[2] if len(parts) == 4 and line == _identity_line(parts[2]) else ""


def write_identity_of_server(datadir: Path, identity: str) -> None:
    path = datadir / IDENTITY
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(_identity_line(identity))


def _identity_line(identity: str) -> bytes:
    text = f"strata-node 1 {identity}"
    return f"{text} {crc32c(text.encode()):08x}\n".encode()


def _checksum_line(text: str) -> str:
    return f"crc32c {crc32c(text.encode()):08x}\n"


def _read_mark(path: Path) -> tuple[bytes, int, int]:
    try:
        data = path.read_bytes()
        magic, number, epoch, checksum = STORE_MARK.unpack(data)
    except (OSError, struct.error):
        raise _damaged(path) from None
    if checksum != crc32c(data[:-4]):
        raise _damaged(path)
    return magic, number, epoch


def _write_mark(path: Path, magic: bytes, number: int, epoch: int) -> None:
    data = STORE_MARK.pack(magic, number, epoch, 0)[:-4]
    path.write_bytes(data + struct.pack("<I", crc32c(data)))


def _damaged(path: Path) -> StrataError:
    return StrataError(f"{path} is damaged; use another backup")
