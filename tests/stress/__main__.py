"""python -m stress --seconds N --seed S [--kills]: statements of every kind on three servers; ends with `N passed, M failed`."""

import argparse
import sys
import time

from isolation.faults import EVERY_KIND
from strata_cli import paths
from strata_cli.shell import end_cleanly_on_sigterm

from .campaign import Plan, Result, Run

WILD, WILD_WITH_KILLS, TELLERS = 9, 5, 3
RUN_SECONDS_MOST = 300.0  # of one cluster; a longer run has several, each with the next seed


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of work by clients, all runs together")
    parser.add_argument("--seed", type=int, default=1, help="of the first run; each next one has the next number")
    parser.add_argument("--kills", action="store_true", help="kill servers and nodes, or let them stand still, meanwhile")
    parser.add_argument("--fault-kinds", default=",".join(EVERY_KIND), help="with --kills: that they are drawn from")
    parser.add_argument("--run-seconds", type=float, default=RUN_SECONDS_MOST, help="of one cluster, at most")
    parser.add_argument("--clients", type=int, default=0, help="of the catalogue; without, 9, or 5 with --kills")
    parser.add_argument("--tellers", type=int, default=TELLERS, help="clients that transfer money, which is counted")
    parser.add_argument("--stacks", action="store_true", help="gdb shows all threads when a statement takes too long")
    parser.add_argument("--keep", action="store_true", help="the data of the clusters, not only their logs")
    return parser.parse_args()


def plan_of(arguments: argparse.Namespace, seed: int, seconds: float) -> Plan:
    wild = arguments.clients or (WILD_WITH_KILLS if arguments.kills else WILD)
    kinds = arguments.fault_kinds.split(",")
    return Plan(seed, seconds, arguments.kills, wild, arguments.tellers, arguments.stacks, arguments.keep, kinds)


def tell(plan: Plan, run: Run, result: Result, seconds: float) -> None:
    verdict = "ok" if not result.failed else "FAILED"
    print(f"seed {plan.seed}: {verdict}, {'with' if plan.kills else 'no'} kills, {result.said} ({seconds:.0f} s)", flush=True)
    if not result.failed:
        return
    for kind, count in result.kinds.most_common():
        print(f"  {count} times: {kind}")
    for problem in result.problems:
        print("  " + problem.replace("\n", "\n  "))
    kills = " --kills" if plan.kills else ""
    print(f"  all statements: {paths.relative(run.folder / 'journal.log')}; logs beside it")
    print(f"  again: ./strata test --stress{kills} --seed {plan.seed} --seconds {plan.seconds:.0f}", flush=True)


def main() -> int:
    end_cleanly_on_sigterm()
    arguments = parse()
    passed = failed = 0
    left, seed = arguments.seconds, arguments.seed
    while left > 0:
        plan = plan_of(arguments, seed, min(left, arguments.run_seconds))
        began = time.monotonic()
        run = Run(plan)
        result = run.run()
        tell(plan, run, result, time.monotonic() - began)
        passed, failed = passed + result.passed, failed + result.failed
        left, seed = left - plan.seconds, seed + 1
    print(f"{passed} passed, {failed} failed", flush=True)
    return 0 if failed == 0 and passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
