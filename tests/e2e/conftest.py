"""A private server on a data folder of the test's own, stopped whatever happens."""

import ctypes
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from strata_cli import paths, profile_list
from strata_cli.server import Server, Settings, choose_port

# As Ctrl-C: the session ends, and its fixtures stop what they have started.
signal.signal(signal.SIGTERM, signal.default_int_handler)


SYS_USERFAULTFD = 323  # x86-64
FAR_MEMORY_NEEDS = (6, 8)  # Linux


def far_memory_is_possible() -> bool:
    """As docs/farmem.md says; elsewhere test_farmem_refusal.py looks at how it is refused."""
    version = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    descriptor = ctypes.CDLL(None).syscall(SYS_USERFAULTFD, os.O_CLOEXEC)
    if descriptor >= 0:
        os.close(descriptor)
    return version >= FAR_MEMORY_NEEDS and descriptor >= 0


collect_ignore = ["test_farmem_refusal.py" if far_memory_is_possible() else "test_farmem.py"]
if not any(profile.has_memory_nodes for profile in profile_list.ALL):
    collect_ignore.append("test_lego.py")


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
    running.start(Settings(port=choose_port(None, 23506)))
    running.query("CREATE DATABASE test")
    yield running
    running.kill()
