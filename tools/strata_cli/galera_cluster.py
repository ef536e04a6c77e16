"""Several MariaDB servers with InnoDB that replicate each other's write sets by Galera: what profile fusion is compared with.

    <folder>/server-1/ ...   a data folder each (server.py)

No server copies its data to another one, for which Galera would need further programs. All begin as copies of one that has
founded the cluster alone and has ended in order, so that each knows the cluster's identity and holds the same last change; and
each finds a note, as Galera leaves it after a loss of power, that they were a group of all: once they see each other they are
one again, and nobody lacks anything. Everything listens on loopback only. A cluster lives as long as the program that started
it: no command finds it again.
"""

import re
import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import pymysql

from . import galera_packages
from .cluster import free_ports
from .dilation import Emulation
from .process import kill_all, stop_all
from .server import STOP_TIMEOUT_S, Server, Settings
from .shell import StrataError, console
from .waiting import wait_until

PROFILE = "galera"  # As commands name it; there is no such profile of the engine.
CLUSTER_NAME = "strata-comparison"
SERVERS_USUAL = 3
SERVERS_MAX = 8
PORTS_EACH = 3  # SQL, the group, and write sets for one that was away.
START_TIMEOUT_S = 120.0
SYNCED_TIMEOUT_S = 120.0
LOG_LINES_SHOWN = 30
APPLIERS = 4
# What is durable and what is kept for one that joins; the rest is each server's own.
SETTINGS: dict[str, str] = {
    "binlog-format": "ROW",
    "innodb-autoinc-lock-mode": "2",
    "innodb-flush-log-at-trx-commit": "1",
    "wsrep-slave-threads": str(APPLIERS),
    "wsrep-sst-method": "skip",
    "wsrep-sync-wait": "0",
}
# And how long a server may say nothing: a busy machine may not let it run for long.
PROVIDER: dict[str, str] = {
    "gcache.size": "256M",
    "evs.suspect_timeout": "PT30S",
    "evs.inactive_timeout": "PT60S",
    "evs.install_timeout": "PT60S",
}
STATES = ("wsrep_local_state_comment", "wsrep_cluster_size", "wsrep_ready")


class GaleraServer(Server):
    """One of them, on a folder that `GaleraCluster` has prepared."""

    def __init__(self, data: Path, ports: Sequence[int]) -> None:
        super().__init__(data)
        self.sql_port, self.group_port, self.transfer_port = ports

    def options(self, group: Sequence["GaleraServer"]) -> list[str]:
        provider = {
            **PROVIDER,
            "gmcast.listen_addr": f"tcp://127.0.0.1:{self.group_port}",
            "ist.recv_addr": f"127.0.0.1:{self.transfer_port}",
        }
        given = {
            **SETTINGS,
            "wsrep-on": "ON",
            "wsrep-provider": str(galera_packages.library()),
            "wsrep-provider-options": ";".join(f"{name}={value}" for name, value in provider.items()),
            "wsrep-cluster-name": CLUSTER_NAME,
            "wsrep-cluster-address": "gcomm://" + ",".join(f"127.0.0.1:{server.group_port}" for server in group),
            "wsrep-node-address": f"127.0.0.1:{self.group_port}",
            "wsrep-node-name": self.data.name,
            "loose-strata": "OFF",
        }
        return [f"--{name}={value}" for name, value in given.items()]

    def states(self) -> dict[str, str]:
        names = ", ".join(f"'{name}'" for name in STATES)
        return {name: value for name, value in self.query(f"SHOW GLOBAL STATUS WHERE Variable_name IN ({names})")}

    def counter(self, name: str) -> int:
        """One of SHOW STATUS LIKE 'wsrep_%' that counts."""
        rows = self.query(f"SHOW GLOBAL STATUS LIKE '{name}'")
        if not rows:
            raise StrataError(f"{self.data.name} has no status {name}")
        return int(float(rows[0][1]))


class GaleraCluster:
    """Not thread-safe. `server_options`: more of each server's, which count more than ours."""

    def __init__(
        self, folder: Path, servers: int = SERVERS_USUAL, *, preset: str = "release", server_options: Sequence[str] = ()
    ) -> None:
        if not 1 <= servers <= SERVERS_MAX:
            raise StrataError(f"a Galera cluster here has 1 to {SERVERS_MAX} servers, not {servers}")
        self.folder = folder.resolve()
        self._preset = preset
        self._server_options = tuple(server_options)
        self.emulation: Emulation | None = None  # whose nodes the servers are
        ports = free_ports(self.folder, servers * PORTS_EACH)
        self.servers = [
            GaleraServer(self.folder / f"server-{i + 1}", ports[i * PORTS_EACH : (i + 1) * PORTS_EACH]) for i in range(servers)
        ]

    def start(self, fill: Callable[[Server], None] = lambda _: None) -> None:
        """Makes the cluster anew and returns when every server is synced. Raises StrataError, and nothing runs, if it cannot.

        `fill`: what all servers hold from the start on, given to the one that founds it, in real time."""
        galera_packages.fetch(console.print)
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            self._prepare(fill)
            for server in self.servers:
                # One by itself has nobody to join: it founds its group each time.
                self._launch(server, founds=len(self.servers) == 1, emulation=self.emulation)
            for server in self.servers:
                server.wait_ready(START_TIMEOUT_S * self._slower)
            self._wait_synced(len(self.servers))
        except BaseException as error:
            self.kill()
            if isinstance(error, StrataError):
                raise StrataError(f"{error}\n{self.log_tails()}") from error
            raise

    @property
    def _slower(self) -> float:
        return self.emulation.factor if self.emulation else 1.0

    def _prepare(self, fill: Callable[[Server], None]) -> None:
        """Every server's folder, as one that has founded the cluster left it."""
        first, *others = self.servers
        self._launch(first, founds=True)
        first.wait_ready(START_TIMEOUT_S)
        self._wait_synced(1)
        fill(first)
        if not first.stop():
            raise StrataError(f"{first.data.name} did not end in order")
        check_left_in_order(first.datadir / "grastate.dat")
        for server in others:
            shutil.copytree(first.datadir, server.datadir)
        members = [str(uuid.uuid1()) for _ in self.servers]
        for server, member in zip(self.servers, members, strict=True) if others else ():
            (server.datadir / "gvwstate.dat").write_text(group_note(member, members))

    def _launch(self, server: GaleraServer, founds: bool, emulation: Emulation | None = None) -> None:
        extra = (*server.options(self.servers), *(("--wsrep-new-cluster",) if founds else ()), *self._server_options)
        name = f"{PROFILE}-{server.data.name}"
        emulated = emulation.environment(name, "compute") if emulation else {}
        server.launch(Settings(preset=self._preset, port=server.sql_port, engine="InnoDB"), env=emulated, extra=extra)
        if emulation:
            emulation.guard(name, server.pid())

    def _wait_synced(self, size: int) -> None:
        """Until the first `size` servers are a group of so many, each with all that was committed."""
        wanted = {"wsrep_local_state_comment": "Synced", "wsrep_cluster_size": str(size), "wsrep_ready": "ON"}

        def synced() -> bool:
            for server in self.servers[:size]:
                if end := server.ended():
                    raise StrataError(f"{server.data.name} has ended ({end})")
            try:
                return all(server.states() == wanted for server in self.servers[:size])
            except (pymysql.MySQLError, OSError):
                return False

        limit_s = SYNCED_TIMEOUT_S * self._slower
        if not wait_until(synced, limit_s):
            raise StrataError(f"the servers were not a group of {size} within {limit_s:.0f} s")

    def stop(self) -> None:
        stop_all(self.servers, STOP_TIMEOUT_S)

    def kill(self) -> None:
        kill_all(self.servers)

    def log_tails(self) -> str:
        found = [(server.data.name, server.log_tail(LOG_LINES_SHOWN)) for server in self.servers if server.log.exists()]
        return "\n".join(f"--- {name}\n{tail}" for name, tail in found)


def group_note(member: str, members: Sequence[str]) -> str:
    """What Galera reads as `gvwstate.dat`: who this server is, and the last group with a majority (3) that it belonged to."""
    of_members = [f"member: {one} 0" for one in members]
    return "\n".join([f"my_uuid: {member}", "#vwbeg", f"view_id: 3 {min(members)} 1", "bootstrap: 0", *of_members, "#vwend", ""])


def check_left_in_order(file: Path) -> None:
    """Galera's own note of what a data folder holds: without a sequence number a server would want a whole copy."""
    text = file.read_text() if file.exists() else ""
    number = re.search(r"^seqno:\s*(-?\d+)$", text, re.MULTILINE)
    if number is None or int(number[1]) < 0:
        raise StrataError(f"{file} does not say which change the folder holds:\n{text}")
