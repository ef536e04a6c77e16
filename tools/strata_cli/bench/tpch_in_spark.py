"""TPC-H in Spark SQL, as a program of its own.

    python3 tpch_in_spark.py MASTER DATA TABLES FILE...

MASTER as Spark names it: local[3] is one process, local-cluster[3,1,512] three. DATA has tpchgen-cli's *.tbl, TABLES is where
they are kept as Spark reads them, made when they are not there. Each FILE has one query, which is asked twice; prints for each:
its name, seconds of the second time, rows, a digest of the rows.
"""

import hashlib
import re
import sys
import time
from pathlib import Path
from typing import Any

KINDS = {"INT": "INT", "BIGINT": "BIGINT", "DATE": "DATE"}


def columns_of(schema: str, table: str) -> str:
    match = re.search(rf"CREATE TABLE {table} \((.*?)\n\);", schema, re.DOTALL)
    assert match is not None
    found = re.findall(r"^\s+(\w+)\s+(INT|BIGINT|DATE|DECIMAL\(\d+, \d+\)|\w*CHAR\(\d+\)) NOT NULL", match[1], re.MULTILINE)
    return ", ".join(f"{name} {kind if kind in KINDS or kind.startswith('DECIMAL') else 'STRING'}" for name, kind in found)


def main(master: str, data: Path, tables: Path, queries: list[Path]) -> None:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.warehouse.dir": str(tables / "warehouse"),
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.master(master).appName("tpch").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    schema = (queries[0].parent / "schema.sql").read_text()
    for file in sorted(data.glob("*.tbl")):
        kept = tables / file.stem
        if not kept.exists():
            read = spark.read.csv(str(file), sep="|", schema=columns_of(schema, file.stem) + ", rest STRING")
            read.drop("rest").repartition(3).write.parquet(str(kept))
        spark.read.parquet(str(kept)).createOrReplaceTempView(file.stem)
    for query in queries:
        for _ in range(2):
            started = time.monotonic()
            rows = spark.sql(query.read_text()).collect()
            seconds = time.monotonic() - started
        said = "\n".join(repr(tuple(row)) for row in rows)
        print(query.stem, f"{seconds:.3f}", len(rows), hashlib.sha256(said.encode()).hexdigest()[:16], flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), [Path(file) for file in sys.argv[4:]])
