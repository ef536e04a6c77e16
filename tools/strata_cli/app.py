"""The command line itself: options and help texts; the work is in the module of each command group."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from . import bench_cmd, build_cmd, demo_cmd, paths, server_cmd, setup_cmd, stages, test_cmd
from .bench_cmd import Workload
from .build_cmd import BuildType
from .shell import StrataError, errors

app = typer.Typer(
    name="strata",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Strata: a relational storage engine for MariaDB (ENGINE=STRATA).",
)


@app.callback()
def _root() -> None:
    pass


@app.command()
def setup() -> None:
    """Install build packages, unpack the private MariaDB, prepare Python. Safe to repeat."""
    setup_cmd.setup()


Data = Annotated[Path, typer.Option("--data", help="Data folder of the server.", show_default="data")]


@app.command()
def build(
    build_type: Annotated[BuildType, typer.Option("--type", help="Which CMake preset.")] = BuildType.release,
) -> None:
    """Build the kernel, its tests and the plugin (CMake, Ninja, ccache)."""
    build_cmd.build(build_type)


@app.command()
def up(
    profile: Annotated[str, typer.Option(help="Deployment profile; only 'monolithic' exists yet.")] = "monolithic",
    data: Data = paths.DATA_DEFAULT,
    port: Annotated[int | None, typer.Option(help="TCP port on loopback; a free one when not given.")] = None,
) -> None:
    """Start a private server on a data folder, creating it when it is new."""
    server_cmd.up(profile, data, port)


@app.command()
def down(
    data: Data = paths.DATA_DEFAULT,
    wipe: Annotated[bool, typer.Option("--wipe", help="Also delete the data folder.")] = False,
) -> None:
    """Stop the server of a data folder."""
    server_cmd.down(data, wipe)


@app.command()
def status(
    data: Data = paths.DATA_DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show whether the server runs, where, and the engine's status variables. Exit code 3: not running."""
    raise typer.Exit(server_cmd.status(data, as_json))


@app.command()
def sql(
    execute: Annotated[str | None, typer.Option("-e", "--execute", help="Statements to run.")] = None,
    data: Data = paths.DATA_DEFAULT,
    database: Annotated[str, typer.Option("--database", "-D")] = "test",
) -> None:
    """Open the SQL client on the server, or run statements."""
    server_cmd.sql(data, execute, database)


@app.command()
def demo(
    data: Data = paths.DATA_DEFAULT,
    port: Annotated[int | None, typer.Option(help="TCP port on loopback; a free one when not given.")] = None,
    seconds: Annotated[float, typer.Option(help="How long the clients work before kill -9.")] = 8,
    engine: Annotated[str, typer.Option(help="Engine of the demo's tables.")] = "STRATA",
    build_first: Annotated[bool, typer.Option("--build/--no-build", help="Build the plugin first.")] = True,
) -> None:
    """Build, start, work, kill -9, restart, and prove that nothing acknowledged was lost."""
    demo_cmd.demo(data, port, seconds, engine, build_first)


@app.command()
def test(
    quick: Annotated[bool, typer.Option("--quick", help="Release build, checks, unit tests, a short end-to-end.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Also a long campaign and MariaDB's own suites.")] = False,
    crash: Annotated[bool, typer.Option("--crash", help="Only the crash campaign.")] = False,
    runs: Annotated[int, typer.Option(help="With --crash: how many runs.")] = 50,
    seed: Annotated[int, typer.Option(help="With --crash: the first run's seed.")] = 1,
    power_loss: Annotated[bool, typer.Option("--power-loss", help="With --crash: in every run, not one in three.")] = False,
    fault: Annotated[str | None, typer.Option(help="With --crash: strike only this fault point.")] = None,
    engine: Annotated[str, typer.Option(help="With --crash: the engine under test.")] = "STRATA",
) -> None:
    """Build and run the tests. The last line is `N passed, M failed`."""
    if crash:
        extra = ["--engine", engine] + (["--power-loss"] if power_loss else [])
        raise typer.Exit(test_cmd.crash(runs, seed, extra + (["--fault", fault] if fault else [])))
    chosen = test_cmd.quick_stages() if quick else test_cmd.all_stages() if everything else test_cmd.usual_stages()
    raise typer.Exit(test_cmd.test(chosen))


@app.command("format")
def format_sources() -> None:
    """Bring C++ (clang-format) and Python (ruff) sources into the project's format."""
    stages.format_sources()


@app.command()
def bench(
    workload: Annotated[Workload, typer.Option(help="sysbench workload.")] = Workload.read_write,
    threads: Annotated[int, typer.Option()] = 8,
    seconds: Annotated[int, typer.Option()] = 30,
    engine: Annotated[str, typer.Option(help="strata or innodb.")] = "strata",
    tables: Annotated[int, typer.Option()] = 4,
    rows: Annotated[int, typer.Option(help="Rows per table.")] = 25_000,
) -> None:
    """Run sysbench against a private server."""
    bench_cmd.bench(workload, threads, seconds, engine, tables, rows)


def main() -> None:
    try:
        app(prog_name="./strata")
    except StrataError as error:
        errors.print(f"[red]error:[/] {error}", soft_wrap=True)
        sys.exit(1)
