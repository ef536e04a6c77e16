"""The ./strata command as a user sees it: up, status, sql, down, and its errors."""

import json
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest
from strata_cli import paths
from strata_cli.server import Server

pytestmark = pytest.mark.quick


def strata(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(paths.ROOT / "strata"), *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=180)


def test_up_sql_status_down(data: Path) -> None:
    up = strata("up", "--data", data)
    assert up.returncode == 0, up.stderr
    facts = json.loads(strata("status", "--data", data, "--json").stdout)
    assert facts["running"] and facts["profile"] == "monolithic"
    strata("sql", "--data", data, "-e", "CREATE TABLE t (a INT PRIMARY KEY); INSERT INTO t VALUES (41)")
    assert strata("down", "--data", data).returncode == 0
    assert strata("status", "--data", data).returncode == 3
    assert strata("up", "--data", data, "--option=--max-connections=77").returncode == 0
    assert "is ignored" in strata("up", "--data", data, "--option=--max-connections=78").stderr
    again = strata("sql", "--data", data, "-e", "SELECT a + 1 AS answer, @@max_connections AS options FROM t")
    assert again.stdout.split() == ["answer", "options", "42", "77"]
    assert json.loads((data / "instance.json").read_text())["options"] == ["--max-connections=77"], "kept for the next start"
    assert "chosen by ./strata" in strata("up", "--data", data, "--option=--port=1").stderr
    assert strata("down", "--data", data, "--wipe").returncode == 0
    assert not data.exists()


def test_tables_are_strata_tables_when_the_plugin_is_there(server: Server) -> None:
    server.query("CREATE TABLE t (a INT PRIMARY KEY)", database="test")
    shown = server.query("SELECT engine FROM information_schema.tables WHERE table_name = 't'")
    assert shown == [("STRATA",)]


def test_a_port_in_use_is_a_clear_error(data: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        up = strata("up", "--data", data, "--port", str(port))
    assert up.returncode == 1
    assert f"port {port} is in use" in up.stderr
    assert "Traceback" not in up.stderr


def test_an_unknown_profile_is_a_clear_error(data: Path) -> None:
    up = strata("up", "--data", data, "--profile", "marble")
    assert up.returncode == 1 and "monolithic" in up.stderr


def test_a_long_data_path_still_gets_a_socket() -> None:
    with tempfile.TemporaryDirectory(dir=paths.BUILD) as folder:
        data = Path(folder) / ("long-" * 20) / "data"
        try:
            assert strata("up", "--data", data).returncode == 0
            assert strata("sql", "--data", data, "-e", "SELECT 7 AS seven").stdout.split() == ["seven", "7"]
        finally:
            assert strata("down", "--data", data, "--wipe").returncode == 0


def test_wipe_refuses_a_folder_that_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("keep me")
    assert strata("down", "--data", tmp_path, "--wipe").returncode == 1
    assert (tmp_path / "precious").exists()


@pytest.mark.parametrize("port", ["0", "99999", "-1", "many"])
def test_an_impossible_port_is_a_clear_error(data: Path, port: str) -> None:
    up = strata("up", "--data", data, "--port", port)
    assert up.returncode == 2 and "--port" in up.stderr and "Traceback" not in up.stderr
    assert not data.exists()


def test_a_folder_that_cannot_hold_data_is_a_clear_error() -> None:
    for place in ("/proc/x", str(paths.ROOT / "README.md")):
        up = strata("up", "--data", place)
        assert up.returncode == 1 and "--data" in up.stderr and "Traceback" not in up.stderr, up.stderr


@pytest.mark.parametrize("command", ["status", "logs"])
def test_a_folder_with_nothing_in_it_is_said_to_be_so(tmp_path: Path, command: str) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        shown = strata(command, "--data", place)
        assert shown.returncode == 1 and "holds no server and no cluster" in shown.stderr
        assert shown.stdout == ""


def test_up_on_a_running_server_says_that_the_port_is_ignored(server: Server) -> None:
    again = strata("up", "--data", server.data, "--port", str(server.settings().port + 1))
    assert again.returncode == 0 and "is ignored" in again.stderr
    assert "ignored" not in strata("up", "--data", server.data, "--port", str(server.settings().port)).stderr


def test_up_names_a_client_that_is_there(data: Path) -> None:
    try:
        lines = strata("up", "--data", data).stdout.splitlines()
        client = next(line for line in lines if " -u root " in line).split()[0]
        found = subprocess.run([client, "--version"], cwd=paths.ROOT, capture_output=True, text=True)
        assert "mariadb" in found.stdout
    finally:
        assert strata("down", "--data", data, "--wipe").returncode == 0


def test_sql_passes_on_the_clients_own_options(server: Server) -> None:
    shown = strata("sql", "--data", server.data, "-N", "-e", "SELECT 7 AS seven")
    assert shown.stdout.split() == ["7"]
    table = strata("sql", "--data", server.data, "--table", "--execute", "SELECT 7 AS seven")
    assert "| seven |" in table.stdout
    going_on = strata("sql", "--data", server.data, "-f", "-e", "SELECT nothing; SELECT 8")
    assert "8" in going_on.stdout.split()


def test_logs_shows_the_end_of_a_log(server: Server) -> None:
    shown = strata("logs", "--data", server.data, "--lines", "1")
    assert shown.returncode == 0
    assert shown.stdout.splitlines() == server.log.read_text().splitlines()[-1:]
    unknown = strata("logs", "s9", "--data", server.data)
    assert unknown.returncode == 1 and "s9" in unknown.stderr and "server" in unknown.stderr


def test_version_and_short_help() -> None:
    assert strata("--version").stdout.startswith("strata ")
    assert "Examples" in strata("up", "-h").stdout
