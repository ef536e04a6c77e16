"""The crash campaign itself: it lets a safe engine pass and finds the losses of an unsafe one."""

import os
import shutil
import subprocess

from strata_cli import paths

SEED = 900_001  # Not the seeds of a campaign somebody else may be running.


def campaign(engine: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(paths.venv_bin("python3")), "-m", "crash", "--engine", engine, "--seed", str(SEED), *arguments]
    environment = {**os.environ, "PYTHONPATH": f"{paths.ROOT}/tools:{paths.ROOT}/tests/e2e"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    for folder in (paths.BUILD / "crash").glob("run-9000*"):
        shutil.rmtree(folder)
    return done


def test_an_engine_that_loses_nothing_passes() -> None:
    done = campaign("InnoDB", "--runs", "2")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "2 passed, 0 failed"


def test_an_engine_that_does_not_sync_its_log_is_caught() -> None:
    done = campaign("InnoDB", "--runs", "4", "--server-option=--innodb-flush-log-at-trx-commit=0")
    assert done.returncode == 1
    assert "acknowledged transactions are lost" in done.stdout


def test_strata_without_its_log_sync_is_caught() -> None:
    done = campaign("STRATA", "--runs", "4", "--no-faults", "--power-loss", "--server-option=--strata-flush-log-at-commit=0")
    assert done.returncode == 1
    assert "acknowledged transactions are lost" in done.stdout
