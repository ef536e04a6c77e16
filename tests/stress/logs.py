"""Lines of servers' and nodes' logs that say that something is wrong, and those that have an explanation."""

import re
from collections.abc import Iterable

BAD = re.compile(
    r"\[ERROR\]|\[FATAL\]|assert|got signal|should not have happened|damaged|corrupt|terminate called|Sanitizer"
    r"|marked as crashed",
    re.IGNORECASE,
)
# Always: what a client would be told, and an event has nobody to tell.
EXPLAINED = (
    r"Event Scheduler: .*(Deadlock found|Lock wait timeout|definition has changed|Unknown event|interrupted|was killed"
    r"|Unknown database|failed to authenticate)",  # the last two: it went with its database
    # Of an event that inserts a row whose number the server chooses: as its statement may be refused in catalogue.py.
    r"Event Scheduler: .*Duplicate entry '\d+' for key 'PRIMARY'",
    r"Can't open and lock privilege tables: Table '\w+' was not locked",  # FLUSH PRIVILEGES under LOCK TABLES
    r"mysql_ha_read: Got error 159",  # HANDLER, of a table whose definition has changed
    r"Event Scheduler: \[\S+\]\[\S+\] *$",
    # The server says so when a statement is killed while it reads a definition with expressions. Who is told so, is not.
    r"Incorrect information in file: '\./\w+/[^']+\.frm'",
)
# While processes are killed, and after.
EXPLAINED_BY_KILLS = (
    r"was taken over by",
    r"is none of the cluster's any more",
    r"this server is fenced, has left",
    # Of a fenced server: a client is told, or a connection that is gone.
    r"This transaction was rolled back and cannot be committed",
    r"STRATA: (commit of connection \d+: )?outcome unknown",  # SX3 counts what it was
    # Of a server that stood still, or while the memory node is away.
    r"STRATA: cannot write page .*has no lease from the memory node at the moment\..* retrying",
    r"STRATA: cannot write page .*memnode\.sock: .*It stays in memory and in the log; retrying",
    # Of a server that is stopped in order while one of its events runs.
    r"Event Scheduler: .*Server shutdown in progress",
    # A server that ends while the registry is away; the next start does it.
    r"STRATA: (checkpoint failed|shutdown): http://\S+: Failed to connect",
    r"Got error 122 when reading",  # of a server that may not answer: the statement's error says why
)
LINES_MOST = 8


def bad_lines(name: str, lines: Iterable[str], kills: bool) -> list[str]:
    explained = re.compile("|".join((*EXPLAINED, *(EXPLAINED_BY_KILLS if kills else ()))))
    bad = [f"{name}: {line}" for line in lines if BAD.search(line) and not explained.search(line)]
    return bad[:LINES_MOST]
