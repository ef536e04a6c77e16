"""A cluster with memory nodes, nothing simulated: what is acknowledged outlives compute, memory node and both, a compute node
that was killed redoes little, pages are spread over several memory nodes, and these come and go."""

import contextlib
import json
import secrets
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest
from crash.errors_run import HAS_ENDED
from pausing import pause
from strata_cli import compute_move, memory_changes, paths
from strata_cli.cluster import FIRST_COMPUTE, Cluster, Wishes
from strata_cli.memory_node import place_of_pools
from strata_cli.profile_list import ALL
from strata_cli.server import Server
from strata_cli.shell import StrataError
from strata_cli.status import Pools, read_memory_status
from strata_cli.waiting import wait_until

PROFILE = next(profile.name for profile in ALL if profile.has_memory_nodes)
FOLDER = paths.BUILD / "e2e" / "lego"
DATA = FOLDER / "cluster"
WAIT_S = 60.0
ROWS = 6_000  # of some 500 bytes: about the local pool
BATCH = 500
GAP_S = 10.0  # Two are the target; the machine may be busy.
# Tier 1 comes often, and tier 2 hardly, so that they are apart.
OPTIONS = (
    *("--strata-buffer-pool-size=8M", "--strata-checkpoint-interval=3600", "--strata-log-checkpoint-size=1G"),
    *("--strata-lego-tier1-interval-ms=100", "--strata-lego-timeout-s=2"),
)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with started(Wishes(memory="32M")) as made:
        yield made


@contextlib.contextmanager
def started(wishes: Wishes) -> Iterator[Cluster]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    made = Cluster(DATA)
    made.lease_s = 2
    made.compute_options = OPTIONS
    try:
        made.start(PROFILE, wishes=wishes)
        server(made).query("CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(600))", database="test")
        server(made).query("CREATE TABLE changing (n INT PRIMARY KEY AUTO_INCREMENT)", database="test")
        yield made
    finally:
        made.kill()
        if made.exists():
            made.wipe()
        shutil.rmtree(FOLDER, ignore_errors=True)


def server(cluster: Cluster) -> Server:
    return cluster.computes[cluster.serving_compute() or FIRST_COMPUTE]


def fill(cluster: Cluster, begin: int = 0, rows: int = ROWS) -> None:
    for first in range(begin, begin + rows, BATCH):
        values = ", ".join(f"({key}, REPEAT(CHAR(97 + {key} % 26), 500))" for key in range(first, first + BATCH))
        server(cluster).query(f"INSERT INTO t VALUES {values}", database="test", autocommit=True)


def is_whole(cluster: Cluster, rows: int = ROWS) -> bool:
    said = server(cluster).query(
        "SELECT COUNT(*), COALESCE(SUM(b = REPEAT(CHAR(97 + a % 26), 500)), 0), COALESCE(MAX(a), -1) FROM t", database="test"
    )
    return [int(value) for value in said[0]] == [rows, rows, rows - 1]


def variable(cluster: Cluster, name: str) -> int:
    return int(server(cluster).query(f"SHOW GLOBAL STATUS LIKE 'strata_{name}'")[0][1])


def wait_for_tier_1(cluster: Cluster) -> None:
    """Until all that was written so far is in the memory node."""
    end = variable(cluster, "log_lsn")
    assert wait_until(lambda: variable(cluster, "log_memory_checkpoint_lsn") >= end, WAIT_S)


def restart(cluster: Cluster) -> None:
    cluster.kill_part(FIRST_COMPUTE)
    cluster.start_part(FIRST_COMPUTE)


def test_a_killed_compute_node_redoes_only_what_its_memory_node_lacks(cluster: Cluster) -> None:
    fill(cluster)
    wait_for_tier_1(cluster)
    stored = variable(cluster, "log_checkpoint_lsn")
    behind = variable(cluster, "log_lsn") - stored
    restart(cluster)
    assert is_whole(cluster)
    assert variable(cluster, "recovery_log_bytes") < behind / 4
    # Pages that the small local pool does not have are in the memory node.
    assert variable(cluster, "lego_remote_hits") > 0


def test_a_killed_memory_node_is_missed_by_nobody_when_it_comes_back(cluster: Cluster) -> None:
    fill(cluster)
    cluster.kill_part("memory-1")
    cluster.start_part("memory-1")
    fill(cluster, ROWS)
    assert is_whole(cluster, 2 * ROWS)
    restart(cluster)
    assert is_whole(cluster, 2 * ROWS)


def test_a_memory_node_that_stands_still_for_a_moment_only_delays(cluster: Cluster) -> None:
    fill(cluster)
    pid = cluster.memory["memory-1"].pid()
    assert pid is not None
    pause(pid)
    waiting = threading.Thread(target=fill, args=(cluster, ROWS))
    waiting.start()
    waiting.join(0.3)  # It stands still for so long.
    subprocess.run(["kill", "-CONT", str(pid)], check=True)
    waiting.join(WAIT_S)
    assert not waiting.is_alive() and is_whole(cluster, 2 * ROWS)


def test_what_only_a_lost_memory_node_had_is_made_again_of_the_log(cluster: Cluster) -> None:
    fill(cluster)
    wait_for_tier_1(cluster)
    behind = variable(cluster, "log_lsn") - variable(cluster, "log_checkpoint_lsn")
    cluster.kill_part("memory-1")
    cluster.memory["memory-1"].wipe_pools()
    cluster.start_part("memory-1")
    lost = server(cluster)

    def has_ended() -> bool:
        """It says what to do, as it does for lost storage; nothing it answers until then is wrong."""
        try:
            lost.query("INSERT INTO changing VALUES ()", database="test", autocommit=True, read_timeout=10)
            assert is_whole(cluster)
        except pymysql.MySQLError:
            pass
        return any(HAS_ENDED.search(line) for line in lost.log_lines()) or variable(cluster, "lego_ended") == 1

    assert wait_until(has_ended, WAIT_S), lost.log_tail(20)
    restart(cluster)
    assert is_whole(cluster)
    assert variable(cluster, "recovery_log_bytes") >= behind / 2
    fill(cluster, ROWS)
    assert is_whole(cluster, 2 * ROWS)


def test_compute_and_memory_node_lost_at_once(cluster: Cluster) -> None:
    fill(cluster)
    cluster.kill_part("memory-1")
    cluster.kill_part(FIRST_COMPUTE)
    cluster.memory["memory-1"].wipe_pools()
    cluster.start_part("memory-1")
    cluster.start_part(FIRST_COMPUTE)
    assert is_whole(cluster)


def test_dropped_and_truncated_tables_leave_the_pool(cluster: Cluster) -> None:
    fill(cluster)
    wait_for_tier_1(cluster)
    full = used(cluster, "memory-1")
    assert full * 16_384 > ROWS * 500 / 2
    server(cluster).query("TRUNCATE TABLE t", database="test")
    assert is_whole(cluster, 0)
    assert wait_until(lambda: used(cluster, "memory-1") < full / 2, WAIT_S)
    fill(cluster)
    assert is_whole(cluster)
    server(cluster).query("DROP TABLE t, changing", database="test")
    restart(cluster)
    assert server(cluster).query("SHOW TABLES", database="test") == []


def used(cluster: Cluster, name: str) -> int:
    """Pages that a memory node keeps."""
    pools = Pools()
    read_memory_status(pools, cluster.memory[name].status())
    return pools.used or 0


def test_two_memory_nodes_have_the_pages_between_them() -> None:
    """A killed compute node finds both again. An idle one notices by itself that one of them has lost what storage lacks; with
    the next one the other is warm, and nothing is lost."""
    with started(Wishes(memory_nodes=2, memory="32M")) as cluster:
        fill(cluster)
        wait_for_tier_1(cluster)
        assert variable(cluster, "lego_memory_nodes") == variable(cluster, "lego_attached") == 2
        pages = [used(cluster, name) for name in ("memory-1", "memory-2")]
        assert min(pages) > sum(pages) / 4
        behind = variable(cluster, "log_lsn") - variable(cluster, "log_checkpoint_lsn")
        restart(cluster)
        assert is_whole(cluster) and variable(cluster, "recovery_log_bytes") < behind / 4
        cluster.kill_part("memory-2")
        cluster.memory["memory-2"].wipe_pools()
        cluster.start_part("memory-2")
        assert wait_until(lambda: variable(cluster, "lego_ended") == 1, WAIT_S)
        warm = used(cluster, "memory-1")
        restart(cluster)
        assert is_whole(cluster) and variable(cluster, "recovery_log_bytes") >= behind / 2
        assert used(cluster, "memory-1") >= warm
        fill(cluster, ROWS)
        restart(cluster)
        assert is_whole(cluster, 2 * ROWS)


def test_with_a_backup_a_lost_memory_node_is_missed_by_nobody() -> None:
    """It is killed with all it has under writes: every row that was acknowledged is there, and the server was not started again.
    Once it is back and storage has what was there before, the other one may go."""
    with started(Wishes(memory="32M", memory_backup=True)) as cluster:
        fill(cluster)
        assert variable(cluster, "lego_backups") == 1
        pid = server(cluster).pid()
        for switches, name in enumerate(("memory-1", "memory-2"), start=1):
            writing = threading.Thread(target=fill, args=(cluster, switches * ROWS))
            writing.start()
            cluster.kill_part(name)
            cluster.memory[name].wipe_pools()
            writing.join(WAIT_S)
            assert not writing.is_alive()
            assert wait_until(lambda: variable(cluster, "lego_switches") == switches, WAIT_S)  # noqa: B023
            assert is_whole(cluster, (switches + 1) * ROWS) and server(cluster).pid() == pid
            cluster.start_part(name)
            assert wait_until(lambda: variable(cluster, "lego_backups") == 1, WAIT_S)
        assert variable(cluster, "lego_ended") == 0
        # A killed compute node begins at the checkpoint in memory.
        wait_for_tier_1(cluster)
        restart(cluster)
        assert is_whole(cluster, 3 * ROWS)


def test_another_memory_node_takes_its_place(cluster: Cluster) -> None:
    fill(cluster)
    change = memory_changes.replace(cluster, "memory-1", None, "64M", lambda _: None)
    assert (change.node, change.replaced) == ("memory-2", "memory-1") and change.gap_s is not None
    assert list(cluster.memory) == ["memory-2"]
    assert is_whole(cluster)
    fill(cluster, ROWS)
    restart(cluster)
    assert is_whole(cluster, 2 * ROWS)


def test_the_database_moves_and_redoes_nothing(cluster: Cluster) -> None:
    """Port and the cluster's socket stay."""
    fill(cluster)
    place = server(cluster).socket
    port = server(cluster).settings().port
    to_second = compute_move.move(cluster, None, None, Wishes(buffer_pool="16M", cores=1.0), lambda _: None)
    assert (to_second.old, to_second.new, to_second.port) == (FIRST_COMPUTE, "compute-2", port)
    assert is_whole(cluster) and variable(cluster, "recovery_log_bytes") < 1 << 16
    with pymysql.connect(user="root", unix_socket=str(place)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@datadir")
        assert "compute-2" in str(cursor.fetchall())
    back = compute_move.move(cluster, None, None, Wishes(cores=0.0), lambda _: None)
    assert (back.new, back.buffer_pool) == (FIRST_COMPUTE, "16M")
    assert is_whole(cluster) and max(to_second.gap_s, back.gap_s) < GAP_S


def test_garbage_and_strangers_are_refused_and_change_nothing(cluster: Cluster) -> None:
    fill(cluster)
    node = cluster.memory["memory-1"]
    for size in (1, 64, 4096, 1 << 20):
        with socket.create_connection(("127.0.0.1", node.settings.port), timeout=5) as connection:
            connection.settimeout(5)
            try:
                connection.sendall(secrets.token_bytes(size))
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
            except OSError:
                pass  # It has hung up.
    # A compute node with another secret gets nothing, and ends or says so.
    other = FOLDER / "other-secret"
    other.touch(mode=0o600)
    other.write_bytes(secrets.token_bytes(32))
    cluster.stop_part(FIRST_COMPUTE)
    cluster.compute_options = (*OPTIONS, f"--strata-secret-file={other}", "--strata-start-timeout=2")
    with pytest.raises(StrataError):
        cluster.start_part(FIRST_COMPUTE)
    cluster.kill_part(FIRST_COMPUTE)
    cluster.compute_options = OPTIONS
    assert node.illness() is None
    cluster.start_part(FIRST_COMPUTE)
    assert is_whole(cluster)


def test_the_commands_know_memory_nodes() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    try:
        _tell("up", "--profile", PROFILE, "--memory-nodes", "1", "--memory", "32M", "--buffer-pool-size", "8M")
        facts = json.loads(_tell("status", "--json"))
        told = {process["name"]: process for process in facts["processes"]}
        assert facts["state"] == "running" and told["memory-1"]["role"] == "memory"
        assert told["memory-1"]["pools"]["slots"] > 1000
        _tell("node", "kill", "memory-1")
        assert "memory-1: not well" in _tell("status", code=4)
        assert "memory-1   started" in _tell("up")
        moved = json.loads(_tell("compute", "move", "--cores", "1", "--json", folder="--cluster"))
        assert moved["new"] == "compute-2" and moved["cores"] == 1
        _tell("down", "--wipe")
        assert not place_of_pools(DATA).exists()
    finally:
        left = Cluster(DATA)
        left.kill()
        if left.exists():
            left.wipe()
        shutil.rmtree(FOLDER, ignore_errors=True)


def _tell(*arguments: str | Path, code: int = 0, folder: str = "--data") -> str:
    command = [str(paths.ROOT / "strata"), *(str(argument) for argument in arguments), folder, str(DATA)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout
