"""`./strata compute move`: the database goes to another compute node, with other cores and another buffer pool, in seconds.

The new server is started while the old one serves: it waits for the log until that one lets go. Stopped cleanly, the old one
hands back all it has changed; with a memory node behind it to that one's pool, so the new one has nothing to redo and finds it
warm. The new one listens on the old one's port, and the cluster's socket leads to it: whoever connects again is there.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pymysql

from . import cpu_share, paths
from .cluster import COMPUTE_STOP_TIMEOUT_S, Cluster, Wishes
from .server import Server
from .shell import StrataError
from .system_tables import share_system_tables
from .waiting import wait_until

WAITING = "waiting until that node leaves"  # src/clients/compute/compute_node.cc
REFUSED = "[ERROR] STRATA: "
PREPARE_TIMEOUT_S = 30.0
LOOK_S = 0.005
PROBE_TIMEOUT_S = 5.0
PROBE = "SELECT COUNT(*) FROM mysql.gtid_slave_pos"  # A table of the database: only its writer answers.


@dataclass
class Move:
    """What became of it."""

    old: str
    new: str
    folder: str
    port: int
    cores: float
    buffer_pool: str
    gap_s: float  # from the last answer of the old one to the first of the new one
    stop_s: float
    prepare_s: float


def move(cluster: Cluster, folder: Path | None, port: int | None, wishes: Wishes, say: Callable[[str], None]) -> Move:
    serving = cluster.serving_compute()
    if serving is None:
        raise StrataError("no compute node runs, so there is none to move; start one: ./strata up")
    cpu_share.check(wishes.cores or 0.0)
    old = cluster.computes[serving]
    target = (folder or cluster.spare_compute_folder()).resolve()
    if target == old.data:
        raise StrataError(f"{serving} is in {paths.relative(target)} already; choose another folder, or leave --data away")
    if any(standby.server.data == target for standby in cluster.standbys.values()):
        raise StrataError(f"in {paths.relative(target)} a compute node stands by; choose another folder, or leave --data away")
    before = cluster.settings()
    name, is_new = cluster.admit_compute(target)
    new = cluster.computes[name]
    began = time.monotonic()
    try:
        cluster.set_compute(wishes.buffer_pool, wishes.cores)
        _launch(cluster, new, port or old.settings().port)
    except BaseException:
        new.kill()
        cluster.set_compute(before.buffer_pool, before.cores)
        if is_new:
            cluster.forget_compute(target)
        raise
    prepare_s = time.monotonic() - began
    say(f"  {name:<10} waits for the database (after {prepare_s:.1f} s); {serving} stops")
    with _watched(old, new) as watch:
        stopping = time.monotonic()
        if new.socket.is_symlink():  # A server cannot make its socket where there is a link that leads nowhere.
            new.socket.unlink()
        old.stop(COMPUTE_STOP_TIMEOUT_S)
        stop_s = time.monotonic() - stopping
        try:
            _wait_serving(cluster, new)
        except BaseException:
            say(f"  {name:<10} did not take over; {serving} is started again")
            new.kill()
            cluster.set_compute(before.buffer_pool, before.cores)
            cluster.start_compute(serving)
            cluster.lead_to(old)
            raise
        gap_s = watch.gap_s()
    if (cores := cluster.settings().cores) and (pid := new.pid()) is not None:
        new.use_cores(pid, cores)  # Not before: with few of them it would take over slowly.
    cluster.lead_to(new)
    share_system_tables(new)
    settings = cluster.settings()
    return Move(serving, name, str(target), new.settings().port, settings.cores, settings.buffer_pool, gap_s, stop_s, prepare_s)


def _launch(cluster: Cluster, new: Server, port: int) -> None:
    """Until it waits for the log."""
    new.launch(replace(cluster.compute_settings(new.name, port), cores=0.0), keep_socket=True)

    def waits() -> bool:
        if end := new.ended():
            raise StrataError(f"{new.name} ended while starting ({end}):\n{new.log_tail()}")
        if refused := next((line for line in new.log_lines() if REFUSED in line), None):
            raise StrataError(f"{new.name} cannot serve the database, and nothing was changed: {refused.split(REFUSED)[1]}")
        return any(WAITING in line for line in new.log_lines())

    if not wait_until(waits, PREPARE_TIMEOUT_S, LOOK_S):
        about = f"the end of {new.log}:\n{new.log_tail()}"
        raise StrataError(f"{new.name} did not get so far as to take over, and nothing was changed; {about}")


def _wait_serving(cluster: Cluster, new: Server) -> None:
    """It may have given up while the old one took long to stop: then once more."""
    for again in (True, False):
        try:
            new.wait_ready()
            if new.has_strata():
                return
            said = "\n".join([line for line in new.log_lines() if "STRATA: " in line][-12:])
        except StrataError as error:
            said = str(error)
        if not again:
            raise StrataError(f"{new.name} does not serve the database; from {new.log}:\n{said}")
        port = new.settings().port
        new.kill()
        new.launch(cluster.compute_settings(new.name, port))


class _Watch:
    """Asks first the old, then the new server, over and over."""

    def __init__(self, old: Server, new: Server) -> None:
        self._servers = [old, new]
        self._last = time.monotonic()
        self._first: float | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        old, new = self._servers
        self._ask(old, lambda: self._stop.is_set())
        self._last = self._answered
        while self._first is None and not self._stop.is_set():
            self._ask(new, lambda: True)
            if self._answered > self._last:
                self._first = self._answered
            self._stop.wait(LOOK_S)

    def _ask(self, server: Server, enough: Callable[[], bool]) -> None:
        """Until it fails, or it is enough."""
        self._answered = self._last
        with contextlib.suppress(pymysql.MySQLError, OSError):
            connection = server.connect(connect_timeout=2, read_timeout=PROBE_TIMEOUT_S, autocommit=True)
            with contextlib.closing(connection), connection.cursor() as cursor:
                while True:
                    cursor.execute(PROBE)
                    self._answered = time.monotonic()
                    if enough() or self._stop.wait(LOOK_S):
                        return

    def gap_s(self) -> float:
        if not wait_until(lambda: self._first is not None, PROBE_TIMEOUT_S, LOOK_S) or self._first is None:
            raise StrataError(f"{self._servers[1].name} does not answer; see {self._servers[1].log}")
        return self._first - self._last

    def end(self) -> None:
        self._stop.set()
        self._thread.join(2 * PROBE_TIMEOUT_S)


@contextlib.contextmanager
def _watched(old: Server, new: Server) -> Iterator[_Watch]:
    watch = _Watch(old, new)
    try:
        yield watch
    finally:
        watch.end()
