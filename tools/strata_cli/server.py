"""A private mariadbd on a data folder: created, started, found again, stopped and killed by pid.

    <data>/mysql/         the server's own data directory (Strata's files are below it)
    <data>/tmp/           its temporary files
    <data>/mariadbd.log   its error log
    <data>/mariadbd.pid   its pid file
    <data>/init.sql       sets the default storage engine
    <data>/instance.json  what `up` was asked for
    <data>/strata.sock    its socket, or a short path under /tmp when the data folder's path is too long

It listens on loopback only and its root account has no password: it is a development server.
"""

import json
import os
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pymysql

from . import cpu_share, mariadb_packages, paths
from .process import BackgroundProcess, replace_file
from .profile_list import MONOLITHIC
from .shell import StrataError, run_logged
from .waiting import wait_until

DEFAULT_PORT = 23306  # As all ports of ours below what Linux gives to outgoing connections.
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
PORTS_TRIED_MAX = 100

# docs/adr/2026-11-21-malloc-arenas.md
MALLOC_ARENAS = max(2, os.cpu_count() or 1)

# Set to 1 in the environment of tests: every server keeps a binary log, in the way in which a lost event would be seen.
TEST_BINLOG = "STRATA_TEST_BINLOG"
BINLOG_OPTIONS = (
    "--log-bin=binlog",
    "--binlog-format=ROW",
    "--sync-binlog=1",
    "--server-id=1",
    "--log-bin-trust-function-creators=1",
)

TEMPLATE = paths.MARIADB / "template"
# Small InnoDB files: here InnoDB only holds the server's own tables and temporary tables.
INNODB_SIZES = ("--innodb-log-file-size=8M", "--innodb-buffer-pool-size=64M")


@dataclass
class Settings:
    profile: str = MONOLITHIC
    preset: str = "release"
    port: int = DEFAULT_PORT
    engine: str = "STRATA"
    # Of a compute node (cluster.py); empty on a server by itself.
    cluster: str = ""  # The cluster's folder.
    cores: float = 0.0  # That it may use; 0: all.
    options: list[str] = field(default_factory=list)  # Where the cluster is, for the plugin.


class Server(BackgroundProcess):
    """One data folder and the process that serves it, if any. Not thread-safe."""

    def __init__(self, data: Path) -> None:
        self.data = data.resolve()
        self.datadir = self.data / "mysql"
        self.settings_file = self.data / "instance.json"
        self.socket = paths.socket_path(self.data, "strata.sock")
        super().__init__("mariadbd", self.data / "mariadbd.log", self.data / "mariadbd.pid", [f"--datadir={self.datadir}"])

    # --- what is on disk ---------------------------------------------------------------------------------------

    def exists(self) -> bool:
        return (self.datadir / "mysql").is_dir()

    def settings(self) -> Settings:
        if not self.settings_file.exists():
            return Settings()
        return Settings(**json.loads(self.settings_file.read_text()))

    def create(self) -> None:
        """Makes the data folder from a template, which is made once with mariadb-install-db (about 5 s)."""
        if self.exists():
            return
        if self.datadir.exists() and any(self.datadir.iterdir()):
            raise StrataError(f"{self.datadir} is not empty and holds no database; choose another --data folder")
        template = _template()
        self.data.mkdir(parents=True, exist_ok=True)
        shutil.copytree(template, self.datadir, dirs_exist_ok=True)

    def wipe(self) -> None:
        if self.pid() is not None:
            raise StrataError(f"the server on {self.data} is still running")
        if self.data.exists() and not (self.exists() or self.settings_file.exists()):
            raise StrataError(f"{self.data} does not look like a Strata data folder; not deleting it")
        shutil.rmtree(self.data, ignore_errors=True)
        self.socket.unlink(missing_ok=True)

    # --- the process -------------------------------------------------------------------------------------------

    def start(
        self,
        settings: Settings,
        *,
        env: Mapping[str, str] | None = None,
        extra: Sequence[str] = (),
        prefix: Sequence[str] = (),
        timeout_s: float = START_TIMEOUT_S,
        keep_socket: bool = False,
    ) -> float:
        """Starts mariadbd and waits until it answers; returns the seconds it took (recovery included).

        `prefix` is a command that becomes the server with exec, such as unshare: the pid stays the same. Or one that runs it
        and ends with it: the pid is that command's, which passes SIGTERM on.
        """
        self.launch(settings, env=env, extra=extra, prefix=prefix, keep_socket=keep_socket)
        return self.wait_ready(timeout_s)

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> float:
        """The second half of start()."""
        started = time.monotonic()
        if not wait_until(self._answers, timeout_s):
            self.kill()
            raise StrataError(f"mariadbd did not answer within {timeout_s:.0f} s:\n{self.log_tail()}")
        return time.monotonic() - started

    def _answers(self) -> bool:
        if end := self.ended():
            raise StrataError(f"mariadbd ended while starting ({end}):\n{self.log_tail()}")
        try:
            self.connect(connect_timeout=5).close()
        except pymysql.MySQLError:
            return False
        return True

    def launch(
        self,
        settings: Settings,
        *,
        env: Mapping[str, str] | None = None,
        extra: Sequence[str] = (),
        prefix: Sequence[str] = (),
        keep_socket: bool = False,
    ) -> None:
        """The first half of start(). `keep_socket`: it leads to another server, until this one makes its own."""
        if self.pid() is not None:
            raise StrataError(f"a server already runs on {self.data}")
        self.create()
        replace_file(self.settings_file, json.dumps(asdict(settings), indent=2) + "\n")
        (self.data / "tmp").mkdir(exist_ok=True)
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        for stale in (self.pid_file, *(() if keep_socket else (self.socket,))):
            stale.unlink(missing_ok=True)
        (self.data / "init.sql").write_text(f"SET GLOBAL default_storage_engine={settings.engine};\n")
        environment = {"MALLOC_ARENA_MAX": str(MALLOC_ARENAS), **os.environ, **(env or {})}
        pid = self._spawn([*prefix, *self._command(settings), *extra], self.data, environment)
        if settings.cores:
            self.use_cores(pid, settings.cores)

    def use_cores(self, pid: int, cores: float) -> str:
        """From now on; 0: all there are. Returns how, in words."""
        return cpu_share.limit(pid, self._group(), cores)

    def _group(self) -> str:
        return f"strata-{paths.hash_of(self.data)}"

    def _command(self, settings: Settings) -> list[str]:
        usr = paths.MARIADB_ROOT / "usr"
        command = [
            str(mariadb_packages.mariadbd()),
            "--no-defaults",
            f"--basedir={usr}",
            f"--lc-messages-dir={usr / 'share' / 'mysql'}",
            f"--datadir={self.datadir}",
            f"--tmpdir={self.data / 'tmp'}",
            f"--socket={self.socket}",
            f"--pid-file={self.pid_file}",
            f"--log-error={self.log}",
            f"--port={settings.port}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--character-set-server=utf8mb4",
            *INNODB_SIZES,
        ]
        if os.geteuid() == 0:
            command.append("--user=root")
        plugin = paths.plugin_path(settings.preset)
        if plugin.exists():
            command += [f"--plugin-dir={plugin.parent}", "--plugin-load-add=ha_strata.so", "--plugin-maturity=experimental"]
            # Not --default-storage-engine: with it the server would not start when the engine refuses its data folder.
            command.append(f"--init-file={self.data / 'init.sql'}")
        if os.environ.get(TEST_BINLOG) == "1":
            command += BINLOG_OPTIONS
        command += settings.options
        return command

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        return super().stop(timeout_s)

    def _forget(self) -> None:
        super()._forget()
        cpu_share.forget(self._group())
        if not self.socket.is_symlink():  # That one leads to another server, which serves.
            self.socket.unlink(missing_ok=True)

    # --- talking to it -----------------------------------------------------------------------------------------

    def connect(self, **options: Any) -> "pymysql.connections.Connection[Any]":
        defaults: dict[str, Any] = {"user": "root", "unix_socket": str(self.socket), "charset": "utf8mb4", "read_timeout": 120}
        defaults["ssl_disabled"] = True  # Reading the certificates of this machine takes longer than most tests.
        return pymysql.connect(**{**defaults, **options})

    def query(self, sql: str, **options: Any) -> list[tuple[Any, ...]]:
        connection = self.connect(**options)
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def has_strata(self, **options: Any) -> bool:
        rows = self.query("SELECT SUPPORT FROM information_schema.ENGINES WHERE ENGINE = 'STRATA'", **options)
        return bool(rows) and rows[0][0] in ("YES", "DEFAULT")


def _template() -> Path:
    stamp = TEMPLATE / ".complete"
    if stamp.exists() and stamp.read_text() == mariadb_packages.version():
        return TEMPLATE / "mysql"
    shutil.rmtree(TEMPLATE, ignore_errors=True)
    TEMPLATE.mkdir(parents=True)
    usr = paths.MARIADB_ROOT / "usr"
    command = [
        str(usr / "bin" / "mariadb-install-db"),
        "--no-defaults",
        f"--basedir={usr}",
        f"--datadir={TEMPLATE / 'mysql'}",
        f"--tmpdir={TEMPLATE}",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
        "--skip-name-resolve",
        *INNODB_SIZES,
    ]
    if os.geteuid() == 0:
        command.append("--user=root")
    outcome = run_logged(command, paths.LOGS / "install-db.log", timeout_s=300)
    if not outcome.ok:
        raise StrataError(f"mariadb-install-db failed:\n{outcome.tail()}")
    stamp.write_text(mariadb_packages.version())
    return TEMPLATE / "mysql"


def innodb_files_of_template() -> list[tuple[Path, Path]]:
    """InnoDB's files of a new data directory, and their places in it: for one whose own were left behind, with only the server's
    own tables in them."""
    template = _template()
    names = ("ibdata*", "ib_logfile*", "ib_buffer_pool", "undo[0-9]*", "*/*.ibd")
    return [(path, path.relative_to(template)) for name in names for path in sorted(template.glob(name))]


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def choose_port(wanted: int | None, preferred: int = DEFAULT_PORT) -> int:
    """The port asked for, or an error; without a wish, the first free one from the preferred port on."""
    if wanted is not None:
        if not port_is_free(wanted):
            raise StrataError(f"port {wanted} is in use; choose another with --port, or leave --port away")
        return wanted
    for port in range(preferred, preferred + PORTS_TRIED_MAX):
        if port_is_free(port):
            return port
    raise StrataError(f"no free port between {preferred} and {preferred + PORTS_TRIED_MAX - 1}")
