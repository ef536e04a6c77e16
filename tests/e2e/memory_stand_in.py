"""Obeys what ./strata expects of strata-memnode, and keeps no pages: as storage_stand_in.py, whose words it understands.

memory_stand_in.py FOLDER --name memory-1 ...
"""

import argparse
from pathlib import Path

from storage_stand_in import serve

SLOTS = {"all": 1000, "free": 90, "filling": 10, "clean": 870, "dirty": 15, "writing": 10, "written": 5, "leaving": 0}
STATUS = {"pools": [{"stream": 1, "attached": True, "checkpoint_lsn": "5000", "slots": SLOTS}]}
POOL_BYTES = 1 << 16


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    for flag in ("name", "data", "http", "registry", "cluster", "secret-file", "memory"):
        parser.add_argument(f"--{flag}", required=True)
    parser.add_argument("--pools", required=True, type=Path)
    parser.add_argument("--listen", required=True, action="append")
    given = parser.parse_args()
    socket, given.listen = given.listen
    assert socket.startswith("unix:/")
    (given.pools / "pool-1").write_bytes(bytes(POOL_BYTES))
    serve(given, STATUS)


if __name__ == "__main__":
    main()
