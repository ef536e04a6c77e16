"""A private server on a data folder of the test's own, stopped whatever happens."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from strata_cli import paths
from strata_cli.server import Server, Settings, choose_port


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
