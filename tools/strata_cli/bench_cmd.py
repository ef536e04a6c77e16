"""`./strata bench`: sysbench against a private server of its own."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from . import paths, setup_cmd
from .server import Server, Settings, choose_port
from .shell import Outcome, StrataError, console, run_logged

DATABASE = "bench"
PORT = 33406


class Workload(StrEnum):
    read_only = "oltp_read_only"
    point_select = "oltp_point_select"
    read_write = "oltp_read_write"
    write_only = "oltp_write_only"
    insert = "oltp_insert"
    delete = "oltp_delete"
    update_index = "oltp_update_index"
    update_non_index = "oltp_update_non_index"


def bench(workload: Workload, threads: int, seconds: int, engine: str, tables: int, rows: int) -> None:
    setup_cmd.ensure_setup()
    with _fresh_server(engine) as server:
        common = _common(server, workload, threads, engine, tables, rows)
        console.print(f"{workload}, {engine}: {tables} tables of {rows:,} rows, {threads} threads, {seconds} s")
        with console.status("preparing"):
            _sysbench([*common, "prepare"], "prepare", 3600)
        with console.status("running"):
            _report(_run(common, workload, seconds))


def sweep(engine: str, seconds: int, threads: int = 8, rows: int = 5_000) -> dict[Workload, str]:
    """Every workload after one another, each on tables of its own: empty text, or what went wrong."""
    problems: dict[Workload, str] = {}
    with _fresh_server(engine) as server:
        for workload in Workload:
            common = _common(server, workload, threads, engine, 2, rows)
            try:
                _sysbench([*common, "prepare"], f"prepare-{workload}", 600)
                _run(common, workload, seconds)
                _sysbench([*common, "cleanup"], f"cleanup-{workload}", 600)
                problems[workload] = ""
            except StrataError as error:
                problems[workload] = str(error)
    return problems


@contextmanager
def _fresh_server(engine: str) -> Iterator[Server]:
    if engine.upper() == "STRATA" and not paths.plugin_path("release").exists():
        raise StrataError("ha_strata.so is not built; run ./strata build")
    server = Server(paths.BUILD / "bench" / "data")
    server.stop()
    shutil.rmtree(server.data, ignore_errors=True)
    try:
        server.start(Settings(port=choose_port(None, PORT), engine=engine))
        if engine.upper() == "STRATA" and not server.has_strata():
            raise StrataError(f"the server runs without STRATA; see {paths.relative(server.log)}")
        server.query(f"CREATE DATABASE {DATABASE}")
        yield server
    finally:
        server.stop()


def _run(common: list[str], workload: Workload, seconds: int) -> Outcome:
    return _sysbench([*common, f"--time={seconds}", "--report-interval=5", "run"], str(workload), seconds + 300)


def _common(server: Server, workload: Workload, threads: int, engine: str, tables: int, rows: int) -> list[str]:
    return [
        "sysbench",
        str(workload),
        "--db-driver=mysql",
        f"--mysql-socket={server.socket}",
        "--mysql-user=root",
        f"--mysql-db={DATABASE}",
        f"--mysql-storage-engine={engine}",
        f"--threads={threads}",
        f"--tables={tables}",
        f"--table-size={rows}",
    ]


def _sysbench(command: list[str], name: str, timeout_s: float) -> Outcome:
    outcome = run_logged(command, _log(name), timeout_s=timeout_s)
    if not outcome.ok:
        raise StrataError(f"sysbench failed ({paths.relative(outcome.log)}):\n{outcome.tail(12)}")
    return outcome


def _log(name: str) -> Path:
    return paths.LOGS / f"bench-{name}.log"


def _report(outcome: Outcome) -> None:
    text = outcome.log.read_text()
    for label, pattern in (
        ("transactions per second", r"transactions:\s+\d+\s+\(([\d.]+) per sec"),
        ("queries per second", r"queries:\s+\d+\s+\(([\d.]+) per sec"),
        ("ignored errors", r"ignored errors:\s+(\d+)"),
        ("latency, average ms", r"avg:\s+([\d.]+)"),
        ("latency, 95th percentile ms", r"95th percentile:\s+([\d.]+)"),
    ):
        if match := re.search(pattern, text):
            console.print(f"  {label:<30} {match[1]}")
