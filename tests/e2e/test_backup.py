"""./strata backup and restore: what is restored is the database at the position of the binary log that the backup names, whatever
clients and DDL did meanwhile; and whatever goes wrong with either, the error says what, no half of anything is left, and the
server goes on.

That the restored database is right is proved with the binary log: a server that replays it up to the position has the same
checksums in all tables, and the restored server that replays what comes after it ends with those of the source.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import pytest
from strata_cli import backup_cmd, paths, restore_cmd
from strata_cli.server import TEST_BINLOG, Server, Settings, choose_port
from strata_cli.shell import StrataError
from strata_cli.waiting import wait_until

FOLDER = paths.BUILD / "e2e" / "backup"
SMALL = ("--strata-log-segment-size=1M", "--strata-log-checkpoint-size=4M", "--strata-buffer-pool-size=8M")
BINLOG = ("--log-bin=bin", "--server-id=1", "--binlog-format=ROW", "--max-binlog-size=1M")
DEADLINE_S = 120
ACCOUNTS = 50


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(TEST_BINLOG, raising=False)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    yield
    for name in ("source", "restored", "mirror", ".restored.restoring"):
        Server(FOLDER / name).kill()
    shutil.rmtree(FOLDER, ignore_errors=True)


def start(name: str, *options: str, prefix: tuple[str, ...] = ()) -> Server:
    server = Server(FOLDER / name)
    server.start(Settings(port=choose_port(None, 23620)), extra=(*SMALL, *options), prefix=prefix)
    return server


@pytest.fixture
def source() -> Server:
    server = start("source", *BINLOG)
    server.query("CREATE DATABASE test")
    return server


def strata(*arguments: str | Path, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*prefix, str(paths.ROOT / "strata"), *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)


def backup(to: str, *options: str | Path) -> dict[str, Any]:
    done = strata("backup", FOLDER / to, "--data", FOLDER / "source", "--json", *options)
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def restore(backup_name: str, to: str = "restored") -> dict[str, Any]:
    done = strata("restore", FOLDER / backup_name, "--to", FOLDER / to, "--json")
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def refused(*arguments: str | Path, prefix: tuple[str, ...] = ()) -> str:
    done = strata(*arguments, prefix=prefix)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


def checksums(server: Server) -> dict[str, int]:
    tables = server.query("SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA LIKE 'test%'")
    names = [f"`{schema}`.`{table}`" for schema, table in tables]
    return dict(server.query(f"CHECKSUM TABLE {', '.join(names)}")) if names else {}


def replay(files: list[Path], into: Server, *options: str) -> None:
    """Of the binary log, as an operator does it."""
    binaries = paths.MARIADB_ROOT / "usr" / "bin"
    command: list[str | Path] = [str(binaries / "mariadb-binlog"), "--no-defaults", *options, *(str(path) for path in files)]
    log = subprocess.Popen(command, stdout=subprocess.PIPE)
    client = [str(binaries / "mariadb"), "--no-defaults", f"--socket={into.socket}", "--user=root", "--binary-mode"]
    charsets = paths.MARIADB_ROOT / "usr" / "share" / "mysql" / "charsets"
    applied = subprocess.run(
        [*client, f"--character-sets-dir={charsets}"], stdin=log.stdout, capture_output=True, timeout=DEADLINE_S
    )
    assert log.wait(DEADLINE_S) == 0
    assert applied.returncode == 0, applied.stderr.decode()


def binary_logs(server: Server) -> list[Path]:
    return [server.datadir / row[0] for row in server.query("SHOW BINARY LOGS")]


def make_family(server: Server) -> None:
    server.query("CREATE TABLE test.parent (id INT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(50))")
    server.query(
        "CREATE TABLE test.child (id INT AUTO_INCREMENT PRIMARY KEY, p INT, q INT, KEY (p), KEY (q),"
        " CONSTRAINT cp FOREIGN KEY (p) REFERENCES test.parent (id) ON DELETE CASCADE ON UPDATE CASCADE,"
        " CONSTRAINT cq FOREIGN KEY (q) REFERENCES test.parent (id) ON DELETE CASCADE ON UPDATE SET NULL)"
    )


def expect_family(server: Server) -> None:
    """No orphans, and its foreign keys are those it was made with."""
    for column in "pq":
        orphans = f"FROM test.child c LEFT JOIN test.parent p ON p.id = c.{column} WHERE c.{column} IS NOT NULL AND p.id IS NULL"
        assert server.query(f"SELECT COUNT(*) {orphans}") == [(0,)]
    for statement, code in (("INSERT INTO test.child (p) VALUES (8888888)", 1452), ("DROP TABLE test.parent", 1451)):
        with pytest.raises(pymysql.MySQLError) as error:
            server.query(statement, autocommit=True)
        assert error.value.args[0] == code
    server.query("INSERT INTO test.parent VALUES (7777777, 'new')", autocommit=True)
    server.query("INSERT INTO test.child (id, p) VALUES (7777777, 7777777)", autocommit=True)
    server.query("DELETE FROM test.parent WHERE id = 7777777", autocommit=True)
    assert server.query("SELECT COUNT(*) FROM test.child WHERE id = 7777777") == [(0,)]


class Load:
    """Clients that move money, write large values, and make, change and drop tables until they are told to stop."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stop = threading.Event()
        self.failures: list[str] = []
        self.rounds = 0
        server.query("CREATE TABLE test.accounts (id INT PRIMARY KEY, balance INT, KEY (balance))")
        server.query(f"INSERT INTO test.accounts SELECT seq, 100 FROM test.seq_1_to_{ACCOUNTS}", autocommit=True)
        server.query("CREATE TABLE test.notes (id INT AUTO_INCREMENT PRIMARY KEY, who INT, text LONGTEXT, KEY (who))")
        server.query("CREATE VIEW test.totals AS SELECT SUM(balance) AS total FROM test.accounts")
        server.query("CREATE TABLE test.beside (id INT PRIMARY KEY, n INT) ENGINE=Aria")
        make_family(server)
        work = [self._transfer, self._transfer, self._write, self._define, self._family]
        self._threads = [threading.Thread(target=self._run, args=(what, n)) for n, what in enumerate(work)]
        for thread in self._threads:
            thread.start()
        assert wait_until(lambda: self.rounds > 40, DEADLINE_S)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
        assert not self.failures, self.failures

    def _run(self, what: Any, number: int) -> None:
        rng = random.Random(number)
        connection = self._server.connect(database="test", autocommit=True)
        try:
            with connection.cursor() as cursor:
                for turn in range(1_000_000):
                    if self._stop.is_set():
                        return
                    what(cursor, rng, f"made_{number}_{turn}")
                    self.rounds += 1
        except pymysql.MySQLError as error:
            self.failures.append(str(error))
        finally:
            connection.close()

    def _transfer(self, cursor: Any, rng: random.Random, name: str) -> None:
        first, second = sorted(rng.sample(range(1, ACCOUNTS + 1), 2))
        cursor.execute("BEGIN")
        cursor.execute("UPDATE accounts SET balance = balance - 3 WHERE id = %s", (first,))
        cursor.execute("UPDATE accounts SET balance = balance + 3 WHERE id = %s", (second,))
        cursor.execute("INSERT INTO notes (who, text) VALUES (%s, %s)", (first, name))
        cursor.execute("ROLLBACK" if rng.random() < 0.1 else "COMMIT")

    def _write(self, cursor: Any, rng: random.Random, name: str) -> None:
        cursor.execute("INSERT INTO notes (who, text) VALUES (0, REPEAT(%s, %s))", (name, rng.randrange(4000)))
        cursor.execute("DELETE FROM notes WHERE who = 0 AND id + 300 < LAST_INSERT_ID() ORDER BY id LIMIT 2")
        cursor.execute("REPLACE INTO beside VALUES (%s, %s)", (rng.randrange(50), rng.randrange(1000)))

    def _family(self, cursor: Any, rng: random.Random, name: str) -> None:
        """Half of the parents go again, with their children."""
        cursor.execute("INSERT INTO parent (name) VALUES (%s)", (name,))
        parent = cursor.lastrowid
        cursor.execute("INSERT INTO child (p, q) SELECT %s, %s FROM seq_1_to_10", (parent, parent))
        if rng.random() < 0.5:
            cursor.execute("DELETE FROM parent WHERE id = %s", (parent,))
        elif rng.random() < 0.5:
            cursor.execute("UPDATE parent SET id = -id WHERE id = %s", (parent,))

    def _define(self, cursor: Any, rng: random.Random, name: str) -> None:
        cursor.execute(f"CREATE TABLE {name} (a INT PRIMARY KEY, b VARCHAR(200))")
        cursor.execute(f"INSERT INTO {name} SELECT seq, REPEAT('b', seq) FROM seq_1_to_100")
        choice = rng.randrange(4)
        if choice == 0:
            cursor.execute(f"ALTER TABLE {name} ADD INDEX (b)")
        elif choice == 1:
            cursor.execute(f"ALTER TABLE {name} ADD COLUMN c INT DEFAULT 7, ALGORITHM=COPY")
        elif choice == 2:
            cursor.execute(f"TRUNCATE TABLE {name}")
        else:
            cursor.execute(f"RENAME TABLE {name} TO {name}_renamed")
            name = f"{name}_renamed"
        if rng.random() < 0.8:
            cursor.execute(f"DROP TABLE {name}")


def test_what_is_restored_is_the_database_at_the_position(source: Server) -> None:
    load = Load(source)
    try:
        made = backup("full")
        more = load.rounds + 40
        assert wait_until(lambda: load.rounds > more, DEADLINE_S)  # What comes after the position.
    finally:
        load.stop()
    at = made["binary_log"]
    logs = binary_logs(source)
    cut = next(i for i, path in enumerate(logs) if path.name == at["file"])

    assert restore("full")["tables"] >= 2
    restored = start("restored")
    assert restored.query("SELECT total FROM test.totals") == [(100 * ACCOUNTS,)]
    mirror = start("mirror")
    replay(logs[: cut + 1], mirror, f"--stop-position={at['position']}")
    assert checksums(restored) == checksums(mirror)

    replay(logs[cut:], restored, f"--start-position={at['position']}")
    assert checksums(restored) == checksums(source)
    assert len(checksums(source)) > 3
    expect_family(restored)
    # A restored server is backed up and restored again like any other.
    assert restored.stop() and mirror.stop() and source.stop()


def test_increments_are_restored_with_what_they_build_on(source: Server) -> None:
    source.query(
        "CREATE TABLE test.t (a INT PRIMARY KEY, b VARCHAR(500)) SELECT seq AS a, REPEAT('x', 400) AS b FROM test.seq_1_to_20000"
    )
    source.query("CREATE TABLE test.goes (a INT PRIMARY KEY)")
    whole = backup("monday")
    source.query("UPDATE test.t SET b = 'changed' WHERE a % 5000 = 0", autocommit=True)
    source.query("DROP TABLE test.goes")
    source.query("CREATE TABLE test.comes (a INT PRIMARY KEY) SELECT seq AS a FROM test.seq_1_to_1000")
    backup("tuesday", "--since", FOLDER / "monday")
    source.query("DELETE FROM test.t WHERE a BETWEEN 100 AND 200", autocommit=True)
    part = backup("wednesday", "--since", FOLDER / "tuesday")
    assert part["since"] > whole["checkpoint_llsn"]
    blocks = [
        sum(path.stat().st_blocks for path in (FOLDER / day / "strata" / "pages").iterdir()) for day in ("monday", "wednesday")
    ]
    assert blocks[1] < blocks[0] / 4, blocks

    restore("wednesday")
    restored = start("restored", *BINLOG)
    assert checksums(restored) == checksums(source)
    # The same numbers of pages now stand for other contents there.
    options = ("--data", FOLDER / "restored", "--since", FOLDER / "tuesday")
    assert "restored since" in refused("backup", FOLDER / "wrong", *options)
    assert not (FOLDER / "wrong").exists()
    (FOLDER / "tuesday").rename(FOLDER / "elsewhere")
    assert "tuesday" in refused("restore", FOLDER / "wednesday", "--to", FOLDER / "another")
    shutil.copytree(FOLDER / "monday", FOLDER / "tuesday")
    assert "another backup" in refused("restore", FOLDER / "wednesday", "--to", FOLDER / "another")
    assert not (FOLDER / "another").exists()


def is_running(server: Server) -> bool:
    return server.query("SHOW GLOBAL STATUS LIKE 'strata_backup_running'") == [("Strata_backup_running", "1")]


def test_a_backup_that_is_ended_leaves_nothing_behind(source: Server) -> None:
    """By SIGTERM, by a lock it cannot get, and by kill -9, which leaves a folder that is no backup."""
    source.query("CREATE TABLE test.t (a INT PRIMARY KEY) SELECT seq AS a FROM test.seq_1_to_1000")
    waits = "SELECT 1 FROM information_schema.PROCESSLIST WHERE INFO = 'BACKUP STAGE START' AND STATE LIKE 'Waiting%'"
    holder = source.connect()
    with holder.cursor() as cursor:
        cursor.execute("BACKUP STAGE START")  # Another backup's: ours waits when its pages are copied.
    try:
        text = refused("backup", FOLDER / "late", "--data", FOLDER / "source", "--lock-wait", "1")
        assert "Lock wait timeout" in text and not (FOLDER / "late").exists()
        assert not is_running(source)

        for number in (signal.SIGTERM, signal.SIGKILL):
            to = FOLDER / f"ended-{number}"
            command = [str(paths.ROOT / "strata"), "backup", str(to), "--data", str(FOLDER / "source")]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            assert wait_until(lambda: bool(source.query(waits)), DEADLINE_S)
            assert is_running(source)
            process.send_signal(number)
            process.wait(DEADLINE_S)
            if number == signal.SIGTERM:
                assert not to.exists()
                assert not is_running(source)
    finally:
        holder.close()
    # Whoever has gone with kill -9 is noticed when its statement ends.
    assert wait_until(lambda: not is_running(source), DEADLINE_S)
    assert "not finished" in refused("restore", FOLDER / f"ended-{signal.SIGKILL}", "--to", FOLDER / "restored")
    assert not (FOLDER / "restored").exists()
    backup("whole")
    assert source.query("SELECT COUNT(*) FROM test.t") == [(1000,)]


def test_a_full_disk_fails_the_backup_and_nothing_else() -> None:
    place = FOLDER / "small"
    place.mkdir()
    mount = f'mount -t tmpfs -o size=8m strata-test "{place}" && exec "$@"'
    alone = ("unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)), "sh", "-c", mount, "sh")
    assert subprocess.run([*alone, "true"]).returncode == 0, "this test needs mount namespaces: root, or user namespaces"
    source = start("source", *BINLOG, prefix=alone)
    source.query("CREATE DATABASE test")
    source.query(
        "CREATE TABLE test.t (a INT PRIMARY KEY, b VARCHAR(500)) SELECT seq AS a, REPEAT('x', 400) AS b FROM test.seq_1_to_20000"
    )
    inside = (
        "nsenter",
        *(() if os.geteuid() == 0 else ("--user", "--preserve-credentials")),
        "--mount",
        f"--target={source.pid()}",
    )
    text = refused("backup", place / "full", "--data", FOLDER / "source", prefix=inside)
    assert "No space left" in text or "no room" in text, text
    seen = Path(f"/proc/{source.pid()}/root{place}")
    assert list(seen.iterdir()) == []
    assert not is_running(source)
    source.query("INSERT INTO test.t VALUES (0, 'still there')", autocommit=True)

    backup("elsewhere")
    text = refused("restore", FOLDER / "elsewhere", "--to", place / "restored", prefix=inside)
    assert "MB are needed" in text, text
    assert list(seen.iterdir()) == []


def flip(path: Path) -> None:
    with path.open("r+b") as file:
        at = path.stat().st_size // 2
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0x10]))


def not_restored(folder: Path) -> str:
    with pytest.raises(StrataError) as error:
        restore_cmd.restore(folder, FOLDER / "restored", as_json=True)
    return str(error.value)


def test_a_damaged_backup_is_not_restored(source: Server) -> None:
    source.query("CREATE TABLE test.t (a INT PRIMARY KEY) SELECT seq AS a FROM test.seq_1_to_1000")
    source.query("CREATE TABLE test.beside (a INT) ENGINE=Aria")
    backup("full")
    folder = FOLDER / "full"
    with pytest.raises(StrataError, match="is there already"):
        backup_cmd.backup(FOLDER / "source", folder, None, 60, as_json=True)
    kinds = [
        *("manifest.json", "strata/control-1", "strata/pages/space-00000000.pages", "server/test/t.frm"),
        *("server/test/beside.MAD", "server/aria_log_control", "server/mysql/db.frm"),
        str(next((folder / "strata" / "log").iterdir()).relative_to(folder)),
    ]
    for kind in kinds:
        flip(folder / kind)
        text = not_restored(folder)
        assert Path(kind).name in text and "damaged" in text, text
        assert sorted(path.name for path in FOLDER.iterdir()) == ["full", "source"], kind
        flip(folder / kind)
    (folder / "server" / "test" / "t.frm").rename(FOLDER / "aside")
    assert "t.frm is missing" in not_restored(folder)
    (FOLDER / "aside").rename(folder / "server" / "test" / "t.frm")
    (folder / "server" / "more").touch()
    assert "none of the backup's files" in not_restored(folder)
    (folder / "server" / "more").unlink()

    (FOLDER / "restored").mkdir()
    assert "is there already" in not_restored(folder)
    (FOLDER / "restored").rmdir()
    restore("full")
    assert checksums(start("restored")) == checksums(source)


def test_a_restore_that_is_killed_leaves_no_half(source: Server) -> None:
    source.query("CREATE TABLE test.t (a INT PRIMARY KEY) SELECT seq AS a FROM test.seq_1_to_1000")
    backup("full")
    hidden = Server(FOLDER / ".restored.restoring")
    for number in (signal.SIGTERM, signal.SIGKILL):
        command = [str(paths.ROOT / "strata"), "restore", str(FOLDER / "full"), "--to", str(FOLDER / "restored")]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert wait_until(lambda: hidden.pid() is not None, DEADLINE_S, every_s=0.01)  # It recovers what was copied.
        process.send_signal(number)
        process.wait(DEADLINE_S)
        assert not (FOLDER / "restored").exists()
        assert hidden.data.exists() == (number == signal.SIGKILL)
    restore("full")
    assert not hidden.data.exists() and hidden.pid() is None
    assert checksums(start("restored")) == checksums(source)


def test_tables_that_would_not_be_in_the_backup_are_named(source: Server) -> None:
    source.query("CREATE TABLE test.other (a INT PRIMARY KEY) ENGINE=InnoDB")
    text = refused("backup", FOLDER / "full", "--data", FOLDER / "source")
    assert "test.other (InnoDB)" in text and not (FOLDER / "full").exists()
    assert "no server runs" in refused("backup", FOLDER / "full", "--data", FOLDER / "mirror")


def position(server: Server) -> str:
    file, at = server.query("SHOW MASTER STATUS")[0][:2]
    return f"{file}:{at}"


def wait_for_another_second(server: Server) -> None:
    now = server.query("SELECT NOW()")
    assert wait_until(lambda: server.query("SELECT NOW()") != now, 30)


def test_a_restore_goes_on_to_a_time_or_a_position(source: Server) -> None:
    run = partial(source.query, database="test", autocommit=True)
    run("CREATE TABLE parents (id INT PRIMARY KEY)")
    run("CREATE TABLE t (id INT PRIMARY KEY, v TEXT, parent INT, FOREIGN KEY (parent) REFERENCES parents (id) ON DELETE CASCADE)")
    run("INSERT INTO parents SELECT seq FROM seq_1_to_10")
    run("INSERT INTO t SELECT seq, seq, seq MOD 10 + 1 FROM seq_1_to_1000")
    backup("first")
    run("UPDATE t SET v = REVERSE(v)")
    run("FLUSH BINARY LOGS")
    run("CREATE TABLE later (id INT PRIMARY KEY)")
    run("DELETE FROM parents WHERE id = 3")
    wanted, at = checksums(source), position(source)
    wait_for_another_second(source)  # What follows has another one in the log.
    before = source.query("SELECT NOW()")[0][0]
    wait_for_another_second(source)
    run("DROP TABLE later")
    run("DELETE FROM t")
    run("FLUSH BINARY LOGS")
    emptied = checksums(source)

    logs = ("--binary-logs", source.datadir, "--json")
    for number, until in enumerate((("--until", at), ("--until", str(before)), ())):
        place = FOLDER / "restored"
        done = strata("restore", FOLDER / "first", "--to", place, *logs, *until)
        assert done.returncode == 0, done.stderr
        restored = start("restored")
        assert checksums(restored) == (wanted if number < 2 else emptied), until
        restored.kill()
        shutil.rmtree(place)

    target = ("--to", FOLDER / "restored")
    assert "neither a time" in refused("restore", FOLDER / "first", *target, *logs, "--until", "yesterday")
    assert "needs --binary-logs" in refused("restore", FOLDER / "first", *target, "--until", at)
    assert "is none of the binary logs" in refused("restore", FOLDER / "first", *target, *logs, "--until", "bin.000099:4")
    assert "has no position" in refused("restore", FOLDER / "first", *target, *logs, "--until", f"{at}000")
    assert "use an earlier one" in refused("restore", FOLDER / "first", *target, *logs, "--until", "2001-01-01 00:00:00")
    copies = FOLDER / "logs"
    copies.mkdir()
    for log in binary_logs(source):
        shutil.copy(log, copies)
    flip(sorted(copies.glob("bin.*"))[1])
    assert "binary logs could not be" in refused("restore", FOLDER / "first", *target, "--binary-logs", copies)
    sorted(copies.glob("bin.*"))[1].unlink()
    assert "not the binary log before it" in refused("restore", FOLDER / "first", *target, "--binary-logs", copies)
    sorted(copies.glob("bin.*"))[0].unlink()
    assert "in which the backup ends" in refused("restore", FOLDER / "first", *target, "--binary-logs", copies)
    assert not (FOLDER / "restored").exists() and not (FOLDER / ".restored.restoring").exists()
