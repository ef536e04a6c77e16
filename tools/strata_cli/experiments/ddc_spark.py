"""Figure 10 of ddc.py's paper: what a distributed database pays for being on three machines instead of one, to compare with what
far memory costs. Spark SQL in one process with three threads, and in three processes with one thread each, with as much memory
together, which send each other what they need over the network interface of the machine. Vertica is not to be had: it is sold,
and its free edition is in no registry that a checkout can fetch from."""

import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import mean

from .. import farmem_postgres, farmem_spark
from ..bench import tpch
from ..shell import StrataError, console
from .ddc_result import Plan, Result, Row, Said
from .ddc_sessions import ALL_LOCAL as LOCAL
from .openaurora import Finding

DISTRIBUTED = "distributed"
THREE = "three processes"
MASTERS = {LOCAL: "local[3]", THREE: "local-cluster[3,1,512]"}
TIMEOUT_S = 3600.0


def findings(result: Result) -> list[Finding | Said]:
    names = [name for name in result.names() if result.has(THREE, name) and result.has(LOCAL, name)]
    vertica = Said("Vertica, three machines to one", "2.3 times on average", "not measured, Vertica is not obtainable", False)
    return [
        Finding("Spark, three processes to one, on average", 1.2, mean(result.slowdown(THREE, name) for name in names)),
        vertica,
    ]


def run(plan: Plan, keep: Callable[[Result], None]) -> Result:
    farmem_spark.fetch(console.print)
    data = tpch.generated(plan.scale)
    result = Result(plan, sum((data / f"{table}.tbl").stat().st_size for table in tpch.TABLES))
    answers: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="strata-spark-") as made:
        folder = Path(made)
        (folder / "schema.sql").write_text((tpch.SOURCES / "schema.sql").read_text())
        files = [folder / f"Q{number}.sql" for number in plan.queries]
        for number, file in zip(plan.queries, files, strict=True):
            text = farmem_postgres.tpch_query(number, plan.scale)
            file.write_text(text.rstrip().rstrip(";"))
        for setup, master in MASTERS.items():
            with console.status(f"{plan.name}: {setup}"):
                command = farmem_spark.command(master, data, folder / "tables", [str(file) for file in files])
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=TIMEOUT_S, env=farmem_spark.environment(), cwd=folder
                )
            if done.returncode != 0:
                raise StrataError(f"Spark, {setup}: {done.stderr[-2000:]}")
            for name, seconds, rows, digest in map(str.split, done.stdout.splitlines()):
                if answers.setdefault(name, f"{rows} {digest}") != f"{rows} {digest}":
                    raise StrataError(f"{name}, {setup}: another answer than before")
                result.rows.append(Row(setup, name, float(seconds)))
            keep(result)
    return result
