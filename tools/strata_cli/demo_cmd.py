"""`./strata demo`: build, start, work, kill -9, restart, and proof that nothing acknowledged was lost."""

import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pymysql
from crash import bank, events
from crash.ledger import Ledger
from crash.session import Session
from crash.tables import verify_table
from rich.live import Live
from rich.table import Table

from . import build_cmd, paths, server_cmd, setup_cmd
from .profile_list import MONOLITHIC
from .server import Server, Settings
from .shell import StrataError, console

DATABASE = "demo"
VIEW_INTERVAL_S = 0.25
WRITER_END_S = 30


@dataclass
class View:
    """What the live view shows."""

    started: float
    seconds: float
    acknowledged: int = 0
    samples: deque[tuple[float, int]] | None = None
    balance: str = "-"

    def rate(self) -> float:
        if not self.samples or len(self.samples) < 2:
            return 0.0
        (t0, n0), (t1, n1) = self.samples[0], self.samples[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0

    def render(self) -> Table:
        elapsed = min(time.monotonic() - self.started, self.seconds)
        filled = int(30 * elapsed / self.seconds)
        table = Table.grid(padding=(0, 2))
        table.add_row("  working", f"[cyan]{'━' * filled}[/][dim]{'━' * (30 - filled)}[/] {elapsed:.0f}/{self.seconds:.0f} s")
        table.add_row("  acknowledged", f"{self.acknowledged:,} transactions ({self.rate():,.0f} per second)")
        table.add_row("  sum of balances", f"{self.balance} (must stay {bank.ACCOUNTS * bank.INITIAL_BALANCE})")
        return table


def demo(data: Path, port: int | None, seconds: float, engine: str, build: bool) -> None:
    setup_cmd.setup()
    if build:
        console.print("[bold]Building[/] the plugin")
        build_cmd.build(build_cmd.BuildType.release, targets=("ha_strata",))
    console.print("[bold]Starting a server[/]")
    server = server_cmd.up(MONOLITHIC, data, port, quiet=True)
    if engine.upper() == "STRATA" and not server.has_strata():
        raise StrataError(f"the server runs without STRATA; see {paths.relative(server.log)}")
    console.print(f"[bold]Creating tables[/] in database '{DATABASE}' with ENGINE={engine}")
    _create_tables(server, engine)
    ledgers = server.data / "demo-ledgers"
    shutil.rmtree(ledgers, ignore_errors=True)
    ledgers.mkdir()
    console.print(f"[bold]Working[/]: 4 clients transfer money, 4 insert rows; their ledger is in {paths.relative(ledgers)}")
    _work_and_kill(server, ledgers, seconds)
    settings = server.settings()
    took = server.start(Settings(settings.profile, settings.preset, settings.port, settings.engine))
    server.disown()
    console.print(f"[bold]Started again[/] on the same data: answering after {took:.2f} s, recovery included")
    sound = _prove(server, ledgers)
    if not sound:
        raise StrataError(f"the proof failed; the data folder {paths.relative(server.data)} is kept, the server runs")
    console.print("The server is still running. Connect with:")
    server_cmd.print_how_to_connect(server, DATABASE)
    option = server_cmd.data_option(server)
    console.print(f"  ./strata down --wipe{option}        (stop it and delete its data)", markup=False)


def _create_tables(server: Server, engine: str) -> None:
    server.query(f"DROP DATABASE IF EXISTS {DATABASE}")
    server.query(f"CREATE DATABASE {DATABASE}")
    with Session(server, DATABASE) as session:
        bank.create(session, engine)
        events.create(session, engine)


def _work_and_kill(server: Server, ledgers: Path, seconds: float) -> None:
    command = [str(paths.venv_bin("python3")), "-m", "crash.writer", "--database", DATABASE]
    command += ["--socket", str(server.socket), "--ledgers", str(ledgers)]
    writer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        _watch(server, writer, ledgers, seconds)
        pid = server.pid()
        server.kill()
        console.print(f"[bold red]kill -9[/] of mariadbd (pid {pid}) in the middle of it")
        _, errors = writer.communicate(timeout=WRITER_END_S)
    finally:
        if writer.poll() is None:
            writer.kill()
            writer.wait()
    if writer.returncode != 0:
        raise StrataError(f"the client saw errors it must not see:\n{errors}")


def _watch(server: Server, writer: subprocess.Popen[str], ledgers: Path, seconds: float) -> None:
    view = View(time.monotonic(), seconds, samples=deque(maxlen=9))
    counters = [_AckCounter(ledgers / name) for name in ("bank", "events")]
    with Live(view.render(), console=console, refresh_per_second=8, transient=not console.is_terminal) as live:
        while time.monotonic() - view.started < seconds:
            time.sleep(VIEW_INTERVAL_S)
            if writer.poll() is not None:
                break
            view.acknowledged = sum(counter.count() for counter in counters)
            assert view.samples is not None
            view.samples.append((time.monotonic(), view.acknowledged))
            view.balance = _balance(server)
            live.update(view.render())
    if not console.is_terminal:
        console.print(f"  {view.acknowledged} transactions acknowledged, sum of balances {view.balance}")


def _balance(server: Server) -> str:
    try:
        return str(server.query("SELECT SUM(balance) FROM bank_accounts", database=DATABASE)[0][0])
    except pymysql.MySQLError:
        return "?"


class _AckCounter:
    """Counts the acknowledgements in a growing ledger, reading only what is new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._count = 0

    def count(self) -> int:
        if self._path.exists():
            with self._path.open("rb") as source:
                source.seek(self._offset)
                new = source.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._offset += len(whole)
            self._count += whole.count(b'["ack"')
        return self._count


def _prove(server: Server, ledgers: Path) -> bool:
    bank_ledger, events_ledger = Ledger.read(ledgers / "bank"), Ledger.read(ledgers / "events")
    acked = len(bank_ledger.acked) + len(events_ledger.acked)
    in_doubt = len(bank_ledger.unknown()) + len(events_ledger.unknown())
    with Session(server, DATABASE) as session:
        proofs: list[tuple[str, Callable[[], list[str]]]] = [
            (
                f"each of {len(bank_ledger.acked):,} acknowledged transfers is there, none half, sum of balances unchanged",
                lambda: bank.verify(session, bank_ledger),
            ),
            (
                f"each of {len(events_ledger.acked):,} acknowledged inserts is there, none half",
                lambda: events.verify(session, events_ledger),
            ),
            (
                "CHECK TABLE ... EXTENDED is OK and every index agrees with its table",
                lambda: [p for table in (*bank.TABLES, *events.TABLES) for p in verify_table(session, table)],
            ),
        ]
        problems: list[str] = []
        for text, proof in proofs:
            found = proof()
            console.print(f"  [red]FAILED[/] {text}" if found else f"  [green]ok[/]  {text}")
            problems += found
    for problem in problems:
        console.print(f"      {problem}", markup=False)
    note = f"{acked:,} transactions had been acknowledged; {in_doubt} more were waiting for their answer when the server died"
    console.print(f"      {note}")
    return not problems and acked > 0
