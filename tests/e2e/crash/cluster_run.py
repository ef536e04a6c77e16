"""One run of the campaign on a cluster: rounds of work while its processes are killed, paused, starved, damaged; and checks."""

import collections
import os
import random
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pymysql
from strata_cli.process import BackgroundProcess, replace_file
from strata_cli.profile_list import BY_NAME
from strata_cli.server import BINLOG_OPTIONS, Server
from strata_cli.shell import StrataError
from strata_cli.waiting import wait_until

from .bulk import BulkWorker
from .clients import DISK_ERRORS, ONLY_ROLLBACK, REFUSALS, Clients
from .cluster_plan import AT_TAKE_OVER, ERRORS, LINKS, NODES, ClusterPlan, ClusterRound, Strike
from .cluster_under_test import COMPUTE_LEASE_S, MEMORY_TIMEOUT_S, NODE_LEASE_S, ClusterUnderTest, pause_process
from .damage import damage_some_file
from .errors_run import HAS_ENDED, KEPT_SHARE
from .mirror import Mirror
from .session import ServerGone
from .worker import Worker
from .workloads import Failure, Workloads

DATABASE = "crash"
PACE_S = 0.03  # Storage nodes and clients share the processors; faults meet enough as it is.
BULK_ROWS = 150  # in one transaction; eager replay writes a page for each of their changes
BULK_PACE_S = 0.2
DRAIN_TIMEOUT_S = 90.0
ANSWER_TIMEOUT_S = 30.0
POINT_TIMEOUT_S = 1.6  # for an armed fault point to be passed often enough
VERIFY_TRIES = 5
QUIET_S = 0.5  # without an acknowledgement once the quorum is gone
SLOW_S = (0.02, 0.15)  # in each direction, for each piece that a slow link passes on
SAYS_WHY = re.compile(r"\[ERROR\] STRATA: .*; to do: ")
BRIEF_S = 0.5  # etcd is away for less than a lease, or for more
# RocksDB 7.8 as Debian builds it does not always bear a full disk (docs/correctness.md). Restarted, the node goes on.
KNOWN_ABORT = "RollbackMemtableFlush"
BACKUP_TIMEOUT_S = 10.0
ROOM_TIMEOUT_S = 15.0  # It tries again every five seconds.
# Where compute writes the pages, the last node that has them all must not go before another one has copied them: these wait.
STRIKES_NODES = ("node_kill", "node_point", "node_pause", "node_error", "node_io", "quorum_kill", "full_disk", "corrupt", *LINKS)
# While a node that lost everything makes itself whole the two others are all there is: only these do not wait for its end.
WHILE_ONE_IS_WIPED = (
    "compute_kill",
    "compute_point",
    "recovery_point",
    "compute_pause",
    "takeover",
    "etcd_kill",
    "etcd_pause",
    "compute_error",
)
ERROR_S = 0.4  # the shortest time for which errors last
COPY_TIMEOUT_S = 15.0  # for a node that was wiped to pass the fault point, or to be whole without
# What a server that was paused while another took its place must not do.
FORBIDDEN = (
    "SELECT COUNT(*) FROM bank_accounts",
    "SELECT n FROM witness WHERE id = 1",
    "INSERT INTO witness VALUES (2, 0)",
    "UPDATE witness SET n = -1 WHERE id = 1",
    "CREATE TABLE made_by_the_dead (a INT PRIMARY KEY) ENGINE=STRATA",
    "DROP TABLE witness",
)


@dataclass
class ClusterResult:
    faults: collections.Counter[str] = field(default_factory=collections.Counter)  # by kind
    struck: set[str] = field(default_factory=set)  # fault points
    transactions: int = 0
    turned_away: int = 0
    sectors_lost: int = 0
    notes: list[str] = field(default_factory=list)


class ClusterRun:
    def __init__(self, plan: ClusterPlan, folder: Path, preset: str, mirror: Mirror | None = None) -> None:
        """`mirror`: for a plan with a binary log."""
        self._plan = plan
        self._folder = folder
        self._mirror = mirror if plan.binlog else None
        self._parts = ClusterUnderTest(
            folder,
            plan.profile,
            preset,
            seed=plan.seed,
            small=plan.small,
            power_loss=plan.power_loss,
            memory_nodes=plan.memory_nodes,
            memory_backup=plan.memory_backup,
            relays=plan.strikes_links,
            errors=plan.brings_errors,
            compute_options=BINLOG_OPTIONS if self._mirror else (),
        )
        self._followed: Server | None = None  # whose binary log the mirror has
        refusals = REFUSALS | (DISK_ERRORS if plan.brings_errors else set()) | ({ONLY_ROLLBACK} if plan.may_stop_undo else set())
        self._clients = Clients(refusals, KEPT_SHARE if plan.brings_errors else 0.0)
        self._workloads = Workloads(folder, self._clients, DATABASE, "STRATA", bulk_rows=BULK_ROWS)
        self._rng = random.Random(f"cluster run {plan.profile} {plan.seed}")
        self._workers: list[Worker] = []
        self._expected: set[str] = set()  # names of the processes that are to live
        self._armed: Strike | None = None
        self._witness = 0
        self._doubtful: set[str] = set()  # Nodes that have had errors, and may say so only with their next checkpoint.
        self._may_give_up = False  # Since it has lost its memory node for a while.
        self._memory = tuple(self._parts.cluster.memory)
        self._is_backed = False  # Whoever was struck last had a whole backup: nothing of it may be lost.
        self._wiped = ""  # The node that lost everything and is not known to be whole again.
        self.result = ClusterResult()

    def execute(self) -> ClusterResult:
        """Raises Failure; nothing runs afterwards in any case."""
        is_well = False
        try:
            self._prepare()
            for number, round_ in enumerate(self._plan.rounds, 1):
                self._round(number, round_)
            self._compare_pages()
            is_well = True
        except StrataError as error:
            raise Failure(str(error)) from error
        finally:
            self._parts.close(keep=not is_well)
            self._halt_workers()
            self._workloads.close()
            self.result.sectors_lost = self._parts.sectors_lost
        return self.result

    def _prepare(self) -> None:
        self._parts.found()
        self._expected = {"etcd", *NODES, *self._memory, "compute"}
        self._clients.server = self._parts.compute
        self._parts.compute.query(f"CREATE DATABASE {DATABASE}")
        self._workloads.create()
        self._query("CREATE TABLE witness (id INT PRIMARY KEY, n BIGINT NOT NULL) ENGINE=STRATA")
        self._query("INSERT INTO witness VALUES (1, 0)")
        self._follow_binlog()

    def _query(self, sql: str) -> list[tuple[object, ...]]:
        return self._parts.compute.query(sql, database=DATABASE, autocommit=True, read_timeout=ANSWER_TIMEOUT_S)

    # --- one round ---------------------------------------------------------------------------------------------

    def _round(self, number: int, round_: ClusterRound) -> None:
        self._clients.tolerant = False
        self._arm(round_.strikes[0])
        self._start_workers(number)
        for strike in round_.strikes:
            self._watch(strike.work_s)
            self._strike(strike)
            self.result.faults[strike.kind] += 1
        self._watch(round_.work_s)
        self._end(round_.end)
        self.result.turned_away += self._clients.turned_away.total()
        self._clients.turned_away.clear()
        self._clients.tolerant = False
        self._check(round_)

    def _start_workers(self, number: int) -> None:
        self._workers = self._workloads.workers(random.Random(f"work {self._plan.profile} {self._plan.seed} {number}"))
        for worker in self._workers:
            worker.stays = True
            worker.pace_s = BULK_PACE_S if isinstance(worker, BulkWorker) else PACE_S
            worker.start()

    def _watch(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Lets the time pass, until something comes about or goes wrong."""
        wait_until(lambda: until() or bool(self._wrong()), seconds, every_s=0.01)
        if wrong := self._wrong():
            raise Failure("\n".join(wrong))

    def _wrong(self) -> list[str]:
        problems = [worker.failure for worker in self._workers if worker.failure]
        cluster = self._parts.cluster
        processes: dict[str, BackgroundProcess] = {"etcd": cluster.etcd, **cluster.storage, **cluster.memory}
        processes["compute"] = self._parts.compute
        for name in sorted(self._expected):
            if processes[name].pid() is None:
                processes[name].wait_exit(5)
                problems.append(
                    f"{name} ended by itself (signal {processes[name].last_signal()}):\n{processes[name].log_tail(30)}"
                )
        return problems

    def _halt_workers(self) -> None:
        for worker in self._workers:
            worker.halt()
        for worker in self._workers:
            if worker.is_alive():
                worker.join(timeout=30)

    def _end(self, end: str) -> None:
        if end == "drain":
            self._drain()
        else:
            self._kill_compute()
            self._halt_workers()
            if stuck := [worker.name for worker in self._workers if worker.is_alive()]:
                raise Failure(f"{', '.join(stuck)}: no end though the server is gone")
            self._restart_compute(fresh=end == "fresh")
        self.result.transactions += sum(worker.done for worker in self._workers)
        if failures := [worker.failure for worker in self._workers if worker.failure]:
            raise Failure("\n".join(failures))
        self._workers = []

    def _drain(self) -> None:
        for worker in self._workers:
            worker.halt()
        wait_until(lambda: not any(worker.is_alive() for worker in self._workers), DRAIN_TIMEOUT_S)
        if stuck := [worker.name for worker in self._workers if worker.is_alive()]:
            waiting = self._query("SELECT id, time, state, LEFT(info, 100) FROM information_schema.processlist")
            shown = "\n".join(str(row) for row in waiting)
            raise Failure(f"{', '.join(stuck)}: no end of the transaction in {DRAIN_TIMEOUT_S:.0f} s\n{shown}")
        # A client that was turned away has left while the server was still at its statement.
        ours = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'root' AND id <> CONNECTION_ID()"
        if not wait_until(lambda: self._query(ours) == [(0,)], ANSWER_TIMEOUT_S):
            raise Failure(f"connections stay: {self._query('SHOW PROCESSLIST')}")

    def _check(self, round_: ClusterRound) -> None:
        self._wait_answering()
        self._wait_memory_well()
        if "corrupt" not in self.result.faults:
            self._wait_whole()
            if round_.without:
                self._kill_nodes(round_.without)
        self._verify()
        self._follow_binlog()
        if round_.end == "drain" and any(strike.kind in ERRORS for strike in round_.strikes):
            self._kill_compute()  # What the living server has is what there is.
            self._restart_compute(fresh=False)
            self._verify()
            self._follow_binlog()
        if round_.without and "corrupt" not in self.result.faults:
            self._start_nodes(round_.without)
            self._parts.wait_in_sync()
        if self._query("SELECT * FROM witness") != [(1, self._witness)]:
            raise Failure(f"the witness is {self._query('SELECT * FROM witness')}, not {self._witness}")
        if wrong := self._wrong():
            raise Failure("\n".join(wrong))

    def _follow_binlog(self) -> None:
        """Tables and binary log say the same. A compute node that took over has a new one, which begins here."""
        if self._mirror is None:
            return
        excused = self._workloads.take_not_logged()
        if self._followed is not self._parts.compute:
            self._mirror.copy(self._parts.compute)
            self._followed = self._parts.compute
        elif problems := self._mirror.follow(self._parts.compute, excused):
            raise Failure("\n".join(problems[:10]))

    def _wait_whole(self) -> None:
        """Until every node has everything."""
        for name in sorted(self._doubtful):
            self._restart_if_unwell(name, "errors of its disk")
        self._doubtful.clear()
        self._parts.wait_well(NODES)
        self._parts.wait_in_sync()
        if self._wiped:
            values = self._parts.node(self._wiped).status().get("values", {})
            copied = values.get("pages_copied") or values.get("copy_pages_taken")
            self.result.notes.append(f"{self._wiped}: {copied} pages copied" if copied else f"{self._wiped}: pages from the log")
        self._wiped = ""

    def _compare_pages(self) -> None:
        """Nothing is written any more."""
        if "corrupt" in self.result.faults:
            return
        self._wait_whole()
        self._parts.compare_pages()

    def _verify(self) -> None:
        """Again when the lease was lost meanwhile: nothing was answered then."""
        for _ in range(VERIFY_TRIES - 1):
            away = self._clients.turned_away.total()
            try:
                return self._workloads.verify()
            except ServerGone:
                if self._clients.turned_away.total() == away:
                    raise
            self._wait_answering()
        self._workloads.verify()

    def _wait_answering(self) -> None:
        """Until the compute node has its lease again, if it had lost it."""
        last = ["?"]

        def answers() -> bool:
            try:
                self._query("SELECT COUNT(*) FROM bank_accounts")
                self._query(f"UPDATE witness SET n = {self._witness} WHERE id = 1")
            except pymysql.MySQLError as error:
                last[0] = str(error)
                return False
            return True

        if not wait_until(lambda: answers() or self._gave_up_memory(), ANSWER_TIMEOUT_S):
            raise Failure(f"the compute node does not answer again: {last[0]}\n{self._parts.compute.log_tail(30)}")

    def _gave_up_memory(self) -> bool:
        """It may learn late what was lost with its memory node; then it is started again."""
        if not self._may_give_up or not self._has_ended():
            return False
        self._refuse_if_backed()
        self.result.notes.append("compute had to be started again: it had lost pages with its memory node")
        self._kill_compute()
        self._restart_compute(fresh=False)
        return True

    def _wait_memory_well(self) -> None:
        for name in self._memory:
            node = self._parts.memory_node(name)
            if not wait_until(lambda node=node: node.illness() is None, ANSWER_TIMEOUT_S):  # type: ignore[misc]
                raise Failure(f"{name} is not well: {node.illness()}\n{node.log_tail(30)}")

    # --- killing and starting ----------------------------------------------------------------------------------

    def _kill_compute(self) -> None:
        self._expected.discard("compute")
        self._parts.compute.kill()

    def _restart_compute(self, *, fresh: bool) -> None:
        self._may_give_up = False
        self._parts.launch_compute(fresh=fresh)
        self._compute_is_up()

    def _compute_is_up(self) -> None:
        """After it was launched."""
        self._parts.wait_compute()
        self._expected.add("compute")
        self._direct_clients()

    def _direct_clients(self) -> None:
        """To the compute node there is now."""
        before = self._clients.server
        acknowledged = {query: set(acked) for query, acked in self._workloads.acknowledged().items()}
        self._clients.server = self._parts.compute
        if before is None or before is self._parts.compute:
            return
        if self._mirror and before is self._followed:
            if problems := self._mirror.follow_left_behind(before.datadir, acknowledged):
                raise Failure("\n".join(problems))
            self._followed = None
        self._parts.forget_folder(before)

    def _kill_nodes(self, *names: str) -> None:
        self._expected.difference_update(names)
        self._parts.kill_nodes(names)

    def _start_nodes(self, *names: str) -> None:
        self._parts.start_nodes(names)
        self._expected.update(names)

    def _arm(self, strike: Strike) -> None:
        """Starts who is to die at a fault point, with that point."""
        self._armed = strike
        if strike.kind == "compute_point":
            self._kill_compute()
            if not self._parts.start_compute_or_crash(fresh=False, fault=strike.fault):
                self._direct_clients()  # It may be gone by now: rollback goes on behind its start.
        elif strike.kind == "node_point":
            self._kill_nodes(strike.node)
            try:
                self._parts.start_nodes([strike.node], strike.fault)
            except StrataError as error:
                if self._parts.node(strike.node).last_signal() != signal.SIGKILL:
                    raise Failure(f"start with fault {strike.fault}: {error}") from error
        elif strike.kind == "memory_point":
            self._lose_memory(strike)
            self._is_backed = False  # It dies again, at whatever moment.
            try:
                self._parts.start_memory(strike.fault)
            except StrataError as error:
                if self._parts.memory_node(strike.node).last_signal() != signal.SIGKILL:
                    raise Failure(f"start with fault {strike.fault}: {error}") from error

    # --- the faults --------------------------------------------------------------------------------------------

    def _strike(self, strike: Strike) -> None:
        self._is_backed = False
        if self._armed is not strike:
            if self._wiped and strike.kind not in WHILE_ONE_IS_WIPED:
                self._wait_whole()
            if strike.kind in STRIKES_NODES:
                self._parts.wait_in_sync()
            self._arm(strike)
        self._armed = None
        getattr(self, f"_strike_{strike.kind}")(strike)

    def _strike_compute_kill(self, strike: Strike) -> None:
        self._kill_compute()
        self._restart_compute(fresh=strike.fresh)

    def _strike_compute_point(self, strike: Strike) -> None:
        server = self._parts.compute
        self._watch(POINT_TIMEOUT_S, lambda: server.pid() is None)
        if server.pid() is None:
            server.wait_exit(5)
            if server.last_signal() != signal.SIGKILL:
                raise Failure(f"compute crashed by itself (signal {server.last_signal()}):\n{server.log_tail(40)}")
            self.result.struck.add(strike.fault.split(":")[0])
        self._kill_compute()
        self._restart_compute(fresh=strike.fresh)

    def _strike_recovery_point(self, strike: Strike) -> None:
        self._kill_compute()
        if self._parts.start_compute_or_crash(fresh=strike.fresh, fault=strike.fault):
            self.result.struck.add(strike.fault.split(":")[0])
        self._kill_compute()
        self._restart_compute(fresh=False)

    def _strike_compute_pause(self, strike: Strike) -> None:
        self._clients.tolerant = True
        pid = pause_process(self._parts.compute)
        try:
            self._watch(COMPUTE_LEASE_S + 0.5 + strike.down_s)
        finally:
            os.kill(pid, signal.SIGCONT)
        self._wait_answering()

    def _strike_takeover(self, strike: Strike) -> None:
        self._clients.tolerant = True
        old = self._parts.compute
        pid = pause_process(old)
        try:
            self._parts.start_compute(fresh=True)  # It waits for the end of the old one's lease.
            self._witness += 1
            self._query(f"UPDATE witness SET n = {self._witness} WHERE id = 1")
        finally:
            os.kill(pid, signal.SIGCONT)
        self._check_silent(old)
        self._watch(strike.down_s)  # Its clients go on asking it.
        old.kill()
        self._compute_is_up()
        if self._query("SHOW TABLES LIKE 'made_by_the_dead'"):
            raise Failure("a table that the server made whose place was taken is there")

    def _check_silent(self, old: Server) -> None:
        for statement in FORBIDDEN:
            try:
                answer = old.query(statement, database=DATABASE, autocommit=True, read_timeout=ANSWER_TIMEOUT_S)
            except pymysql.MySQLError as error:
                if error.args[0] not in REFUSALS:
                    raise Failure(f"the server whose place was taken answers {statement} with {error}") from error
            else:
                raise Failure(f"the server whose place was taken answers {statement} with {answer}")

    def _strike_node_kill(self, strike: Strike) -> None:
        self._kill_nodes(strike.node)
        self._watch(strike.down_s)
        self._start_nodes(strike.node)

    def _strike_node_kill_in_recovery(self, strike: Strike) -> None:
        self._kill_compute()
        self._parts.launch_compute(fresh=strike.fresh)
        self._watch(strike.down_s / 2)
        self._kill_nodes(strike.node)
        self._compute_is_up()
        self._watch(strike.down_s)
        self._start_nodes(strike.node)

    def _strike_node_point(self, strike: Strike) -> None:
        node = self._parts.node(strike.node)
        point = strike.fault.split(":")[0]
        if point in AT_TAKE_OVER:
            self._strike_compute_kill(strike)
        self._watch(POINT_TIMEOUT_S, lambda: node.pid() is None)
        if node.pid() is None:
            if not self._parts.died_at_point(strike.node):
                raise Failure(f"{node.name} ended by itself (signal {node.last_signal()}):\n{node.log_tail(40)}")
            self.result.struck.add(point)
        else:
            self._kill_nodes(strike.node)
        self._watch(strike.down_s)
        self._start_nodes(strike.node)

    def _strike_node_wipe(self, strike: Strike) -> None:
        self._wipe(strike.node)
        self._watch(strike.down_s)
        self._start_nodes(strike.node)

    def _strike_node_wipe_point(self, strike: Strike) -> None:
        self._wipe(strike.node)
        node = self._parts.node(strike.node)
        try:
            self._parts.start_nodes([strike.node], strike.fault)
        except StrataError as error:
            if node.last_signal() != signal.SIGKILL:
                raise Failure(f"start with fault {strike.fault}: {error}") from error
        self._watch(COPY_TIMEOUT_S, lambda: node.pid() is None or not self._parts.unwell(NODES))
        if node.pid() is None:
            if not self._parts.died_at_point(strike.node):
                raise Failure(f"{node.name} ended by itself (signal {node.last_signal()}):\n{node.log_tail(40)}")
            self.result.struck.add(strike.fault.split(":")[0])
        else:
            self._kill_nodes(strike.node)
        self._watch(strike.down_s)
        self._start_nodes(strike.node)

    def _wipe(self, name: str) -> None:
        self._wait_whole()  # What it has alone with one other would then be on that one alone.
        self._kill_nodes(name)
        self._parts.wipe_node(name)
        self._wiped = name

    def _strike_node_pause(self, strike: Strike) -> None:
        pid = pause_process(self._parts.node(strike.node))
        try:
            self._watch(NODE_LEASE_S + 0.3 + strike.down_s)
        finally:
            os.kill(pid, signal.SIGCONT)

    def _strike_quorum_kill(self, strike: Strike) -> None:
        self._clients.tolerant = True  # Pages that only the others have can be read again when they are back.
        self._kill_nodes(strike.node, strike.other)
        self._watch_without_quorum(strike.down_s)
        self._start_nodes(*self._rng.sample([strike.node, strike.other], 2))

    def _watch_without_quorum(self, seconds: float) -> None:
        """Nothing may be acknowledged meanwhile."""
        acked = [-1, len(self._workloads.bank.acked)]
        while acked[-2] != acked[-1]:  # Answers that were on their way.
            self._watch(QUIET_S)
            acked.append(len(self._workloads.bank.acked))
            if len(acked) > 10:
                raise Failure("transfers are acknowledged though only one storage node is there")
        self._watch(seconds)
        if len(self._workloads.bank.acked) != acked[-1]:
            raise Failure("a transfer was acknowledged while only one storage node was there")

    def _strike_link_cut(self, strike: Strike) -> None:
        self._parts.links[strike.node].cut()
        self._watch(NODE_LEASE_S + 0.3 + strike.down_s)
        self._mend(strike.node)

    def _strike_link_slow(self, strike: Strike) -> None:
        self._parts.links[strike.node].slow(self._rng.uniform(*SLOW_S))
        self._watch(NODE_LEASE_S + 0.3 + strike.down_s)
        self._mend(strike.node)

    def _strike_quorum_cut(self, strike: Strike) -> None:
        self._clients.tolerant = True
        for name in (strike.node, strike.other):
            self._parts.links[name].cut()
        self._watch_without_quorum(strike.down_s)
        for name in self._rng.sample([strike.node, strike.other], 2):
            self._mend(name)

    def _mend(self, name: str) -> None:
        """What was on its way arrives late, or is lost with its connection."""
        link = self._parts.links[name]
        if self._rng.random() < 0.5:
            link.mend()
        else:
            link.reset()

    def _strike_all_kill(self, strike: Strike) -> None:
        self._expected.clear()
        self._parts.kill_all()
        for name in NODES:
            self._parts.lose_power(self._parts.node(name))
        if self._memory and self._rng.random() < 0.5:  # The machine was started again.
            self._parts.kill_memory(self._memory, wipe=True)
        self._parts.start_etcd()
        self._parts.start_nodes(NODES)
        self._parts.start_memory()
        self._expected = {"etcd", *NODES, *self._memory}
        self._restart_compute(fresh=strike.fresh)

    def _strike_etcd_kill(self, strike: Strike) -> None:
        self._clients.tolerant = True
        self._expected.discard("etcd")
        self._parts.cluster.etcd.kill()
        self._watch(strike.down_s if strike.down_s < BRIEF_S else COMPUTE_LEASE_S + strike.down_s)
        self._parts.start_etcd()
        self._expected.add("etcd")
        self._wait_answering()

    def _strike_etcd_pause(self, strike: Strike) -> None:
        self._clients.tolerant = True
        pid = pause_process(self._parts.cluster.etcd)
        try:
            self._watch(COMPUTE_LEASE_S + 0.5 + strike.down_s)
        finally:
            os.kill(pid, signal.SIGCONT)
        self._wait_answering()

    def _strike_full_disk(self, strike: Strike) -> None:
        marker = self._parts.full_marker(strike.node)
        self._expected.discard(strike.node)
        marker.touch()
        try:
            self._watch(1 + strike.down_s)
        finally:
            marker.unlink()
        if why := self._gave_up(strike.node):
            self.result.notes.append(f"{strike.node}: RocksDB {why} on its full disk")
            self._kill_nodes(strike.node)
            self._start_nodes(strike.node)
        self._expected.add(strike.node)

    def _gave_up(self, name: str) -> str:
        """What RocksDB made of a disk that was full, if it did not bear it."""
        node = self._parts.node(name)
        if node.pid() is None:
            node.wait_exit(5)
            if KNOWN_ABORT not in node.log_tail(5):
                raise Failure(f"{name} ended by itself (signal {node.last_signal()}):\n{node.log_tail(40)}")
            return "aborted"
        works = wait_until(lambda: "no space" not in (node.illness() or "").lower(), ROOM_TIMEOUT_S, every_s=0.2)
        return "" if works else "hangs"

    def _strike_compute_error(self, strike: Strike) -> None:
        """Fault points fail for a while. The server lives on, or says that it has to be started again."""
        self._clients.tolerant = True
        self._make_fail("compute", strike)
        if not wait_until(lambda: self._answers() or self._has_ended(), ANSWER_TIMEOUT_S):
            raise Failure(f"compute does not work again though the fault is over\n{self._parts.compute.log_tail(30)}")
        if self._has_ended():
            self.result.notes.append(f"compute had to be started again after {strike.fault}")
            self._kill_compute()
            self._restart_compute(fresh=False)

    def _has_ended(self) -> bool:
        return any(HAS_ENDED.search(line) for line in self._parts.compute.log_lines()) or self._lost_its_memory()

    def _lost_its_memory(self) -> bool:
        """So it says; its log may be silent about it until somebody asks for a page that is lost."""
        if not self._memory or self._parts.compute.pid() is None:
            return False
        try:
            return ("1",) in [row[1:] for row in self._query("SHOW GLOBAL STATUS LIKE 'strata_lego_ended'")]
        except pymysql.MySQLError:
            return False

    def _answers(self) -> bool:
        try:
            self._query(f"UPDATE witness SET n = {self._witness} WHERE id = 1")
        except pymysql.MySQLError:
            return False
        return True

    def _make_fail(self, name: str, strike: Strike) -> None:
        file = self._parts.failing_marker(name) if strike.kind == "node_io" else self._parts.points_file(name)
        replace_file(file, strike.fault)
        try:
            self._watch(ERROR_S + strike.down_s)
        finally:
            file.unlink()
        struck = file.with_name(file.name + ".struck")
        if struck.exists():
            self.result.struck |= set(struck.read_text().split())

    def _strike_node_error(self, strike: Strike) -> None:
        """Clients notice nothing. The node goes on, or says that it cannot."""
        self._expected.discard(strike.node)
        self._make_fail(strike.node, strike)
        node = self._parts.node(strike.node)
        if node.pid() is None:
            node.wait_exit(5)
            if node.last_signal() is not None and KNOWN_ABORT not in node.log_tail(5):
                raise Failure(f"{node.name} ended by itself (signal {node.last_signal()}):\n{node.log_tail(40)}")
        self._restart_if_unwell(strike.node, strike.fault)
        self._expected.add(strike.node)
        self._doubtful.add(strike.node)

    def _restart_if_unwell(self, name: str, after: str) -> None:
        node = self._parts.node(name)
        if node.pid() is not None and wait_until(lambda: not self._parts.unwell([name]), ROOM_TIMEOUT_S, every_s=0.2):
            return
        self.result.notes.append(f"{name} was started again after {after}: {(node.illness() or 'it does not vote')[:100]}")
        if node.pid() is not None:
            self._kill_nodes(name)
        self._start_nodes(name)

    def _strike_node_io(self, strike: Strike) -> None:
        self._strike_node_error(strike)

    # --- the faults of memory nodes ---

    def _lose_memory(self, strike: Strike, *, with_compute: bool = False, wipe: bool = False) -> None:
        """Compute may end: it says so then, and its next start makes of the log what only the memory node had."""
        lost = tuple(name for name in (strike.node, strike.other) if name)
        self._memory_will_be_away(strike)
        self._clients.tolerant = True
        self._expected.difference_update({*lost, "compute"})
        self._parts.kill_memory(lost, with_compute=with_compute, wipe=wipe)

    def _memory_will_be_away(self, strike: Strike) -> None:
        """With a whole backup elsewhere compute has to go on; mostly that is waited for."""
        self._may_give_up = True
        self._is_backed = False
        if not self._plan.memory_backup or strike.other or self._parts.compute.pid() is None:
            return
        if self._rng.random() < 0.7:
            wait_until(self._has_backup, BACKUP_TIMEOUT_S)  # Otherwise it is struck while the copy is made.
        self._is_backed = self._has_backup()
        if self._is_backed:
            self.result.notes.append(f"{strike.kind} struck one of two memory nodes that were the same")

    def _has_backup(self) -> bool:
        try:
            return ("1",) in [row[1:] for row in self._query("SHOW GLOBAL STATUS LIKE 'strata_lego_backups'")]
        except pymysql.MySQLError:
            return False

    def _refuse_if_backed(self) -> None:
        if self._is_backed:
            tail = self._parts.compute.log_tail(30)
            raise Failure(f"compute gave up though all that its memory node had was on the other one, too\n{tail}")

    def _memory_is_back(self, strike: Strike, *, was_short: bool = False) -> None:
        """Compute goes on, or has ended with an error that says what to do. `was_short`: it has to go on."""
        self._expected.update(self._memory)
        server = self._parts.compute
        if not wait_until(lambda: server.pid() is None or self._has_ended() or self._answers(), ANSWER_TIMEOUT_S):
            raise Failure(f"compute neither works again nor says why, after {strike.text()}\n{server.log_tail(30)}")
        if server.pid() is None:
            server.wait_exit(5)
        if not self._has_ended():
            if server.pid() is None:
                raise Failure(f"compute ended by itself (signal {server.last_signal()}):\n{server.log_tail(40)}")
            self._expected.add("compute")
            return
        self._refuse_if_backed()
        if not BY_NAME[self._plan.profile].pages_are_written:
            raise Failure(f"compute gave up though its memory node had copies only\n{server.log_tail(30)}")
        if was_short:
            raise Failure(f"compute gave up though its memory node was away for a moment only\n{server.log_tail(30)}")
        if server.pid() is None and server.last_signal() is not None:
            raise Failure(f"compute crashed (signal {server.last_signal()}):\n{server.log_tail(40)}")
        self.result.notes.append(f"compute had to be started again after {strike.kind}")
        self._kill_compute()
        self._restart_compute(fresh=strike.fresh)

    def _strike_memory_kill(self, strike: Strike) -> None:
        self._lose_memory(strike)
        self._watch(strike.down_s if strike.down_s < BRIEF_S else MEMORY_TIMEOUT_S + strike.down_s)
        self._parts.start_memory()
        self._memory_is_back(strike)

    def _strike_memory_kill_in_recovery(self, strike: Strike) -> None:
        self._kill_compute()
        self._parts.launch_compute(fresh=strike.fresh)
        self._watch(strike.down_s / 2)
        self._lose_memory(strike)
        self._watch(strike.down_s)
        self._parts.start_memory()
        try:
            self._compute_is_up()
        except (Failure, StrataError, pymysql.MySQLError):
            if not any(SAYS_WHY.search(line) for line in self._parts.compute.log_lines()):
                raise
            self.result.notes.append("compute had to be started again: its memory node went away while it recovered")
            self._kill_compute()
            self._restart_compute(fresh=False)
        self._memory_is_back(strike)

    def _strike_memory_wipe(self, strike: Strike) -> None:
        self._lose_memory(strike, wipe=True)
        self._watch(strike.down_s)
        self._parts.start_memory()
        self._memory_is_back(strike)

    def _strike_memory_stop(self, strike: Strike) -> None:
        self._clients.tolerant = True
        brief = strike.down_s < BRIEF_S
        if not brief:
            self._memory_will_be_away(strike)
            self._expected.discard("compute")
        pid = pause_process(self._parts.memory_node(strike.node))
        try:
            self._watch(strike.down_s if brief else MEMORY_TIMEOUT_S + 1 + strike.down_s)
        finally:
            os.kill(pid, signal.SIGCONT)
        self._memory_is_back(strike, was_short=brief)

    def _strike_memory_cut(self, strike: Strike) -> None:
        self._memory_will_be_away(strike)
        self._clients.tolerant = True
        self._expected.discard("compute")
        self._parts.links[strike.node].cut()
        self._watch(strike.down_s if strike.down_s < BRIEF_S else MEMORY_TIMEOUT_S + 1 + strike.down_s)
        self._mend(strike.node)
        self._memory_is_back(strike)

    def _strike_memory_slow(self, strike: Strike) -> None:
        self._clients.tolerant = True
        self._parts.links[strike.node].slow(self._rng.uniform(*SLOW_S))
        self._watch(NODE_LEASE_S + strike.down_s)
        self._parts.links[strike.node].mend()
        self._memory_is_back(strike, was_short=True)

    def _strike_memory_point(self, strike: Strike) -> None:
        node = self._parts.memory_node(strike.node)
        self._watch(POINT_TIMEOUT_S, lambda: node.pid() is None)
        if node.pid() is None:
            node.wait_exit(5)
            if node.last_signal() != signal.SIGKILL:
                raise Failure(f"{node.name} ended by itself (signal {node.last_signal()}):\n{node.log_tail(40)}")
            self.result.struck.add(strike.fault.split(":")[0])
        self._lose_memory(strike)
        self._watch(strike.down_s)
        self._parts.start_memory()
        self._memory_is_back(strike)

    def _strike_memory_both(self, strike: Strike, *, wipe: bool = False) -> None:
        self._lose_memory(strike, with_compute=True, wipe=wipe)
        memory_first = self._rng.random() < 0.7
        if memory_first:
            self._parts.start_memory()
        self._parts.launch_compute(fresh=strike.fresh)
        if not memory_first:
            self._watch(strike.down_s / 2)
            self._parts.start_memory()
        self._compute_is_up()
        self._memory_is_back(strike)

    def _strike_memory_both_wipe(self, strike: Strike) -> None:
        self._strike_memory_both(strike, wipe=True)

    # --- damage ---

    def _strike_corrupt(self, strike: Strike) -> None:
        """One node's bytes are damaged while all three have everything: the two others answer, and it says so or is not asked."""
        self._drain()
        self._parts.wait_well(NODES)
        node = self._parts.node(strike.node)
        self._expected.discard(strike.node)
        if self._rng.random() < 0.5:
            self._parts.kill_nodes([strike.node])
        elif not node.stop():
            raise Failure(f"{node.name} does not stop")
        kept = self._folder / "before_damage"
        shutil.copytree(node.data, kept)
        harm = damage_some_file(node.data, self._rng)
        self.result.notes.append(f"{node.name}: {harm.text}")
        try:
            self._start_nodes(strike.node)
        except StrataError as error:
            self._must_be_refusal(node.last_signal(), str(error))
        self._kill_compute()
        self._restart_compute(fresh=strike.fresh)
        self._start_workers(-1)
        self._watch(strike.work_s)
        self.result.notes.append(self._what_it_says(strike.node))

    def _must_be_refusal(self, ended_by: int | None, said: str) -> None:
        if ended_by is not None or " error " not in said:
            raise Failure(f"a node with damaged files ends with signal {ended_by}:\n{said}")
        self.result.notes.append(f"it does not start: {said.splitlines()[-1][-200:]}")

    def _what_it_says(self, name: str) -> str:
        if name not in self._expected:
            return "it stays away"
        illness = self._parts.node(name).illness()
        return "it has not met the damage, or mended it" if illness is None else f"it says: {illness[:200]}"
