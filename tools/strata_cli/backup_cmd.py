"""`./strata backup`: a copy of a running server's database that is consistent with its binary log (docs/adr/).

copy the server's files and, inside the server, the engine's pages and log       clients write
BACKUP STAGE ... BLOCK_COMMIT; the server's files that have changed; the binary
log's position; SET strata_backup='cut'; BACKUP STAGE END                        commits wait
the rest of the log up to the cut; checksums of every file; manifest.json        clients write
"""

import contextlib
import datetime
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pymysql
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from . import backup_manifest, cluster_backup, local_tables, mariadb_packages, paths
from .backup_manifest import BinaryLog, Manifest
from .backup_server_files import ServerFiles
from .cluster import Cluster
from .profile_list import MONOLITHIC
from .server import Server
from .shell import StrataError, console, errors
from .waiting import wait_until

LOOK_EVERY_S = 0.25
PAGE_BYTES = 16384
STAGES = ("START", "FLUSH", "BLOCK_DDL", "BLOCK_COMMIT")
END_S = 60.0


def backup(data: Path, to: Path, since: Path | None, lock_wait_s: int, as_json: bool, lose_local_tables: bool = False) -> None:
    if (cluster := _cluster(data)) is not None:
        if since is not None:
            raise StrataError("increments are of profile monolithic only; make a whole backup of the cluster, without --since")
        with cluster.locked():
            local_tables.refuse_loss(cluster.computes.values(), "they would not be in the backup", lose_local_tables)
            cluster_backup.backup(cluster, to, as_json)
        return
    server = _server(data)
    to = to.resolve()
    if to.exists():
        raise StrataError(f"{to} is there already; name a folder that is not")
    base = backup_manifest.read(since.resolve()) if since else None
    to.parent.mkdir(parents=True, exist_ok=True)
    to.mkdir()
    try:
        with _progress(as_json) as progress:
            made = _Backup(server, to, base, since.resolve() if since else None, lock_wait_s, progress).make()
    except BaseException:
        shutil.rmtree(to, ignore_errors=True)
        raise
    if as_json:
        print(json.dumps({"folder": str(to), **made}))
        return
    console.print(f"backed up into {paths.relative(to)}: {made['bytes'] / 1e6:.1f} MB, {made['files']} files", markup=False)
    console.print(f"  commits waited for {made['commits_waited_s'] * 1000:.0f} ms")
    if made["binary_log"]:
        at = made["binary_log"]
        console.print(f"  binary log: {at['file']} position {at['position']}, GTID {at['gtid'] or 'none'}", markup=False)
    console.print(f"  ./strata restore {paths.relative(to)} --to <folder>", markup=False)


def _cluster(data: Path) -> Cluster | None:
    """The one in that folder, or the one that a compute node's folder belongs to."""
    of_compute = Server(data).settings().cluster
    cluster = Cluster(Path(of_compute) if of_compute else data)
    return cluster if cluster.exists() else None


def _server(data: Path) -> Server:
    server = Server(data)
    if server.pid() is None:
        raise StrataError(f"no server runs on {paths.relative(server.data)}; start it with ./strata up")
    if not server.has_strata():
        raise StrataError(f"the server on {paths.relative(server.data)} runs without STRATA; see {paths.relative(server.log)}")
    return server


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[Progress]:
    """On stderr, and only where somebody looks."""
    columns = (TextColumn("  {task.description:24}"), BarColumn(), TextColumn("{task.fields[amount]}"), TimeElapsedColumn())
    with Progress(*columns, console=errors, disable=quiet or not errors.is_terminal) as progress:
        yield progress


class _Backup:
    def __init__(
        self, server: Server, to: Path, base: Manifest | None, base_folder: Path | None, lock_wait_s: int, progress: Progress
    ) -> None:
        self._server = server
        self._to = to
        self._base = base
        self._base_folder = base_folder
        self._lock_wait_s = lock_wait_s
        self._progress = progress

    def make(self) -> dict[str, Any]:
        started = time.monotonic()
        connection = self._server.connect(read_timeout=None)
        try:
            manifest, commits_waited_s = self._make(connection)
            connection.close()
        except pymysql.MySQLError as error:
            self._end(connection)
            raise StrataError(f"the backup failed: {error.args[1] if len(error.args) > 1 else error}") from None
        except BaseException:
            self._end(connection)
            raise
        return {
            "bytes": manifest.bytes(),
            "files": len(manifest.files),
            "since": manifest.since,
            "end_lsn": manifest.end_lsn,
            "checkpoint_llsn": manifest.checkpoint_llsn,
            "binary_log": asdict(manifest.binary_log) if manifest.binary_log else None,
            "gtid_slave_pos": manifest.gtid_slave_pos,
            "commits_waited_s": round(commits_waited_s, 3),
            "seconds": round(time.monotonic() - started, 3),
        }

    def _make(self, connection: "pymysql.connections.Connection[Any]") -> tuple[Manifest, float]:
        settings = _row(
            connection,
            "SELECT @@strata_data_dir, @@strata_log_segment_size, @@strata_profile, @@log_bin, IFNULL(@@log_bin_basename, ''),"
            " IFNULL(@@relay_log, '')",
        )
        engine_folder, segment_size, profile, has_binlog, binlog, relay_log = settings
        if profile != MONOLITHIC:
            raise StrataError(f"this version backs up profile {MONOLITHIC} only, and the server has {profile}")
        database = backup_manifest.database_in(self._server.datadir, engine_folder)
        if self._base and self._base.database != database:
            raise StrataError(
                f"{self._base_folder} is of another database, or this one was restored since: make one without --since"
            )
        files = ServerFiles(self._server.datadir, self._to / backup_manifest.SERVER, engine_folder, [binlog, relay_log])
        files.refuse_other_engines()
        _do(connection, f"SET SESSION lock_wait_timeout = {self._lock_wait_s}")
        task = self._progress.add_task("the server's files", total=None, amount="")
        files.copy(writers_held=False)
        self._progress.update(task, total=1, completed=1)
        self._copy_pages(connection)

        for stage in STAGES:
            _do(connection, f"BACKUP STAGE {stage}")
        held = time.monotonic()
        files.refuse_other_engines()
        files.copy(writers_held=True)
        binary_log = _binary_log(connection) if has_binlog else None
        slave_position = _row(connection, "SELECT @@GLOBAL.gtid_slave_pos")[0]
        _do(connection, "SET strata_backup = 'cut'")
        state = _backup_status(connection)
        _do(connection, "BACKUP STAGE END")
        commits_waited_s = time.monotonic() - held
        task = self._progress.add_task("the rest of the log", total=None, amount="")
        self._run(connection, "SET strata_backup = 'finish'", task, lambda now: (now["log_bytes"], None))
        manifest = Manifest(
            made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            mariadb=mariadb_packages.version(),
            engine_folder=engine_folder,
            database=database,
            log_segment_size=segment_size,
            end_lsn=state["end_lsn"],
            checkpoint_llsn=state["checkpoint_llsn"],
            binary_log=binary_log,
            gtid_slave_pos=slave_position,
            since=self._base.checkpoint_llsn if self._base else 0,
            base_folder=str(self._base_folder) if self._base_folder else "",
            base_checksum=self._base.checksum() if self._base else "",
        )
        self._describe(manifest)
        return manifest, commits_waited_s

    def _copy_pages(self, connection: "pymysql.connections.Connection[Any]") -> None:
        _do(connection, f"SET SESSION strata_backup_since = {self._base.checkpoint_llsn if self._base else 0}")
        task = self._progress.add_task("pages", total=None, amount="")
        command = f"SET strata_backup = {connection.escape(str(self._to / backup_manifest.STRATA))}"
        self._run(connection, command, task, lambda now: (now["pages_done"] * PAGE_BYTES, now["pages"] * PAGE_BYTES))

    def _describe(self, manifest: Manifest) -> None:
        total = sum(path.stat().st_size for path in backup_manifest.files_in(self._to))
        task = self._progress.add_task("checksums", total=total, amount=_amount(total, None))
        manifest.files, manifest.folders = backup_manifest.describe_files(
            self._to, lambda count: self._progress.advance(task, count)
        )
        manifest.write(self._to)
        backup_manifest.sync_folder(self._to.parent)

    def _run(
        self,
        connection: "pymysql.connections.Connection[Any]",
        command: str,
        task: TaskID,
        shown: Callable[[dict[str, int]], tuple[int, int | None]],
    ) -> None:
        """A statement that takes its time, in a thread of its own; what it has done is shown meanwhile."""
        failures: list[BaseException] = []

        def run() -> None:
            try:
                _do(connection, command)
            except BaseException as error:  # Raised again below, in the thread that waits.
                failures.append(error)

        worker = threading.Thread(target=run, daemon=True)
        worker.start()
        while True:
            worker.join(LOOK_EVERY_S)
            if not worker.is_alive():
                break
            with contextlib.suppress(pymysql.MySQLError), contextlib.closing(self._server.connect()) as looking:
                done, total = shown(_backup_status(looking))
                self._progress.update(task, completed=done, total=total, amount=_amount(done, total))
        if failures:
            raise failures[0]
        self._progress.update(task, total=1, completed=1)

    def _end(self, connection: "pymysql.connections.Connection[Any]") -> None:
        """The session is gone afterwards, with the locks it held and what it was copying: the folder may be removed."""
        identity = connection.thread_id()  # type: ignore[no-untyped-call]
        with contextlib.suppress(pymysql.MySQLError, OSError):
            self._server.query(f"KILL CONNECTION {identity}")
        connection._force_close()  # type: ignore[attr-defined]  # close() would wait for a statement that a thread is still in.

        def is_gone() -> bool:
            try:
                return not self._server.query(f"SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = {identity}")
            except (pymysql.MySQLError, OSError):
                return True  # The server itself has gone.

        wait_until(is_gone, END_S)


def _do(connection: "pymysql.connections.Connection[Any]", statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def _row(connection: "pymysql.connections.Connection[Any]", query: str) -> tuple[Any, ...]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        row = cursor.fetchone()
    assert row is not None
    return tuple(row)


def _binary_log(connection: "pymysql.connections.Connection[Any]") -> BinaryLog:
    file, position = _row(connection, "SHOW MASTER STATUS")[:2]
    return BinaryLog(file, int(position), _row(connection, "SELECT @@GLOBAL.gtid_binlog_pos")[0])


def _backup_status(connection: "pymysql.connections.Connection[Any]") -> dict[str, int]:
    prefix = "strata_backup_"
    with connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'strata\\_backup\\_%'")
        return {name.lower().removeprefix(prefix): int(value) for name, value in cursor.fetchall()}


def _amount(done: int, total: int | None) -> str:
    return f"{done / 1e6:.1f}" + (f" of {total / 1e6:.1f} MB" if total is not None else " MB")
