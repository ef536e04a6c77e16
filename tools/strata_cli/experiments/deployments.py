"""Measuring the plans of legobase.py: clusters and servers with the same data, restarted with each local share, loaded, struck
and moved.

Each kind of profile keeps its database for the whole run. Repeats go through the setups in turns, every second time the other way
round. Before them it is measured how much memory the load touches when it may have all it wants: shares are of that.
"""

import math
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pymysql

from .. import compute_move, dilation, farmem, paths, setup_cmd
from ..bench import process, same_figures
from ..bench.comparison import STRATA
from ..bench.results import commit
from ..bench.servers import MIB, alone, database, machine
from ..cluster import FIRST_COMPUTE, Cluster, Wishes
from ..dilation import CLIENT, Emulation
from ..memory_node import MemoryNode
from ..process import kill_all
from ..server import Server, Settings, choose_port
from ..shell import StrataError, console
from ..waiting import wait_until
from .courses import (
    COMMIT_LIMIT_S,
    LOOK_S,
    NODE_LEASE_S,
    QUIET_S,
    Background,
    not_void,
    possible,
    series_of,
    undisturbed,
    warm_up_s,
)
from .ladder import LOAD_POOL
from .legobase import ALL_LOCAL, COMPUTE, LEAST_POOL, MEMORY, OWN, POOLED, Phase, Plan, Result, Run, Setup, profile_of
from .loads import Load, Target, load_of

WARM_UP_S = 5
BEHIND = 3  # times as long behind a crash as before it
STEPS = 6  # in which cores are taken away in place
STEPS_LENGTH = 0.24  # of the plan's seconds, for all of them
PORT = 23_706
PAGE_BYTES = 16 << 10
WHOLE_CORES = "Cores could only be given whole, since no cgroup can be made here."


def run(plan: Plan, repeats: int, lock: Path | None, keep: Callable[[Result], None]) -> Result:
    setup_cmd.ensure_setup()
    plan, notes = possible(plan, _folder() / "dilation")
    load = load_of(plan)
    with _deployments(plan, load) as found:
        for deployment in found.values():
            with undisturbed(lock):
                console.print(f"loading {deployment.profile} ...")
                deployment.load()
        result = _begun(plan, next(iter(found.values())), lock)
        result.notes += notes
        if plan.wish().dilated:
            result.same_figures = same_figures.last_deviation()
            for deployment in found.values():
                with undisturbed(lock):
                    deployment.begin_dilation()
        for number in range(repeats):
            for setup in plan.setups if number % 2 == 0 else reversed(plan.setups):
                with undisturbed(lock):
                    for deployment in found.values():  # What another one still writes back is not measured with it.
                        deployment.wait_until_quiet()
                    measured = _measured(found[setup.kind], plan, setup, result)
                result.runs.append(measured)
                console.print(f"  {setup.label}: {measured.tps:,.1f} {load.unit} {_shown(measured)}", markup=False)
            keep(result)
        return result


def _begun(plan: Plan, first: "Deployment", lock: Path | None) -> Result:
    with undisturbed(lock):
        data_bytes = first.data_bytes()
        touched_bytes = first.touched_bytes(int(ALL_LOCAL * data_bytes))
        if any(setup.swapped for setup in plan.setups):
            first.look_outside()
    result = Result(plan, data_bytes, [], [commit()], machine(), touched_bytes=touched_bytes)
    console.print(f"  {data_bytes / MIB:,.0f} MiB of data, of which the load touches {touched_bytes / MIB:,.0f} MiB")
    if said := result.too_large_pool():
        console.print(f"[yellow]{said}[/]")
    return result


def _shown(run: Run) -> str:
    said = {**(run.marks or {}), **(run.queries or {})}
    return ", ".join([*(f"{name} {value:,.2f}" for name, value in said.items()), *([f"VOID: {run.void}"] if run.void else [])])


def _measured(deployment: "Deployment", plan: Plan, setup: Setup, result: Result) -> Run:
    deployment.restart(result.pool_bytes(setup), setup, result.local_bytes(setup) if setup.swapped else None)
    deployment.warm_up(WARM_UP_S)
    deployment.wait_until_quiet()
    if plan.phases:
        return phased(deployment, plan, setup, result.notes)
    if plan.crashes:
        return crashed(deployment, plan, setup)
    return not_void(lambda: deployment.measure(setup))


# --- a crash -------------------------------------------------------------------------------------------------------


def crashed(deployment: "Deployment", plan: Plan, setup: Setup) -> Run:
    load = Background(partial(deployment.go_on, plan.threads, (1 + BEHIND) * plan.seconds))
    load.wait(plan.seconds)
    until_commit_s = deployment.crash(setup)
    series = load.series()
    quarter = plan.seconds // 4
    before = median(series[quarter : max(quarter + 1, plan.seconds - 1)] or [0.0])
    back = plan.seconds + until_commit_s
    marks = {"crash_s": float(plan.seconds), "until_commit_s": until_commit_s, "warm_up_s": warm_up_s(series, before, back)}
    return Run(setup.label, before, series=series, marks=marks)


# --- moves ---------------------------------------------------------------------------------------------------------


def phased(deployment: "Deployment", plan: Plan, setup: Setup, notes: list[str]) -> Run:
    """Each phase begins with its load; the compute node follows a little later, as somebody who watches it would do."""
    series: list[float] = []
    marks: dict[str, float] = {}
    used, most, before = 0.0, 0.0, plan.phases[0]
    _note(notes, deployment.use_cores(before.cores * plan.most_cores))
    try:
        for number, phase in enumerate(plan.phases, 1):
            seconds, delay_s = round(phase.length * plan.seconds), phase.delay * plan.seconds
            load = Background(partial(deployment.go_on, phase.threads, seconds))
            if phase.cores != before.cores:
                load.wait(delay_s)
                used += delay_s * before.cores
                used += _follow(deployment, plan, phase, before, number, marks)
                used += max(0.0, seconds - delay_s - marks[f"change_{number}_s"]) * phase.cores
            else:
                used += seconds * phase.cores
            most += seconds * max(each.cores for each in plan.phases)
            of_phase = load.series()
            marks[f"phase_{number}_tps"] = median(of_phase[len(of_phase) // 2 :] or [0.0])
            marks[f"phase_{number}_ends_s"] = float(len(series) + len(of_phase))
            series += of_phase
            before = phase
    finally:
        deployment.use_cores(0)
    marks |= {"core_seconds": used * plan.most_cores, "saved": 1 - used / most}
    return Run(setup.label, median(series or [0.0]), series=series, marks=marks)


def _note(notes: list[str], how: str) -> None:
    if "whole ones only" in how and WHOLE_CORES not in notes:
        notes.append(WHOLE_CORES)


def _follow(deployment: "Deployment", plan: Plan, phase: Phase, before: Phase, number: int, marks: dict[str, float]) -> float:
    """Returns what it took meanwhile: seconds, times the share of the most cores that it had."""
    began, took = time.monotonic(), 0.0
    if phase.moves:
        marks[f"gap_{number}_s"] = deployment.move(phase.cores * plan.most_cores)
        took = (time.monotonic() - began) * phase.cores
    else:
        step_s = STEPS_LENGTH * plan.seconds / STEPS
        for step in range(1, STEPS + 1):
            cores = before.cores + (phase.cores - before.cores) * step / STEPS
            deployment.use_cores(cores * plan.most_cores)
            threading.Event().wait(step_s)
            took += step_s * cores
    marks[f"change_{number}_s"] = time.monotonic() - began
    return took


# --- the databases -------------------------------------------------------------------------------------------------


def _folder() -> Path:
    return paths.BUILD / "bench" / "legobase"


@contextmanager
def _deployments(plan: Plan, load: Load) -> Iterator[dict[str, "Deployment"]]:
    folder = _folder()
    with alone(folder.parent / "lock"), ExitStack() as stack:
        found: dict[str, Deployment] = {}
        for kind in dict.fromkeys(setup.kind for setup in plan.setups):
            profile = profile_of(kind)
            console.print(f"starting {profile} ...")
            if kind == OWN:
                deployment: Deployment = ServerAlone(plan, load, profile, folder / kind)
            else:
                deployment = WholeCluster(plan, load, profile, folder / kind, pooled=kind == POOLED)
            stack.callback(deployment.end)
            deployment.start()
            found[kind] = deployment
        yield found


class Deployment:
    """A database of one profile with all its processes."""

    def __init__(self, plan: Plan, load: Load, profile: str, folder: Path) -> None:
        self.profile = profile
        self._plan = plan
        self._load = load
        self._folder = folder
        self.outside_bytes = 0  # Of a server's memory, what are no pages; see look_outside().

    # What differs between a server and a cluster.

    def server(self) -> Server:
        raise NotImplementedError

    def start(self) -> None:
        raise NotImplementedError

    def begin_dilation(self) -> None:
        """Once all is loaded."""
        raise StrataError(f"{self.profile} is not dilated here")

    def restart(self, pool_bytes: int, setup: Setup | None = None, local_bytes: int | None = None) -> None:
        """`local_bytes`: of pages in local memory, where the rest is swapped."""
        raise NotImplementedError

    def strike(self, setup: Setup) -> None:
        """kill -9, and at once another start of what was killed."""
        raise NotImplementedError

    def wait_struck(self, setup: Setup) -> None:
        """Until all that was killed serves again."""

    def end(self) -> None:
        raise NotImplementedError

    def cpu_s(self) -> float:
        """For a second of emulated time, if time is emulated."""
        raise NotImplementedError

    def use_cores(self, cores: float) -> str:
        """0: all. Returns how, in words."""
        raise StrataError(f"{self.profile} does not change its cores")

    def move(self, cores: float) -> float:
        raise StrataError(f"{self.profile} does not move")

    def _target(self) -> Target:
        return Target(self.server(), self.server(), {}, 1.0, self._pages_read)

    def _emulation(self) -> Emulation | None:
        """Once it has begun."""
        return None

    # What does not.

    def _options(self, pool_bytes: int, setup: Setup | None = None) -> tuple[str, ...]:
        link = self._plan.link_of(setup) if setup else self._plan.link
        usual = (f"--strata-buffer-pool-size={pool_bytes}", f"--strata-link={link}")
        return (*usual, "--max-connections=500", "--performance-schema=OFF", *(setup.options if setup else ()))

    def _query(self, text: str) -> list[tuple[Any, ...]]:
        return self.server().query(text)

    def load(self) -> None:
        self._query(f"CREATE DATABASE IF NOT EXISTS {database(STRATA)}")
        self._query("CREATE TABLE IF NOT EXISTS test.witness (id INT PRIMARY KEY, n BIGINT NOT NULL) ENGINE=STRATA")
        self.server().query("REPLACE INTO test.witness VALUES (1, 0)", autocommit=True)
        self._load.prepare(self._target())

    def data_bytes(self) -> int:
        rows = self._query(
            f"SELECT SUM(data_length + index_length) FROM information_schema.tables WHERE table_schema = '{database(STRATA)}'"
        )
        return int(rows[0][0])

    def touched_bytes(self, pool_bytes: int) -> int:
        """By the load, with so much memory."""
        self.restart(pool_bytes)
        self.warm_up(WARM_UP_S + self._plan.seconds)
        counted = self._counters()
        return PAGE_BYTES * (counted["buffer_pool_frames"] - counted["buffer_pool_free"])

    def look_outside(self) -> None:
        """Finds outside_bytes: with the least pool, all of which is resident, since a large one may be where nothing was touched,
        too (the kernel's large pages)."""
        self.restart(LEAST_POOL)
        self.warm_up(WARM_UP_S)
        pid = self.server().pid()
        assert pid is not None
        self.outside_bytes = max(0, process.resident_bytes(pid) - LEAST_POOL)

    def warm_up(self, seconds: int) -> None:
        self._load.run(self._target(), self._plan.threads, seconds)

    def wait_until_quiet(self) -> None:
        process.wait_until_quiet(self.cpu_s, QUIET_S * self._plan.dilation)

    def measure(self, setup: Setup) -> Run:
        before, began, machine_time = self._counters(), time.monotonic(), process.MachineTime.now()
        swapped_in = process.pages_swapped_in()
        with dilation.watched(self._emulation()) as validity:
            measured = self._load.run(self._target(), self._plan.threads, self._plan.seconds)
        elapsed_s, used_s = time.monotonic() - began, machine_time.used_since()
        grown = {name: value - before.get(name, 0) for name, value in self._counters().items()}
        if setup.swapped:
            grown["pages_swapped_in"] = process.pages_swapped_in() - swapped_in
        costs = {**costs_of(grown), "machine_cores": used_s / elapsed_s}
        judged = validity()
        void = (judged.why_void or "") if judged else ""
        if judged:
            costs |= {"late_share": judged.late_share, "machine_cores": judged.cores_used}
        return Run(
            setup.label,
            measured.rate,
            measured.p99_ms,
            costs=costs,
            queries=measured.queries,
            gets=measured.gets,
            void=void,
        )

    def _counters(self) -> dict[str, int]:
        found = self._query("SHOW GLOBAL STATUS LIKE 'Strata%'")
        return {str(name).removeprefix("Strata_").lower(): int(value) for name, value in found if str(value).isdigit()}

    def _pages_read(self) -> int:
        return self._counters()["buffer_pool_reads"]

    def go_on(self, threads: int, seconds: int) -> list[float]:
        """A load that outlives its server: what it does each second."""

        def run(left: int) -> Path:
            log, kept = self._load.run_each_second(self._target(), threads, left)
            if not kept:
                wait_until(self._is_there, left, LOOK_S)
            return log

        return series_of(run, seconds)

    def _is_there(self) -> bool:
        try:
            self.server().connect(connect_timeout=1).close()
        except pymysql.MySQLError:
            return False
        return True

    def crash(self, setup: Setup) -> float:
        """Returns the seconds from there until it commits again."""
        began = time.monotonic()
        self.strike(setup)
        if not wait_until(self._commits, COMMIT_LIMIT_S, LOOK_S):
            raise StrataError(f"no commit within {COMMIT_LIMIT_S:.0f} s of the start:\n{self.server().log_tail()}")
        took_s = time.monotonic() - began
        self.wait_struck(setup)
        return took_s

    def _commits(self) -> bool:
        if end := self.server().ended():
            raise StrataError(f"mariadbd ended while starting ({end}):\n{self.server().log_tail()}")
        try:
            self.server().query("UPDATE test.witness SET n = n + 1 WHERE id = 1", autocommit=True)
        except pymysql.MySQLError:
            return False
        return True


def costs_of(grown: dict[str, int]) -> dict[str, float]:
    """Of a transaction: what counters grew by, divided by how many there were."""
    count = grown.get("trx_commits", 0) + grown.get("trx_read_only_commits", 0)
    names = (
        "buffer_pool_reads",
        "lego_remote_hits",
        "lego_lookups",
        "lego_storage_reads",
        "cluster_pages_read",
        "pages_swapped_in",
        "log_bytes",
    )
    found = {name: grown[name] / max(count, 1) for name in names if name in grown}
    if hits := grown.get("lego_remote_hits", 0):
        found["us_of_a_get"] = grown["lego_get_ns"] / hits / 1000
    return found


class ServerAlone(Deployment):
    def __init__(self, plan: Plan, load: Load, profile: str, folder: Path) -> None:
        super().__init__(plan, load, profile, folder)
        self._server = Server(folder)
        self._settings = Settings(port=choose_port(None, PORT), engine=STRATA)
        self._extra: tuple[str, ...] = self._options(LOAD_POOL)

    def server(self) -> Server:
        return self._server

    def start(self) -> None:
        self.end()
        self._server.start(self._settings, extra=self._extra)
        self._query("CREATE DATABASE IF NOT EXISTS test")

    def restart(self, pool_bytes: int, setup: Setup | None = None, local_bytes: int | None = None) -> None:
        if local_bytes is not None:
            raise StrataError(f"{self.profile} is not swapped here")
        self._server.stop()
        self._extra = self._options(pool_bytes, setup)
        self._server.start(self._settings, extra=self._extra)

    def strike(self, setup: Setup) -> None:
        self._server.kill()
        self._server.launch(self._settings, extra=self._extra)

    def end(self) -> None:
        self._server.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def cpu_s(self) -> float:
        pid = self._server.pid()
        return process.cpu_s(pid) if pid is not None else 0.0


class WholeCluster(Deployment):
    def __init__(self, plan: Plan, load: Load, profile: str, folder: Path, *, pooled: bool) -> None:
        super().__init__(plan, load, profile, folder)
        self._pooled = pooled
        self._swapping: farmem.MemoryNode | None = None
        self._emulated: Emulation | None = None
        self._has_begun = False
        if plan.wish().dilated:
            self._emulated = Emulation(plan.wish(), folder.with_name(f"{folder.name}-emulated"))
        self._cluster = self._made()

    def _made(self) -> Cluster:
        # The registry counts real seconds.
        lease = ("--lease", str(math.ceil(NODE_LEASE_S * self._plan.dilation))) if self._emulated else ()
        cluster = Cluster(
            self._folder,
            program=[paths.storenode_path("release"), *lease],
            memory_program=[paths.memnode_path("release"), *lease],
        )
        cluster.lease_s = 2  # Of a killed server; its start waits for the end of it otherwise.
        cluster.emulation = self._emulated
        return cluster

    def server(self) -> Server:
        return self._cluster.computes[self._cluster.serving_compute() or FIRST_COMPUTE]

    def _target(self) -> Target:
        """Over the cluster's socket, which stays when the compute node moves."""
        clients = self._emulated.environment(CLIENT, CLIENT) if self._emulated else {}
        first = self._cluster.computes[FIRST_COMPUTE]
        return Target(self.server(), first, clients, self._plan.dilation, self._pages_read)

    def _emulation(self) -> Emulation | None:
        return self._emulated if self._has_begun else None

    def start(self) -> None:
        self.end()
        self._cluster = self._made()
        self._cluster.compute_options = self._options(LOAD_POOL)
        self._cluster.start(self.profile, wishes=Wishes(memory=self._plan.memory) if self._pooled else None)

    def begin_dilation(self) -> None:
        assert self._emulated is not None
        self.wait_until_quiet()
        self._cluster.stop()
        self._emulated.begin()
        self._has_begun = True
        self._cluster.start(self.profile)

    def restart(self, pool_bytes: int, setup: Setup | None = None, local_bytes: int | None = None) -> None:
        serving = self._cluster.serving_compute()
        if serving is not None:
            self._cluster.stop_part(serving)
        self._end_swapping()
        self._cluster.compute_options = self._options(pool_bytes, setup)
        if setup is not None and local_bytes is not None:
            self._cluster.compute_prefix = self._begin_swapping(local_bytes, self._plan.link_of(setup))
        self._cluster.start_part(FIRST_COMPUTE)

    def _begin_swapping(self, local_bytes: int, link: str) -> tuple[str, ...]:
        """Returns the command that runs a server so. The limit is of all its memory: what are no pages comes on top."""
        self._swapping = farmem.MemoryNode(self._plan.memory)
        options = farmem.Options(
            mode=farmem.SWAP, local=str(self.outside_bytes + local_bytes), far=self._plan.memory, link=link, quiet=True
        )
        return tuple(farmem.run_command(self._swapping.__enter__(), options, ()))

    def _end_swapping(self) -> None:
        self._cluster.compute_prefix = ()
        if self._swapping is not None:
            self._swapping.__exit__()
            self._swapping = None

    def _pages_read(self) -> int:
        """The kernel counts in pages of its own; nothing else is swapped."""
        return process.pages_swapped_in() if self._swapping is not None else super()._pages_read()

    def strike(self, setup: Setup) -> None:
        struck = [self.server()] if COMPUTE in setup.strikes else []
        nodes = self._memory_struck(setup)
        kill_all([*struck, *nodes])
        for node in nodes:
            if setup.memory_lost:
                node.wipe_pools()
            node.launch()
        if struck:
            self.wait_struck(setup)
        for server in struck:
            server.launch(self._cluster.compute_settings(FIRST_COMPUTE, server.settings().port))

    def _memory_struck(self, setup: Setup) -> list[MemoryNode]:
        return list(self._cluster.memory.values()) if MEMORY in setup.strikes else []

    def wait_struck(self, setup: Setup) -> None:
        for node in self._memory_struck(setup):
            node.wait_ready()

    def use_cores(self, cores: float) -> str:
        pid = self.server().pid()
        how = self.server().use_cores(pid, cores) if pid is not None else ""
        self._cluster.set_compute(None, cores)
        return how

    def move(self, cores: float) -> float:
        return compute_move.move(self._cluster, None, None, Wishes(cores=cores), lambda _: None).gap_s

    def end(self) -> None:
        self._cluster.stop()
        self._end_swapping()
        if self._emulated:
            self._emulated.end()
        if self._cluster.exists() and not self._cluster.running():
            self._cluster.wipe()

    def cpu_s(self) -> float:
        """The registry is not emulated."""
        parts = [part for name, part in self._cluster.parts().items() if name != "etcd"]
        used = sum(process.cpu_s(pid) for part in parts if (pid := part.pid()) is not None)
        return used * (self._plan.dilation if self._has_begun else 1.0)
