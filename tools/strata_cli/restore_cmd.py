"""`./strata restore`: a data folder made of a backup, or nothing.

All checksums are verified before anything is written. What is written goes to a hidden folder beside the target, where a server
recovers it and checks every table; it gets the target's name only then. A restore that is ended half-way leaves at most that
hidden folder, which the next one to the same target removes.
"""

import hashlib
import json
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import Any, BinaryIO

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from . import backup_manifest, cluster_restore, mariadb_packages, paths, restore_later
from .backup_manifest import CHUNK, OnBytes
from .restore_folder import check_tables, hidden_folder, refuse_too_little_room
from .server import Server, Settings, innodb_files_of_template
from .shell import StrataError, console, errors

PAGE = 16384
ZEROES = bytes(CHUNK)
ZERO_PAGE = bytes(PAGE)
# Of the server that recovers and checks what was restored: nobody else is to reach it, and it logs nothing of its own.
PRIVATE = ("--skip-networking", "--skip-log-bin", "--skip-slave-start")


def restore(folder: Path, to: Path, as_json: bool, binary_logs: Path | None = None, until: str | None = None) -> None:
    started = time.monotonic()
    folder, to = folder.resolve(), to.resolve()
    if to.exists():
        raise StrataError(f"{to} is there already; name a folder that is not")
    if backup_manifest.is_of_cluster(folder):
        if binary_logs or until:
            raise StrataError("a cluster's backup is restored as it is: it does not say where in a binary log it was made")
        cluster_restore.restore(folder, to, as_json)
        return
    backups = backup_manifest.chain(folder)
    later = restore_later.wanted(backups[-1][1].binary_log, backups[-1][1].made, binary_logs, until)
    quiet = as_json or not errors.is_terminal
    columns = (TextColumn("  {task.description:24}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, disable=quiet) as progress:
        total = sum(manifest.bytes() for _, manifest in backups)
        task = progress.add_task("checksums", total=total)
        for place, manifest in backups:
            backup_manifest.verify(place, manifest, lambda count: progress.advance(task, count))
        to.parent.mkdir(parents=True, exist_ok=True)
        refuse_too_little_room(to.parent, backups[-1][1].bytes())
        with hidden_folder(to) as hidden:
            task = progress.add_task("files", total=total)
            _lay_out(backups, hidden, lambda count: progress.advance(task, count))
            progress.add_task("recovery, CHECK TABLE" if later is None else "recovery, binary logs, CHECK TABLE", total=None)
            tables = _recover_and_check(hidden, backups[-1][1], later)
            hidden.rename(to)
            backup_manifest.sync_folder(to.parent)
    manifest = backups[-1][1]
    result: dict[str, Any] = {
        "folder": str(to),
        "tables": tables,
        "binary_log": manifest.binary_log and vars(manifest.binary_log),
        "gtid_slave_pos": manifest.gtid_slave_pos,
        "until": None if later is None else later.until or "the end",
        "seconds": round(time.monotonic() - started, 3),
    }
    if as_json:
        print(json.dumps(result))
        return
    console.print(f"restored into {paths.relative(to)}: {tables} tables recovered and checked", markup=False)
    if manifest.mariadb != mariadb_packages.version():
        errors.print(
            f"[yellow]warning:[/] it was made with MariaDB {manifest.mariadb}, this is {mariadb_packages.version()}:"
            " run mariadb-upgrade once it is up"
        )
    if later is not None:
        console.print(f"  with the binary logs up to {later.until or 'their end, ' + later.files[-1].name}", markup=False)
    elif at := manifest.binary_log:
        console.print(
            f"  as of binary log {at.file} position {at.position}, GTID {at.gtid or 'none'}; what came later:", markup=False
        )
        console.print("  ./strata restore ... --binary-logs <folder> [--until <time>]", markup=False)
    console.print(f"  ./strata up --data {paths.relative(to)}", markup=False)


def _lay_out(backups: list[tuple[Path, backup_manifest.Manifest]], hidden: Path, on_bytes: OnBytes) -> None:
    """The newest backup's files; of pages it has only in part, the rest comes from those before it."""
    newest = backups[-1][1]
    for name in newest.folders:
        _place_of(name, newest.engine_folder, hidden).mkdir(parents=True, exist_ok=True)
    pages = f"{backup_manifest.STRATA}/pages/"
    for name, (size, _) in newest.files.items():
        target = _place_of(name, newest.engine_folder, hidden)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb", buffering=0) as written:
            if size and name.startswith(backup_manifest.STRATA):
                os.posix_fallocate(written.fileno(), 0, size)  # The engine counts on the room that its files have.
            for folder, manifest in backups if name.startswith(pages) else backups[-1:]:
                if name in manifest.files:
                    _lay_over(folder / name, written, manifest.files[name][1], on_bytes)
            written.truncate(size)
            os.fsync(written.fileno())
    datadir = Server(hidden).datadir
    for source, place in innodb_files_of_template():
        shutil.copyfile(source, datadir / place)
    (datadir / backup_manifest.RESTORED).write_text(f"{secrets.token_hex(8)}\n")
    for path in hidden.rglob("*"):
        if path.is_dir():
            backup_manifest.sync_folder(path)


def _place_of(name: str, engine_folder: str, hidden: Path) -> Path:
    datadir = Server(hidden).datadir
    part, _, rest = name.partition("/")
    return datadir / engine_folder / rest if part == backup_manifest.STRATA else datadir / rest


def _lay_over(source: Path, target: BinaryIO, digest: str, on_bytes: OnBytes) -> None:
    """What is no hole of the source, at its place. It was verified a moment ago; what is copied is verified again."""
    seen = hashlib.sha256()
    at = 0
    with source.open("rb", buffering=0) as read:
        while chunk := read.read(CHUNK):
            seen.update(chunk)
            if chunk != ZEROES:
                for begin in range(0, len(chunk), PAGE):
                    page = chunk[begin : begin + PAGE]
                    if page != ZERO_PAGE:
                        _write_at(target, at + begin, page)
            at += len(chunk)
            on_bytes(len(chunk))
    if seen.hexdigest() != digest:
        raise StrataError(f"{source} has changed while it was restored. Nothing was restored")


def _write_at(target: BinaryIO, offset: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(target.fileno(), rest, offset)
        rest, offset = rest[written:], offset + written


def _recover_and_check(hidden: Path, manifest: backup_manifest.Manifest, later: restore_later.Later | None) -> int:
    """Returns how many tables were checked. The server has ended cleanly afterwards, and left nothing of itself."""
    server = Server(hidden)
    try:
        server.launch(Settings(), extra=(*PRIVATE, f"--strata-log-segment-size={manifest.log_segment_size}"))
        # Before the server does so itself: the next restore finds it at once if this one is killed.
        server.pid_file.write_text(f"{server.child_pid()}\n")
        server.wait_ready()
        if not server.has_strata():
            raise StrataError(f"the engine refuses what was restored:\n{server.log_tail()}")
        if later is not None:
            restore_later.apply(server, later)
        tables = check_tables(server)
        if manifest.gtid_slave_pos and later is None:
            server.query(f"SET GLOBAL gtid_slave_pos = '{manifest.gtid_slave_pos}'")
        if not server.stop():
            raise StrataError(f"the server that checked {hidden} did not end cleanly. Nothing was restored")
    finally:
        server.kill()
    for name in (server.log, server.pid_file, server.settings_file, server.data / "init.sql"):
        name.unlink(missing_ok=True)
    shutil.rmtree(server.data / "tmp", ignore_errors=True)
    return tables
