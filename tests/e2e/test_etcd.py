"""The registry's etcd as ./strata starts it: start, kill, start again, stop, and its errors. The client's tests are in
src/cluster/conformance (registry_etcd_test)."""

import base64
import json
import os
import shutil
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pausing import pause
from strata_cli import paths
from strata_cli.etcd_server import Etcd
from strata_cli.shell import StrataError
from strata_cli.waiting import wait_until

pytestmark = pytest.mark.quick


@pytest.fixture
def etcd() -> Iterator[Etcd]:
    folder = paths.BUILD / "e2e" / "etcd"
    shutil.rmtree(folder, ignore_errors=True)
    made = Etcd(folder)
    yield made
    made.kill()
    shutil.rmtree(folder, ignore_errors=True)


def ask(etcd: Etcd, path: str, **fields: str) -> Any:
    encoded = {name: base64.b64encode(value.encode()).decode() for name, value in fields.items()}
    request = urllib.request.Request(etcd.endpoint() + path, json.dumps(encoded).encode())
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=10) as answer:
        return json.load(answer)


def value(etcd: Etcd, key: str) -> str:
    return base64.b64decode(ask(etcd, "/v3/kv/range", key=key)["kvs"][0]["value"]).decode()


def test_a_life_kill_and_clean_stop(etcd: Etcd) -> None:
    assert etcd.pid() is None and not etcd.healthy()
    etcd.start()
    assert etcd.healthy() and etcd.pid() is not None
    ask(etcd, "/v3/kv/put", key="a", value="kept")
    endpoint = etcd.endpoint()
    cluster = ask(etcd, "/v3/kv/range", key="a")["header"]["cluster_id"]
    with pytest.raises(StrataError, match="already runs"):
        Etcd(etcd.folder).start()
    etcd.kill()
    assert not etcd.healthy() and not etcd.pid_file.exists()
    etcd.start()
    assert etcd.endpoint() == endpoint  # clients find it again
    assert value(etcd, "a") == "kept"
    # Another process of ./strata finds it by its folder and stops it.
    etcd.disown()
    found = Etcd(etcd.folder)
    assert found.pid() is not None
    assert found.stop() and found.pid() is None
    found.wipe()
    assert not etcd.folder.exists()
    etcd.start()
    assert ask(etcd, "/v3/kv/range", key="a")["header"]["cluster_id"] != cluster


def test_it_listens_on_loopback_only(etcd: Etcd) -> None:
    etcd.start()
    pid = etcd.pid()
    sockets = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                listening.append(fields[1].split(":")[0])
    assert listening and set(listening) == {"0100007F"}  # 127.0.0.1


def test_a_paused_one_is_not_healthy(etcd: Etcd) -> None:
    etcd.start()
    pid = etcd.pid()
    assert pid is not None
    pause(pid)
    assert not etcd.healthy(timeout_s=0.3)
    os.kill(pid, signal.SIGCONT)
    assert wait_until(etcd.healthy, 10)


def test_a_port_in_use_is_a_clear_error(etcd: Etcd) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StrataError, match=f"port {port} is in use"):
            etcd.start(port)
    assert not etcd.exists()
    # Taken between the look and the start: etcd says so itself.
    with pytest.raises(StrataError, match="address already in use"), socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        etcd.start(extra=[f"--listen-metrics-urls=http://127.0.0.1:{taken.getsockname()[1]}"])
    assert etcd.pid() is None


@pytest.mark.parametrize("victim", ["member/wal/*.wal", "member/snap/db"])
def test_a_damaged_folder_is_a_clear_error(etcd: Etcd, victim: str) -> None:
    etcd.start()
    ask(etcd, "/v3/kv/put", key="a", value="lost")
    assert etcd.stop()
    path = next(etcd.data.glob(victim))
    with path.open("r+b") as file:
        file.write(bytes(5000))
    with pytest.raises(StrataError, match="ended while starting") as raised:
        etcd.start(timeout_s=20)
    assert str(etcd.data) in str(raised.value)
    assert etcd.pid() is None and not etcd.pid_file.exists()


def test_folders_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("keep me")
    with pytest.raises(StrataError, match="not empty"):
        Etcd(tmp_path).start()
    with pytest.raises(StrataError, match="does not look like"):
        Etcd(tmp_path).wipe()
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_an_unreadable_instance_file_is_a_clear_error(etcd: Etcd) -> None:
    etcd.folder.mkdir(parents=True)
    etcd.instance_file.write_text("{")
    with pytest.raises(StrataError, match=r"instance\.json cannot be read"):
        etcd.start()
