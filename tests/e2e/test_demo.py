"""The README's first command."""

import subprocess
from pathlib import Path

from strata_cli import paths
from strata_cli.server import Server


def test_demo_proves_its_point_and_leaves_a_server(data: Path) -> None:
    engine = "STRATA" if paths.plugin_path("release").exists() else "InnoDB"
    command = [str(paths.ROOT / "strata"), "demo", "--no-build", "--data", str(data), "--seconds", "3", "--engine", engine]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" ok  each of") == 2
    assert Server(data).pid() is not None
