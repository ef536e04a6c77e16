"""How ./strata starts, finds, stops and kills a storage node, with a stand-in that can be told to misbehave."""

import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pausing import pause
from strata_cli import paths
from strata_cli.server import choose_port
from strata_cli.shell import StrataError
from strata_cli.storage_node import NodeSettings, StorageNode
from strata_cli.waiting import wait_until

pytestmark = pytest.mark.quick

FOLDER = paths.BUILD / "e2e" / "storage-node"
STAND_IN = Path(__file__).parent / "storage_stand_in.py"


def made(data: Path = FOLDER / "s1") -> StorageNode:
    port = choose_port(None, 24_500)
    settings = NodeSettings(
        port,
        choose_port(None, port + 1),
        registry="http://127.0.0.1:1",
        cluster="main",
        secret=FOLDER / "secret",
        profile="logdb",
        group=("s1", "s2", "s3"),
        write_quorum=2,
    )
    return StorageNode("s1", data, settings, [sys.executable, STAND_IN, FOLDER / "how"])


def misbehave(how: str) -> None:
    (FOLDER / "how" / "s1").write_text(how)


@pytest.fixture
def node() -> Iterator[StorageNode]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    (FOLDER / "how").mkdir(parents=True)
    (FOLDER / "secret").write_bytes(bytes(32))
    one = made()
    yield one
    one.kill()
    shutil.rmtree(FOLDER, ignore_errors=True)


def test_a_life_found_again_by_another_command(node: StorageNode) -> None:
    assert node.illness() == "not running" and node.status() == {}
    node.start()
    assert node.illness() is None
    assert node.status()["name"] == "s1"
    with pytest.raises(StrataError, match="already runs"):
        node.start()
    node.disown()
    found = StorageNode("s1", node.folder, node.settings, [sys.executable, STAND_IN, FOLDER / "how"])
    assert found.pid() is not None
    found.kill()
    assert found.pid() is None and not found.pid_file.exists()
    node.start()  # Its ports are free again.
    assert node.stop() and node.pid() is None and not node.pid_file.exists()


def test_one_that_ends_while_starting(node: StorageNode) -> None:
    misbehave("exit 1")
    with pytest.raises(StrataError, match=r"s1 ended while starting \(exit code 1\)") as raised:
        node.start()
    assert "somebody else's database" in str(raised.value)
    assert node.pid() is None and not node.pid_file.exists()


def test_one_that_never_gets_ready(node: StorageNode) -> None:
    misbehave("silent")
    with pytest.raises(StrataError, match=r"s1 did not get ready within 0\.5 s") as raised:
        node.start(timeout_s=0.5)
    assert str(node.log) in str(raised.value)
    assert node.pid() is None


def test_an_old_ready_line_does_not_count(node: StorageNode) -> None:
    node.start()
    assert node.stop()
    misbehave("exit 2")
    with pytest.raises(StrataError, match="exit code 2"):
        node.start()


def test_one_that_does_not_stop_is_killed(node: StorageNode) -> None:
    misbehave("deaf")
    node.start()
    pid = node.pid()
    assert not node.stop(timeout_s=0.2)
    assert node.pid() is None and not Path(f"/proc/{pid}").exists()


def test_a_port_in_use_is_a_clear_error(node: StorageNode) -> None:
    port = node.settings.http_port
    with socket.create_server(("127.0.0.1", port)), pytest.raises(StrataError, match=f"s1: its port {port} is in use"):
        node.start()
    node.start()


def test_a_foreign_process_is_left_alone(node: StorageNode) -> None:
    node.folder.mkdir()
    node.pid_file.write_text(f"{os.getpid()}\n")
    assert node.pid() is None
    assert node.stop()
    node.kill()  # Not us.
    node.pid_file.write_text(f"{os.getpid()}\n")
    node.start()
    assert node.pid() not in (None, os.getpid())
    # Not even a storage node of another folder.
    other = made(FOLDER / "s2")
    other.folder.mkdir()
    other.pid_file.write_text(f"{node.pid()}\n")
    other.kill()
    assert node.pid() is not None


def test_ill_and_paused_ones_say_why(node: StorageNode) -> None:
    misbehave("ill")
    node.start()
    assert node.illness() == "the disk is full"
    pid = node.pid()
    assert pid is not None
    pause(pid)
    assert "no answer on port" in (node.illness(timeout_s=0.2) or "")
    assert node.status(timeout_s=0.2) == {}
    os.kill(pid, signal.SIGCONT)
    assert wait_until(lambda: node.illness() == "the disk is full", 10)


def test_a_program_that_is_not_built(node: StorageNode) -> None:
    missing = StorageNode("s1", node.folder, node.settings, [paths.storenode_path("nowhere")])
    with pytest.raises(StrataError, match=r"strata-storenode is not built \(./strata build\)"):
        missing.start()
