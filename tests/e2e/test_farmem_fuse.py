"""strata-farmem run --mode fuse: the memory that several processes share is far. PostgreSQL, unmodified, gives the answers it
gives on local memory, within the cap; when the memory node or strata-farmem itself goes, everything ends and nothing hangs or
stays on the host; what cannot be is refused with the reason."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from strata_cli import farmem, farmem_postgres
from strata_cli import farmem_postgres_packages as packages
from strata_cli.farmem_postgres import Postgres
from strata_cli.shell import StrataError
from strata_cli.waiting import wait_until

pytestmark = pytest.mark.quick

TIMEOUT_S = 300.0
TEST_S_MAX = 900.0  # afterwards the kernel is told that no page will come: nothing waits for one any more, and the test fails
LOST, NOT_STARTED = 74, 2
SCALE = 0.01
BUFFERS = {"shared_buffers": "64MB"}
CAP = 1024  # pages of 4M
THREADS_WAITING = 16  # more than there are processes: each waits with one empty page

# Four processes that share 8 MiB: each counts up a word of its own in every page, three times, and sees the parent's.
SHARED = """
import mmap, os, sys
PAGES, WORKERS, TURNS = 2048, 4, 3
memory = mmap.mmap(-1, PAGES * 4096)
words = memoryview(memory).cast("Q")
for page in range(PAGES): words[page * 512] = page + int(sys.argv[1])
def work(me):
    for turn in range(TURNS):
        for page in range(PAGES):
            assert words[page * 512] == page + int(sys.argv[1])
            words[page * 512 + 1 + me] += 1
children = []
for me in range(WORKERS):
    pid = os.fork()
    if pid == 0:
        work(me)
        os._exit(0)
    children.append(pid)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
assert all(words[page * 512 + 1 + me] == TURNS for page in range(PAGES) for me in range(WORKERS))
assert not any(words[page * 512 + 1 + WORKERS] for page in range(PAGES))
print("kept", sum(words[page * 512] for page in range(PAGES)))
"""
SUM = 2048 * 2047 // 2
# Five processes that change every page of 16 MiB until they are ended.
FOREVER = """
import mmap, os
PAGES, WORKERS = 4096, 4
memory = mmap.mmap(-1, PAGES * 4096)
words = memoryview(memory).cast("Q")
me = next((me for me in range(WORKERS) if os.fork() == 0), WORKERS)
if me == WORKERS: print("there", flush=True)
while True:
    for page in range(PAGES): words[page * 512 + me] += 1
"""


def python(text: str, *arguments: str) -> list[str]:
    return [sys.executable, "-S", "-c", text, *arguments]


def host() -> dict[str, object]:
    """All that could be left behind."""
    return {
        "mounts": Path("/proc/self/mounts").read_text(),
        "folders": sorted(str(folder) for folder in Path("/tmp").glob("strata-farmem-??????")),
        "guards": guards(),
    }


def guards() -> set[int]:
    """Of this process's runs, and those whose run is gone; others may be testing on this machine, too."""
    found = {int(comm.parent.name) for comm in Path("/proc").glob("[0-9]*/comm") if _text(comm).strip() == "fm-guard"}
    return {pid for pid in found if (starter := _parent(pid)) == 1 or _parent(starter) == os.getpid()}


def _parent(pid: int) -> int:
    fields = _text(Path(f"/proc/{pid}/stat")).rpartition(") ")[2].split()
    return int(fields[1]) if fields else 0


def end_guards(but: set[int]) -> None:
    """Frees whoever waits for a page, strata-farmem itself too."""
    for pid in guards() - but:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def processes_of(data: Path) -> list[int]:
    """That have this folder as their own: PostgreSQL's do."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "cwd").readlink() == data:
                found.append(int(folder.name))
    return found


@pytest.fixture
def allowed() -> Iterator[None]:
    """Where a FUSE file system may be made; afterwards nothing of it is left."""
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("mode fuse is not allowed here")
    before, others = host(), guards()
    too_long = threading.Timer(TEST_S_MAX, end_guards, (others,))
    too_long.daemon = True
    too_long.start()
    try:
        yield
        # A guard ends by itself when its starter is gone.
        assert wait_until(lambda: host() == before, 60.0, every_s=0.2), (before, host())
    finally:
        too_long.cancel()
        end_guards(others)


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    """PostgreSQL with TPC-H's tables, not running. What a test kills, it recovers from."""
    try:
        packages.fetch(print)
    except StrataError as missing:
        pytest.skip(str(missing))
    with TemporaryDirectory(prefix="strata-pg-") as folder:
        Path(folder).chmod(0o755)
        server = Postgres(Path(folder))
        server.make()
        server.start(BUFFERS)
        try:
            server.load_tpch(SCALE)
        finally:
            server.stop()
        yield server


@pytest.fixture(scope="module")
def expected(database: Postgres) -> dict[int, str]:
    database.start(BUFFERS)
    try:
        return answers_of(database, list(range(1, 23)))
    finally:
        database.stop()


def answers_of(server: Postgres, numbers: list[int]) -> dict[int, str]:
    return {number: server.query(farmem_postgres.tpch_query(number, SCALE), TIMEOUT_S) for number in numbers}


def options(stats: Path | None = None, **more: object) -> farmem.Options:
    return farmem.Options(**{"mode": farmem.FUSE, "local": "4M", "quiet": True, "stats": stats, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(("policy", "prefetch", "tcp"), [("fifo", 0, False), ("second-chance", 7, True), ("assoc:256", 0, False)])
def test_postgresql_gives_the_same_answers_within_the_cap(
    allowed: None, database: Postgres, expected: dict[int, str], tmp_path: Path, policy: str, prefetch: int, tcp: bool
) -> None:
    """All 22 queries, by two clients at once; what is changed outlives the far memory."""
    stats = tmp_path / "far.json"
    with farmem.MemoryNode("1G", tcp=tcp) as place:
        database.start(BUFFERS, farmem.run_command(place, options(stats, policy=policy, prefetch=prefetch), []))
        try:
            before = database.query("SELECT SUM(s_acctbal) FROM supplier")
            with ThreadPoolExecutor(2) as clients:
                streams = [clients.submit(answers_of, database, list(range(first, 23, 2))) for first in (1, 2)]
                said = {number: text for stream in streams for number, text in stream.result().items()}
            database.query("UPDATE supplier SET s_acctbal = s_acctbal + 1")
        finally:
            code = database.stop()
    assert said == expected and code == 0
    (process,) = json.loads(stats.read_text())["processes"]
    assert process["fetched"] > CAP and process["far_bytes"] > 64 << 20 and process["far_bytes_refused"] == 0
    assert process["faults"] == process["soft_hits"] + process["zero_filled"] + process["fetched"]
    assert CAP // 2 < process["local_pages_max"] <= CAP
    assert 0 < process["cached_pages_max"] <= CAP + THREADS_WAITING
    assert (process["prefetched"] > 0) == (prefetch > 0)
    database.start(BUFFERS)
    try:
        changed = database.query("SELECT SUM(s_acctbal) - COUNT(*) FROM supplier")
        database.query("UPDATE supplier SET s_acctbal = s_acctbal - 1")
    finally:
        database.stop()
    assert changed == before


class Busy:
    """Clients that read and write as long as there is a server."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._threads = [threading.Thread(target=self._work, args=(n,), daemon=True) for n in range(2)]

    def __enter__(self) -> None:
        self._server.query("CREATE TABLE IF NOT EXISTS busy (a INT, b TEXT)")
        for thread in self._threads:
            thread.start()

    def _work(self, number: int) -> None:
        with contextlib.suppress(StrataError):
            while True:
                self._server.query("INSERT INTO busy SELECT i, repeat('x', 200) FROM generate_series(1, 5000) i", TIMEOUT_S)
                self._server.query(farmem_postgres.tpch_query(1 + number, SCALE), TIMEOUT_S)

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        assert not any(thread.is_alive() for thread in self._threads)


@pytest.mark.parametrize("how", ["killed", "paused"])
def test_a_lost_memory_node_ends_postgresql_with_a_reason(allowed: None, database: Postgres, tmp_path: Path, how: str) -> None:
    node = farmem.MemoryNode("1G", tcp=True)
    stats = tmp_path / "far.json"
    with node as place:
        database.log.unlink(missing_ok=True)
        database.start(BUFFERS, farmem.run_command(place, options(stats, timeout_ms=2000), []))
        with Busy(database):
            assert wait_until(lambda: stats.exists() and _fetched(stats) > 0, TIMEOUT_S)
            os.kill(node.pid(), signal.SIGKILL if how == "killed" else signal.SIGSTOP)
            lost = time.monotonic()
            code = database.process.wait(TIMEOUT_S)
            took_s = time.monotonic() - lost
        with contextlib.suppress(ProcessLookupError):
            os.kill(node.pid(), signal.SIGCONT)
    assert code == LOST and took_s < 60
    assert "is lost" in database.log.read_text(errors="replace")
    assert processes_of(database.data) == []
    check_recovers(database)


def _fetched(stats: Path) -> int:
    return sum(int(process["fetched"]) for process in json.loads(stats.read_text())["processes"])


def check_recovers(database: Postgres) -> None:
    """What was killed is as if the machine had lost power; PostgreSQL knows what to do."""
    # A process that has ended and that nobody has waited for yet counts as a server there.
    for lock in ("postmaster.pid", ".s.PGSQL.5432", ".s.PGSQL.5432.lock"):
        (database.data / lock).unlink(missing_ok=True)
    database.start(BUFFERS)
    try:
        assert int(database.query("SELECT COUNT(*) FROM lineitem")) > 50_000
        database.query("TRUNCATE busy")
    finally:
        database.stop()


def test_strata_farmem_killed_takes_postgresql_along(allowed: None, database: Postgres, tmp_path: Path) -> None:
    """In the midst of work, when the kernel waits for an answer that nobody will give."""
    for turn in range(3):
        stats = tmp_path / f"far{turn}.json"
        with farmem.MemoryNode("1G") as place:
            database.start(BUFFERS, farmem.run_command(place, options(stats), []))
            with Busy(database):
                assert wait_until(lambda file=stats: file.exists() and _fetched(file) > 0, TIMEOUT_S)  # type: ignore[misc]
                database.process.kill()
                database.process.wait(TIMEOUT_S)
            # One that waits for a lock of another that got SIGBUS touches nothing: the guard ends it.
            assert wait_until(lambda: processes_of(database.data) == [], TIMEOUT_S, every_s=0.2)
        check_recovers(database)


@pytest.mark.parametrize("stopped", [False, True])
def test_strata_farmem_killed_leaves_nobody_waiting(allowed: None, tmp_path: Path, stopped: bool) -> None:
    """Neither the processes that touch, which get SIGBUS, nor itself, which has the file open. Stopped before: then all of them
    wait for a page, and pages that were changed are on their way."""
    stats = tmp_path / "far.json"
    for _ in range(3):
        stats.unlink(missing_ok=True)
        with farmem.MemoryNode("1G") as place:
            command = farmem.run_command(place, options(stats, local="1M"), python(FOREVER))
            run = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
            assert run.stdout is not None and run.stdout.readline() == b"there\n"
            assert wait_until(lambda run=run: ended(run) or (stats.exists() and _fetched(stats) > 0), TIMEOUT_S)  # type: ignore[misc]
            assert not ended(run), run.returncode
            if stopped:
                run.send_signal(signal.SIGSTOP)
                assert wait_until(lambda pid=run.pid: not {"R"} & states_of_group(pid), TIMEOUT_S)  # type: ignore[misc]
            run.kill()
            run.wait(TIMEOUT_S)
            assert wait_until(lambda pid=run.pid: states_of_group(pid) <= {"Z"}, TIMEOUT_S, every_s=0.2)  # type: ignore[misc]
            run.stdout.close()


def ended(run: subprocess.Popen[bytes]) -> bool:
    return run.poll() is not None


def guard_of(run: subprocess.Popen[bytes]) -> int:
    (guard,) = (pid for pid in guards() if _parent(pid) == run.pid)
    return guard


def stop_after_unmounting(guard: int) -> bool:
    """While it looks for those that have the file mapped. False: it has ended before."""
    mounts = Path(f"/proc/{guard}/mounts")
    while "strata-farmem" in (mounted := _text(mounts)):
        pass
    if not mounted:
        return False
    os.kill(guard, signal.SIGSTOP)
    stopped = "fm-guard) T"
    assert wait_until(lambda: has_ended(guard) or stopped in _text(Path(f"/proc/{guard}/stat")), TIMEOUT_S)
    return not has_ended(guard)


def has_ended(pid: int) -> bool:
    return _text(Path(f"/proc/{pid}/stat")).rpartition(") ")[2][:1] in ("", "Z")


def test_a_guard_ends_nobody_of_another_run(allowed: None, tmp_path: Path) -> None:
    """It knows those that it ends by a number of the kernel's, which must not be another run's meanwhile."""
    stats = tmp_path / "far.json"
    with farmem.MemoryNode("1G") as place:
        for _ in range(20):
            command = farmem.run_command(place, options(local="1M"), python(FOREVER))
            with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as first:
                assert first.stdout is not None and first.stdout.readline() == b"there\n"
                guard = guard_of(first)
                first.kill()
                was_stopped = stop_after_unmounting(guard)
                first.wait(TIMEOUT_S)
                assert wait_until(lambda pid=first.pid: states_of_group(pid) <= {"Z"}, TIMEOUT_S, every_s=0.2)  # type: ignore[misc]
            if was_stopped:
                break
        else:
            pytest.skip("the guard was too fast each time")
        command = farmem.run_command(place, options(stats, local="1M"), python(FOREVER))
        with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as second:
            assert second.stdout is not None and second.stdout.readline() == b"there\n"
            os.kill(guard, signal.SIGCONT)
            assert wait_until(lambda: has_ended(guard), TIMEOUT_S)
            # Had it ended the program, the run would end at once, and say no more.
            now = _seconds(stats)
            assert wait_until(lambda: ended(second) or _seconds(stats) > now + 2, TIMEOUT_S)
            assert not ended(second), second.returncode
            second.kill()
            second.wait(TIMEOUT_S)
            assert wait_until(lambda: states_of_group(second.pid) <= {"Z"}, TIMEOUT_S, every_s=0.2)


def _seconds(stats: Path) -> float:
    return float(json.loads(stats.read_text())["seconds"]) if stats.exists() else 0.0


# Two processes that share a page, and one that waits for ever for a lock that is in it: it touches nothing.
WAITING = """
import fcntl, mmap, os, sys, time
memory = mmap.mmap(-1, 4 << 20)
memory[0] = 1
first, second = os.pipe()
if os.fork() == 0:
    print("there", flush=True)
    os.read(first, 1)
else:
    while True:
        for at in range(0, 4 << 20, 4096): memory[at] = 1
"""


def test_who_waits_for_another_ends_with_strata_farmem(allowed: None, tmp_path: Path) -> None:
    with farmem.MemoryNode("1G") as place:
        command = farmem.run_command(place, options(local="1M"), python(WAITING))
        run = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        assert run.stdout is not None and run.stdout.readline() == b"there\n"
        run.kill()
        run.wait(TIMEOUT_S)
        assert wait_until(lambda: states_of_group(run.pid) <= {"Z"}, TIMEOUT_S, every_s=0.2)
        run.stdout.close()


def far_options(database: Postgres, stats: Path, **more: object) -> farmem.Options:
    return options(stats, far_files=database.data / "base", **more)


def test_files_of_tables_are_cached_in_the_memory_node(
    allowed: None, database: Postgres, expected: dict[int, str], tmp_path: Path
) -> None:
    """Buffers that hold next to nothing: what PostgreSQL reads again comes from the node, not from the disk."""
    stats = tmp_path / "far.json"
    small = {"shared_buffers": "1MB"}
    with farmem.MemoryNode("1G") as place:
        database.start(small, farmem.run_command(place, far_options(database, stats, far_from="64K"), []))
        try:
            assert answers_of(database, list(range(1, 23))) == expected
            first = files_of(stats)
            assert answers_of(database, [1, 6]) == {number: expected[number] for number in (1, 6)}
            again = files_of(stats)
            database.query("CREATE TABLE made AS SELECT * FROM orders; CREATE INDEX made_key ON made (o_orderkey); CHECKPOINT;")
            assert database.query("SELECT COUNT(*), MAX(o_orderkey) FROM made") == database.query(
                "SELECT COUNT(*), MAX(o_orderkey) FROM orders"
            )
            database.query("DELETE FROM made WHERE o_orderkey % 2 = 0; VACUUM FULL made;")
            kept = database.query("SELECT COUNT(*), SUM(o_totalprice) FROM made")
        finally:
            code = database.stop()
    assert code == 0
    assert again["fetched"] - first["fetched"] > 1000 and again["from_disk"] - first["from_disk"] < 100
    written = json.loads(stats.read_text())["files"]
    assert written["bytes_written"] > 1 << 20
    database.start(BUFFERS)
    try:
        assert database.query("SELECT COUNT(*), SUM(o_totalprice) FROM made") == kept
        database.query("DROP TABLE made")
    finally:
        database.stop()


def files_of(stats: Path) -> dict[str, int]:
    asked = time.time()
    assert wait_until(lambda: stats.stat().st_mtime > asked, TIMEOUT_S)
    found: dict[str, int] = json.loads(stats.read_text())["files"]
    return found


def test_a_lost_memory_node_ends_a_server_whose_files_it_has(allowed: None, database: Postgres, tmp_path: Path) -> None:
    node = farmem.MemoryNode("1G", tcp=True)
    stats = tmp_path / "far.json"
    with node as place:
        database.log.unlink(missing_ok=True)
        database.start({"shared_buffers": "1MB"}, farmem.run_command(place, far_options(database, stats, timeout_ms=2000), []))
        with Busy(database):
            assert wait_until(lambda: stats.exists() and json.loads(stats.read_text())["files"]["fetched"] > 0, TIMEOUT_S)
            node.kill()
            code = database.process.wait(TIMEOUT_S)
    assert code == LOST and "is lost" in database.log.read_text(errors="replace")
    assert processes_of(database.data) == []
    check_recovers(database)


def states_of_group(group: int) -> set[str]:
    """Letters, as in ps, of the processes that were started by this one."""
    stats = [_text(file).rpartition(") ")[2].split() for file in Path("/proc").glob("[0-9]*/stat")]
    return {stat[0] for stat in stats if stat and int(stat[2]) == group}


@pytest.mark.parametrize("policy", ["fifo", "second-chance", "assoc:1"])
def test_processes_share_what_they_map_and_two_programs_do_not(allowed: None, policy: str) -> None:
    with farmem.MemoryNode("1G", tcp=True) as place, ThreadPoolExecutor(2) as both:
        far = farmem.Options(mode=farmem.FUSE, local="1M", policy=policy, prefetch=3)
        runs = [both.submit(farmem.measure, place, far, python(SHARED, str(n)), TIMEOUT_S) for n in (0, 1_000_000)]
        said = [run.result() for run in runs]
    assert [run.said for run in said] == [f"kept {SUM}\n", f"kept {SUM + 2048 * 1_000_000}\n"]
    for run in said:
        assert run.total("fetched") > 2048 and run.total("local_pages_max") <= 256
        assert run.total("far_bytes") == 8 << 20


def test_what_finds_no_room_is_local(allowed: None) -> None:
    with farmem.MemoryNode("1G") as place:
        far = farmem.measure(place, farmem.Options(mode=farmem.FUSE, local="1M", far="4M"), python(SHARED, "0"), TIMEOUT_S)
    assert far.said == f"kept {SUM}\n" and far.total("far_bytes_refused") == 8 << 20 and far.total("faults") == 0


def test_the_exit_code_and_signals_are_the_programs(allowed: None) -> None:
    with farmem.MemoryNode("64M") as place:
        for text, code in (("exit 7", 7), ("kill -9 $$", 128 + signal.SIGKILL)):
            done = subprocess.run(farmem.run_command(place, options(), ["sh", "-c", text]), timeout=TIMEOUT_S)
            assert done.returncode == code
        # It ends when all processes of the program have, not the first one only.
        later = "(sleep 1; echo later) & echo first"
        done_text = subprocess.run(
            farmem.run_command(place, options(), ["sh", "-c", later]), capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert done_text.returncode == 0 and done_text.stdout == "first\nlater\n"
        forever = subprocess.Popen(
            farmem.run_command(place, options(), ["sh", "-c", "echo there; exec sleep 1000"]), stdout=subprocess.PIPE
        )
        assert forever.stdout is not None and forever.stdout.readline() == b"there\n"
        forever.send_signal(signal.SIGTERM)
        assert forever.wait(TIMEOUT_S) == 128 + signal.SIGTERM


def test_what_cannot_be_is_refused_with_the_reason(tmp_path: Path) -> None:
    marker = tmp_path / "started"
    with farmem.MemoryNode("64M", tcp=True) as place:
        for more, word in (
            ({"trace": tmp_path / "trace"}, "uffd"),
            ({"local": "4K"}, "at least"),
            ({"mode": farmem.UFFD, "far_files": tmp_path}, "--mode fuse"),
        ):
            command = farmem.run_command(place, options(**more), ["touch", str(marker)])
            refused = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
            assert refused.returncode == NOT_STARTED and word in refused.stderr and refused.stderr.count("\n") == 1
        if os.geteuid() == 0:
            place.secret.parent.chmod(0o711)
            os.chown(place.secret, farmem_postgres.NOBODY, farmem_postgres.NOBODY)
            command = farmem_postgres.as_nobody(farmem.run_command(place, options(), ["touch", str(marker)]))
            refused = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
            assert refused.returncode == NOT_STARTED, refused.stderr
            assert "needs root" in refused.stderr and refused.stderr.count("\n") == 1
    assert not marker.exists()
