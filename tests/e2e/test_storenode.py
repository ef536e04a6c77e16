"""The daemon strata-storenode: three of them with a registry, everything it refuses, kills and clean ends."""

import json
import os
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from pausing import pause
from strata_cli import paths
from strata_cli.etcd_server import Etcd
from strata_cli.waiting import wait_until

pytestmark = pytest.mark.quick

PROGRAM = paths.preset_dir("release") / "cmd" / "strata-storenode" / "strata-storenode"
FOLDER = paths.BUILD / "e2e" / "storenode"
TIMEOUT_S = 60.0
READY = re.compile(r"ready address=(127\.0\.0\.1:\d+) http=(127\.0\.0\.1:\d+)\n")


def command_of(arguments: dict[str, str | None]) -> list[str]:
    """A flag whose value is None is left out."""
    return [str(PROGRAM), *(part for key, value in arguments.items() if value is not None for part in (f"--{key}", value))]


class Daemon:
    """One process. Its standard output is read as it comes, its log goes to a file."""

    def __init__(self, name: str, arguments: dict[str, str | None]) -> None:
        self.log = FOLDER / f"{name}-{secrets.token_hex(4)}.log"
        command = command_of(arguments)
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=out)
        self.address = self.http = ""

    def wait_ready(self) -> "Daemon":
        line = self._read_line()
        match = READY.fullmatch(line)
        assert match, f"{line!r}\n{self.said()}"
        self.address, self.http = match[1], match[2]
        return self

    def _read_line(self) -> str:
        """The first line of standard output, or what there is of it when the process ends."""
        assert self.process.stdout is not None
        descriptor, data = self.process.stdout.fileno(), b""
        deadline = time.monotonic() + TIMEOUT_S
        while not data.endswith(b"\n"):
            readable, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, f"not ready in {TIMEOUT_S} s:\n{self.said()}"
            got = os.read(descriptor, 1000)
            if not got:
                break
            data += got
        return data.decode()

    def rest(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.read().decode()

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def ended(self) -> int:
        return self.process.wait(TIMEOUT_S)

    def stop(self, with_signal: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(with_signal)
        return self.ended()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(TIMEOUT_S)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def get(self, path: str) -> tuple[int, str]:
        return get(self.http, path)

    def healthz(self) -> tuple[int, str]:
        return self.get("/healthz")


def get(http: str, path: str) -> tuple[int, str]:
    """Status 0: nobody answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{http}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


class Cluster:
    """A registry, a secret, and the daemons started."""

    def __init__(self) -> None:
        self.etcd = Etcd(FOLDER / "etcd")
        self.secret = FOLDER / "secret"
        self.daemons: list[Daemon] = []
        self.secret.write_bytes(secrets.token_bytes(32))
        self.secret.chmod(0o600)

    def arguments(self, name: str, **changes: str | None) -> dict[str, str | None]:
        return {
            "name": name,
            "data": str(FOLDER / name),
            "registry": self.etcd.endpoint(),
            "secret-file": str(self.secret),
            "initial-group": "s1,s2,s3",
            "lease": "2",
            "page-cache": "8M",
            "log-cache": "8M",
            "version-map": "8M",
            "memtable": "8M",
        } | {key.replace("_", "-"): value for key, value in changes.items()}

    def launch(self, name: str, **changes: str | None) -> Daemon:
        daemon = Daemon(name, self.arguments(name, **changes))
        self.daemons.append(daemon)
        return daemon

    def start(self, name: str, **changes: str | None) -> Daemon:
        return self.launch(name, **changes).wait_ready()

    def refused(self, name: str, **changes: str | None) -> str:
        daemon = self.launch(name, **changes)
        assert daemon.ended() == 1, daemon.said()
        assert daemon.rest() == ""
        return daemon.said()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    made = Cluster()
    try:
        made.etcd.start()
        yield made
    finally:
        for daemon in made.daemons:
            daemon.kill()
        made.etcd.kill()
        shutil.rmtree(FOLDER, ignore_errors=True)


def check_metrics(text: str) -> dict[str, float]:
    """Prometheus' format: a name's HELP and TYPE, then its samples, which are not told twice."""
    samples: dict[str, float] = {}
    described: list[str] = []
    for line in text.splitlines():
        if match := re.fullmatch(r"# HELP (strata_[a-z0-9_]+) \S.*", line):
            assert match[1] not in described
            described.append(match[1])
        elif match := re.fullmatch(r"# TYPE (\S+) (counter|gauge)", line):
            assert match[1] == described[-1] and (match[2] == "counter") == match[1].endswith("_total")
        else:
            match = re.fullmatch(r'(([a-z0-9_]+)(?:\{[a-z_]+="[^"]*"(?:,[a-z_]+="[^"]*")*\})?) (\d+)', line)
            assert match and match[2] == described[-1] and match[1] not in samples, line
            samples[match[1]] = float(match[3])
    return samples


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_three_nodes_serve_and_end(cluster: Cluster) -> None:
    nodes = [cluster.launch(name) for name in ("s1", "s2", "s3")]
    for node in nodes:
        node.wait_ready()
    statuses = []
    for node in nodes:
        assert node.healthz() == (200, "ok\n")
        statuses.append(json.loads(node.get("/status")[1]))
        metrics = check_metrics(node.get("/metrics")[1])
        assert metrics["strata_node_healthy"] == 1 and metrics["strata_node_joined"] == 1
        assert metrics['strata_rpc_operations_total{method="log_append"}'] == 0
        assert node.get("/nothing")[0] == 404
    assert {status["database_id"] for status in statuses} == {statuses[0]["database_id"]}
    assert len({status["identity"] for status in statuses}) == 3
    for node, status in zip(nodes, statuses, strict=True):
        assert status["group"] == {"id": 1, "nodes": ["s1", "s2", "s3"], "write_quorum": 2, "generation": 1}
        assert status["addresses"] == [f"tcp:{node.address}"] and status["status_address"] == node.http
        assert status["membership"]["joined"] and status["health"] == "ok" and status["profile"] == "logdb-mv-sr"
    for node, how in zip(nodes, (signal.SIGTERM, signal.SIGINT, signal.SIGTERM), strict=True):
        assert node.stop(how) == 0, node.said()
        assert node.rest() == ""  # the ready line was all
        events = [re.fullmatch(r"\S+Z (info) (\S+)( \w+=(\S+|\".*\"))*", line) for line in node.said().splitlines()]
        assert [event[2] for event in events if event][-1] == "stopped" and all(events), node.said()


def test_a_killed_node_starts_again(cluster: Cluster) -> None:
    node = cluster.start("s1")
    identity = json.loads(node.get("/status")[1])["identity"]
    node.kill()
    again = cluster.start("s1", initial_group=None)
    assert json.loads(again.get("/status")[1])["identity"] == identity
    assert again.healthz() == (200, "ok\n")
    assert again.stop() == 0


def test_what_is_refused_at_the_start(cluster: Cluster) -> None:
    assert "no placement yet" in cluster.refused("s2", initial_group=None)
    first = cluster.start("s1")
    assert "in use by another process" in cluster.refused("s1")
    assert f"{first.address}" in cluster.refused("s2", listen=first.address)
    assert f"{first.http}" in cluster.refused("s2", http=first.http)
    assert "s4 is in no storage group of cluster main (s1, s2, s3)" in cluster.refused("s4", initial_group="s4")
    assert "has another data folder" in cluster.refused("s1", data=str(FOLDER / "other"))
    assert "has profile logdb-mv-sr" in cluster.refused("s3", profile="logdb")
    assert "No such file" in cluster.refused("s3", data=str(FOLDER / "no" / "folder"))
    assert first.stop() == 0
    assert "was made with profile logdb-mv-sr" in cluster.refused("s1", profile="logdb")
    assert "belongs to storage node s1" in cluster.refused("s3", data=str(FOLDER / "s1"))
    assert "has no database yet" in cluster.refused("s1", cluster="other")

    stamp = FOLDER / "s1" / "node.stamp"
    good = stamp.read_bytes()
    stamp.write_bytes(good.replace(b"name s1", b"name s2"))
    said = cluster.refused("s1")
    assert str(stamp) in said and "is damaged" in said
    stamp.unlink()
    before = sorted(path.name for path in (FOLDER / "s1").iterdir())
    assert "has no node.stamp" in cluster.refused("s1")
    assert sorted(path.name for path in (FOLDER / "s1").iterdir()) == before
    stamp.write_bytes(good)
    assert cluster.start("s1").stop() == 0


def test_a_bad_secret_is_refused(cluster: Cluster) -> None:
    assert "does-not-exist" in cluster.refused("s1", secret_file=str(FOLDER / "does-not-exist"))
    cluster.secret.chmod(0o644)
    assert str(cluster.secret) in cluster.refused("s1")
    cluster.secret.chmod(0o600)
    cluster.secret.write_bytes(b"short")
    assert str(cluster.secret) in cluster.refused("s1")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"profile": "logdb-mv-xx"}, "no profile 'logdb-mv-xx'"),
        ({"listen": "localhost:7101"}, "in numbers"),
        ({"listen": "127.0.0.1:70000"}, "in numbers"),
        ({"listen": "8.8.8.8:7101"}, "private network"),
        ({"advertise": "127.0.0.1:0"}, "others need the port"),
        ({"advertise": "localhost:7101"}, "in numbers"),
        ({"http": "0.0.0.0:0"}, "private network"),
        ({"page-cache": "many"}, "page-cache"),
        ({"page-cache": "1K"}, "page-cache"),
        ({"log-segment": "1K"}, "log-segment"),
        ({"log-segment": "1500001"}, "multiple of 4096"),
        ({"checkpoint-interval": "0"}, "checkpoint-interval"),
        ({"reader-lease": "0"}, "reader-lease"),
        ({"workers": "0"}, "workers"),
        ({"log-level": "loud"}, "log-level"),
        ({"write-quorum": "1"}, "no majority"),
        ({"initial-group": "s2,s3"}, "must name this node"),
        ({"initial-group": None, "write-quorum": "2"}, "initial-group"),
        ({"name": None}, "name"),
        ({"name": "a/b"}, "a/b"),
        ({"registry": "https://127.0.0.1:1"}, "https://127.0.0.1:1"),
        ({"unknown": "1"}, "unknown"),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, str | None], expected: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(32))
    secret.chmod(0o600)
    given: dict[str, str | None] = {"name": "s1", "data": str(tmp_path / "s1"), "registry": "http://127.0.0.1:1"}
    given |= {"secret-file": str(secret), "initial-group": "s1,s2,s3"} | changes
    done = subprocess.run(command_of(given), capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.count("\n") == 1 and expected in done.stderr
    assert not (tmp_path / "s1").exists()


def test_too_few_descriptors_are_refused(tmp_path: Path) -> None:
    """CD4: it says so at the start, instead of failing in the middle of its work."""
    given: dict[str, str | None] = {"name": "s1", "data": str(tmp_path / "s1"), "registry": "http://127.0.0.1:1"}
    command = ["prlimit", "--nofile=200:200", *command_of(given | {"secret-file": "x", "initial-group": "s1"})]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "only 200 files open" in done.stderr and not (tmp_path / "s1").exists()


def test_a_log_that_cannot_be_written_stops_nothing(cluster: Cluster) -> None:
    """As on a full disk: each line of the log is lost."""
    with Path("/dev/full").open("wb") as full:
        process = subprocess.Popen(
            command_of(cluster.arguments("s1")), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=full, text=True
        )
    try:
        assert process.stdout is not None
        ready = READY.fullmatch(process.stdout.readline())
        assert ready is not None
        assert get(ready[2], "/healthz") == (200, "ok\n")
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
        process.wait(TIMEOUT_S)


def test_help_has_an_example() -> None:
    done = subprocess.run([str(PROGRAM), "--help"], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0 and "--initial-group s1,s2,s3 --write-quorum 2" in done.stdout


def test_the_registry_comes_later(cluster: Cluster) -> None:
    cluster.etcd.kill()
    waiting = {name: f"127.0.0.1:{free_port()}" for name in ("s1", "s2")}
    first, second = (cluster.launch(name, http=http) for name, http in waiting.items())
    for http in waiting.values():
        assert wait_until(lambda http=http: get(http, "/healthz") == (503, "starting\n"), TIMEOUT_S)  # type: ignore[misc]
        assert get(http, "/metrics")[0] == get(http, "/status")[0] == 503
    assert "did not answer in time" in cluster.refused("s3", start_timeout="1")
    assert second.stop() == 0  # half-started
    assert second.rest() == "" and 'reason="while starting"' in second.said()
    cluster.etcd.start()
    first.wait_ready()
    assert "trying again" in first.said()
    assert first.healthz() == (200, "ok\n")
    # It goes away while the node runs: the node stays, is no member for a while, and is one again.
    cluster.etcd.kill()
    assert wait_until(lambda: first.healthz()[0] == 503, TIMEOUT_S)
    assert "not a member" in first.healthz()[1]
    cluster.etcd.start()
    assert wait_until(lambda: first.healthz() == (200, "ok\n"), TIMEOUT_S)
    assert first.stop() == 0


def test_a_second_signal_ends_it_at_once(cluster: Cluster) -> None:
    node = cluster.start("s1", lease="60")
    registry = cluster.etcd.pid()
    assert registry is not None
    pause(registry)  # leaving the cluster takes its time now
    try:
        node.process.send_signal(signal.SIGTERM)
        assert wait_until(lambda: " stopping " in node.said(), TIMEOUT_S)
        assert node.stop() == 130
    finally:
        os.kill(registry, signal.SIGCONT)
