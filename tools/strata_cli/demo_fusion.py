"""`./strata demo --profile fusion`: three servers write the same tables; one is killed and comes back, one is added; nothing that
was acknowledged is missing on any of them."""

import itertools
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from crash import bank
from crash.ledger import Ledger
from crash.session import ServerGone, Session
from crash.tables import verify_table
from rich.live import Live
from rich.table import Table

from . import build_cmd, compute_servers, paths, server_cmd, setup_cmd
from .cluster import SERVERS_MAX, Cluster, Wishes
from .profile_list import OF_SEVERAL_WRITERS
from .server import Server
from .shell import StrataError, console
from .waiting import wait_until

DATABASE = "demo"
SERVERS = 3
CLIENTS = 2  # Of each server.
VIEW_INTERVAL_S = 0.25
RATE_S = 2.0  # The live view's rates are of so long.
GOES_ON = 5  # Commits of each server before the next thing happens, however slow the machine is.
GOES_ON_TIMEOUT_S = 120.0
CLIENT_END_S = 90.0
TARGETS = ("ha_strata", "strata-storenode", "strata-memnode")


class Client(bank.BankWorker):
    """Transfers money; comes back when its server does. Notes when each transfer was acknowledged."""

    def __init__(self, server: Server, number: int, seed: int, ledger: Ledger) -> None:
        super().__init__(server, DATABASE, number, random.Random(f"{seed} {number}"), ledger)
        self.stays = True
        self.acknowledged_at: list[float] = []

    def step(self, session: Session) -> None:
        super().step(session)
        if self._txn in self._ledger.acked:
            self.acknowledged_at.append(time.monotonic())


@dataclass
class Load:
    """The clients of one server."""

    name: str
    clients: list[Client]
    began: float
    killed: float | None = None
    ended: float = 0.0

    def times(self) -> list[float]:
        return sorted(moment for client in self.clients for moment in list(client.acknowledged_at))

    def commits(self) -> int:
        return sum(len(client.acknowledged_at) for client in self.clients)

    def rate(self) -> float:
        return self.commits() / max(self.ended - self.began, 0.001)

    def rate_now(self) -> float:
        since = time.monotonic() - RATE_S
        return sum(moment >= since for moment in self.times()) / RATE_S

    def longest_gap_s(self) -> float:
        return longest_gap_s(self.times(), self.began, self.ended)

    def first_after_kill_s(self) -> float | None:
        killed = self.killed
        return None if killed is None else next((moment - killed for moment in self.times() if moment > killed), None)


def longest_gap_s(moments: list[float], began: float, ended: float) -> float:
    """Without a commit; what there was before the first one and behind the last one counts, too."""
    marks = [began, *(moment for moment in sorted(moments) if began <= moment <= ended), ended]
    return max(after - before for before, after in itertools.pairwise(marks))


@dataclass
class Work:
    """What is going on, and the demo's clock."""

    seconds: float
    seed: int
    ledger: Ledger
    loads: dict[str, Load] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    phase: str = ""

    def add(self, name: str, server: Server) -> None:
        numbers = range(1 + CLIENTS * len(self.loads), 1 + CLIENTS * (len(self.loads) + 1))
        clients = [Client(server, number, self.seed, self.ledger) for number in numbers]
        self.loads[name] = Load(name, clients, time.monotonic())
        for client in clients:
            client.start()

    def failures(self) -> list[str]:
        return [client.failure for load in self.loads.values() for client in load.clients if client.failure]

    def go_on(self, seconds: float) -> None:
        """For so long, and until each server has got some commits through in that time."""
        before = {name: load.commits() for name, load in self.loads.items()}
        until = time.monotonic() + seconds

        def enough() -> bool:
            all_go_on = all(load.commits() >= before[name] + GOES_ON for name, load in self.loads.items())
            return bool(self.failures()) or (time.monotonic() >= until and all_go_on)

        if not wait_until(enough, seconds + GOES_ON_TIMEOUT_S):
            stuck = [name for name, load in self.loads.items() if load.commits() < before[name] + GOES_ON]
            raise StrataError(f"within {seconds + GOES_ON_TIMEOUT_S:.0f} s no commits of {', '.join(stuck)}")
        if failures := self.failures():
            raise StrataError("\n".join(["the clients saw errors that they must not see:", *failures]))

    def end(self) -> None:
        for load in self.loads.values():
            for client in load.clients:
                client.halt()
        for load in self.loads.values():
            load.ended = time.monotonic()
        for load in self.loads.values():
            for client in load.clients:
                client.join(CLIENT_END_S)
        if any(client.is_alive() for load in self.loads.values() for client in load.clients):
            raise StrataError(f"a client got no answer within {CLIENT_END_S:.0f} s")

    def render(self) -> Table:
        shown = Table.grid(padding=(0, 2))
        for load in self.loads.values():
            shown.add_row(f"  {load.name}", f"{load.commits():,} commits", f"({load.rate_now():,.0f} a second)")
        shown.add_row("  now", self.phase)
        return shown


def demo(data: Path | None, port: int | None, seconds: float, build: bool) -> None:
    setup_cmd.setup()
    if build:
        console.print("[bold]Building[/] the plugin, storage and memory nodes")
        build_cmd.build(build_cmd.BuildType.release, targets=TARGETS)
    profile = OF_SEVERAL_WRITERS[0]
    folder = server_cmd.folder_for(profile, data)
    cluster = _with_one_server(profile, folder, port)
    with cluster.locked():
        try:
            _run(cluster, seconds)
        finally:
            cluster.disown()
    console.print("All of it is still running. Connect with:")
    server_cmd.print_servers(Cluster(folder), DATABASE)
    option = server_cmd.folder_option(cluster.data)
    console.print(f"  ./strata down --wipe{option}        (stop it and delete its data)", markup=False)


def _with_one_server(profile: str, folder: Path, port: int | None) -> Cluster:
    """The tables are made while there is one; the others are started then."""
    wishes = Wishes() if Cluster(folder).exists() else Wishes(servers=1)
    server_cmd.up(profile, folder, port, quiet=True, wishes=wishes)
    cluster = Cluster(folder, say=lambda line: console.print(line, markup=False))
    others = list(cluster.computes)[1:]
    with cluster.locked():
        compute_servers.end_in_order(cluster, others, lambda _: None)
        cluster.disown()
    return cluster


def _run(cluster: Cluster, seconds: float) -> None:
    first = next(iter(cluster.computes))
    console.print(f"[bold]Creating tables[/] in database '{DATABASE}' on {first}")
    server = cluster.computes[first]
    server.query(f"DROP DATABASE IF EXISTS {DATABASE}")
    server.query(f"CREATE DATABASE {DATABASE}")
    with Session(server, DATABASE) as session:
        bank.create(session, "STRATA")
    console.print(f"[bold]Starting[/] more servers, {SERVERS} in all")
    _start_others(cluster)
    ledgers = cluster.data / "demo-ledgers"
    shutil.rmtree(ledgers, ignore_errors=True)
    work = Work(seconds, random.randrange(1 << 32), Ledger(ledgers / "bank"))
    writers = list(cluster.computes)[:SERVERS]
    console.print(f"[bold]Working[/]: {CLIENTS} clients on each of {', '.join(writers)} transfer money between accounts;")
    console.print(f"  their ledger is in {paths.relative(ledgers)}, seed {work.seed}", markup=False)
    with _watched(work):
        try:
            added = _strike_and_add(cluster, writers, work)
        finally:
            work.end()
    for event in work.events:
        console.print(event)
    console.print(_figures(work))
    if not _prove(cluster, work):
        raise StrataError(f"the proof failed; the data folder {paths.relative(cluster.data)} is kept, the servers run")
    console.print(f"      {len(work.ledger.acked):,} transfers had been acknowledged; {added} was added meanwhile", markup=False)


def _start_others(cluster: Cluster) -> None:
    for name in list(cluster.computes):
        if cluster.computes[name].pid() is None:
            cluster.start_compute(name)
    while len(cluster.computes) < SERVERS:
        compute_servers.add(cluster, None, None)


def _strike_and_add(cluster: Cluster, writers: list[str], work: Work) -> str:
    """Three parts of the time: all work, one is killed and comes back, one more joins."""
    quiet = Cluster(cluster.data)  # The same, but it says nothing between the lines of the live view.
    for name in writers:
        work.add(name, quiet.computes[name])
    work.phase = "all of them work"
    work.go_on(work.seconds / 3)
    victim = writers[1 % len(writers)]
    work.phase = f"{victim} was killed with -9, and is started again"
    load = work.loads[victim]
    load.killed = time.monotonic()
    killed = compute_servers.kill(quiet, victim, False, lambda _: None)
    back_s = killed.back_s or 0.0
    work.events.append(
        f"[bold red]kill -9[/] of {victim} (pid {killed.pid}) while it worked; it answered again after {back_s:.2f} s"
    )
    work.go_on(work.seconds / 3)
    work.phase = "one more is added"
    if len(quiet.computes) < SERVERS_MAX:
        made = compute_servers.add(quiet, None, None)
        added, took_s = made.node, made.seconds
    else:  # All there can be: one that is there already takes part from now on.
        added, took_s = list(quiet.computes)[SERVERS], 0.0
    work.add(added, quiet.computes[added])
    work.events.append(f"[bold]Added[/] {added} while they worked: it served after {took_s:.2f} s")
    work.phase = f"{added} works, too"
    work.go_on(work.seconds / 3)
    quiet.disown()
    for name, server in quiet.computes.items():
        cluster.computes[name] = server
    return added


@contextmanager
def _watched(work: Work) -> Iterator[None]:
    """The live view, drawn by a thread of its own while the cluster is changed."""
    stop = threading.Event()
    with Live(work.render(), console=console, auto_refresh=False, transient=not console.is_terminal) as live:

        def draw() -> None:
            while not stop.wait(VIEW_INTERVAL_S):
                live.update(work.render(), refresh=True)

        thread = threading.Thread(target=draw, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _figures(work: Work) -> Table:
    shown = Table()
    for heading in ("server", "commits", "a second", "longest gap", "first commit after kill -9"):
        shown.add_column(heading, justify="left" if heading == "server" else "right")
    for load in work.loads.values():
        after = load.first_after_kill_s()
        gap = "" if load.killed is not None else f"{load.longest_gap_s():.2f} s"
        back = "" if after is None else f"{after:.2f} s"
        shown.add_row(load.name, f"{load.commits():,}", f"{load.rate():,.0f}", gap, back)
    return shown


def _prove(cluster: Cluster, work: Work) -> bool:
    sound = len(work.ledger.acked) > 0 and not work.failures()
    for failure in work.failures():
        console.print(f"      {failure}", markup=False)
    for name, server in cluster.computes.items():
        try:
            with Session(server, DATABASE) as session:
                for text, proof in PROOFS:
                    problems = proof(session, work)
                    console.print(f"  [red]FAILED[/] {name}: {text}" if problems else f"  [green]ok[/]  {name}: {text}")
                    for problem in problems:
                        console.print(f"      {problem}", markup=False)
                    sound = sound and not problems
        except ServerGone as error:
            console.print(f"  [red]FAILED[/] {name} does not answer: {error}")
            sound = False
    return sound


def _all_there(session: Session, work: Work) -> list[str]:
    problems = bank.verify(session, work.ledger)
    session.commit()
    return problems


def _tables_whole(session: Session, _: Work) -> list[str]:
    return [problem for table in bank.TABLES for problem in verify_table(session, table)]


PROOFS: tuple[tuple[str, Callable[[Session, Work], list[str]]], ...] = (
    ("each acknowledged transfer is there, none half, sum of balances unchanged", _all_there),
    ("CHECK TABLE ... EXTENDED is OK and every index agrees with its table", _tables_whole),
)
