"""Writes a failing case as SQL that `--replay` (and, with one session, any client) can run, and reads it back."""

from pathlib import Path

from .run import Failure
from .step import Step

SESSION = "-- session "
SERVER = "-- server "
ORDERED = "-- ordered"


def write_case(path: Path, failure: Failure, title: str, options: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    again = f"./strata test --differential{options} --replay {path}"
    lines = [f"-- {title}", f"-- again: {again}", "-- The last statement differs:"]
    lines += [f"--   {line}" for difference in failure.differences for line in str(difference).splitlines()]
    session = server = 0
    for step in failure.steps:
        if step.session != session:
            session = step.session
            lines.append(f"{SESSION}{session}")
        if step.server != server:
            server = step.server
            lines.append(f"{SERVER}{server}")
        if step.ordered:
            lines.append(ORDERED)
        lines.append(step.sql + ";")
    path.write_text("\n".join(lines) + "\n")


def read_case(path: Path) -> list[Step]:
    steps: list[Step] = []
    session, server, ordered = 0, 0, False
    for line in path.read_text().splitlines():
        if line.startswith(SESSION):
            session = int(line.removeprefix(SESSION))
        elif line.startswith(SERVER):
            server = int(line.removeprefix(SERVER))
        elif line == ORDERED:
            ordered = True
        elif line and not line.startswith("--"):
            steps.append(Step(line.removesuffix(";"), session, ordered, server=server))
            ordered = False
    return steps
