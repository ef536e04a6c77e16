"""Programs that are told to end, or run out of time, may clean up first."""

import os
import sys
from pathlib import Path

from strata_cli.shell import run_logged

PATHS = {"PYTHONPATH": os.pathsep.join(sys.path)}
CLEANS_UP = """
import signal, sys
from pathlib import Path
from strata_cli.shell import end_cleanly_on_sigterm
end_cleanly_on_sigterm()
try:
    print("waiting", flush=True)
    signal.pause()
finally:
    Path(sys.argv[1]).write_text("clean")
"""


def test_a_program_that_runs_out_of_time_cleans_up_first(tmp_path: Path) -> None:
    left = tmp_path / "left"
    outcome = run_logged([sys.executable, "-c", CLEANS_UP, left], tmp_path / "log", env=PATHS, timeout_s=2)
    assert outcome.code == 124
    assert left.read_text() == "clean"


def test_a_program_is_ended_cleanly_when_its_caller_fails(tmp_path: Path) -> None:
    left = tmp_path / "left"

    def fail(line: str) -> None:
        if line == "waiting":
            raise KeyError(line)

    try:
        run_logged([sys.executable, "-c", CLEANS_UP, left], tmp_path / "log", env=PATHS, on_line=fail)
    except KeyError:
        pass
    assert left.read_text() == "clean"
