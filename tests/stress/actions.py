"""What a client does with more than its own connection: it ends others, leaves prepared transactions to others, dumps a server.

Each takes what all clients share, the client's session and its random numbers, and says whether the session can still be used.
"""

import random
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pymysql
from strata_cli import paths
from strata_cli.server import Server

from .errors import ANY
from .schema import ACCOUNTS, AMOUNT
from .sessions import Session, Shared, is_lost, names_of

DUMP = paths.MARIADB_ROOT / "usr" / "bin" / "mariadb-dump"
DUMP_TIMEOUT_S = 120.0
# What a dump may be refused with while others change definitions; 1356 is said by views of what is gone.
DUMP_ERRORS = ANY | {1146, 1305, 1356, 1360, 1539, 2013, 4091, 1049, 1051, 1054}
NO_SUCH_THREAD, NO_SUCH_XID, WRONG_STATE, OUTSIDE, ROLLED_BACK = 1094, 1397, 1399, 1400, 1402
XA_ERRORS = ANY | {NO_SUCH_XID, WRONG_STATE, OUTSIDE, ROLLED_BACK}
# Of several tables with triggers: what is renamed back has none that can be read, in InnoDB as well (docs/manual/limits.md).
SPOILED_BY_KILL = "RENAME TABLE s.t"
LEFT = "left"  # how the names of transactions begin that anybody may decide
Action = Callable[[Shared, Session, random.Random], bool]


def _tried(shared: Shared, session: Session, statement: str, allowed: frozenset[int]) -> tuple[bool, bool]:
    """Whether it was done, and whether the session can still be used."""
    try:
        session.run(statement)
    except pymysql.MySQLError as error:
        shared.judge(session.who, session, statement, error, allowed)
        return False, not is_lost(error)
    return True, True


def kill_query(shared: Shared, session: Session, rng: random.Random) -> bool:
    other = _another(shared, session, rng)
    return other is None or _tried(shared, session, f"KILL QUERY {other.number}", ANY | {NO_SUCH_THREAD})[1]


def kill_connection(shared: Shared, session: Session, rng: random.Random) -> bool:
    other = _another(shared, session, rng)
    if other is None:
        return True
    shared.will_be_killed(other)
    return _tried(shared, session, f"KILL CONNECTION {other.number}", ANY | {NO_SUCH_THREAD})[1]


def _another(shared: Shared, session: Session, rng: random.Random) -> Session | None:
    """Of the same server: numbers of connections are each server's own. Not one that MariaDB lets spoil a table's triggers."""
    others = [
        other
        for other in shared.live()
        if other.server is session.server and other is not session and not other.statement.startswith(SPOILED_BY_KILL)
    ]
    return rng.choice(others) if others else None


def prepare_and_leave(shared: Shared, session: Session, rng: random.Random) -> bool:
    """Nobody has the prepared transaction when the connection ends."""
    name, table = f"{LEFT}-{shared.unique()}", rng.randrange(3)
    change = f"UPDATE s.t{table} SET b = b + 1 WHERE a = {rng.randrange(1, 40)}"
    for statement in (f"XA START '{name}'", change, f"XA END '{name}'", f"XA PREPARE '{name}'"):
        done, _ = _tried(shared, session, statement, ANY | {1400, 1402, 1613, 1614})
        if not done:
            break
    return False


def decide_what_was_left(shared: Shared, session: Session, rng: random.Random) -> bool:
    """Asked of the session's server, and sometimes decided on another one, which knows nothing of it."""
    try:
        left = [name for name in names_of(session.run("XA RECOVER")) if name.startswith(LEFT)]
    except pymysql.MySQLError as error:
        shared.judge(session.who, session, "XA RECOVER", error, ANY)
        return not is_lost(error)
    # A branch that has changed nothing is rolled back when its connection ends (1402); this one may have its own (1400).
    for name in left:
        if rng.random() < 0.1:
            _decide_elsewhere(shared, rng, name)
        statement = f"XA {rng.choice(('COMMIT', 'ROLLBACK'))} '{name}'"
        _, usable = _tried(shared, session, statement, XA_ERRORS)
        if not usable:
            return False
    return True


def _decide_elsewhere(shared: Shared, rng: random.Random, name: str) -> None:
    server = rng.choice(shared.servers)
    who = f"decider@{server.data.name}"
    session = None
    try:
        session = Session(shared, server, who)
        session.run(f"XA COMMIT '{name}'")
    except pymysql.MySQLError as error:
        shared.judge(who, session, f"XA COMMIT '{name}'", error, XA_ERRORS)
    finally:
        if session is not None:
            session.close()


def dump(shared: Shared, session: Session, rng: random.Random) -> bool:
    """A dump is of one moment: the accounts in it have what they had together in the beginning."""
    what = ["bank"] if rng.random() < 0.7 else ["--routines", "--events", "--force", "--databases", "s", "bank"]
    said, text = _dumped(session.server, what)
    shared.journal.note(f"{session.who} has dumped {what[-1]}: {said or 'no error'}")
    if said:
        codes = [int(code) for code in re.findall(r"\b(\d{4})\b", said)]
        code = codes[0] if codes else 0
        shared.judge(session.who, None, f"mariadb-dump {' '.join(what)}", pymysql.err.OperationalError(code, said), DUMP_ERRORS)
        return True
    amounts = _amounts(text)
    if len(amounts) != ACCOUNTS or sum(amounts) != ACCOUNTS * AMOUNT:
        shared.journal.wrong("a dump is not of one moment", f"{session.who}: {len(amounts)} accounts with {sum(amounts)}")
    return True


def _dumped(server: Server, what: list[str]) -> tuple[str, str]:
    """What it says of errors, and the dump."""
    command = [
        str(DUMP),
        "--no-defaults",
        "-uroot",
        f"--socket={server.socket}",
        "--single-transaction",
        "--skip-extended-insert",
    ]
    try:
        done = subprocess.run(
            [*command, *what], capture_output=True, text=True, errors="replace", timeout=DUMP_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it did not end in {DUMP_TIMEOUT_S:.0f} s", ""
    return done.stderr.strip(), done.stdout


def _amounts(text: str) -> list[int]:
    return [int(amount) for amount in re.findall(r"^INSERT INTO `account` VALUES \(\d+,(-?\d+),", text, re.MULTILINE)]


ACTIONS: tuple[tuple[Action, int], ...] = (
    (kill_query, 4),
    (kill_connection, 3),
    (prepare_and_leave, 2),
    (decide_what_was_left, 5),
    (dump, 1),
)


def draw(rng: random.Random) -> Action:
    return rng.choices([action for action, _ in ACTIONS], [weight for _, weight in ACTIONS])[0]


def sample_file(folder: Path) -> Path:
    """Rows for LOAD DATA."""
    file = folder / "rows.csv"
    file.write_text("".join(f"{row},{row * 7},from a file {row}\n" for row in range(1, 30)))
    return file
