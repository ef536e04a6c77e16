"""TPC-H in DuckDB's memory, as a program of its own: for farmem, which runs it on remote memory.

    python3 tpch_in_duckdb.py DATA SCHEMA QUERIES SCALE 1,4,6

DATA has tpchgen-cli's *.tbl. Prints for each query: its number, seconds, rows, a digest of the rows; they are in an order
that each query asks for. It knows nothing of far memory.
"""

import hashlib
import re
import sys
import time
from pathlib import Path

import duckdb

MEMORY_LIMIT = "8GB"


def columns_of(schema: str) -> dict[str, list[str]]:
    """Of each table the lines that define columns."""
    tables: dict[str, list[str]] = {}
    for match in re.finditer(r"CREATE TABLE (\w+) \((.*?)\n\);", schema, re.DOTALL):
        lines = (line.strip().rstrip(",") for line in match[2].splitlines())
        tables[match[1]] = [line for line in lines if line and not line.startswith(("PRIMARY", "INDEX", "--"))]
    return tables


def load(database: duckdb.DuckDBPyConnection, data: Path, schema: Path) -> None:
    for table, columns in columns_of(schema.read_text()).items():
        names = [column.split()[0] for column in columns]
        database.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
        source = f"read_csv('{data / table}.tbl', delim='|', header=false, quote='', all_varchar=true, names={[*names, 'rest']})"
        database.execute(f"INSERT INTO {table} SELECT {', '.join(names)} FROM {source}")


def main(data: Path, schema: Path, queries: Path, scale: float, numbers: list[int]) -> None:
    # It would take the limit of a program that swaps for all the memory there is, and go without what does not fit.
    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": 2,
        "memory_limit": MEMORY_LIMIT,
        "autoinstall_known_extensions": False,
    }
    database = duckdb.connect(":memory:", config=settings)
    load(database, data, schema)
    for number in numbers:
        text = (queries / f"{number:02}.sql").read_text().replace(":fraction", f"{0.0001 / scale:.10f}")
        started = time.monotonic()
        for statement in filter(str.strip, text.split(";")):
            rows = database.execute(statement).fetchall()
        digest = hashlib.sha256(repr(rows).encode()).hexdigest()[:16]
        print(number, f"{time.monotonic() - started:.3f}", len(rows), digest, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]), [int(n) for n in sys.argv[5].split(",")])
