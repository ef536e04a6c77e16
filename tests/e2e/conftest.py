"""A private server on a data folder of the test's own, stopped whatever happens."""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from strata_cli import paths
from strata_cli.server import Server, Settings, choose_port

# As Ctrl-C: the session ends, and its fixtures stop what they have started.
signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture
def data() -> Iterator[Path]:
    folder = paths.BUILD / "e2e" / "data"
    shutil.rmtree(folder, ignore_errors=True)
    yield folder
    Server(folder).kill()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def server(data: Path) -> Iterator[Server]:
    running = Server(data)
    running.start(Settings(port=choose_port(None, 33506)))
    running.query("CREATE DATABASE test")
    yield running
    running.kill()
