"""Two memory nodes of a cluster whose servers write the same tables: one serves, the other one waits, and takes over by itself
when the first is gone. Servers, connections and open transactions stay; the one that was killed waits when it is started again.

STRATA_KILLS=10 kills more often than usual and says how long nobody could commit (the median is in docs/memory_nodes.md).
"""

import os
import random
import statistics
import subprocess
import time
from collections.abc import Iterator

import pytest
from fusion_cluster import DEADLINE_S, PROFILES, Several, SharingMemoryNode, nothing_left_of, several_in
from strata_cli import cluster_cmd, paths, status
from strata_cli.cluster import Cluster, Wishes
from strata_cli.several_health import MEMORY_SERVES, MEMORY_WAITS, phase_of
from strata_cli.shell import StrataError
from strata_cli.status import DEGRADED, RUNNING
from strata_cli.waiting import wait_until
from test_fusion import Transfers, expect_whole
from test_fusion_memory_lost import Work, started

FOLDER = paths.BUILD / "e2e" / "fusion-second-memory"
DATA = FOLDER / "cluster"
KILLS = int(os.environ.get("STRATA_KILLS", "2"))
GO_ON_S = 60.0  # Generous, for busy machines.


@pytest.fixture(params=PROFILES)
def several(request: pytest.FixtureRequest) -> Iterator[Several]:
    with several_in(FOLDER, spare=True, profile=request.param) as made:
        yield made


def both(several: Several) -> tuple[SharingMemoryNode, SharingMemoryNode]:
    """Which serves, and which waits and would hear at once that the other one is gone."""
    assert several.spare is not None
    nodes = (several.memory, several.spare)
    found: list[SharingMemoryNode] = []

    def settled() -> bool:
        found[:] = sorted(nodes, key=lambda node: phase_of(node) != MEMORY_SERVES)
        waiting = found[1].status().get("fusion", {})
        return phase_of(found[0]) == MEMORY_SERVES and waiting.get("phase") == MEMORY_WAITS and waiting.get("line") is True

    assert wait_until(settled, DEADLINE_S), [(node.name, node.status().get("fusion"), node.illness()) for node in nodes]
    assert [node.illness() for node in found] == [None, None]
    return found[0], found[1]


def first_commit_after_pause(work: Work, began: float) -> float:
    """Seconds from then until the end of the longest time in which no server committed anything, so far as all go on."""
    longest, end, last = 0.0, began, began
    start = [len(t.acknowledged) for t in work.transfers]
    count = sum(start)
    while not all(len(t.acknowledged) > n + 20 for t, n in zip(work.transfers, start, strict=True)) or longest < 1.0:
        now, counted = time.monotonic(), sum(len(t.acknowledged) for t in work.transfers)
        assert [t.failure for t in work.transfers] == [""] * len(work.transfers)
        assert now - began < GO_ON_S, "nobody goes on"
        if counted != count:
            if now - last > longest:
                longest, end = now - last, now
            count, last = counted, now
        time.sleep(0.005)
    return end - began


def start_again(node: SharingMemoryNode) -> None:
    node.launch()
    node.wait_ready()


def test_the_second_one_takes_over_again_and_again(several: Several) -> None:
    servers = started(several)
    pids = [server.pid() for server in servers]
    done: list[Transfers] = []
    waits: list[float] = []
    for number in range(KILLS):
        serving, waiting = both(several)
        work = Work(servers, 10 * number + 1)
        began = time.monotonic()
        serving.kill()
        waits.append(first_commit_after_pause(work, began))
        work.end()
        assert phase_of(waiting) == MEMORY_SERVES
        start_again(serving)
        done += work.transfers
    print(f"{several.profile}: first commit after a kill, s: {[round(s, 2) for s in waits]}, {statistics.median(waits):.2f}")

    # One that stops in order hands over; nothing is said of it to anybody.
    serving, waiting = both(several)
    work = Work(servers, 1001)
    assert serving.stop()
    work.expect_progress()
    work.end()
    assert phase_of(waiting) == MEMORY_SERVES
    done += work.transfers

    # Both are killed, the second one while it takes over; whoever comes first serves.
    start_again(serving)
    first, second = both(several)
    work = Work(servers, 1011)
    first.kill()
    time.sleep(random.uniform(0.0, 3.0))
    second.kill()
    for node in random.sample((first, second), 2):
        node.launch()
    work.expect_progress()
    work.end()
    done += work.transfers
    both(several)

    assert [server.pid() for server in servers] == pids, "no server was started again"
    for server in servers:
        expect_whole(server, done)
        assert server.query("SELECT n FROM test.counter") == [(11 * (KILLS + 2),)]


def test_so_it_does_if_a_server_dies_with_the_first_one(several: Several) -> None:
    servers = started(several)
    survivors, victim = servers[:2], servers[2]
    dying = Transfers(victim, 9, 9)
    dying.start()
    serving, _ = both(several)
    work = Work(survivors, 1)
    assert wait_until(lambda: len(dying.acknowledged) > 5, DEADLINE_S), dying.failure
    serving.kill()
    victim.kill()
    # The place of who is gone is waited for; its next life says at once that it is alone.
    several.launch(victim)
    assert work.expect_progress() < GO_ON_S
    work.end()
    dying.join()
    victim.wait_ready()
    for server in servers:
        expect_whole(server, [*work.transfers, dying])
        assert server.query("SELECT n FROM test.counter") == [(11,)]


def test_one_that_could_not_follow_does_not_start() -> None:
    with several_in(FOLDER) as made:
        other = made.folder / "other-secret"
        other.write_bytes(bytes(32))
        other.chmod(0o600)
        program = paths.preset_dir("release") / "cmd" / "strata-memnode" / "strata-memnode"
        given = {"name": "memory-2", "registry": made.registry, "data": made.folder / "m2", "fusion-slots": 2048}
        given["listen"] = f"unix:{made.folder / 'm2.socket'}"
        for secret, memory, words in (
            (other, "128M", "has another secret; to do"),
            (made.secret, "33M", "of memory; to do"),
        ):
            flags = {**given, "secret-file": secret, "memory": memory}
            command = [str(program), *(f"--{flag}={value}" for flag, value in flags.items())]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
            assert ended.returncode != 0 and words in ended.stderr, ended.stderr
        assert made.memory.illness() is None


def authorities() -> tuple[int, dict[str, str]]:
    """The state of the whole, and what each memory node is."""
    _, processes = status.look(DATA)
    return status.state_of(processes), {process.name: process.authority for process in processes if process.authority}


def become(state: int, wanted: dict[str, str]) -> bool:
    """One that has just been started, or follows, says for a moment that it is not ready."""
    return wait_until(lambda: authorities() == (state, wanted), DEADLINE_S)


def complaints() -> list[str]:
    return status.complaints(status.look(DATA)[1])


@pytest.fixture
def _by_command() -> Iterator[None]:
    with nothing_left_of(DATA):
        yield


@pytest.mark.usefixtures("_by_command")
def test_the_commands_know_of_it() -> None:
    cluster_cmd.up("fusion", DATA, None, Wishes(servers=2, memory_nodes=2, memory="64M")).disown()
    server = Cluster(DATA).computes["compute-2"]
    server.query("CREATE TABLE test.t (a INT PRIMARY KEY) ENGINE=STRATA", autocommit=True)
    serving = next(name for name, authority in authorities()[1].items() if authority == MEMORY_SERVES)
    waiting = {"memory-1": "memory-2", "memory-2": "memory-1"}[serving]
    assert become(RUNNING, {serving: MEMORY_SERVES, waiting: MEMORY_WAITS}), authorities()
    assert f"{serving}: it serves; {waiting} would follow" in complaints()

    connection = server.connect(read_timeout=60)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO test.t VALUES (1)")
        cluster_cmd.node_kill(DATA, serving)
        cursor.execute("INSERT INTO test.t VALUES (2)")
    connection.commit()
    assert become(DEGRADED, {waiting: MEMORY_SERVES}), authorities()
    assert f"{waiting}: it serves; no other one waits: while it is away, statements wait" in complaints()
    with pytest.raises(StrataError, match=f"so {waiting} stays, and nothing was changed"):
        cluster_cmd.node_remove(DATA, waiting, False, True)
    cluster_cmd.node_start(DATA, serving)
    assert become(RUNNING, {serving: MEMORY_WAITS, waiting: MEMORY_SERVES}), authorities()

    # The one that serves goes, and a larger one comes in the place of the other one.
    cluster_cmd.node_remove(DATA, waiting, False, True)
    assert become(RUNNING, {serving: MEMORY_SERVES}), authorities()
    with pytest.raises(StrataError, match="is the only memory node"):
        cluster_cmd.node_remove(DATA, serving, False, True)
    cluster_cmd.node_replace(DATA, serving, "larger", False, 60, True, "96M")
    assert become(RUNNING, {"larger": MEMORY_SERVES}), authorities()
    cluster_cmd.node_add(DATA, None, 0, 60, True, "64M")
    assert become(RUNNING, {"larger": MEMORY_SERVES, "memory-1": MEMORY_WAITS}), authorities()
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO test.t VALUES (3)")
    connection.commit()
    connection.close()
    cluster_cmd.down(DATA, False)
    cluster_cmd.up("fusion", DATA, None, Wishes()).disown()
    assert sorted(authorities()[1].values()) == [MEMORY_SERVES, MEMORY_WAITS]
    assert server.query("SELECT a FROM test.t ORDER BY a") == [(1,), (2,), (3,)]
    assert server.query("CHECK TABLE test.t")[-1][3] == "OK"
