"""MariaDB's own tests that talk to several servers, on servers of one cluster that write the same tables.

The packages of MariaDB bring several hundred tests for Galera's clusters: what one server has changed another one shows. Those
of tests/mtr/nodes.txt are copied as mtr.rewrite() does, into suites beside theirs in build/mtr, with includes of ours
(tests/mtr/nodes) in the place of those that wait for Galera. The servers are started here, not by the test runner, which is told
of the first one (--extern); tests find the others by NODE_MYPORT_2 and so on, as they do on Galera.
"""

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import mtr, paths
from .cluster import Cluster, Wishes
from .server import Server
from .shell import StrataError
from .spread import Spread
from .waiting import wait_until

SERVERS = 3
SPREAD = paths.ROOT / "tests" / "mtr" / "spread.txt"
SPREAD_SEED = 1  # of the servers that statements go to
LISTED = paths.ROOT / "tests" / "mtr" / "nodes.txt"
OWN = paths.ROOT / "tests" / "mtr" / "nodes"
FOLDER = paths.BUILD / "mtr-nodes"
KEPT_FOLDERS = ("t", "r", "include")
OF_ALL = "galera"  # Other suites use this one's includes.
LEFT_OUT = (".cnf", ".opt", ".combinations")  # The runner starts no server, so it has no options to give.
# As the test runner starts servers (its include/default_mysqld.cnf), where tests show it.
SERVER_OPTIONS = (
    "--character-set-server=latin1",
    "--skip-name-resolve=0",
    "--local-infile",
    "--log-bin-trust-function-creators=1",
    "--use-stat-tables=preferably",
    "--histogram-type=json_hb",
    "--binlog-format=ROW",
    "--performance-schema",
    f"--secure-file-priv={mtr.TREE}",  # where tests write files through the server
    "--strata-lock-wait-timeout=10",  # Some wait for a conflict that does not come.
)
AUTO_INCREMENT_STEP = 2  # On Galera two servers number by turns.
KNOWN_TO_ALL_S = 30.0
CONNECTION = re.compile(r"^(--)?connection[ \t].*\n", re.MULTILINE | re.IGNORECASE)
HEARD_OF_S = 1.2  # What is not there at once is looked for each 0.2 to 0.5 s.
SETS = r"\b(SET\s+)(?:(?:GLOBAL|SESSION|LOCAL)\s+|@@(?:global\.|session\.)?)?"
# What a copy says in the place of what only Galera and InnoDB have, in the test and in its recorded result alike. Galera's
# variables become the session's own, which nobody reads, its table of open transactions is an empty one, InnoDB's list of
# tables a view (FOR_THE_TESTS).
INSTEAD = (
    (mtr.NAMES_INNODB, r"\g<1>STRATA"),
    (re.compile(rf"{SETS}(wsrep_\w+)", re.IGNORECASE), r"\1@\2"),
    (re.compile(r"(SET @wsrep_\w+\s*=\s*)([a-z]\w*)", re.IGNORECASE), r"\1'\2'"),
    (re.compile(r"\bINFORMATION_SCHEMA\.INNODB_SYS_TABLES\b", re.IGNORECASE), "mtr.innodb_sys_tables"),
    (re.compile(r"\bmysql\.wsrep_streaming_log\b", re.IGNORECASE), "mtr.wsrep_streaming_log"),
    (re.compile(r"(?<=suite/)(galera\w*)(?=/)|(?<=\.\./)(galera\w*)(?=/)"), rf"\g<0>{mtr.REWRITTEN_SUFFIX}"),
)
# Tests tell the runner which warnings of the server's log are as expected; it does not read the logs of these servers.
FOR_THE_TESTS = (
    "CREATE DATABASE IF NOT EXISTS mtr",
    "CREATE OR REPLACE PROCEDURE mtr.add_suppression(pattern TEXT) BEGIN END",
    "CREATE TABLE mtr.wsrep_streaming_log (node_uuid INT, trx_id INT, seqno INT, flags INT, frag BLOB)",
    "CREATE OR REPLACE VIEW mtr.innodb_sys_tables AS SELECT CONCAT(table_schema, '/', table_name) AS name"
    " FROM information_schema.TABLES WHERE engine = 'STRATA'",
)


@dataclass(frozen=True)
class Listed:
    """A test that is to pass. `until`: the statement before which its copy ends, since what follows is about Galera. `waits`: at
    each change of the connection, for what servers hear of each other a moment later (accounts, routines, views, events).
    `long`: not in a drawn run."""

    suite: str
    test: str
    until: str = ""
    waits: bool = False
    long: bool = False

    @property
    def name(self) -> str:
        return f"{self.suite}.{self.test}"

    @property
    def copy(self) -> str:
        return f"{self.suite}{mtr.REWRITTEN_SUFFIX}.{self.test}"


def parse(line: str) -> Listed | None:
    """suite.test [long] [waits] [until STATEMENT]; None: a remark."""
    if not line.strip() or line.startswith("#"):
        return None
    words, _, until = line.strip().partition(" until ")
    name, *marks = words.split()
    if not set(marks) <= {"long", "waits"}:
        raise StrataError(f"{paths.relative(LISTED)}: {line}")
    suite, _, test = name.rpartition(".")
    return Listed(suite, test, until.strip(), "waits" in marks, "long" in marks)


def listed(path: Path = LISTED) -> list[Listed]:
    text = path.read_text(encoding="latin-1")  # as files of tests are read
    return [one for one in map(parse, text.splitlines()) if one is not None]


def changed(text: str) -> str:
    for pattern, instead in INSTEAD:
        text = pattern.sub(instead, text)
    return text


def cut(text: str, until: str) -> str:
    """What is before the first line with that statement. Raises StrataError if there is none."""
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if until in line:
            return "".join(lines[:number])
    raise StrataError(f"no line has: {until}")


def adapted(listed_as: Listed, text: str, is_test: bool) -> str:
    """The copy of a listed test, or of what it is to give."""
    if listed_as.until:
        text = cut(text, changed(listed_as.until))
    return CONNECTION.sub(rf"\g<0>--real_sleep {HEARD_OF_S}\n", text) if listed_as.waits and is_test else text


def copy(tests: Sequence[Listed]) -> None:
    """Of their suites everything; the listed ones as far as they are to go."""
    top = mtr.TREE / "mysql-test" / "suite"
    for suite in sorted({OF_ALL, *(test.suite for test in tests)}):
        if not (top / suite / "t").is_dir():
            raise StrataError(f"this MariaDB brings no suite {suite}")
        target = top / f"{suite}{mtr.REWRITTEN_SUFFIX}"
        shutil.rmtree(target, ignore_errors=True)
        known = {test.test: test for test in tests if test.suite == suite}
        for folder in KEPT_FOLDERS:
            (target / folder).mkdir(parents=True)
            for file in sorted((top / suite / folder).glob("*")):
                if file.is_file() and file.suffix not in LEFT_OUT:
                    text = changed(file.read_bytes().decode("latin-1"))  # some are in other character sets: bytes are kept
                    if file.stem in known and file.suffix in (".test", ".result"):
                        text = adapted(known[file.stem], text, file.suffix == ".test")
                    (target / folder / file.name).write_bytes(text.encode("latin-1"))
        shutil.copytree(OWN, target, dirs_exist_ok=True)


@contextmanager
def servers(profile: str, folder: Path = FOLDER) -> Iterator[list[Server]]:
    """Of a new cluster, gone afterwards."""
    _remove(Cluster(folder))
    cluster = Cluster(folder)
    cluster.compute_options = SERVER_OPTIONS
    try:
        cluster.start(profile, wishes=Wishes(servers=SERVERS, memory="128M"))
        found = list(cluster.computes.values())
        _prepare(found)
        yield found
    finally:
        _remove(cluster)


def _prepare(found: Sequence[Server]) -> None:
    for statement in FOR_THE_TESTS:
        found[0].query(statement)
    for number, server in enumerate(found, 1):
        server.query(f"SET GLOBAL auto_increment_increment = {AUTO_INCREMENT_STEP}, auto_increment_offset = {number}")
        if not wait_until(_knows_view(server), KNOWN_TO_ALL_S):
            raise StrataError(f"{server.data.name} has not heard of what the first server has made")


def _knows_view(server: Server) -> Callable[[], bool]:
    return lambda: bool(server.query("SELECT 1 FROM information_schema.VIEWS WHERE table_schema = 'mtr'"))


def spread_tests() -> list[str]:
    """suite.test, for one server: what they give does not depend on which of several a statement goes to."""
    lines = (line.split("#", 1)[0].strip() for line in SPREAD.read_text().splitlines())
    return [line for line in lines if line]


@contextmanager
def one_port_for(found: Sequence[Server]) -> Iterator[Spread]:
    for server in found:  # A test for one server counts by one.
        server.query("SET GLOBAL auto_increment_increment = 1, auto_increment_offset = 1")
    spread = Spread([server.settings().port for server in found], SPREAD_SEED)
    try:
        yield spread
    finally:
        spread.close()


def options(found: Sequence[Server]) -> list[str]:
    first = found[0]
    return [f"--extern=socket={first.socket}", f"--extern=port={first.settings().port}", "--extern=host=127.0.0.1"]


def environment(found: Sequence[Server]) -> dict[str, str]:
    env = {"ENGINE": "STRATA"}
    for number, server in enumerate(found, 1):
        env[f"NODE_MYPORT_{number}"] = str(server.settings().port)
        env[f"NODE_MYSOCK_{number}"] = str(server.socket)
    return env


def _remove(cluster: Cluster) -> None:
    cluster.kill()
    if cluster.exists():
        cluster.wipe()
