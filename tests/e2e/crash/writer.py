"""python -m crash.writer: the demo's client, a process of its own, so that its ledger is no part of the server's fate.

Runs bank transfers and inserts until the server is gone or the time is over.
"""

import argparse
import random
import sys
from pathlib import Path
from typing import Any

import pymysql
from strata_cli.waiting import wait_until

from . import bank, events
from .ledger import Ledger
from .worker import Worker


class SocketConnector:
    def __init__(self, socket: str) -> None:
        self._socket = socket

    def connect(self, **options: Any) -> "pymysql.connections.Connection[Any]":
        return pymysql.connect(user="root", unix_socket=self._socket, charset="utf8mb4", **options)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--database", required=True)
    parser.add_argument("--ledgers", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    server = SocketConnector(arguments.socket)
    bank_ledger, events_ledger = Ledger(arguments.ledgers / "bank"), Ledger(arguments.ledgers / "events")
    workers: list[Worker] = []
    for number in range(1, 5):
        workers.append(bank.BankWorker(server, arguments.database, number, random.Random(number), bank_ledger))
        workers.append(events.EventsWorker(server, arguments.database, number, random.Random(number), events_ledger))
    for worker in workers:
        worker.start()
    wait_until(lambda: not any(worker.is_alive() for worker in workers), arguments.seconds)
    for worker in workers:
        worker.halt()
        worker.join()
    failures = [worker.failure for worker in workers if worker.failure]
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
