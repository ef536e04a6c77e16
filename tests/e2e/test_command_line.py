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
    assert strata("up", "--data", data).returncode == 0
    again = strata("sql", "--data", data, "-e", "SELECT a + 1 AS answer FROM t")
    assert again.stdout.split() == ["answer", "42"]
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
    up = strata("up", "--data", data, "--profile", "fusion")
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
