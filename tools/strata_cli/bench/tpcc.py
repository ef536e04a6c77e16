"""TPC-C by go-tpc, a Go module pinned with its checksums in bench/tpcc and built there."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from .. import paths, setup_cmd
from ..server import Server
from ..shell import Outcome, StrataError, console, run_logged
from . import report
from .comparison import INNODB, STRATA, Row, Sample, in_turns
from .servers import IN_MEMORY, bench_server, database

DRIVER = paths.BUILD / "bench" / "go-tpc"
MODULE = "github.com/pingcap/go-tpc/cmd/go-tpc"
USER = "bench"


# Condition 12 asks for every customer's payments: without this index it reads a warehouse's, or the whole table, for each.
CHECK_INDEX = "ADD INDEX payments_of_customer (h_c_w_id, h_c_d_id, h_c_id)"


@dataclass(frozen=True)
class Plan:
    engines: tuple[str, ...] = (STRATA, INNODB)
    warehouses: int = 4
    threads: int = 8
    seconds: int = 30
    rounds: int = 5
    check: bool = False

    def settings(self) -> dict[str, object]:
        return {"warehouses": self.warehouses, "rounds": self.rounds, "seconds": self.seconds}


def run(plan: Plan, json_file: Path | None = None, plot_file: Path | None = None) -> None:
    setup_cmd.ensure_setup()
    build_driver()
    with bench_server(IN_MEMORY, plan.engines) as server:
        server.query(f"CREATE USER {USER}@'127.0.0.1'")
        server.query(f"GRANT ALL ON *.* TO {USER}@'127.0.0.1'")
        driver = Driver(server, plan)
        for engine in plan.engines:
            with console.status(f"loading {plan.warehouses} warehouses into {engine}"):
                driver.run(engine, 7200, "prepare", "--no-check")
        row = Row(f"tpcc {plan.warehouses}", plan.threads, "memory", "new orders/min")
        for engine in plan.engines:
            driver.measure(engine, 5)
        in_turns(row, plan.engines, plan.rounds, lambda engine: driver.measure(engine, plan.seconds))
        if plan.check:
            for engine in plan.engines:
                with console.status(f"checking {engine}: takes long"):
                    server.query(f"ALTER TABLE {database(engine)}.history {CHECK_INDEX}", read_timeout=3600)
                    driver.run(engine, 4 * 3600, "check")
            console.print("go-tpc found both consistent" if len(plan.engines) > 1 else "go-tpc found it consistent")
    report.publish([row], plan.settings(), json_file, plot_file)


class Driver:
    def __init__(self, server: Server, plan: Plan) -> None:
        self._server, self._plan = server, plan

    def measure(self, engine: str, seconds: int) -> Sample:
        # --ignore-error: the driver cancels what runs when the time is up and counts that as errors.
        return parse(self.run(engine, seconds + 120, "run", f"--time={seconds}s", "--ignore-error"), self._plan.threads)

    def run(self, engine: str, timeout_s: float, action: str, *more: str) -> Outcome:
        command = [
            *(str(DRIVER), "tpcc", action, "-H", "127.0.0.1", "-P", str(self._server.settings().port), "-U", USER),
            *("-D", database(engine), "--conn-params", f"default_storage_engine={engine}"),
            *("--warehouses", str(self._plan.warehouses), "-T", str(self._plan.threads), *more),
        ]
        outcome = run_logged(command, paths.LOGS / f"bench-tpcc-{action}-{engine}.log", timeout_s=timeout_s)
        if not outcome.ok:
            raise StrataError(f"go-tpc failed ({paths.relative(outcome.log)}):\n{outcome.tail(12)}")
        return outcome


def parse(outcome: Outcome, threads: int) -> Sample:
    text = outcome.log.read_text()
    rate = re.search(r"^tpmC: ([\d.]+)", text, re.MULTILINE)
    p99 = re.search(r"^\[Summary\] NEW_ORDER - .*? 99th\(ms\): ([\d.]+)", text, re.MULTILINE)
    if not rate:
        raise StrataError(f"go-tpc printed no rate ({paths.relative(outcome.log)})")
    failed = sum(int(count) for count in re.findall(r"^\[Summary\] \w+_ERR - .*? Count: (\d+)", text, re.MULTILINE))
    if failed > 2 * threads:  # Each thread may have one transaction cancelled at the end, and its rollback with it.
        raise StrataError(f"{failed} transactions failed ({paths.relative(outcome.log)})")
    return Sample(float(rate[1]), float(p99[1]) if p99 else None)


def build_driver() -> None:
    if DRIVER.exists():
        return
    if not shutil.which("go"):
        raise StrataError("TPC-C needs the Go compiler (1.21 or later): install golang from your distribution, then again")
    with console.status("building go-tpc"):
        # The checksums are committed in go.sum; no checksum database is asked.
        outcome = run_logged(
            ["go", "build", "-o", DRIVER, MODULE],
            paths.LOGS / "bench-go-build.log",
            env={"GOSUMDB": "off", "GOFLAGS": "-mod=readonly"},
            cwd=paths.ROOT / "bench" / "tpcc",
            timeout_s=1800,
        )
    if not outcome.ok:
        raise StrataError(f"go-tpc did not build ({paths.relative(outcome.log)}):\n{outcome.tail(12)}")
