"""python3 -m soak --seconds 1200 --seed 1 (from `./strata test --soak`)."""

import argparse
import shutil
import sys
import time

from strata_cli import paths
from strata_cli.bench.comparison import STRATA
from strata_cli.bench.servers import MIB, Memory, database
from strata_cli.bench.sysbench import Bench
from strata_cli.server import Server, Settings, choose_port
from strata_cli.shell import end_cleanly_on_sigterm
from strata_cli.waiting import wait_until

from .load import CONNECTIONS, DATABASE, TABLES, Crowd, Load, Reader, Sysbench, make_table
from .samples import HISTORY_LEFT_MAX, Sample, judge, take, write

SAMPLE_EVERY_S = 5.0
DRAIN_S = 60.0
# A pool smaller than the data, so that it is full at once and memory that grows later is no cache.
MEMORY = Memory(pool_bytes=32 * MIB, log_bytes=64 * MIB)
SYSBENCH_TABLES, SYSBENCH_ROWS = 4, 50_000


def main() -> int:
    end_cleanly_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", default=STRATA, help="another one only has its memory judged")
    arguments = parser.parse_args()
    server = Server(paths.BUILD / "soak" / "data")
    server.kill()
    shutil.rmtree(server.data, ignore_errors=True)
    extra = [*MEMORY.options(), f"--max-connections={CONNECTIONS + 100}", f"--table-open-cache={TABLES // 2}"]
    try:
        server.start(Settings(port=choose_port(None, 23606), engine=arguments.engine), extra=extra)
        problems = soak(server, arguments.engine, arguments.seconds, arguments.seed)
    finally:
        server.kill()
    for problem in problems:
        print(problem)
    print(f"{0 if problems else 1} passed, {1 if problems else 0} failed")
    if not problems:
        shutil.rmtree(server.data, ignore_errors=True)
    return 1 if problems else 0


def soak(server: Server, engine: str, seconds: float, seed: int) -> list[str]:
    server.query(f"CREATE DATABASE {DATABASE}")
    server.query(f"CREATE DATABASE {database(engine)}")
    for number in range(TABLES):
        make_table(server, engine, number)
    bench = Bench(server, SYSBENCH_TABLES, SYSBENCH_ROWS)
    bench.load(engine)
    loads: list[Load] = [Sysbench(server, seed, engine, bench), Crowd(server, seed, engine), Reader(server, seed, engine)]
    for load in loads:
        load.start()
    samples = watch(server, loads, seconds)
    for load in loads:
        load.halt.set()
    for load in loads:
        load.join(timeout=120)
    problems = [load.failure for load in loads if load.failure] + [f"{load.name} hangs" for load in loads if load.is_alive()]
    print(", ".join(f"{load.name}: {load.done} rounds" for load in loads))
    if problems:
        return problems
    write(paths.LOGS / f"soak-{seed}.json", samples)
    return judge(samples, seconds / 4) + drain(server) + check(server, engine)


def watch(server: Server, loads: list[Load], seconds: float) -> list[Sample]:
    started = time.monotonic()
    samples: list[Sample] = []
    while (at := time.monotonic() - started) < seconds and not any(load.failure for load in loads):
        samples.append(take(server, at))
        if len(samples) % 12 == 1:
            s = samples[-1]
            print(
                f"{s.at_s:6.0f} s  resident {s.resident_bytes / 1e6:6.1f} MB  undo file {s.undo_file_bytes / 1e6:6.1f} MB"
                f"  undo pages {s.undo_pages:6}  history {s.history:7}  log {s.log_bytes / 1e6:6.1f} MB  connections {s.threads}",
                flush=True,
            )
        wait_until(lambda: any(load.failure for load in loads), SAMPLE_EVERY_S, every_s=0.25)
    return samples


def drain(server: Server) -> list[str]:
    """Without readers everything old is purged."""
    if wait_until(lambda: take(server, 0).history <= HISTORY_LEFT_MAX, DRAIN_S, every_s=1):
        return []
    return [f"{take(server, 0).history} transactions are not purged {DRAIN_S:.0f} s after the load ended"]


def check(server: Server, engine: str) -> list[str]:
    tables = [f"{database(engine)}.sbtest{n + 1}" for n in range(SYSBENCH_TABLES)] + [
        f"{DATABASE}.t{n}" for n in range(0, TABLES, 50)
    ]
    verdicts = {table: server.query(f"CHECK TABLE {table} EXTENDED")[-1][-1] for table in tables}
    return [f"CHECK TABLE {table}: {verdict}" for table, verdict in verdicts.items() if verdict != "OK"]


if __name__ == "__main__":
    sys.exit(main())
