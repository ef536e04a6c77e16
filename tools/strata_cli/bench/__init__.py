"""`./strata bench`: measurements against a private server of their own, STRATA beside InnoDB.

comparison.py   two engines in turns, medians, ratios, spread
report.py       the table, --json, --plot
results.py      the files of --json: a row a line, of a commit
performance.py  the tables of docs/performance.md, made from such files
servers.py      the server a comparison runs on: both engines, equal memory
profiles.py     deployment profiles in turns: monolithic beside the cluster ones
sysbench.py     the oltp workloads, loading, building an index
galera.py       several servers that write the same tables: fusion beside Galera
references.py   foreign keys: children inserted, cascades
tpcc.py         TPC-C by go-tpc (a Go module pinned in bench/tpcc)
footprint.py    what work costs beside time: log, disk, memory, CPU, restart, warm-up
micro.py        the kernel's modules one by one (bench/micro), beside what the machine allows
process.py      a process's CPU and memory, files' blocks
far_memory.py   unmodified DuckDB on far memory (tpch_in_duckdb.py), beside all of it local
tpch.py         TPC-H: loading, the 22 queries (bench/tpch), the engines' answers compared
"""
