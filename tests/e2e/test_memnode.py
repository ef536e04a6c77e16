"""The daemon strata-memnode with a registry: it says when it serves, tells its state, knows its folder again after a kill, and
refuses settings that cannot be. What it does for compute nodes: memnode/node and memnode/service have tests of that."""

import json
import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from strata_cli import paths
from strata_cli.etcd_server import Etcd
from strata_cli.waiting import wait_until

pytestmark = pytest.mark.quick

PROGRAM = paths.preset_dir("release") / "cmd" / "strata-memnode" / "strata-memnode"
FOLDER = paths.BUILD / "e2e" / "memnode"
TIMEOUT_S = 60.0
READY = re.compile(r"ready address=(\S+) http=(127\.0\.0\.1:\d+)\n")


class Node:
    """One process: its first line of standard output, its log in a file."""

    def __init__(self, arguments: list[str]) -> None:
        self.log = FOLDER / f"{secrets.token_hex(4)}.log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [str(PROGRAM), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=out
            )
        self.http = ""

    def first_line(self) -> str:
        assert self.process.stdout is not None
        data, deadline = b"", time.monotonic() + TIMEOUT_S
        while not data.endswith(b"\n"):
            readable, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, f"not ready in {TIMEOUT_S} s:\n{self.log.read_text()}"
            got = os.read(self.process.stdout.fileno(), 1000)
            if not got:
                break
            data += got
        return data.decode()

    def wait_ready(self) -> "Node":
        line = self.first_line()
        match = READY.fullmatch(line)
        assert match, f"{line!r}\n{self.log.read_text()}"
        self.http = match[2]
        return self

    def get(self, path: str) -> tuple[int, str]:
        """Status 0: nobody answers."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://{self.http}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def ended(self) -> int:
        return self.process.wait(TIMEOUT_S)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def kill(self) -> None:
        self.process.kill()
        self.ended()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Nodes:
    """A registry, a secret, a tenant's token, and the processes started."""

    def __init__(self) -> None:
        self.etcd = Etcd(FOLDER / "etcd")
        self.started: list[Node] = []
        self.secret, self.token = FOLDER / "secret", FOLDER / "token"
        self.secret.write_bytes(secrets.token_bytes(32))
        self.token.write_text(secrets.token_hex(16) + "\n")
        self.secret.chmod(0o600)
        self.token.chmod(0o600)

    def launch(self, **changes: str) -> Node:
        flags = {
            "name": "memory-1",
            "data": str(FOLDER / "memory-1"),
            "registry": self.etcd.endpoint(),
            "secret-file": str(self.secret),
            "lease": "2",
            "memory": "16M",
            "listen": f"unix:{FOLDER / 'socket'}",
        } | changes
        node = Node([part for flag, value in flags.items() for part in (f"--{flag}", value)])
        self.started.append(node)
        return node

    def refused(self, **changes: str) -> tuple[int, str]:
        node = self.launch(**changes)
        code = node.ended()
        return code, node.log.read_text()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    made = Nodes()
    try:
        made.etcd.start()
        yield made
    finally:
        for node in made.started:
            node.kill()
        made.etcd.kill()
        shutil.rmtree(FOLDER, ignore_errors=True)


def test_serves_tells_its_state_and_outlives_a_kill(nodes: Nodes) -> None:
    tenant = {"tenant": f"shop:{nodes.token}:8M", "pools": str(FOLDER / "pools")}
    node = nodes.launch(**tenant).wait_ready()
    assert node.get("/healthz") == (200, "ok\n")
    status = json.loads(node.get("/status")[1])
    assert status["role"] == "memory" and status["membership"]["joined"] and status["pools"] == []
    assert status["tenants"] == [{"name": "shop", "quota_bytes": 8 << 20, "used_bytes": 0}]
    assert status["addresses"] == [f"unix:{FOLDER / 'socket'}"]
    metrics = node.get("/metrics")[1]
    for name in (
        "strata_memory_bytes 16777216",
        'strata_tenant_quota_bytes{tenant="shop"} 8388608',
        "strata_pool_stale_calls_total 0",
    ):
        assert name in metrics.splitlines()
    names = [line.split()[2] for line in metrics.splitlines() if line.startswith("# HELP")]
    assert len(names) == len(set(names))

    code, said = nodes.refused(**tenant)
    assert code == 1 and "in use by another process" in said
    node.kill()
    again = nodes.launch(**tenant).wait_ready()
    assert json.loads(again.get("/status")[1])["identity"] == status["identity"]
    assert again.stop() == 0


def test_settings_that_cannot_be(nodes: Nodes) -> None:
    for flag, value, why in (
        ("tenant", "shop:8M", "is not name:token-file:quota"),
        ("tenant", f"shop:{nodes.token}:lots", "is not name:token-file:quota"),
        ("memory", "1K", "--memory"),
        ("name", "../memory-1", "'../memory-1' is no name"),
        ("listen", "nowhere", "--listen"),
    ):
        code, said = nodes.refused(**{flag: value})
        assert code == 2 and why in said and said.count("\n") == 1, (flag, value, code, said)
    code, said = nodes.refused(tenant=f"shop:{FOLDER / 'none'}:8M")
    assert code == 1 and "no such file" in said
    code, said = nodes.refused(tenant=f"shop:{nodes.token}:1G")
    assert code == 2 and "more than the node's memory" in said


def wait_for(node: Node, wanted: str, why: str = "") -> dict[str, object]:
    """What the node says of servers that share tables, once it is in that phase, for that reason."""
    said: list[dict[str, object]] = []

    def is_there() -> bool:
        said.append(json.loads(node.get("/status")[1])["fusion"])
        return said[-1]["phase"] == wanted and why in str(said[-1]["why"])

    assert wait_until(is_there, TIMEOUT_S), f"not {wanted} in {TIMEOUT_S} s: {said[-1]}\n{node.log.read_text()}"
    return said[-1]


def start_storage(nodes: Nodes) -> subprocess.Popen[bytes]:
    program = paths.preset_dir("release") / "cmd" / "strata-storenode" / "strata-storenode"
    flags = {
        "name": "storage-1",
        "data": str(FOLDER / "storage-1"),
        "registry": nodes.etcd.endpoint(),
        "secret-file": str(nodes.secret),
        "profile": "remote-disk",
        "initial-group": "storage-1",
        "listen": f"unix:{FOLDER / 'storage-socket'}",
    }
    with (FOLDER / "storage.log").open("wb") as out:
        return subprocess.Popen(
            [str(program), *[part for flag, value in flags.items() for part in (f"--{flag}", value)]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=out,
        )


def test_several_servers_are_served_by_one_node_at_a_time(nodes: Nodes) -> None:
    one = nodes.launch(**{"fusion-slots": "256", "fusion-lease": "2"}).wait_ready()
    wait_for(one, "waits", "start them")
    assert one.get("/healthz")[0] == 503
    storage = start_storage(nodes)
    try:
        said = wait_for(one, "serves")
        assert one.get("/healthz") == (200, "ok\n")
        metrics = one.get("/metrics")[1].splitlines()
        assert "strata_fusion_serves 1" in metrics and "strata_fusion_free_slots 256" in metrics
        names = [line.split()[2] for line in metrics if line.startswith("# HELP")]
        assert len(names) == len(set(names))

        second = {"name": "memory-2", "data": str(FOLDER / "memory-2"), "listen": f"unix:{FOLDER / 'socket-2'}"}
        other = nodes.launch(**{"fusion-slots": "256"}, **second).wait_ready()
        assert "memory-1" in str(wait_for(other, "stands by")["why"])
        one.kill()
        again = nodes.launch(**{"fusion-slots": "256"}).wait_ready()
        epochs = [wait_for(node, phase)["epoch"] for node, phase in taken_over(again, other)]
        assert epochs[0] != said["epoch"]
        assert again.stop() == 0 and other.stop() == 0
    finally:
        storage.kill()
        storage.wait()

    code, said_of_it = nodes.refused(**{"fusion-slots": "2048"})  # more than its memory
    assert code == 2 and "of memory" in said_of_it
    code, said_of_it = nodes.refused(**{"fusion-slots": "256", "fusion-lease": "1"})
    assert code == 2 and "--fusion-lease" in said_of_it


def taken_over(*among: Node) -> list[tuple[Node, str]]:
    """Which of them serves in the end, and that it does."""
    serving: list[Node] = []

    def one_serves() -> bool:
        serving[:] = [node for node in among if json.loads(node.get("/status")[1])["fusion"]["phase"] == "serves"]
        return bool(serving)

    assert wait_until(one_serves, TIMEOUT_S), f"none of them serves after {TIMEOUT_S} s"
    return [(serving[0], "serves")]
