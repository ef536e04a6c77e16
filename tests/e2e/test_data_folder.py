"""A server whose Strata folder is damaged, foreign, of another format or half-initialised: it stays up without the engine, says
what is wrong and where, and changes nothing. And one whose disk fills up under it."""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pymysql
import pytest
from strata_cli import paths
from strata_cli.server import Server, Settings, choose_port

SLOT_BYTES = 4096
FORMAT_AT = 8
DATA_FORMAT_AT = 32
CRC_AT = 12
COVERED_FROM = 16
LOG_HEADER_BYTES = 4096


def crc32c(data: bytes | bytearray) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def digest(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def flip(path: Path, at: int, count: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(count)
        file.seek(at)
        file.write(bytes(byte ^ 0x55 for byte in old))


@pytest.fixture(scope="module")
def original() -> Iterator[Path]:
    """A cleanly stopped data folder with one table of a few pages."""
    folder = paths.BUILD / "e2e" / "original"
    shutil.rmtree(folder, ignore_errors=True)
    server = Server(folder)
    try:
        server.start(Settings(port=choose_port(None, 23506)))
        server.query("CREATE DATABASE test")
        server.query("CREATE TABLE t (a INT PRIMARY KEY, b CHAR(200), KEY (b))", database="test")
        server.query("INSERT INTO t SELECT seq, seq FROM seq_1_to_2000", database="test", autocommit=True)
        assert server.stop()
        yield folder
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def control_file(strata: Path) -> Path:
    return strata / "control-1"


def log_segment(strata: Path) -> Path:
    return min((strata / "log").glob("log-*.seg"))


def damaged_control_file(strata: Path) -> str:
    for slot in (0, SLOT_BYTES):
        flip(control_file(strata), slot + COVERED_FROM + 20)
    return "control-1"


def foreign_control_file(strata: Path) -> str:
    control_file(strata).write_bytes(b"#!/bin/sh\n" * 1000)
    return "control-1"


def set_in_control_file(strata: Path, at: int, value: int) -> None:
    """As another version would have written it, with the right checksum."""
    content = bytearray(control_file(strata).read_bytes())
    for slot in range(0, len(content), SLOT_BYTES):
        page = content[slot : slot + SLOT_BYTES]
        if int.from_bytes(page[CRC_AT : CRC_AT + 4], "little") != crc32c(page[FORMAT_AT:CRC_AT] + page[COVERED_FROM:]):
            continue  # never written
        page[at : at + 4] = value.to_bytes(4, "little")
        page[CRC_AT : CRC_AT + 4] = crc32c(page[FORMAT_AT:CRC_AT] + page[COVERED_FROM:]).to_bytes(4, "little")
        content[slot : slot + SLOT_BYTES] = page
    control_file(strata).write_bytes(content)


def newer_format(strata: Path) -> str:
    set_in_control_file(strata, FORMAT_AT, 99)
    return r"control-1.*another version \(format 99"


def data_of_an_earlier_format(strata: Path) -> str:
    set_in_control_file(strata, DATA_FORMAT_AT, 1)
    return r"control-1.*another version \(format \d+, data format 1; this one knows"


def no_control_file(strata: Path) -> str:
    control_file(strata).unlink()
    return "control-1.*half-initialised"


def folder_of_somebody_else(strata: Path) -> str:
    shutil.rmtree(strata)
    strata.mkdir()
    (strata / "thesis.txt").write_text("the only copy")
    return "thesis.txt.*not of this engine"


def half_created(strata: Path) -> str:
    control_file(strata).unlink()
    shutil.rmtree(strata / "pages")
    return "half-initialised"


def no_log(strata: Path) -> str:
    for segment in (strata / "log").glob("*.seg"):
        segment.unlink()
    return "log"


def foreign_log(strata: Path) -> str:
    flip(log_segment(strata), 0, LOG_HEADER_BYTES)
    return r"log-.*\.seg"


def damaged_dictionary(strata: Path) -> str:
    for at in range(0, (strata / "pages" / "space-00000000.pages").stat().st_size, 16384):
        flip(strata / "pages" / "space-00000000.pages", at + 9000)
    return "space-00000000|page 0:"


def no_dictionary(strata: Path) -> str:
    (strata / "pages" / "space-00000000.pages").unlink()
    return "pages"


def no_table_file(strata: Path) -> str:
    max((strata / "pages").glob("space-*.pages"), key=lambda path: path.stat().st_size).unlink()
    return "file is missing"


DAMAGES = [
    damaged_control_file,
    foreign_control_file,
    newer_format,
    data_of_an_earlier_format,
    no_control_file,
    folder_of_somebody_else,
    half_created,
    no_log,
    foreign_log,
    damaged_dictionary,
    no_dictionary,
    no_table_file,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_folder_that_cannot_be_used_is_reported_and_left_alone(
    original: Path, data: Path, damage: Callable[[Path], str]
) -> None:
    shutil.copytree(original, data)
    server = Server(data)
    strata = server.datadir / "#strata"
    message = damage(strata)
    before = digest(strata)
    server.start(Settings(port=choose_port(None, 23506)))
    logged = server.log_tail(60)
    assert re.search(rf"\[ERROR\] STRATA: .*({message})", logged), logged
    assert not server.has_strata()
    with pytest.raises(pymysql.MySQLError, match="Unknown storage engine 'STRATA'"):
        server.query("SELECT COUNT(*) FROM t", database="test")
    server.query("CREATE TABLE i (a INT) ENGINE=InnoDB", database="test")  # The rest of the server works.
    assert server.stop()
    assert digest(strata) == before


def test_the_folder_put_right_again_serves_what_it_had(original: Path, data: Path) -> None:
    shutil.copytree(original, data)
    server = Server(data)
    control = control_file(server.datadir / "#strata")
    saved = control.read_bytes()
    control.unlink()
    server.start(Settings(port=choose_port(None, 23506)))
    assert not server.has_strata()
    command = [str(paths.ROOT / "strata"), "status", "--data", str(data)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, cwd=paths.ROOT, timeout=60)
    assert shown.returncode == 4, shown
    words = " ".join(shown.stdout.split())
    assert re.search(r"not well: STRATA is not loaded: .* half-initialised.*; to do: look into the error log", words), words
    assert server.stop()
    control.write_bytes(saved)
    server.start(Settings(port=choose_port(None, 23506)))
    assert server.query("SELECT COUNT(*), SUM(a) FROM t", database="test") == [(2000, 2001000)]
    assert server.query("CHECK TABLE t EXTENDED", database="test")[-1][-1] == "OK"


# --- a full disk -----------------------------------------------------------------------------------------------------


class SmallDisk:
    """Strata's folder on a tmpfs of its own, in a mount namespace that ends with the server."""

    def __init__(self, server: Server, mib: int) -> None:
        folder = server.datadir / "#strata"
        folder.mkdir()
        script = f'mount -t tmpfs -o size={mib}m strata-test "$0" && exec "$@"'
        root = [] if os.geteuid() == 0 else ["--map-root-user"]
        self.prefix = ["unshare", "--mount", *root, "sh", "-c", script, str(folder)]
        self._server = server
        self._folder = folder

    def possible(self) -> bool:
        return subprocess.run([*self.prefix, "true"], capture_output=True).returncode == 0

    def inside(self) -> Path:
        return Path(f"/proc/{self._server.pid()}/root{self._folder}")

    def free_bytes(self) -> int:
        facts = os.statvfs(self.inside())
        return facts.f_bavail * facts.f_frsize


def fill(path: Path, leave: int, disk: SmallDisk) -> None:
    with path.open("wb") as file:
        file.write(b"x" * (disk.free_bytes() - leave))


def insert_until_it_fails(server: Server, first: int) -> tuple[int, pymysql.MySQLError]:
    """How many rows were acknowledged, one a transaction, and the error of the one that was not."""
    connection = server.connect(database="test", autocommit=True)
    with connection.cursor() as cursor:
        for key in range(first, first + 100_000):
            try:
                cursor.execute("INSERT INTO full (a, b) VALUES (%s, REPEAT(MD5(%s), 250))", (key, key))
            except pymysql.MySQLError as error:
                return key - first, error
    raise AssertionError("the disk never got full")


def test_a_full_disk_fails_statements_and_nothing_else(data: Path) -> None:
    server = Server(data)
    server.create()
    disk = SmallDisk(server, 160)
    assert disk.possible(), "this test needs a mount namespace with a tmpfs: root, or user namespaces"
    small = ["--strata-log-segment-size=8M", "--strata-log-checkpoint-size=16M", "--strata-buffer-pool-size=32M"]
    server.start(Settings(port=choose_port(None, 23506)), extra=small, prefix=disk.prefix)
    assert server.has_strata(), server.log_tail()
    server.query("CREATE DATABASE test")
    server.query("CREATE TABLE full (a INT PRIMARY KEY, b TEXT, c VARCHAR(40) AS (LEFT(b, 40)) STORED, KEY (c))", database="test")
    server.query("CREATE TABLE small (a INT PRIMARY KEY, n INT)", database="test")
    server.query("INSERT INTO small VALUES (1, 0)", database="test", autocommit=True)
    filler = disk.inside() / "filler"
    acknowledged = 0
    for _ in range(3):
        fill(filler, 24 << 20, disk)
        rows, error = insert_until_it_fails(server, acknowledged + 1)
        acknowledged += rows
        assert re.search("full|space", str(error), re.IGNORECASE), error
        assert server.pid() is not None
        assert server.query("SELECT COUNT(*) FROM full", database="test") == [(acknowledged,)]  # Reads go on.
        filler.unlink()
        server.query("UPDATE small SET n = n + 1", database="test", autocommit=True)
        server.query(f"INSERT INTO full (a, b) VALUES ({acknowledged + 1}, 'after')", database="test", autocommit=True)
        acknowledged += 1
    assert server.query("SELECT n FROM small", database="test") == [(3,)]
    assert server.query("SELECT COUNT(*), MAX(a) FROM full", database="test") == [(acknowledged, acknowledged)]
    for table in ("full", "small"):
        assert server.query(f"CHECK TABLE {table} EXTENDED", database="test")[-1][-1] == "OK"
    assert server.stop()
