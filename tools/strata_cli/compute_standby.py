"""`./strata compute standby`: a second compute node that takes the database over by itself when the first one is gone.

Its server is started beforehand and stands by (setting strata_stand_by, src/clients/compute/stand_by.h): everything is loaded,
and it waits for the registry to say that nobody holds the database, or for the end of a neighbour's process. What may be taken
over, and when, is judged there and decided by one change in the registry; the supervisor below only keeps such a server alive:
it starts it again when it ends, with growing pauses and the reason when it cannot be started, makes a server that was taken over
stand by again, and lets the cluster's socket lead to the one that serves.
"""

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pymysql

from . import paths
from .cluster import Cluster
from .server import Settings, choose_port, port_is_free
from .shell import StrataError
from .standby_process import FAILED, SERVING, STARTING, TAKING_OVER, WAITING, StandBy, State
from .waiting import wait_until

# src/clients/compute/stand_by.cc, mariadb/cluster.cc, compute_node.cc
WAITS = "stand-by: the database is held by"
TAKES = "stand-by: takes the database over"
FENCED = "answers nothing any more; stop it"
ERROR = "[ERROR] "
PREPARE_TIMEOUT_S = 60.0
LOOK_S = 0.05
LOOK_AROUND_S = 1.0  # whether the cluster is another one, and the socket leads here
PAUSE_MIN_S, PAUSE_MAX_S = 1.0, 30.0


# --- which there are ---------------------------------------------------------------------------------------------------


@dataclass
class Added:
    node: str
    folder: str
    port: int
    seconds: float


def add(cluster: Cluster, folder: Path | None, port: int | None, say: Callable[[str], None]) -> Added:
    """Returns once it waits for its turn. Raises StrataError when it cannot: the cluster is then as before."""
    began = time.monotonic()
    serving = cluster.serving_compute()
    if serving is None:
        raise StrataError("no compute node runs, so there is nobody to stand by for; start one: ./strata up")
    target = (folder or cluster.spare_compute_folder()).resolve()
    made = not target.exists()
    name, is_new = cluster.admit_compute(target)
    server = cluster.computes[name]
    if name in cluster.standbys:
        raise StrataError(f"{name} stands by already (in {paths.relative(target)})")
    if server.pid() is not None:
        raise StrataError(f"{name} runs already; choose another folder, or leave --data away")
    chosen = choose_port(port, _own_port(cluster, name, serving))
    cluster.remember_standby(name, chosen)
    standby = cluster.standbys[name]
    try:
        standby.launch(cluster.lease_s)
        ready = wait_until(
            lambda: standby.state().state not in (STARTING, TAKING_OVER) or standby.ended() is not None, PREPARE_TIMEOUT_S
        )
        state = standby.state()
        if not ready or state.state == FAILED or standby.pid() is None:
            about = state.why or f"it does not get so far as to wait; see {standby.log}:\n{standby.log_tail()}"
            raise StrataError(f"{name} cannot stand by, and nothing was changed: {about}")
    except BaseException:
        standby.leave()
        cluster.forget_standby(name)
        if is_new:
            cluster.forget_compute(target)
        if made:
            shutil.rmtree(target, ignore_errors=True)
        raise
    say(f"  {name:<10} stands by for {serving}; it would serve on port {chosen} (its folder: {paths.relative(target)})")
    return Added(name, str(target), chosen, time.monotonic() - began)


def _own_port(cluster: Cluster, name: str, serving: str) -> int:
    """As before, or one after those of the others."""
    before = cluster.computes[name].settings()
    if before.cluster:
        return before.port
    taken = [server.settings().port for server in cluster.computes.values() if server.settings().cluster]
    return max(taken, default=cluster.computes[serving].settings().port) + 1


def remove(cluster: Cluster, name: str, wipe: bool, say: Callable[[str], None]) -> None:
    """One that serves by now goes on, with nobody who starts it again."""
    standby = cluster.standbys.get(name)
    if standby is None:
        there = ", ".join(cluster.standbys) or "none"
        raise StrataError(f"{name} does not stand by; there is: {there}")
    serves = standby.server.pid() is not None
    if wipe and (serves or standby.server.data == cluster.data):
        what = "serves the database" if serves else "has the cluster's own folder"
        raise StrataError(f"{name} {what}, so nothing of it can be deleted, and nothing was changed")
    standby.leave()
    cluster.forget_standby(name)
    say(f"  {name:<10} {'serves on, as a compute node by itself' if serves else 'does not stand by any more'}")
    if wipe:
        standby.server.wipe()
        cluster.forget_compute(standby.server.data)


@dataclass
class Line:
    """What `status` says of one."""

    node: str
    folder: str
    port: int
    pid: int | None  # of the server
    state: str
    why: str
    took_over_s: float | None


def status(cluster: Cluster) -> list[Line]:
    return [line_of(standby) for standby in cluster.standbys.values()]


def line_of(standby: StandBy) -> Line:
    name, state = standby.name, standby.state()
    pid = standby.server.pid() or standby.waiting.pid()
    if standby.pid() is None:
        state = State("no supervisor", f"./strata node start {name} starts it; the end of {standby.log} says what it was")
    again = f" (tried {state.tries} times; again after {state.again_s:g} s)" if state.state == FAILED else ""
    folder = str(standby.server.data)
    return Line(name, folder, standby.port, pid, state.state, state.why + again, state.took_over_s)


# --- one of them, as a process ---------------------------------------------------------------------------------------------


class _Gone(Exception):
    """This server is of no use any more, as the text says."""


class Supervisor:
    """Runs until it is told to stop, which it hears of as an exception from anywhere."""

    def __init__(self, cluster: Cluster, standby: StandBy, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._standby = standby
        self._server = standby.server
        self._say = say
        self._state = State()
        self._read = 0  # of the server's log

    def run(self) -> None:
        try:
            while True:
                try:
                    self._one_life()
                except (_Gone, StrataError, OSError) as error:
                    self._failed(str(error))
                    time.sleep(self._state.again_s)
        finally:  # A server that serves goes on.
            if self._state.state != SERVING:
                self._end_server()
            self._server.disown()

    def _one_life(self) -> None:
        """Of a server, until it has ended or another one has to be started."""
        launched = self._settings()
        turn_came = time.monotonic()
        if self._server.pid() is not None:  # It serves, and an earlier supervisor has left it.
            self._read = self._server.log.stat().st_size
            self._serves(None)
        else:
            self._launch(launched)
        looked_around = time.monotonic()
        while True:
            if end := self._server.ended() or (None if self._server.pid() else "nobody knows how"):
                raise _Gone(f"its server ended ({end}): {self._last_words()}")
            said = self._new_lines()
            now = time.monotonic()
            for line in said if self._state.state != SERVING else []:  # Another one may have been quicker: then it waits again.
                if TAKES in line:
                    turn_came = now
                    self._enter(TAKING_OVER)
                elif WAITS in line:
                    self._enter(WAITING)
            if self._state.state != SERVING and self._answers():
                if self._state.state != TAKING_OVER or not self._server.has_strata(unix_socket=str(self._standby.socket)):
                    raise _Gone(f"its server could not take the database over: {self._last_words()}")
                self._serves(now - turn_came)
            if any(FENCED in line for line in said):
                raise _Gone("another compute node has taken the database over")
            if now - looked_around >= LOOK_AROUND_S:
                looked_around = now
                if self._state.state == SERVING:
                    self._cluster.lead_to(self._server)
                elif self._state.state == WAITING:
                    self._state = replace(self._state, tries=0)
                    if self._settings() != launched:
                        self._say("the cluster has changed: another server waits from now on")
                        self._end_server()
                        return
            time.sleep(LOOK_S)

    def _launch(self, settings: Settings) -> None:
        self._end_server()
        if not port_is_free(settings.port):
            remedy = "end that one, or remove this stand-by and add one on another port"
            raise _Gone(f"port {settings.port} is in use by another program; {remedy}")
        self._enter(STARTING)
        self._read = self._server.log.stat().st_size if self._server.log.exists() else 0
        self._server.launch(settings, keep_socket=True)
        self._standby.waiting.pid_file.write_text(f"{self._server.child_pid()}\n")

    def _serves(self, seconds: float | None) -> None:
        """`seconds`: after it saw its turn; None: it has served before."""
        self._state = State(SERVING, took_over_s=seconds)
        self._standby.tell(self._state)
        self._say("it serves" + ("" if seconds is None else f", {seconds:.2f} s after it saw its turn"))
        self._cluster.lead_to(self._server)
        cores, pid = self._cluster.settings().cores, self._server.pid()
        if cores and pid is not None:
            self._server.use_cores(pid, cores)  # Not before: with few of them it would take over slowly.

    def _settings(self) -> Settings:
        cluster = self._cluster
        others = [server.datadir / "#strata" for server in cluster.computes_now().values() if server.data != self._server.data]
        neighbours = ",".join(str(place) for place in others if "," not in str(place))
        plain = cluster.compute_settings(self._server.name, self._standby.port)
        options = [*plain.options, "--strata-stand-by=ON", f"--strata-stand-by-neighbours={neighbours}"]
        return replace(plain, cores=0.0, options=options)

    def _enter(self, state: str) -> None:
        if state != self._state.state:
            self._say(state)
        self._state = replace(self._state, state=state, why="")
        self._standby.tell(self._state)

    def _failed(self, why: str) -> None:
        tries = self._state.tries + 1 if self._state.state != SERVING else 1
        pause_s = min(PAUSE_MIN_S * 2 ** (tries - 1), PAUSE_MAX_S)
        self._state = State(FAILED, why, tries, pause_s, self._state.took_over_s)
        self._standby.tell(self._state)
        self._say(f"failed: {why}; again in {pause_s:g} s")
        self._end_server()

    def _end_server(self) -> None:
        """It has nothing that is not in the cluster."""
        self._server.kill_child()
        self._standby.waiting.kill()

    def _answers(self) -> bool:
        with contextlib.suppress(pymysql.MySQLError):
            self._server.connect(connect_timeout=5, unix_socket=str(self._standby.socket)).close()
            return True
        return False

    def _new_lines(self) -> list[str]:
        with self._server.log.open("rb") as log:
            log.seek(self._read)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace").splitlines()

    def _last_words(self) -> str:
        """Why, in its own words: the engine's first."""
        lines = [line.split(ERROR, 1)[1] for line in self._server.log_lines() if ERROR in line]
        return next((line for line in lines if line.startswith("STRATA: ")), lines[-1] if lines else f"see {self._server.log}")


def run(cluster: Cluster, folder: Path, say: Callable[[str], None]) -> None:
    standby = next((standby for standby in cluster.standbys.values() if standby.server.data == folder.resolve()), None)
    if standby is None:
        place = paths.relative(folder)
        raise StrataError(
            f"in {place} no compute node of this cluster stands by; ./strata compute standby add --data {place} makes one"
        )
    Supervisor(cluster, standby, lambda line: say(f"{time.strftime('%F %T')} {standby.name}: {line}")).run()
