"""What is done to a cluster of several servers while clients work on it: drawn by seed, and each victim's in a thread of its own,
which also looks after it: who has ended, or may answer no more, is started again.

Histories leave the memory node alone: they are about what servers see of each other while all of them work.
"""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pymysql
from fusion_cluster import LEASE_S, Several
from pausing import pause
from strata_cli.process import BackgroundProcess
from strata_cli.server import Server
from strata_cli.several_health import is_fenced, well
from strata_cli.shell import StrataError
from strata_cli.storage_node import StorageNode
from strata_cli.waiting import wait_until

from .workload import DATABASE

# A table with a row for each server.
PULSE = f"{DATABASE}.pulse"
# How often a kind is drawn, and for how long it lasts.
SERVER_KILL, SERVER_PAUSE, SERVER_LONG_PAUSE = "server_kill", "server_pause", "server_long_pause"
RECOVERY_KILL = "recovery_kill"
STORAGE_KILL, STORAGE_PAUSE, ETCD_KILL, ALL_SERVERS = "storage_kill", "storage_pause", "etcd_kill", "all_servers"
MEMORY_KILL, SERVER_STOP = "memory_kill", "server_stop"
EVERY_KIND: dict[str, tuple[int, float, float]] = {
    SERVER_KILL: (5, 0.0, 6.0),
    RECOVERY_KILL: (2, 0.2, 1.5),  # its next life, too, after so long
    SERVER_PAUSE: (3, 0.2, 1.5),  # the others may wait; nothing else
    SERVER_LONG_PAUSE: (3, 2.5, 1.6 * LEASE_S),  # it is fenced meanwhile, by the memory node if not by the registry
    STORAGE_KILL: (2, 0.0, 6.0),
    STORAGE_PAUSE: (2, 0.5, 8.0),
    ETCD_KILL: (2, 0.0, 8.0),
    ALL_SERVERS: (1, 0.0, 3.0),
    MEMORY_KILL: (2, 0.0, 2.0),
    SERVER_STOP: (2, 0.0, 3.0),  # in order, under load
}
KINDS = tuple(kind for kind in EVERY_KIND if kind not in (MEMORY_KILL, SERVER_STOP))  # of a history
# No lease, or fenced; no quorum of the log; what the server makes of such errors in COMMIT and ROLLBACK, and
# of a statement that cannot be undone then.
REFUSALS = {1296, 1297, 1180, 1181, 1030, 4060}
NEVER_EXCUSED = ("should not have happened", "damaged")
NO_LEASE = "no lease"  # a machine may be too busy even without a fault
ENDED_HERE = "has ended here"  # it, or what it does in the place of another
SETTLE_S = 20.0  # for which errors are excused afterwards
WATCH_S = 0.2
START_TIMEOUT_S = 150.0
STOP_TIMEOUT_S = 90.0
WELL_TIMEOUT_S = 90.0
ABANDON_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Strike:
    kind: str
    at: float  # seconds from the history's begin
    seconds: float  # until it is over
    victim: int = 0  # which server, or storage node


def draw(seed: str, faults: int, seconds: float, servers: int, storage: int, kinds: Sequence[str] = KINDS) -> list[Strike]:
    rng = random.Random(f"faults {seed}")
    drawn = []
    for _ in range(faults):
        kind = rng.choices(kinds, [EVERY_KIND[kind][0] for kind in kinds])[0]
        _, shortest, longest = EVERY_KIND[kind]
        victim = rng.randrange(storage if kind in (STORAGE_KILL, STORAGE_PAUSE) else servers)
        drawn.append(Strike(kind, rng.uniform(0.1, 0.9) * seconds, rng.uniform(shortest, longest), victim))
    return sorted(drawn, key=lambda strike: strike.at)


class Faults:
    """Of one history. Thread-safe. `pulse`: a table that every server can read when all is well."""

    def __init__(self, cluster: Several, strikes: Sequence[Strike], pulse: str = PULSE) -> None:
        self.cluster = cluster
        self.pulse = pulse
        self.began = time.monotonic()
        self.ending = threading.Event()
        self.abandoned = threading.Event()
        self.problems: list[str] = []
        self.refused: Counter[str] = Counter()
        self.struck: Counter[str] = Counter()
        self.stalls = 0  # of the whole machine
        self.fenced = 0  # servers that were started again because of it
        self._latch = threading.Lock()
        self._in_force = 0
        self._excused_until = 0.0
        self._keepers: list[_Keeper] = [
            *(_ServerKeeper(self, server, _of_server(strikes, i)) for i, server in enumerate(cluster.servers)),
            _StorageKeeper(self, [strike for strike in strikes if strike.kind in (STORAGE_KILL, STORAGE_PAUSE)]),
            _MemoryKeeper(self, [strike for strike in strikes if strike.kind == MEMORY_KILL]),
            _EtcdKeeper(self, [strike for strike in strikes if strike.kind == ETCD_KILL]),
        ]

    def start(self) -> None:
        for keeper in self._keepers:
            keeper.start()

    def end(self) -> None:
        """Every process is there and well when this returns, or there is a problem. What has not begun yet does not."""
        self.ending.set()
        for keeper in self._keepers:
            keeper.join(START_TIMEOUT_S + WELL_TIMEOUT_S)
            if keeper.is_alive():
                self.note(f"{keeper.name} does not end")

    def abandon(self) -> None:
        """All that is there is about to be killed."""
        self.abandoned.set()
        self.ending.set()
        for keeper in self._keepers:
            if keeper.ident is not None:
                keeper.join(ABANDON_TIMEOUT_S)

    def over(self) -> bool:
        """All that was drawn has been done, and what was struck serves again."""
        return all(keeper.idle or not keeper.is_alive() for keeper in self._keepers)

    def note(self, problem: str) -> None:
        with self._latch:
            self.problems.append(problem)

    def disturbed(self) -> bool:
        """Something is struck, or was a moment ago."""
        with self._latch:
            return self._in_force > 0 or time.monotonic() < self._excused_until

    def excuses(self, number: int, text: str) -> bool:
        disturbed = self.disturbed()
        with self._latch:
            if number not in REFUSALS or any(words in text for words in NEVER_EXCUSED) or not (disturbed or NO_LEASE in text):
                return False
            self.refused[text[:100]] += 1
            return True

    def machine_stood_still(self, seconds: float) -> None:
        """Of itself: leases may have ended, though nothing was struck."""
        print(f"  the machine stood still for {seconds:.1f} s", flush=True)
        with self._latch:
            self.stalls += 1
            self._excused_until = time.monotonic() + SETTLE_S

    def begin_strike(self, strike: Strike, number: int) -> None:
        with self._latch:
            self._in_force += 1
            self.struck[strike.kind] += strike.kind != ALL_SERVERS or strike.victim == number

    def end_strike(self) -> None:
        with self._latch:
            self._in_force -= 1
            self._excused_until = time.monotonic() + SETTLE_S


def _of_server(strikes: Sequence[Strike], number: int) -> list[Strike]:
    mine = (SERVER_KILL, RECOVERY_KILL, SERVER_PAUSE, SERVER_LONG_PAUSE, SERVER_STOP)
    return [strike for strike in strikes if strike.kind == ALL_SERVERS or (strike.kind in mine and strike.victim == number)]


class _Keeper(threading.Thread):
    """Strikes its victims one after the other, and watches them in between."""

    def __init__(self, faults: Faults, name: str, strikes: Sequence[Strike]) -> None:
        super().__init__(name=f"keeper of {name}", daemon=True)
        self.faults = faults
        self.idle = False
        self.number = 0  # of a server
        self._strikes = list(strikes)

    def run(self) -> None:
        try:
            for strike in self._strikes:
                if not self._watch_until(lambda at=strike.at: time.monotonic() >= self.faults.began + at):  # type: ignore[misc]
                    break
                self.faults.begin_strike(strike, self.number)
                try:
                    self.strike(strike)
                finally:
                    self.faults.end_strike()
            self.idle = True
            self._watch_until(lambda: False)
            if not self.faults.abandoned.is_set():
                self.make_well()
        except (StrataError, OSError, AssertionError, pymysql.MySQLError) as error:
            self.faults.note(f"{self.name}: {type(error).__name__}: {error}")

    def _watch_until(self, come: Callable[[], bool]) -> bool:
        """False: it all ends."""
        while not come():
            if self.faults.ending.wait(WATCH_S):
                return False
            self.watch()
        return True

    def strike(self, strike: Strike) -> None:
        raise NotImplementedError

    def watch(self) -> None:
        raise NotImplementedError

    def make_well(self) -> None:
        """In the end."""
        self.watch()

    def stand_still(self, process: BackgroundProcess, seconds: float) -> None:
        if (pid := process.pid()) is None:
            return
        pause(pid)
        try:
            time.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)


class _ServerKeeper(_Keeper):
    def __init__(self, faults: Faults, server: Server, strikes: Sequence[Strike]) -> None:
        super().__init__(faults, server.data.name, strikes)
        self._server = server
        self.number = faults.cluster.servers.index(server)

    def strike(self, strike: Strike) -> None:
        if strike.kind in (SERVER_PAUSE, SERVER_LONG_PAUSE):
            self.stand_still(self._server, strike.seconds)
            self.watch()
            return
        if strike.kind == SERVER_STOP:
            self._end_in_order()
        self._server.kill()
        if strike.kind == RECOVERY_KILL:
            self.faults.cluster.launch(self._server)
        self.faults.ending.wait(strike.seconds)
        self._server.kill()
        self._start()

    def watch(self) -> None:
        server = self._server
        if server.pid() is None:
            self.faults.note(f"{server.data.name} has ended by itself:\n{server.log_tail(40)}")
            server.kill()
            self._start()
        elif any(ENDED_HERE in line for line in server.log_lines()) and is_fenced(server):
            self.faults.fenced += 1
            server.kill()
            self._start()

    def make_well(self) -> None:
        def answers() -> bool:
            self.watch()
            try:
                self._server.query(f"SELECT COUNT(*) FROM {self.faults.pulse}", read_timeout=START_TIMEOUT_S)
            except (pymysql.MySQLError, OSError):
                return False
            return True

        if not wait_until(answers, WELL_TIMEOUT_S, every_s=WATCH_S):
            self.faults.note(f"{self._server.data.name} does not answer in the end:\n{self._server.log_tail(30)}")

    def _end_in_order(self) -> None:
        """In time, whatever its clients do; one that is fenced meanwhile may not be able to."""
        began = time.monotonic()
        if not self._server.stop(STOP_TIMEOUT_S) and not any(ENDED_HERE in line for line in self._server.log_lines()):
            seconds = time.monotonic() - began
            self.faults.note(f"{self._server.data.name} did not stop in {seconds:.0f} s:\n{self._server.log_tail(30)}")

    def _start(self) -> None:
        try:
            self.faults.cluster.start(self._server)
        except (StrataError, AssertionError) as error:
            said = [line for line in self._server.log_lines() if "STRATA" in line and "maturity" not in line]
            self.faults.note("\n".join([f"{self._server.data.name} does not start ({type(error).__name__})", *said[-12:]]))
            self._server.kill()
            self.faults.cluster.start(self._server)


class _StorageKeeper(_Keeper):
    """One node at a time: two of three have to be there."""

    def __init__(self, faults: Faults, strikes: Sequence[Strike]) -> None:
        super().__init__(faults, "the storage nodes", strikes)

    def strike(self, strike: Strike) -> None:
        node = self.faults.cluster.storage[strike.victim]
        if strike.kind == STORAGE_PAUSE:
            self.stand_still(node, strike.seconds)
        else:
            node.kill()
            self.faults.ending.wait(strike.seconds)
            node.start()
        self._wait_well(node)

    def _wait_well(self, node: StorageNode) -> None:
        if not wait_until(lambda: node.illness() is None, WELL_TIMEOUT_S):
            self.faults.note(f"{node.name} does not get well: {node.illness()}\n{node.log_tail(20)}")

    def watch(self) -> None:
        for node in self.faults.cluster.storage:
            if node.pid() is None:
                self.faults.note(f"{node.name} has ended by itself:\n{node.log_tail(40)}")
                node.start()


class _MemoryKeeper(_Keeper):
    def __init__(self, faults: Faults, strikes: Sequence[Strike]) -> None:
        super().__init__(faults, "the memory node", strikes)
        self._node = faults.cluster.memory

    def strike(self, strike: Strike) -> None:
        self._node.kill()
        self.faults.ending.wait(strike.seconds)
        self._node.start()
        if not wait_until(well(self._node), WELL_TIMEOUT_S):
            self.faults.note(f"the memory node does not get well: {self._node.illness()}\n{self._node.log_tail(20)}")

    def watch(self) -> None:
        if self._node.pid() is None:
            self.faults.note(f"the memory node has ended by itself:\n{self._node.log_tail(40)}")
            self._node.start()


class _EtcdKeeper(_Keeper):
    def __init__(self, faults: Faults, strikes: Sequence[Strike]) -> None:
        super().__init__(faults, "etcd", strikes)

    def strike(self, strike: Strike) -> None:
        self.faults.cluster.etcd.kill()
        self.faults.ending.wait(strike.seconds)
        self.faults.cluster.etcd.start()

    def watch(self) -> None:
        if self.faults.cluster.etcd.pid() is None:
            self.faults.note(f"etcd has ended by itself:\n{self.faults.cluster.etcd.log_tail(20)}")
            self.faults.cluster.etcd.start()
