"""python -m applications [--tool NAME | --schema NAME]: schemas of programs, and tests of Django and SQLAlchemy, on STRATA and on
InnoDB. What works on InnoDB has to work on STRATA, but for what expected_failures.txt lists; ends with `N passed, M failed`.
--several, instead: the programs' tests on one server, and with each statement on any of three that write the same tables."""

import argparse
import os
import shutil
import sys
import tarfile
import venv
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pymysql
from strata_cli import mtr_nodes, paths
from strata_cli.cluster import Cluster, Wishes
from strata_cli.server import Server, Settings, choose_port
from strata_cli.shell import Outcome, StrataError, end_cleanly_on_sigterm, run_logged

from . import schemas
from .tools import ALL, DATABASES, HERE, Result, Tool

PLACE = paths.BUILD / "applications"
EXPECTED = HERE / "expected_failures.txt"
PORT = 23540
SEVERAL, SEVERAL_PROFILE = "several servers", "fusion"
INSTALL_S = 600.0
# They test SQL, not durability.
QUICK = ("--strata-flush-log-at-commit=2", "--innodb-flush-log-at-trx-commit=2")


def expected_failures(text: str) -> dict[str, str]:
    """Each test that is known not to pass on STRATA, with the reason."""
    lines = (line.split("#", 1) for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return {parts[0].strip(): parts[1].strip() if len(parts) > 1 else "" for parts in lines}


def installed(tool: Tool) -> tuple[Path, Path]:
    """The python of the tool's own environment, and its source; made once per version."""
    folder = PLACE / tool.package
    stamp, python = folder / "VERSION", folder / "venv" / "bin" / "python3"
    wanted = "\n".join((tool.source, *tool.needs)) + "\n"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder / "venv", with_pip=True)
        log = paths.LOGS / f"applications-{tool.package}-install.log"
        pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check"]
        steps: tuple[list[str | Path], ...] = (
            [*pip, "install", tool.source, *tool.needs],
            [*pip, "download", "--no-deps", "--no-binary", tool.package, "-d", folder / "download", tool.source],
        )
        for number, step in enumerate(steps):
            if not run_logged(step, log, timeout_s=INSTALL_S, append=number > 0).ok:
                raise StrataError(f"{tool.source} cannot be installed: see {paths.relative(log)}")
        (archive,) = (folder / "download").iterdir()
        with tarfile.open(archive) as packed:
            packed.extractall(folder / "source", filter="data")
        stamp.write_text(wanted)
    (source,) = (folder / "source").iterdir()
    return python, source / tool.folder


@contextmanager
def one_server(tool: Tool, engine: str, preset: str) -> Iterator[int]:
    """The port for the programs."""
    server = Server(PLACE / f"{tool.name}-data")
    server.wipe()
    port = choose_port(None, PORT)
    server.start(Settings(port=port, engine=engine, preset=preset), extra=QUICK)
    try:
        yield port
    finally:
        server.kill()
        server.wipe()


@contextmanager
def several_servers(tool: Tool) -> Iterator[int]:
    """The same for three servers that write the same tables."""
    cluster = Cluster(PLACE / f"{tool.name}-cluster")
    remove(cluster)
    try:
        cluster.start(SEVERAL_PROFILE, wishes=Wishes(servers=mtr_nodes.SERVERS, memory="128M"))
        found = list(cluster.computes.values())
        with mtr_nodes.one_port_for(found) as spread:
            yield spread.port
            print(spread.told())
    finally:
        remove(cluster)


def remove(cluster: Cluster) -> None:
    cluster.kill()
    if cluster.exists():
        cluster.wipe()


def run(
    tool: Tool, label: str, place: AbstractContextManager[int], tests: tuple[str, ...], timeout_s: float
) -> tuple[Result, Outcome]:
    python, source = installed(tool)
    with place as port:
        with pymysql.connect(host="127.0.0.1", port=port, user="root") as connection, connection.cursor() as cursor:
            for name in DATABASES:
                cursor.execute(f"CREATE DATABASE IF NOT EXISTS {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
        chosen = Tool(**{**tool.__dict__, "tests": tests})
        command: list[str | Path] = [python, *chosen.command(chosen, source, port)]
        log = paths.LOGS / f"applications-{tool.name}-{label.lower().replace(' ', '-')}.log"
        environment = {**tool.env, "STRATA_APPLICATIONS_PORT": str(port), "PYTHONDONTWRITEBYTECODE": "1"}
        outcome = run_logged(command, log, env=environment, cwd=source, timeout_s=timeout_s)
    return tool.read(outcome.log.read_text(errors="replace")), outcome


def compare(
    tool: Tool, innodb: Result, strata: Result, expected: dict[str, str], names: tuple[str, str] = ("InnoDB", "STRATA")
) -> tuple[int, list[str]]:
    """How many passed on STRATA, or fail as listed, and what has to be looked at. `names`: where it was run."""
    problems = []
    listed = 0
    for name, why in sorted(strata.bad.items()):
        if name in innodb.bad and name != "the run itself":
            continue
        if f"{tool.name}:{name}" in expected:
            listed += 1
        else:
            problems.append(f"{tool.name}: {name}: {why}")
    # What the program itself leaves out on other engines than InnoDB, by their names.
    left_out = sum(name.startswith(f"{tool.name}:") and why.startswith("not run") for name, why in expected.items())
    missing = innodb.passed - strata.passed - len(set(strata.bad) - set(innodb.bad))
    if missing > left_out:
        problems.append(f"{tool.name}: {missing} tests that passed on {names[0]} were not run on {names[1]}")
    return strata.passed + listed, problems


def compare_schemas(chosen: list[schemas.Schema], preset: str, expected: dict[str, str]) -> tuple[int, int]:
    """Tables that are the same on both engines, and places that are not."""
    server = Server(PLACE / "schemas-data")
    server.wipe()
    server.start(Settings(port=choose_port(None, PORT), preset=preset), extra=QUICK)
    passed = failed = 0
    try:
        for schema in chosen:
            innodb, strata = (schemas.load(server, schema, engine) for engine in ("InnoDB", "STRATA"))
            known = [name.split(":", 1)[1] for name in expected if name.startswith(f"{schema.name}:")]
            same, problems = schemas.differences(innodb, strata, known)
            print(f"{schema.name} ({schema.package}): {same} of {len(innodb.tables)} tables as on InnoDB", flush=True)
            for problem in problems:
                print(f"{schema.name}: {problem}")
            passed, failed = passed + same + len(known), failed + len(problems) + (0 if innodb.tables else 1)
    finally:
        server.kill()
        server.wipe()
    return passed, failed


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", choices=sorted(ALL), help="only this one")
    parser.add_argument("--schema", choices=[*(one.name for one in schemas.ALL), "all"], help="only this one, or only schemas")
    parser.add_argument("--tests", nargs="*", help="with --tool: these tests of it, not its usual ones")
    parser.add_argument("--several", action="store_true", help="what passes on one server, on three that write the same tables")
    parser.add_argument("--preset", default="release", help="of the plugin")
    parser.add_argument("--time-limit-s", type=float, default=1800, help="of one run on one engine")
    return parser.parse_args()


def tools_of(arguments: argparse.Namespace) -> list[Tool]:
    if arguments.schema:
        return []
    if arguments.tool:
        return [ALL[arguments.tool]]
    return [tool for tool in ALL.values() if tool.several or not arguments.several]


def told(tool: Tool, label: str, place: AbstractContextManager[int], tests: tuple[str, ...], limit_s: float) -> Result:
    result, outcome = run(tool, label, place, tests, limit_s)
    print(f"{tool.source} on {label}: {result.passed} passed, {len(result.bad)} not, {outcome.seconds:.0f} s", flush=True)
    return result


def on_both(tool: Tool, arguments: argparse.Namespace, expected: dict[str, str]) -> tuple[int, list[str]]:
    tests = tuple(arguments.tests) if arguments.tests else tool.tests
    innodb, strata = (
        told(tool, engine, one_server(tool, engine, arguments.preset), tests, arguments.time_limit_s)
        for engine in ("InnoDB", "STRATA")
    )
    return compare(tool, innodb, strata, expected)


def on_three(tool: Tool, arguments: argparse.Namespace, expected: dict[str, str]) -> tuple[int, list[str]]:
    """What one server cannot do three need not."""
    tests = tuple(arguments.tests) if arguments.tests else tool.several or tool.tests
    one = told(tool, "STRATA", one_server(tool, "STRATA", arguments.preset), tests, arguments.time_limit_s)
    three = told(tool, SEVERAL, several_servers(tool), tests, arguments.time_limit_s)
    return compare(replace(tool, name=f"{tool.name}-several"), one, three, expected, ("one server", SEVERAL))


def main() -> int:
    end_cleanly_on_sigterm()
    arguments = parse()
    expected = expected_failures(EXPECTED.read_text())
    passed = failed = 0
    if not arguments.tool and not arguments.several:
        chosen = [one for one in schemas.ALL if arguments.schema in (None, "all", one.name)]
        passed, failed = compare_schemas(chosen, arguments.preset, expected)
    for tool in tools_of(arguments):
        good, problems = on_three(tool, arguments, expected) if arguments.several else on_both(tool, arguments, expected)
        for problem in problems:
            print(problem)
        passed, failed = passed + good, failed + len(problems)
    print(f"{passed} passed, {failed} failed")
    return 0 if failed == 0 and passed > 0 else 1


if __name__ == "__main__":
    os.umask(0o077)
    try:
        sys.exit(main())
    except StrataError as error:
        print(error)
        print("0 passed, 1 failed")
        sys.exit(1)
