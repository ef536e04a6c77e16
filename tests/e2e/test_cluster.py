"""A cluster as ./strata starts it: order, failures, half of it running. Storage nodes are stand-ins (storage_stand_in.py), etcd
is real. There is no compute node."""

import json
import os
import shutil
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from strata_cli import cluster_cmd, paths, server_cmd, status
from strata_cli.cluster import Cluster
from strata_cli.shell import StrataError

FOLDER = paths.BUILD / "e2e" / "cluster"
DATA = FOLDER / "data"
STAND_IN = Path(__file__).parent / "storage_stand_in.py"


def made() -> Cluster:
    cluster = Cluster(DATA, program=[sys.executable, STAND_IN, FOLDER / "how"], say=lambda line: said.append(line))
    cluster.node_stop_timeout_s = 3
    return cluster


said: list[str] = []


def misbehave(name: str, how: str) -> None:
    (FOLDER / "how" / name).write_text(how)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    (FOLDER / "how").mkdir(parents=True)
    said.clear()
    one = made()
    yield one
    one.kill()
    shutil.rmtree(FOLDER, ignore_errors=True)


def start(cluster: Cluster) -> None:
    cluster.start("logdb", with_compute=False)


def names(cluster: Cluster) -> list[str]:
    return [part.name for part in cluster.running()]


def test_a_life(cluster: Cluster) -> None:
    start(cluster)
    assert names(cluster) == ["etcd", "s1", "s2", "s3"]
    kept = cluster.settings()
    mode = stat.S_IMODE(cluster.secret.stat().st_mode)
    assert mode == 0o600 and cluster.secret.stat().st_size == 32
    pids = [part.pid() for part in cluster.running()]
    # Another command finds all of it, and has nothing to start.
    cluster.disown()
    found = made()
    start(found)
    assert [part.pid() for part in found.running()] == pids
    # kill -9 of one: the next `up` starts that one, at its old address.
    assert found.kill_part("s2") == pids[2]
    assert found.kill_part("s2") is None
    assert names(found) == ["etcd", "s1", "s3"]
    start(found)
    assert found.settings() == kept and found.storage["s2"].illness() is None
    assert [part.pid() for part in found.running() if part.name != "s2"] == [pid for pid in pids if pid != pids[2]]
    # Each by itself.
    assert found.stop_part("etcd") and names(found) == ["s1", "s2", "s3"]
    found.start_part("etcd")
    with pytest.raises(StrataError, match="etcd already runs"):
        found.start_part("etcd")
    with pytest.raises(StrataError, match=r"there is no 's4' in .*; there is: etcd, s1, s2, s3, compute-1"):
        found.stop_part("s4")
    with pytest.raises(StrataError, match="still running"):
        found.wipe()
    said.clear()
    assert found.stop() and names(found) == []
    assert [line.split()[0] for line in said] == ["s1", "s2", "s3", "etcd"]
    start(found)
    assert found.settings() == kept
    assert found.stop()
    found.wipe()
    assert not DATA.exists()


def test_one_that_cannot_start_stops_what_this_start_has_started(cluster: Cluster) -> None:
    misbehave("s2", "exit 1")
    with pytest.raises(StrataError, match=r"s2 ended while starting \(exit code 1\)(.|\n)*somebody else's database"):
        start(cluster)
    assert names(cluster) == []
    (FOLDER / "how" / "s2").unlink()
    start(cluster)
    # Of a half-running one, what ran before goes on; what is missing and can start is taken back.
    cluster.kill_part("s1")
    cluster.kill_part("s2")
    cluster.kill_part("etcd")
    pid = cluster.storage["s3"].pid()
    misbehave("s2", "silent")
    cluster.node_start_timeout_s = 1.5
    with pytest.raises(StrataError, match="s2 did not get ready"):
        start(cluster)
    assert names(cluster) == ["s3"] and cluster.storage["s3"].pid() == pid
    # One by itself leaves the others alone, too.
    with pytest.raises(StrataError, match="s2 did not get ready"):
        cluster.start_part("s2")
    assert names(cluster) == ["s3"]


def test_a_port_in_use_names_the_process(cluster: Cluster) -> None:
    cluster.create("logdb")
    with socket.create_server(("127.0.0.1", cluster.settings().etcd_port)), pytest.raises(StrataError, match="etcd: its port"):
        start(cluster)
    port = cluster.settings().storage["s3"].port
    with socket.create_server(("127.0.0.1", port)), pytest.raises(StrataError, match=f"s3: its port {port} is in use"):
        start(cluster)
    assert names(cluster) == []


def test_one_that_hangs_is_killed_at_the_end(cluster: Cluster) -> None:
    misbehave("s1", "deaf")
    start(cluster)
    cluster.node_stop_timeout_s = 0.3
    assert not cluster.stop()
    assert names(cluster) == []
    assert [line for line in said if "killed" in line] == ["  s1         did not stop within 0.3 s: killed"]


def test_status_says_what_is_missing(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    misbehave("s3", "ill")
    cluster.create("logdb")
    assert status.status(DATA, True) == status.NOTHING_RUNS
    capsys.readouterr()
    start(cluster)
    cluster.kill_part("s2")
    cluster.disown()
    assert status.status(DATA, True) == status.DEGRADED
    facts = json.loads(capsys.readouterr().out)
    assert facts["state"] == "degraded" and facts["profile"] == "logdb" and not facts["running"]
    told = {process["name"]: process for process in facts["processes"]}
    assert list(told) == ["etcd", "s1", "s2", "s3", "compute-1"]
    assert {name: process["reason"] for name, process in told.items()} == {
        "etcd": "",
        "s1": "",
        "s2": "not running",
        "s3": "the disk is full",
        "compute-1": "not running",
    }
    assert (told["s1"]["epoch"], told["s1"]["log_end"], told["s1"]["lag_bytes"]) == (3, 5000, 1000)
    assert told["s1"]["version_store_bytes"] == 1 << 20


def test_profiles_and_folders_do_not_mix(cluster: Cluster) -> None:
    cluster.create("logdb")
    for wanted in ("monolithic", "logdb-mv-sr"):
        with pytest.raises(StrataError, match="holds a database of profile 'logdb'"):
            server_cmd.up(wanted, DATA, None)
    shutil.rmtree(DATA)
    (DATA / "mysql" / "mysql").mkdir(parents=True)  # Of a server by itself.
    with pytest.raises(StrataError, match="holds a database of profile 'monolithic'"):
        server_cmd.up("logdb", DATA, None)
    shutil.rmtree(DATA)
    DATA.mkdir()
    (DATA / "precious").write_text("keep me")
    with pytest.raises(StrataError, match="not empty and holds no cluster"):
        server_cmd.up("logdb", DATA, None)
    with pytest.raises(StrataError, match="does not look like"):
        made().wipe()
    assert os.listdir(DATA) == ["precious"]  # noqa: PTH208


def test_one_command_at_a_time(cluster: Cluster) -> None:
    cluster.create("logdb")
    with cluster.locked(), pytest.raises(StrataError, match=r"another \./strata command is at work"):
        cluster_cmd.node_stop(DATA, "s1")


def test_an_unreadable_cluster_file_is_a_clear_error(cluster: Cluster) -> None:
    with pytest.raises(StrataError, match="there is no cluster in"):
        cluster_cmd.node_stop(DATA, "s1")
    DATA.mkdir()
    for text in ("{", "[]", '{"profile": "logdb"}', '{"profile": "logdb", "etcd_port": 1, "storage": {"s1": 1}}'):
        (DATA / "cluster.json").write_text(text)
        with pytest.raises(StrataError, match=r"cluster\.json cannot be read"):
            cluster_cmd.node_stop(DATA, "s1")
