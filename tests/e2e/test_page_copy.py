"""Storage nodes make themselves whole from their peers: one whose folder is gone after the log was cut off, one that is killed
while it copies, one whose pages, log or RocksDB's own structures are damaged. At the end all nodes have the same pages, byte for
byte."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crash.cluster_plan import NODES
from crash.cluster_under_test import ClusterUnderTest
from strata_cli import paths
from strata_cli.waiting import wait_until

FOLDER = paths.BUILD / "e2e" / "copy"
FIRST_LSN = 4096
CUT_TIMEOUT_S = 60.0
DEATH_TIMEOUT_S = 30.0
COPY_TIMEOUT_S = 40.0  # Compaction begins with the fourth checkpoint that stores pages.
ROW_BYTES = 1000
OLD_ROWS = 50
PAGE_BYTES = 16384
IN_THE_FIRST_PAGE = PAGE_BYTES // 2
IN_THE_SECOND_PAGE = 3 * PAGE_BYTES // 2
BLOCK_BYTES = 4096  # of RocksDB's tables
IN_THE_BEGINNING = 10  # Of CURRENT: the name in it; of others: the first record, the first key.
NOT_OPENED = "the pages are to be copied from a peer"
MET_BY_COMPACTION = "Compaction error: Corruption"


class Rows:
    """A table t (a, b) with rows 0, 1, 2 ..."""

    def __init__(self, parts: ClusterUnderTest) -> None:
        self._parts = parts
        self._count = 0
        self._updates = 0
        parts.compute.query("CREATE DATABASE test")
        parts.compute.query("CREATE TABLE t (a INT PRIMARY KEY, b TEXT) ENGINE=STRATA", database="test")

    def insert(self, count: int = 200) -> None:
        keys = range(self._count, self._count + count)
        values = ", ".join(f"({key}, REPEAT(CHAR(97 + {key} % 26), {ROW_BYTES}))" for key in keys)
        self._parts.compute.query(f"INSERT INTO t VALUES {values}", database="test", autocommit=True)
        self._count += count

    def update(self) -> None:
        """The oldest ones, whose pages have been stored long ago."""
        self._updates += 1
        self._parts.compute.query(f"UPDATE t SET b = {self._updated()} WHERE a < {OLD_ROWS}", database="test", autocommit=True)

    def _updated(self) -> str:
        return f"RPAD('{self._updates}', {ROW_BYTES}, '-')"

    def check(self) -> None:
        found = self._parts.compute.query("SELECT COUNT(*), MAX(a), SUM(LENGTH(b)) FROM t", database="test")
        assert found == [(self._count, self._count - 1, ROW_BYTES * self._count)]
        if self._updates:
            updated = f"SELECT COUNT(*) FROM t WHERE a < {OLD_ROWS} AND b = {self._updated()}"
            assert self._parts.compute.query(updated, database="test") == [(OLD_ROWS,)]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    yield
    shutil.rmtree(FOLDER, ignore_errors=True)


@pytest.fixture(params=["logdb", "logdb-mv-sr"])
def parts(request: pytest.FixtureRequest) -> Iterator[ClusterUnderTest]:
    made = ClusterUnderTest(FOLDER, request.param, "release", seed=1, small=True, power_loss=False)
    try:
        made.found()
        yield made
    finally:
        made.kill_all()


def log_begins(parts: ClusterUnderTest) -> list[int]:
    return [stream["log_begin"] for name in NODES for stream in parts.node(name).status().get("streams", [])]


def write_until_cut(parts: ClusterUnderTest, rows: Rows) -> None:
    """Until no node has the log from its beginning."""

    def is_cut() -> bool:
        rows.insert()
        begins = log_begins(parts)
        return len(begins) == len(NODES) and all(begin > FIRST_LSN for begin in begins)

    assert wait_until(is_cut, CUT_TIMEOUT_S), log_begins(parts)


def wait_copied(parts: ClusterUnderTest, name: str) -> None:
    parts.wait_well(NODES)
    values = parts.node(name).status()["values"]
    assert values["copies_total"] == 1 and values["pages_copied"] > 0, values


def expect_nothing_is_missed_without(name: str, parts: ClusterUnderTest, rows: Rows) -> None:
    """The others, one of which has copied its pages, are enough for a server that has nothing in memory."""
    parts.compare_pages()
    parts.kill_nodes([name])
    rows.insert()
    parts.compute.kill()
    parts.start_compute(fresh=True)
    rows.check()
    parts.start_nodes([name])
    parts.wait_well(NODES)
    parts.compare_pages()


def test_a_node_that_lost_its_folder_is_as_good_as_new(parts: ClusterUnderTest) -> None:
    rows = Rows(parts)
    write_until_cut(parts, rows)
    parts.kill_nodes(["s1"])
    parts.wipe_node("s1")
    rows.insert()
    parts.start_nodes(["s1"])
    rows.insert()
    wait_copied(parts, "s1")
    expect_nothing_is_missed_without("s2", parts, rows)


@pytest.mark.parametrize("parts", ["logdb-mv-sr"], indirect=True)
def test_a_node_that_is_killed_while_it_copies_begins_again(parts: ClusterUnderTest) -> None:
    rows = Rows(parts)
    write_until_cut(parts, rows)
    parts.kill_nodes(["s2"])
    parts.wipe_node("s2")
    flag = parts.node("s2").data / "pages" / "copying"
    for fault in ("node_copy_begun:1", "node_copy_pages:2", "node_copy_whole:1"):
        rows.insert(20)
        parts.launch_node("s2", fault)
        assert wait_until(lambda: parts.node("s2").pid() is None, DEATH_TIMEOUT_S), fault
        assert parts.died_at_point("s2")
        assert flag.exists()
    parts.start_nodes(["s2"])
    wait_copied(parts, "s2")
    assert not flag.exists()
    parts.compare_pages()
    rows.check()


def flip_a_bit(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


def damage_pages(data: Path) -> None:
    """The second page of every file that holds pages, be it RocksDB's or of single versions."""
    files = [path for path in data.rglob("*") if path.suffix in (".blob", ".pages") and path.stat().st_size > IN_THE_SECOND_PAGE]
    assert files, list(data.rglob("*"))
    for path in files:
        flip_a_bit(path, IN_THE_SECOND_PAGE)


def damage_log(data: Path, log_end: int, before_end: int) -> None:
    newest = max(data.rglob("log-*"))
    start = int(newest.stem.split("-")[-1], 16)
    flip_a_bit(newest, log_end - start - before_end)


def test_damaged_files_of_one_node_are_mended(parts: ClusterUnderTest) -> None:
    rows = Rows(parts)
    write_until_cut(parts, rows)
    parts.wait_well(NODES)
    # Their pages are in files, and from now on all keep their logs.
    parts.node_options = (
        *(o for o in parts.node_options if not o.startswith("--checkpoint-interval")),
        "--checkpoint-interval=3600",
    )
    for name in NODES:
        assert parts.node(name).stop()
    parts.start_nodes(NODES)
    for _ in range(4):  # Each is durable there before the next one: only damage of the last batch may be taken for a torn end.
        rows.insert()
        parts.wait_well(NODES)
    log_end = parts.node("s3").status()["streams"][0]["log_end"]
    parts.kill_nodes(["s3"])
    damage_pages(parts.node("s3").data)
    damage_log(parts.node("s3").data, log_end, before_end=300 * ROW_BYTES)
    parts.start_nodes(["s3"])
    rows.insert()
    parts.compare_pages(mend=True)  # Reads every page of every node.
    parts.wait_well(NODES)
    parts.compare_pages()
    values = parts.node("s3").status()["values"]
    assert values["log_mended_total"] > 0, parts.node("s3").log_tail(30)
    assert values["pages_repaired_total"] > 0, parts.node("s3").log_tail(30)
    rows.check()


# --- RocksDB's own structures ---


def store_files(data: Path, pattern: str) -> list[Path]:
    files = sorted((data / "pages" / "versions").glob(pattern))
    assert files, pattern
    return files


def said_by(parts: ClusterUnderTest, name: str) -> str:
    """Since it was started last."""
    return "\n".join(parts.node(name).log_lines())


def tables_of(data: Path, family: str) -> list[Path]:
    """RocksDB's tables of one column family, whose name is among the properties of each."""
    return [path for path in store_files(data, "*.sst") if b"name" + family.encode() in path.read_bytes()]


def test_a_store_that_cannot_be_opened_is_copied(parts: ClusterUnderTest) -> None:
    rows = Rows(parts)
    write_until_cut(parts, rows)
    parts.wait_well(NODES)
    for pattern in ("CURRENT", "MANIFEST-*", "*.sst"):  # Among the tables are those of the marks, which are read first.
        parts.kill_nodes(["s3"])
        for path in store_files(parts.node("s3").data, pattern):
            flip_a_bit(path, IN_THE_BEGINNING)
        rows.insert()
        parts.start_nodes(["s3"])
        rows.insert()
        wait_copied(parts, "s3")
        assert NOT_OPENED in said_by(parts, "s3")
    expect_nothing_is_missed_without("s2", parts, rows)


def damage_keys_of_pages(data: Path) -> None:
    """These tables are not read when the store is opened."""
    for path in tables_of(data, "pages"):
        flip_a_bit(path, IN_THE_BEGINNING)


def damage_all_pages(data: Path) -> None:
    """Compaction moves pages out of the oldest of these files."""
    for path in store_files(data, "*.blob"):
        for at in range(IN_THE_FIRST_PAGE, path.stat().st_size, PAGE_BYTES):
            flip_a_bit(path, at)


def write_until_copied(parts: ClusterUnderTest, rows: Rows, name: str) -> None:
    """Until it has copied everything; it was open, and healthy perhaps, before."""
    assert parts.node(name).status()["values"]["copies_total"] == 0

    def is_copied() -> bool:
        rows.insert(50)
        rows.update()
        return bool(parts.node(name).status().get("values", {}).get("copies_total"))

    assert wait_until(is_copied, COPY_TIMEOUT_S, every_s=0.2), f"{parts.node(name).illness()}\n{parts.node(name).log_tail(30)}"
    wait_copied(parts, name)


@pytest.mark.parametrize("parts", ["logdb-mv-sr"], indirect=True)
def test_damage_that_compaction_meets_is_mended_by_copying(parts: ClusterUnderTest) -> None:
    rows = Rows(parts)
    write_until_cut(parts, rows)
    parts.wait_well(NODES)
    for damage in (damage_keys_of_pages, damage_all_pages):
        parts.kill_nodes(["s3"])
        damage(parts.node("s3").data)
        parts.start_nodes(["s3"])
        write_until_copied(parts, rows, "s3")
        said = said_by(parts, "s3")
        assert MET_BY_COMPACTION in said and NOT_OPENED not in said, damage
    expect_nothing_is_missed_without("s2", parts, rows)


def damage_map(data: Path) -> None:
    """But for what is read when the store is opened: the first block of each table, and behind the blocks their index."""
    for path in tables_of(data, "map"):
        for at in range(BLOCK_BYTES * 3 // 2, path.stat().st_size * 3 // 4, BLOCK_BYTES):
            flip_a_bit(path, at)


def lose_oldest_pages(data: Path) -> None:
    store_files(data, "*.blob")[0].unlink()


# The scan of the log, or the workers, come to it before compaction does. For the map a copy is the only remedy; of the pages that
# are gone, those that somebody needs are mended one by one, until compaction misses the others.
@pytest.mark.parametrize("parts", ["logdb-mv-sr"], indirect=True)
@pytest.mark.parametrize("damage", [damage_map, lose_oldest_pages])
def test_damage_that_stops_replay_is_mended_by_copying(parts: ClusterUnderTest, damage: Callable[[Path], None]) -> None:
    rows = Rows(parts)
    write_until_cut(parts, rows)
    parts.wait_well(NODES)
    parts.kill_nodes(["s3"])
    damage(parts.node("s3").data)
    parts.start_nodes(["s3"])
    write_until_copied(parts, rows, "s3")
    expect_nothing_is_missed_without("s2", parts, rows)
