"""Obeys what ./strata expects of strata-memnode, and keeps no pages: as storage_stand_in.py, whose words it understands.

memory_stand_in.py FOLDER --name memory-1 ...
"""

import argparse
from pathlib import Path

from storage_stand_in import serve

STATUS = {"pools": [{"stream": 1, "slots": 1000, "used": 900, "dirty": 30, "checkpoint": "5000"}]}
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
