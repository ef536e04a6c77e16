"""What came after a backup: binary logs of its server, applied to what was restored, up to a time or a position."""

import datetime
import itertools
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from . import paths
from .backup_manifest import BinaryLog
from .server import Server
from .shell import StrataError

BINARIES = paths.MARIADB_ROOT / "usr" / "bin"
CHARSETS = paths.MARIADB_ROOT / "usr" / "share" / "mysql" / "charsets"
POSITION = re.compile(r"([^:/]+\.\d{6,}):(\d+)")
SAID_MOST = 1000


@dataclass(frozen=True)
class Later:
    """Which logs, and how far."""

    files: list[Path]
    start: int  # Position in the first one.
    until: str  # As it was asked for; "" for all there is.
    options: tuple[str, ...]  # Of mariadb-binlog, which say the same.


def wanted(at: BinaryLog | None, made: str, folder: Path | None, until: str | None) -> Later | None:
    """Looks at names and sizes only; None: nothing was asked for. `made`: when the backup was finished."""
    if folder is None:
        if until:
            raise StrataError("--until needs --binary-logs, the folder where the server's binary logs are")
        return None
    if at is None:
        raise StrataError("the backup names no position: its server had no binary log then. Nothing was restored")
    files = _files_from(at.file, folder.resolve())
    _refuse_if_shorter(files[0], at.position)
    if not until:
        return Later(files, at.position, "", ())
    if found := POSITION.fullmatch(until):
        return _up_to_position(at, files, found[1], int(found[2]))
    try:
        time = datetime.datetime.fromisoformat(until)
    except ValueError:
        raise StrataError(f"'{until}' is neither a time, as '2026-11-26 12:00:00', nor a position, as bin.000007:4711") from None
    finished = datetime.datetime.fromisoformat(made).astimezone()
    if time.astimezone() < finished:
        when = finished.replace(tzinfo=None)
        raise StrataError(f"the backup was finished at {when}, after {until}: use an earlier one. Nothing was restored")
    if time.tzinfo is not None:
        time = time.astimezone().replace(tzinfo=None)  # mariadb-binlog reads local time.
    return Later(files, at.position, until, (f"--stop-datetime={time.isoformat(sep=' ', timespec='seconds')}",))


def _up_to_position(at: BinaryLog, files: list[Path], name: str, position: int) -> Later:
    names = [path.name for path in files]
    if name not in names:
        raise StrataError(f"{name} is none of the binary logs from {names[0]} to {names[-1]}. Nothing was restored")
    if name == at.file and position < at.position:
        raise StrataError(f"the backup ends at {at.file}:{at.position}, behind {name}:{position}. Nothing was restored")
    _refuse_if_shorter(files[names.index(name)], position)
    return Later(files[: names.index(name) + 1], at.position, f"{name}:{position}", (f"--stop-position={position}",))


def _refuse_if_shorter(file: Path, position: int) -> None:
    if file.stat().st_size < position:
        raise StrataError(f"{file} has no position {position}: it is cut off, or of another server. Nothing was restored")


def _files_from(first: str, folder: Path) -> list[Path]:
    """From the one in which the backup ends on, none left out."""
    base = first.rsplit(".", 1)[0]
    numbered = sorted(
        (int(path.suffix[1:]), path)
        for path in folder.glob(f"{base}.*")
        if path.suffix[1:].isdecimal() and path.is_file() and int(path.suffix[1:]) >= int(first.rsplit(".", 1)[1])
    )
    if not numbered or numbered[0][1].name != first:
        raise StrataError(f"{folder} has no {first}, the binary log in which the backup ends. Nothing was restored")
    for (before, _), (number, path) in itertools.pairwise(numbered):
        if number != before + 1:
            raise StrataError(f"{folder} has {path.name}, and not the binary log before it. Nothing was restored")
    return [path for _, path in numbered]


def apply(server: Server, later: Later) -> None:
    """All of it or an error; a transaction whose end is beyond what was asked for is left out. Blocks as long as it takes."""
    reader: list[str | Path] = [BINARIES / "mariadb-binlog", "--no-defaults", "--verify-binlog-checksum"]
    reader += [f"--start-position={later.start}", *later.options, *later.files]
    writer: list[str | Path] = [
        BINARIES / "mariadb",
        "--no-defaults",
        f"--socket={server.socket}",
        "--user=root",
        "--binary-mode",
    ]
    writer += [f"--character-sets-dir={CHARSETS}"]
    log = subprocess.Popen(reader, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        applied = subprocess.run(writer, stdin=log.stdout, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        assert log.stdout is not None
        log.stdout.close()
        _, said = log.communicate()
    finally:
        log.kill()
    if applied.returncode != 0:
        raise StrataError(f"the binary logs could not be applied: {_text(applied.stderr)}. Nothing was restored")
    if log.returncode != 0:
        raise StrataError(f"the binary logs could not be read to the end: {_text(said)}. Nothing was restored")


def _text(said: bytes) -> str:
    return " ".join(said.decode(errors="replace").split())[-SAID_MOST:]
