"""One run of the campaign on a cluster of several servers that write the same tables: rounds of work on all of them while its
processes are killed, stand still, or fail; then each server is asked for everything.

A server that was away from the memory node for too long is none of the cluster's any more: it answers nothing, says so, and is
started again here, as an operator would.
"""

import collections
import contextlib
import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pymysql
from fusion_cluster import Several, SharingMemoryNode
from pausing import pause
from strata_cli.process import BackgroundProcess, kill_all, replace_file
from strata_cli.server import BINLOG_OPTIONS, Server
from strata_cli.several_health import MEMORY_SERVES, is_fenced, phase_of, tells_of_its_lease, trouble_of
from strata_cli.shell import StrataError
from strata_cli.storage_node import StorageNode
from strata_cli.waiting import wait_until

from .bulk import BulkWorker
from .cluster_run import DATABASE
from .errors_run import HAS_ENDED
from .fusion_clients import SeveralClients
from .fusion_plan import SERVERS, FusionPlan, FusionRound, FusionStrike
from .reshape import ReshapeWorker
from .session import ServerGone
from .worker import Worker
from .workloads import Failure, Workloads

PACE_S = 0.03
BULK_ROWS = 1_500
BULK_PACE_S = 0.3
RESHAPE_PACE_S = 1.0
START_TIMEOUT_S = 240.0  # A redo of several logs on a machine that others use, too.
WELL_TIMEOUT_S = 240.0
ANSWER_TIMEOUT_S = 120.0
HALT_TIMEOUT_S = 240.0  # Longer than a client waits for an answer.
POINT_TIMEOUT_S = 4.0
VERIFY_TRIES = 4
START_TRIES = 3
STOP_TIMEOUT_S = 120.0
GOES_ON_S = 4.5  # A server that is away for longer is no reason for the others to answer nothing.
SMALL_SERVER = ("--loose-strata-log-checkpoint-size=4M", "--loose-strata-checkpoint-interval=1")
SMALL_NODE = ("--page-cache=4M", "--log-cache=4M", "--log-segment=2M", "--checkpoint-interval=2")
BAD_LINE = re.compile(r"assert|got signal|\[FATAL\]|should not have happened|damaged data|terminate called", re.IGNORECASE)
NOT_IN_ORDER = "STRATA: shutdown: "
SHOWN = 10


@dataclass
class FusionResult:
    faults: collections.Counter[str] = field(default_factory=collections.Counter)  # by kind
    struck: set[str] = field(default_factory=set)  # fault points
    transactions: int = 0
    turned_away: int = 0
    notes: list[str] = field(default_factory=list)


class FusionRun:
    def __init__(self, plan: FusionPlan, folder: Path, preset: str) -> None:
        self._plan = plan
        self._folder = folder
        self._preset = preset
        self._clients = SeveralClients()
        self._workloads = Workloads(folder, self._clients, DATABASE, "STRATA", bulk_rows=BULK_ROWS)
        self._workers: list[Worker] = []
        self._made: Several | None = None
        self._may_be_down: set[BackgroundProcess] = set()
        self._witness = 0  # Each server's row has it.
        self.result = FusionResult()

    def execute(self) -> FusionResult:
        """Raises Failure; nothing runs afterwards in any case."""
        try:
            self._prepare()
            for number, round_ in enumerate(self._plan.rounds, 1):
                self._round(number, round_)
        except (StrataError, AssertionError, TimeoutError) as error:
            raise Failure(f"{type(error).__name__}: {error}") from error
        finally:
            if self._made is not None:
                self._made.kill()
            self._halt_workers()
            self._workloads.close()
        return self.result

    def _prepare(self) -> None:
        options = ["--skip-networking", f"--strata-buffer-pool-size={self._plan.pool}"]
        options += [*(SMALL_SERVER if self._plan.small else ()), *(BINLOG_OPTIONS if self._plan.binlog else ())]
        nodes = SMALL_NODE if self._plan.small else ()
        place = self._folder / "cluster"
        self._made = Several(
            place,
            preset=self._preset,
            slots=self._plan.slots,
            server_options=options,
            node_options=nodes,
            faults=True,
            profile=self._plan.profile,
            spare=self._plan.second_memory,
        )
        for _ in range(SERVERS):
            self._cluster.add()
        self._clients.serving = list(self._servers)
        first = self._servers[0]
        first.query(f"CREATE DATABASE {DATABASE}")
        self._clients.only = first
        self._workloads.create()
        self._query(first, "CREATE TABLE witness (id INT PRIMARY KEY, n BIGINT NOT NULL) ENGINE=STRATA")
        self._query(first, f"INSERT INTO witness VALUES {', '.join(f'({n}, 0)' for n in range(SERVERS))}")
        self._wait_answering(self._servers)
        self._clients.only = None

    @property
    def _cluster(self) -> Several:
        assert self._made is not None
        return self._made

    @property
    def _servers(self) -> list[Server]:
        return self._cluster.servers

    def _query(self, server: Server, sql: str) -> list[tuple[object, ...]]:
        return server.query(sql, database=DATABASE, autocommit=True, read_timeout=ANSWER_TIMEOUT_S)

    # --- one round ---------------------------------------------------------------------------------------------

    def _round(self, number: int, round_: FusionRound) -> None:
        self._clients.tolerant = False
        self._start_workers(number)
        for strike in round_.strikes:
            self._watch(strike.work_s)
            getattr(self, f"_strike_{strike.kind}")(strike)
            self.result.faults[strike.kind] += 1
            self._wait_answering(self._servers)
        self._watch(round_.work_s)
        self._end(round_.end)
        self.result.turned_away += self._clients.turned_away.total()
        self._clients.turned_away.clear()
        self._verify()
        if round_.stop:
            self._stop_in_order()
            self._verify()
        if wrong := self._wrong():
            raise Failure("\n".join(wrong))

    def _start_workers(self, number: int) -> None:
        rng = random.Random(f"work fusion {self._plan.seed} {number}")
        self._workers = self._workloads.workers(rng)
        self._workers.append(ReshapeWorker(self._clients, DATABASE, 1, random.Random(rng.getrandbits(64))))
        for worker in self._workers:
            worker.stays = True
            worker.pace_s = PACE_S
            if isinstance(worker, BulkWorker):
                worker.pace_s = BULK_PACE_S
            elif isinstance(worker, ReshapeWorker):
                worker.pace_s = RESHAPE_PACE_S
            worker.start()

    def _watch(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Lets the time pass, until something comes about or goes wrong."""
        wait_until(lambda: until() or bool(self._wrong()), seconds, every_s=0.05)
        if wrong := self._wrong():
            raise Failure("\n".join(wrong))

    def _parts(self) -> list[BackgroundProcess]:
        cluster = self._cluster
        return [cluster.etcd, *cluster.storage, *cluster.memory_nodes(), *self._servers]

    def _wrong(self) -> list[str]:
        problems = [worker.failure for worker in self._workers if worker.failure]
        for part in self._parts():
            if part not in self._may_be_down and part.pid() is None:
                part.wait_exit(5)
                problems.append(f"{_name(part)} ended by itself (signal {part.last_signal()}):\n{part.log_tail(40)}")
        return problems

    def _halt_workers(self) -> None:
        for worker in self._workers:
            worker.halt()
        for worker in self._workers:
            if worker.is_alive():
                worker.join(timeout=HALT_TIMEOUT_S)

    def _end(self, end: str) -> None:
        if end == "kill":
            self._kill(self._servers)
        self._halt_workers()
        if stuck := [worker.name for worker in self._workers if worker.is_alive()]:
            raise Failure(f"{', '.join(stuck)}: no end of the transaction in {HALT_TIMEOUT_S:.0f} s\n{self._at_work()}")
        if end == "kill":
            self._start_servers(self._servers)
        self._wait_answering(self._servers)
        self.result.transactions += sum(worker.done for worker in self._workers)
        if failures := [worker.failure for worker in self._workers if worker.failure]:
            raise Failure("\n".join(failures))
        self._workers = []

    def _at_work(self) -> str:
        said = []
        for server in self._servers:
            with contextlib.suppress(pymysql.MySQLError):
                rows = server.query("SELECT id, time, state, LEFT(info, 100) FROM information_schema.processlist")
                said += [f"{_name(server)}: {row}" for row in rows]
        return "\n".join(said)

    # --- what there must be ------------------------------------------------------------------------------------

    def _verify(self) -> None:
        """On one server, which settles what nobody could know; then each of the others says the same."""
        self._clients.expects_errors = self._clients.tolerant = False
        self._wait_answering(self._servers)
        first, *others = random.Random(f"verify {self._plan.seed} {self.result.faults.total()}").sample(self._servers, SERVERS)
        for server in (first, *others):
            self._verify_on(server)
        self._check_pulse()
        if bad := self._bad_lines():
            raise Failure("\n".join(bad))

    def _verify_on(self, server: Server) -> None:
        """Again when the lease was lost meanwhile: nothing was answered then."""
        self._clients.only = server
        try:
            for left in reversed(range(VERIFY_TRIES)):
                fenced = is_fenced(server)
                away = self._clients.turned_away.total()
                try:
                    return self._workloads.verify(self._servers)
                except ServerGone as error:
                    if left == 0 or not (fenced or self._clients.turned_away.total() > away):
                        raise Failure(f"{_name(server)} is gone while it is asked: {error}\n{server.log_tail(20)}") from error
                self._wait_answering(self._servers)
        except Failure as error:
            raise Failure(f"asked {_name(server)}:\n{error}") from error
        finally:
            self._clients.only = None

    def _check_pulse(self) -> None:
        """Each server takes part, and each one sees it."""
        rows = {tuple(self._query(server, "SELECT id, n FROM witness ORDER BY id")) for server in self._servers}
        if rows != {tuple((n, self._witness) for n in range(SERVERS))}:
            raise Failure(f"the servers show {rows} in witness, where {self._witness} was acknowledged last")

    def _bad_lines(self) -> list[str]:
        found = []
        for part in self._parts():
            text = part.log.read_text(errors="replace") if part.log.exists() else ""
            lines = [line for line in text.splitlines() if BAD_LINE.search(line)]
            found += [f"{part.log}: {line}" for line in lines[:SHOWN]]
        return found

    def _wait_answering(self, servers: Sequence[Server]) -> None:
        """Until each of them reads and writes. Who is fenced is started again."""
        self._witness += 1
        for server in servers:
            self._wait_one(server)

    def _wait_one(self, server: Server) -> None:
        number = self._servers.index(server)
        last = ["?"]
        began = time.monotonic()

        def answers() -> bool:
            if server.pid() is not None and self._must_be_started(server):
                self._kill([server])
                self._start_servers([server])
            try:
                self._query(server, f"UPDATE witness SET n = {self._witness} WHERE id = {number}")
                return self._query(server, f"SELECT n FROM witness WHERE id = {number}") == [(self._witness,)]
            except (pymysql.MySQLError, OSError) as error:
                last[0] = str(error)
                if wrong := self._wrong():
                    raise Failure("\n".join(wrong)) from error
                return False

        if not wait_until(answers, WELL_TIMEOUT_S, every_s=0.2):
            seconds = time.monotonic() - began
            said = f"{last[0]}; its trouble is {trouble_of(server)!r}\n{server.log_tail(30)}"
            raise Failure(f"{_name(server)} does not answer in {seconds:.0f} s: {said}")

    def _must_be_started(self, server: Server) -> bool:
        return is_fenced(server) or any(HAS_ENDED.search(line) for line in server.log_lines() if "[ERROR]" in line)

    def _stop_in_order(self) -> None:
        """All of them, and then all of them again."""
        self._may_be_down.update(self._servers)
        self._clients.serving = []
        for server in self._servers:
            fenced = is_fenced(server)
            clean = server.stop(STOP_TIMEOUT_S)
            if not clean and not fenced:
                raise Failure(f"{_name(server)} did not stop in {STOP_TIMEOUT_S:.0f} s:\n{server.log_tail(30)}")
            if any(NOT_IN_ORDER in line for line in server.log_lines()) and not fenced:
                self.result.notes.append(f"{_name(server)} did not end in order")
        self._start_servers(self._servers)
        self._wait_answering(self._servers)

    # --- killing and starting ----------------------------------------------------------------------------------

    def _kill(self, parts: Sequence[BackgroundProcess]) -> None:
        """All at once."""
        self._clients.tolerant = True
        self._may_be_down.update(parts)
        self._clients.serving = [server for server in self._clients.serving if server not in parts]
        kill_all(parts)

    def _start_servers(self, servers: Sequence[Server]) -> None:
        for server in servers:
            self._cluster.launch(server)
        for server in servers:
            self._wait_started(server)
            self._may_be_down.discard(server)
            self._clients.serving = [*self._clients.serving, server]

    def _wait_started(self, server: Server) -> None:
        """Again, if it lost its lease meanwhile on a busy machine, and says so."""
        for left in reversed(range(START_TRIES)):
            ended = None
            try:
                server.wait_ready(START_TIMEOUT_S)
            except StrataError as error:  # With a binary log to be recovered it does not go on without the engine.
                if "ended while starting" not in str(error):
                    raise
                ended = error
            if ended is None and server.has_strata():
                return
            about = [line for line in server.log_lines() if "STRATA: " in line] or server.log_lines()
            if left == 0 or not any(tells_of_its_lease(line) for line in about):
                raise Failure("\n".join([f"{_name(server)} started without STRATA:", *about[-12:]])) from ended
            self.result.notes.append(f"{_name(server)} lost its lease while it started")
            server.kill()
            self._cluster.launch(server)

    def _start_nodes(self, nodes: Sequence[StorageNode]) -> None:
        self._cluster.launch_storage(nodes)
        for node in nodes:
            node.wait_ready()
        self._wait_well(nodes)
        self._may_be_down.difference_update(nodes)

    def _serving_memory(self) -> SharingMemoryNode:
        """The one that is worth striking."""
        nodes = self._cluster.memory_nodes()
        return next((node for node in nodes if phase_of(node) == MEMORY_SERVES), nodes[0])

    def _start_memory(self, node: SharingMemoryNode) -> None:
        node.launch()
        node.wait_ready()
        self._wait_well(self._cluster.memory_nodes())
        self._may_be_down.discard(node)

    def _wait_well(self, nodes: Sequence[object]) -> None:
        for node in nodes:
            if not wait_until(lambda node=node: node.illness() is None, WELL_TIMEOUT_S):  # type: ignore[misc]
                raise Failure(f"{node.name} is not well: {node.illness()}\n{node.log_tail(30)}")  # type: ignore[attr-defined]

    @contextlib.contextmanager
    def _standing_still(self, parts: Sequence[BackgroundProcess]) -> Iterator[None]:
        pids = []
        try:
            for part in parts:
                if (pid := part.pid()) is not None:
                    pids.append(pid)
                    pause(pid)
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def _chosen(self, strike: FusionStrike, count: int) -> list[Server]:
        return [self._servers[number] for number in strike.servers[:count]]

    def _others_go_on(self, away: Sequence[Server], seconds: float) -> None:
        """While some are away. They are asked once these have been away for long enough."""
        began = time.monotonic()
        self._watch(min(seconds, GOES_ON_S))
        if seconds > GOES_ON_S:
            self._wait_answering([server for server in self._servers if server not in away])
            self._watch(max(0.0, began + seconds - time.monotonic()))

    # --- the faults: servers -----------------------------------------------------------------------------------

    def _strike_server_kill(self, strike: FusionStrike) -> None:
        self._kill_for_a_while(self._chosen(strike, 1), strike.down_s)

    def _strike_two_kill(self, strike: FusionStrike) -> None:
        self._kill_for_a_while(self._chosen(strike, 2), strike.down_s)

    def _strike_all_servers_kill(self, strike: FusionStrike) -> None:
        victims = self._chosen(strike, SERVERS)
        self._kill(victims)
        self._watch(strike.down_s)
        self._start_servers(victims)

    def _kill_for_a_while(self, victims: Sequence[Server], seconds: float) -> None:
        self._kill(victims)
        self._others_go_on(victims, seconds)
        self._start_servers(victims)

    def _strike_recovery_kill(self, strike: FusionStrike) -> None:
        victim = self._chosen(strike, 1)
        self._kill(victim)
        self._cluster.launch(victim[0])
        self._watch(strike.down_s)
        self._kill_for_a_while(victim, strike.down_s)

    def _strike_adopter_kill(self, strike: FusionStrike) -> None:
        victim, *adopters = self._chosen(strike, SERVERS)
        self._kill([victim])
        self._watch(strike.down_s)
        self._kill(adopters)
        self._start_servers([*adopters, victim])

    def _strike_server_pause(self, strike: FusionStrike) -> None:
        self._clients.tolerant = True
        with self._standing_still(self._chosen(strike, 1)):
            self._watch(strike.down_s)

    def _strike_server_long_pause(self, strike: FusionStrike) -> None:
        self._clients.tolerant = True
        victims = self._chosen(strike, 1)
        with self._standing_still(victims):
            self._others_go_on(victims, strike.down_s)

    def _strike_server_point(self, strike: FusionStrike) -> None:
        (server,) = self._chosen(strike, 1)
        self._clients.tolerant = True
        self._may_be_down.add(server)
        with self._armed(server, strike.fault):
            self._watch(POINT_TIMEOUT_S, lambda: server.pid() is None)
        if server.pid() is None:
            server.wait_exit(5)
            if server.last_signal() != signal.SIGKILL:
                raise Failure(f"{_name(server)} crashed by itself (signal {server.last_signal()}):\n{server.log_tail(40)}")
            self.result.struck.add(strike.fault.split(":")[0])
        self._kill_for_a_while([server], strike.down_s)

    def _strike_server_error(self, strike: FusionStrike) -> None:
        (server,) = self._chosen(strike, 1)
        self._clients.expects_errors = self._clients.tolerant = True
        with self._armed(server, strike.fault):
            self._watch(strike.down_s)
        points = self._cluster.points_file(server)
        struck = points.with_name(points.name + ".struck")
        if struck.exists():
            self.result.struck |= set(struck.read_text().split())
        self._wait_answering(self._servers)

    @contextlib.contextmanager
    def _armed(self, server: Server, fault: str) -> Iterator[None]:
        file = self._cluster.points_file(server)
        replace_file(file, fault + "\n")
        try:
            yield
        finally:
            file.unlink(missing_ok=True)

    # --- the faults: the memory node, storage, etcd ------------------------------------------------------------

    def _strike_memory_kill(self, strike: FusionStrike) -> None:
        node = self._serving_memory()
        self._kill([node])
        self._watch(strike.down_s)
        self._start_memory(node)

    def _strike_memory_and_server_kill(self, strike: FusionStrike) -> None:
        victims = self._chosen(strike, 1)
        node = self._serving_memory()
        self._kill([node, *victims])
        self._watch(strike.down_s)
        self._start_memory(node)
        self._start_servers(victims)

    def _strike_memory_pause(self, strike: FusionStrike) -> None:
        self._clients.tolerant = True
        with self._standing_still([self._serving_memory()]):
            self._watch(strike.down_s)
        self._wait_well(self._cluster.memory_nodes())

    _strike_memory_long_pause = _strike_memory_pause

    def _nodes(self, strike: FusionStrike, count: int) -> list[StorageNode]:
        return [self._cluster.storage[number] for number in strike.nodes[:count]]

    def _strike_storage_kill(self, strike: FusionStrike) -> None:
        self._kill_nodes(self._nodes(strike, 1), strike.down_s)

    def _strike_quorum_kill(self, strike: FusionStrike) -> None:
        self._kill_nodes(self._nodes(strike, 2), strike.down_s)

    def _kill_nodes(self, nodes: Sequence[StorageNode], seconds: float) -> None:
        self._kill(nodes)
        self._watch(seconds)
        self._start_nodes(nodes)
        self._wait_well(self._cluster.memory_nodes())

    def _strike_storage_pause(self, strike: FusionStrike) -> None:
        self._pause_nodes(self._nodes(strike, 1), strike.down_s)

    def _strike_quorum_pause(self, strike: FusionStrike) -> None:
        self._pause_nodes(self._nodes(strike, 2), strike.down_s)

    def _pause_nodes(self, nodes: Sequence[StorageNode], seconds: float) -> None:
        self._clients.tolerant = True
        with self._standing_still(nodes):
            self._watch(seconds)
        self._wait_well([*nodes, *self._cluster.memory_nodes()])

    def _strike_etcd_kill(self, strike: FusionStrike) -> None:
        self._kill([self._cluster.etcd])
        self._watch(strike.down_s)
        self._start_etcd()

    def _strike_etcd_and_server_kill(self, strike: FusionStrike) -> None:
        victims = self._chosen(strike, 1)
        self._kill([self._cluster.etcd, *victims])
        self._watch(strike.down_s)
        self._start_etcd()
        self._start_servers(victims)

    def _start_etcd(self) -> None:
        self._cluster.etcd.start()
        self._may_be_down.discard(self._cluster.etcd)

    def _strike_everything_kill(self, strike: FusionStrike) -> None:
        self._kill(self._parts())
        self._watch(strike.down_s)
        self._start_etcd()
        nodes = self._nodes(strike, len(self._cluster.storage))
        self._cluster.launch_storage(nodes)
        memory = self._cluster.memory_nodes()
        for one in memory:
            one.launch()
        for node in (*nodes, *memory):
            node.wait_ready()
        self._wait_well([*nodes, *memory])
        self._may_be_down.difference_update([*nodes, *memory])
        self._start_servers(self._chosen(strike, SERVERS))


def _name(part: BackgroundProcess) -> str:
    return part.data.name if isinstance(part, Server) else part.name
