"""python3 -m replication --rounds 6 --seed 1 (from `./strata test --replication 6`): the directions in turns."""

import argparse
import sys

from strata_cli import paths
from strata_cli.shell import end_cleanly_on_sigterm

from .run import PORT, Plan, run

DIRECTIONS = (("InnoDB", "STRATA"), ("STRATA", "InnoDB"), ("STRATA", "STRATA"))


def main() -> int:
    end_cleanly_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, default=PORT, help="both servers listen on the first free ones from here on")
    arguments = parser.parse_args()
    failed = 0
    for number in range(arguments.rounds):
        seed = arguments.seed + number
        primary, replica = DIRECTIONS[number % len(DIRECTIONS)]
        positions_in = ("STRATA", "InnoDB")[number // len(DIRECTIONS) % 2]
        plan = Plan(primary, replica, arguments.kills, 1.5, seed, positions_in, arguments.port)
        problems = run(paths.BUILD / "replication", plan)
        failed += bool(problems)
        print(f"{plan}: {'; '.join(problems) or 'equal'}", flush=True)
    print(f"{arguments.rounds - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
