"""strata-farmem as its users see it: unmodified programs on remote memory give the answers they give on local memory, within
the cap; a memory node that goes ends them with a reason; what cannot be is refused before the program starts."""

import ctypes.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from strata_cli import farmem, farmem_monetdb, farmem_postgres, paths
from strata_cli.bench import far_memory, tpch
from strata_cli.bench.servers import database
from strata_cli.experiments.ddc_sessions import FAR, Monet, Setup, closing
from strata_cli.server import Server
from strata_cli.shell import StrataError
from strata_cli.waiting import wait_until

pytestmark = pytest.mark.quick

TIMEOUT_S = 120.0
LOST = 74
NOT_STARTED = 2

# Fills 12 MiB, changes every fourth page, reads all of it; shrinks, grows and copies it on the way; prints a sum.
SWEEP = """
import hashlib, sys
memory = bytearray(12 << 20)
for at in range(0, len(memory), 4096):
    memory[at : at + 8] = at.to_bytes(8, "little")
for at in range(0, len(memory), 4 * 4096):
    memory[at + 100] = 7
del memory[10 << 20 :]
memory += bytes(3 << 20)
print(hashlib.sha256(memory).hexdigest(), hashlib.sha256(bytes(memory)[::-1]).hexdigest())
"""
# What a program may ask of its allocator, with far memory much larger than what is local.
CONTRACT = """
import ctypes
c = ctypes.CDLL(None, use_errno=True)
for name in ("mmap", "mremap", "malloc", "calloc", "realloc", "memalign", "aligned_alloc"):
    getattr(c, name).restype = ctypes.c_void_p
MiB, PAGE, BAD, ANON, FIXED = 1 << 20, 4096, 2**64 - 1, 0x22, 0x10
size, void = ctypes.c_size_t, ctypes.c_void_p
def put(at, text): ctypes.memmove(at, text, len(text))
def get(at, n): return ctypes.string_at(at, n)
def mmap(n, protection=3, at=None, flags=ANON): return c.mmap(void(at), size(n), protection, flags, -1, ctypes.c_long(0))
def churn():  # everything else leaves local memory
    all = c.malloc(size(8 * MiB))
    for at in range(0, 8 * MiB, PAGE): put(all + at, b"x")
    c.free(void(all))
a = mmap(MiB)
for page in range(256): put(a + page * PAGE, b"%03d" % page)
churn()
assert c.munmap(void(a + 64 * PAGE), size(64 * PAGE)) == 0  # a hole in its middle
assert get(a + 63 * PAGE, 3) == b"063" and get(a + 128 * PAGE, 3) == b"128"
b = c.mremap(void(a + 128 * PAGE), size(128 * PAGE), size(512 * PAGE), 1)
assert get(b, 3) == b"128" and get(b + 127 * PAGE, 3) == b"255" and get(b + 128 * PAGE, 3) == bytes(3)
assert c.mremap(void(b), size(512 * PAGE), size(2 * PAGE), 0) == b and get(b + PAGE, 3) == b"129"
assert c.madvise(void(b), size(PAGE), 4) == 0 and get(b, 3) == bytes(3) and get(b + PAGE, 3) == b"129"
reserved = mmap(4 * MiB, protection=0)
assert mmap(MiB, at=reserved + MiB, flags=ANON | FIXED) == reserved + MiB and get(reserved + MiB, 8) == bytes(8)
put(reserved + MiB, b"kept"); churn()
assert c.mprotect(void(reserved), size(4 * MiB), 3) == 0 and get(reserved + MiB, 4) == b"kept"
assert mmap(MiB, at=reserved + MiB, flags=ANON | FIXED) == reserved + MiB and get(reserved + MiB, 4) == bytes(4)
p = c.malloc(size(100_000)); put(p, b"begin"); put(p + 99_996, b"end!"); churn()
p = c.realloc(void(p), size(3 * MiB)); assert get(p, 5) == b"begin" and get(p + 99_996, 4) == b"end!"
p = c.realloc(void(p), size(50)); assert get(p, 5) == b"begin"
p = c.realloc(void(p), size(5 * MiB)); assert get(p, 5) == b"begin" and c.malloc_usable_size(void(p)) >= 5 * MiB
c.free(void(p))
p = c.malloc(size(20_000)); p = c.realloc(void(p), size(20_470))  # grows within its last page, and then beyond it
assert c.malloc_usable_size(void(p)) >= 20_470
put(p + 20_460, b"tail"); p = c.realloc(void(p), size(90_000)); assert get(p + 20_460, 4) == b"tail"
c.free(void(p)); c.free(None)
z = c.calloc(size(512), size(1024)); assert get(z, 512 * 1024) == bytes(512 * 1024)
for alignment in (16, 4096, 65536, 1 << 21):
    for n in (100, 40_000):
        at = c.memalign(size(alignment), size(n)); assert at % alignment == 0; put(at, b"z" * n); c.free(void(at))
        at = c.aligned_alloc(size(alignment), size(n)); assert at % alignment == 0; c.free(void(at))
out = void()
assert c.posix_memalign(ctypes.byref(out), size(24), size(100_000)) == 22
assert c.posix_memalign(ctypes.byref(out), size(1 << 16), size(100_000)) == 0 and out.value % (1 << 16) == 0
assert c.munmap(void(b + 1), size(PAGE)) == -1 and ctypes.get_errno() == 22
for refused in (c.mlock(void(a), size(PAGE)), c.mlock2(void(a), size(PAGE), 1), c.mlockall(3)):
    assert refused == -1 and ctypes.get_errno() == 12
assert c.munlock(void(a), size(PAGE)) == 0 and get(a, 3) == b"000"
print("kept")
"""
# Registers buffers with an io_uring: what fits stays the kernel's, what does not fit is refused and nothing is lost.
REGISTERED = """
import ctypes
c = ctypes.CDLL(None, use_errno=True)
uring = ctypes.CDLL("liburing.so.2")
c.malloc.restype = c.memalign.restype = ctypes.c_void_p
size, void, PAGE = ctypes.c_size_t, ctypes.c_void_p, 4096
class Vector(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]
ring = (ctypes.c_char * 1024)()
assert uring.io_uring_queue_init(8, ring, 0) == 0
memory = c.memalign(size(PAGE), size(8 << 20))
for page in range(2048): ctypes.memmove(memory + page * PAGE, b"%04d" % page, 4)
def register(pages): return c.io_uring_register_buffers(ring, ctypes.byref(Vector(memory, pages * PAGE)), 1)
def churn():
    for page in range(2048): assert ctypes.string_at(memory + page * PAGE, 4) == b"%04d" % page
assert register(513) == -12, "more than half of 1024 pages"
assert register(512) == 0; churn()
assert register(1) == -16; churn()  # one at a time
assert c.io_uring_unregister_buffers(ring) == 0; churn()
assert register(100) == 0; c.io_uring_queue_exit(ring); churn()
assert uring.io_uring_queue_init(8, ring, 0) == 0
assert c.io_uring_register_buffers_sparse(ring, 4) == 0
tags = (ctypes.c_uint64 * 4)()
def update(slot, pages):
    return c.io_uring_register_buffers_update_tag(ring, slot, ctypes.byref(Vector(memory, pages * PAGE)), tags, 1)
assert update(0, 300) == 1 and update(1, 300) == -12 and update(0, 10) == 1 and update(1, 300) == 1; churn()
c.io_uring_queue_exit(ring)
print("kept")
"""
# Says that it is there, then reads its memory until it is ended.
FOREVER = """
memory = bytearray(12 << 20)
for at in range(0, len(memory), 4096):
    memory[at] = 1
print("there", flush=True)
while TOUCHING:
    for at in range(0, len(memory), 4096):
        memory[at] += 0
import signal
signal.pause()
"""


# Goes through 3 MiB three times, and changes each page.
TURNS = """
memory = bytearray(3 << 20)
for turn in range(3):
    for at in range(0, len(memory), 4096): memory[at + turn] = turn + 1
print(sum(memory))
"""


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


@pytest.fixture(params=["shared memory", "tcp"])
def node(request: pytest.FixtureRequest) -> Iterator[farmem.MemoryNode]:
    yield farmem.MemoryNode("1G", tcp=request.param == "tcp")


def run(place: farmem.Place, options: farmem.Options, command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(farmem.run_command(place, options, command), capture_output=True, text=True, timeout=TIMEOUT_S)


@pytest.mark.parametrize("policy", ["fifo", "second-chance", "assoc:256"])
def test_a_program_gives_the_same_answer_within_the_cap(node: farmem.MemoryNode, policy: str) -> None:
    local = subprocess.run(python(SWEEP), capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    with node as place:
        far = farmem.measure(place, farmem.Options(local="4M", policy=policy, prefetch=7), python(SWEEP), TIMEOUT_S)
    assert far.said == local.stdout
    (process,) = far.stats["processes"]
    assert process["local_pages_max"] <= far.stats["local_pages_cap"] == 1024
    assert process["faults"] == process["soft_hits"] + process["zero_filled"] + process["fetched"]
    assert process["bytes_in"] > 4 << 20 and process["bytes_out"] > 4 << 20
    assert process["evicted_clean"] > 0 and process["far_bytes_refused"] == 0


def test_memory_functions_keep_their_contract(node: farmem.MemoryNode) -> None:
    with node as place:
        far = farmem.measure(place, farmem.Options(local="1M"), python(CONTRACT), TIMEOUT_S)
    assert far.said == "kept\n" and far.total("fetched") > 0 and far.total("far_bytes_refused") == 0


def test_registered_buffers_are_kept_or_refused(node: farmem.MemoryNode) -> None:
    if ctypes.util.find_library("uring") is None:
        pytest.skip("liburing is not installed")
    with node as place:
        far = farmem.measure(place, farmem.Options(local="4M"), python(REGISTERED), TIMEOUT_S)
    assert far.said == "kept\n" and far.total("pinned") > 0 and far.total("local_pages_max") <= 1024


def test_a_recorded_run_is_replayed_to_the_same_counts(node: farmem.MemoryNode, tmp_path: Path) -> None:
    trace = tmp_path / "run.trace"
    turns = tmp_path / "turns.py"
    turns.write_text(TURNS)
    shell = ["sh", "-c", f"{sys.executable} -S {turns}; {sys.executable} -S {turns}"]
    with node as place:
        far = farmem.measure(place, farmem.Options(local="1M", policy="second-chance", trace=trace), shell, TIMEOUT_S)
    assert len(far.stats["processes"]) == 2
    for process, file in zip(far.stats["processes"], (trace, tmp_path / "run.trace.2"), strict=True):
        command = farmem.replay_command(file, ["fifo"], ["1M", "256M"], [0, 15], True)
        said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S).stdout)
        recorded, again, fifo, along, roomy, _ = said["rows"]
        assert said["pid"] == process["pid"] and said["complete"]
        for counter in ("faults", "soft_hits", "zero_filled", "fetched", "evicted_dirty", "evicted_clean", "bytes_out"):
            assert recorded[counter] == process[counter]
            if not said["pinned"]:
                assert again[counter] == process[counter]
        assert fifo["fetched"] > along["fetched"] and along["prefetched"] > 0
        assert roomy["fetched"] == 0 and roomy["faults"] < fifo["faults"]


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    for name, content in (("none", None), ("other", b"not a trace"), ("empty", b"")):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        refused = subprocess.run(
            farmem.replay_command(tmp_path / name, ["fifo"], ["2M"], [0], False),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert refused.returncode == NOT_STARTED and refused.stderr.count("\n") == 1
    with farmem.MemoryNode("64M") as place:
        options = farmem.Options(local="4M", trace=tmp_path / "no" / "folder")
        refused = run(place, options, ["true"])
        assert refused.returncode == NOT_STARTED and "cannot write" in refused.stderr


def test_an_unmodified_database_gives_the_same_answers() -> None:
    command = far_memory.command_of(0.01, list(range(1, 23)))
    local = farmem.measure(None, farmem.Options(), command, TIMEOUT_S)
    with farmem.MemoryNode("1G") as place:
        far = farmem.measure(place, farmem.Options(local="4M", prefetch=7), command, TIMEOUT_S)
    assert far_memory.answers(far.said) == far_memory.answers(local.said)
    assert len(far_memory.answers(far.said)) == 22
    assert far.total("fetched") > 0 and far.total("local_pages_max") <= 1024


ROWS = 60_000
QUESTIONS = (
    "SELECT COUNT(*), SUM(c), SUM(CRC32(b)) FROM t",
    "SELECT SUM(CRC32(b)) FROM t WHERE c BETWEEN 100 AND 20000",
    "SELECT b, COUNT(*) FROM t GROUP BY b ORDER BY b LIMIT 3",
)


POOLS = {
    "InnoDB": ["--innodb-buffer-pool-size=32M", "--innodb-buffer-pool-size-max=32M"],
    "STRATA": ["--strata-buffer-pool-size=32M", "--innodb-buffer-pool-size=8M", "--innodb-buffer-pool-size-max=8M"],
}


@pytest.mark.parametrize("engine", POOLS)
def test_an_unmodified_mariadb_gives_the_same_answers(server: Server, engine: str) -> None:
    """Its pool is read and written by the kernel, directly and through io_uring; the data outlive the far memory."""
    server.query(f"CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(200), c INT, KEY (c)) ENGINE={engine}", database="test")
    fill = "INSERT INTO t SELECT seq, REPEAT(CHAR(65 + seq % 26), 180), seq * 7919 % 100003 FROM seq_1_to_"
    server.query(f"{fill}{ROWS}", database="test", autocommit=True)
    expected = [server.query(question, database="test") for question in QUESTIONS]
    settings = server.settings()
    server.stop()
    with farmem.MemoryNode("1G") as place:
        prefix = farmem.run_command(place, farmem.Options(local="4M", quiet=True, stats=server.data / "far.json"), [])
        server.launch(settings, prefix=prefix, extra=POOLS[engine])
        server.wait_ready()
        try:
            assert [server.query(question, database="test") for question in QUESTIONS] == expected
            server.query("UPDATE t SET c = c + 1", database="test", autocommit=True)
        finally:
            server.stop()
    (process,) = json.loads((server.data / "far.json").read_text())["processes"]
    assert process["fetched"] > 0 and process["local_pages_max"] <= 1024
    server.start(settings)
    assert server.query("SELECT SUM(c) FROM t", database="test")[0][0] == expected[0][0][1] + ROWS


def test_an_unmodified_mariadb_gives_the_same_answers_to_tpch(server: Server) -> None:
    """All 22 queries, in both engines, with a pool that is far for the most part."""
    plan = tpch.Plan(scale=0.01)
    bench = tpch.Bench(server, plan, tpch.generated(plan.scale))
    for engine in plan.engines:
        server.query(f"CREATE DATABASE {database(engine)}")
        bench.load(engine)
        bench.analyze(engine)
    asked = [(engine, query) for engine in plan.engines for query in plan.queries]
    expected = [bench.ask(engine, query)[0] for engine, query in asked]
    assert len(asked) == 44 and None not in expected
    settings = server.settings()
    server.stop()
    stats = server.data / "far.json"
    with farmem.MemoryNode("1G") as place:
        far = farmem.Options(local="8M", quiet=True, stats=stats)
        pools = ["--strata-buffer-pool-size=64M", "--innodb-buffer-pool-size=64M", "--innodb-buffer-pool-size-max=64M"]
        server.launch(settings, prefix=farmem.run_command(place, far, []), extra=pools)
        server.wait_ready()
        try:
            assert [bench.ask(engine, query)[0] for engine, query in asked] == expected
        finally:
            server.stop()
    (process,) = json.loads(stats.read_text())["processes"]
    assert process["fetched"] > 0 and process["local_pages_max"] <= 2048


def test_an_embedded_monetdb_gives_the_same_answers(tmp_path: Path) -> None:
    """All 22 queries of TPC-H, and two clients at once."""
    try:
        farmem_monetdb.fetch(print)
    except StrataError as missing:
        pytest.skip(str(missing))
    scale = 0.01
    texts = [farmem_postgres.tpch_query(number, scale) for number in range(1, 23)]
    said = []
    with farmem.MemoryNode("1G") as place:
        for setup in (Setup("local"), Setup("far", FAR, 2 << 20), Setup("far", FAR, 2 << 20, "second-chance", 7)):
            with closing(Monet(setup, place, tmp_path, scale)) as session:
                said.append([[asked.answer for asked in stream] for stream in session.ask_at_once([texts, texts[::-1]])])
                if setup.way == FAR:
                    assert session.counted().fetched_bytes > 1 << 20
    assert said[0] == said[1] == said[2]
    assert said[0][0] == said[0][1][::-1] and len(set(said[0][0])) == 22


@pytest.mark.parametrize("touching", [True, False])
def test_a_lost_memory_node_ends_the_program_with_a_reason(node: farmem.MemoryNode, touching: bool) -> None:
    with node as place:
        options = farmem.Options(local="4M", timeout_ms=2000, quiet=True)
        command = farmem.run_command(place, options, python(FOREVER.replace("TOUCHING", str(touching))))
        program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert program.stdout is not None and program.stdout.readline() == "there\n"
        node.kill()
        killed = time.monotonic()
        _, said = program.communicate(timeout=TIMEOUT_S)
    assert program.returncode == LOST
    assert "is lost" in said and "Traceback" not in said
    assert time.monotonic() - killed < 30


def test_a_paused_memory_node_ends_the_program_in_time() -> None:
    """It holds its connections and says nothing: nobody is told by the system."""
    node = farmem.MemoryNode("1G", tcp=True)
    with node as place:
        options = farmem.Options(local="4M", timeout_ms=1000, quiet=True)
        command = farmem.run_command(place, options, python(FOREVER.replace("TOUCHING", "True")))
        program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert program.stdout is not None and program.stdout.readline() == "there\n"
        os.kill(node.pid(), signal.SIGSTOP)
        try:
            _, said = program.communicate(timeout=TIMEOUT_S)
        finally:
            os.kill(node.pid(), signal.SIGCONT)
    assert program.returncode == LOST and "is lost" in said


def test_programs_started_by_the_program_have_memory_of_their_own(node: farmem.MemoryNode, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep.py"
    sweep.write_text(SWEEP)
    shell = ["sh", "-c", f"{sys.executable} {sweep}; {sys.executable} {sweep}"]
    expected = subprocess.run(shell, capture_output=True, text=True, timeout=TIMEOUT_S, check=True).stdout
    with node as place:
        far = farmem.measure(place, farmem.Options(local="4M"), shell, TIMEOUT_S)
    assert far.said == expected
    assert len(far.stats["processes"]) == 2


def test_the_exit_code_and_signals_are_the_programs() -> None:
    with farmem.MemoryNode("1G") as place:
        options = farmem.Options(local="4M", quiet=True)
        assert run(place, options, ["sh", "-c", "exit 7"]).returncode == 7
        assert run(place, options, ["sh", "-c", "kill -9 $$"]).returncode == 128 + signal.SIGKILL
        command = farmem.run_command(place, options, python(FOREVER.replace("TOUCHING", "False")))
        program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert program.stdout is not None and program.stdout.readline() == "there\n"
        program.send_signal(signal.SIGTERM)
        assert program.wait(TIMEOUT_S) == 128 + signal.SIGTERM


def test_what_cannot_be_is_refused_before_the_program_starts(tmp_path: Path) -> None:
    marker = tmp_path / "started"
    command = ["touch", str(marker)]
    with farmem.MemoryNode("1G") as place:
        other = tmp_path / "other"
        other.write_bytes(os.urandom(32))
        other.chmod(0o600)
        nowhere = farmem.Place("unix:/nowhere/socket", place.secret)
        for where, options, word in (
            (nowhere, farmem.Options(), "memory node unix:/nowhere/socket"),
            (farmem.Place(place.address, other), farmem.Options(), "secret"),
            (farmem.Place(place.address, tmp_path / "none"), farmem.Options(), "none"),
            (place, farmem.Options(local="4K"), "at least"),
            (place, farmem.Options(policy="lru"), "second-chance"),
            (place, farmem.Options(policy="assoc:100000"), "ways"),
        ):
            refused = run(where, options, command)
            assert refused.returncode == NOT_STARTED, refused.stderr
            assert word in refused.stderr and refused.stderr.count("\n") == 1
        missing = run(place, farmem.Options(), ["/no/such/program"])
        assert missing.returncode == NOT_STARTED and "cannot start" in missing.stderr
    assert not marker.exists()


def test_the_command_line_starts_a_memory_node_of_its_own() -> None:
    command = [str(paths.ROOT / "strata"), "farmem", "run", "--local", "4M", "--", *python(SWEEP)]
    far = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    local = subprocess.run(python(SWEEP), capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    assert far.returncode == 0, far.stderr
    assert far.stdout == local.stdout and "us/fault" in far.stderr


def test_statistics_are_there_while_the_program_runs(tmp_path: Path) -> None:
    stats = tmp_path / "stats.json"
    with farmem.MemoryNode("1G") as place:
        options = farmem.Options(local="4M", stats=stats, quiet=True)
        program = subprocess.Popen(farmem.run_command(place, options, python(FOREVER.replace("TOUCHING", "True"))))
        assert wait_until(lambda: stats.exists() and bool(json.loads(stats.read_text())["processes"]), 30.0, every_s=0.05)
        program.send_signal(signal.SIGTERM)
        program.wait(TIMEOUT_S)
    assert json.loads(stats.read_text())["ended"]
