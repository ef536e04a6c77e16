"""Where the kernel or the rights are not enough, strata-farmem says what is missing and starts nothing."""

import subprocess

import pytest
from strata_cli import farmem

pytestmark = pytest.mark.quick

NOT_STARTED = 2


def test_it_says_what_is_missing() -> None:
    with farmem.MemoryNode("64M") as place:
        command = farmem.run_command(place, farmem.Options(local="16M"), ["echo", "started"])
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == NOT_STARTED
    assert "userfaultfd" in done.stderr
    assert "started" not in done.stdout
