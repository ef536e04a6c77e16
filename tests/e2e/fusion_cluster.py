"""A cluster of profile fusion, or of another one whose servers write the same tables: etcd, three storage nodes, a memory node,
and servers that are started one by one, as tests need them; ./strata up --profile fusion starts all of it."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from strata_cli import paths
from strata_cli.cluster import CLUSTER_NAME, Cluster, ensure_secret, free_ports
from strata_cli.etcd_server import Etcd
from strata_cli.memory_node import MemoryNode, MemorySettings
from strata_cli.process import BackgroundProcess
from strata_cli.profile_list import OF_SEVERAL_WRITERS
from strata_cli.server import Server, Settings, choose_port
from strata_cli.storage_node import NodeSettings, StorageNode
from strata_cli.system_tables import SHARED_BY_SEVERAL, share_system_tables
from strata_cli.waiting import wait_until

PROFILE = "fusion"
PROFILES = OF_SEVERAL_WRITERS  # Of tests that are run with each.
STORAGE = ("s1", "s2", "s3")
DEADLINE_S = 120.0
LEASE_S = 5


class SharingMemoryNode(MemoryNode):
    slots = 2048
    member_lease_s: int | None = None

    def flags(self) -> list[str]:
        lease = [] if self.member_lease_s is None else ["--fusion-lease", str(self.member_lease_s)]
        return [*super().flags(), "--fusion-slots", str(self.slots), *lease]


class Several:
    """A cluster whose servers are started one by one. `server_options`: more of each server's, which count more than ours;
    `node_options`: of each storage node's. `shares_accounts`: users, routines and events are those of the cluster, as
    ./strata up has it. `faults`: points_file() arms a server's fault points while it runs. `spare`: a second memory node, which
    stands by. `member_lease_s`: of a server at the memory node, if another one than usual."""

    def __init__(
        self,
        folder: Path,
        *,
        preset: str = "release",
        slots: int = SharingMemoryNode.slots,
        server_options: Sequence[str] = (),
        shares_accounts: bool = False,
        node_options: Sequence[str] = (),
        faults: bool = False,
        spare: bool = False,
        profile: str = PROFILE,
        member_lease_s: int | None = None,
    ) -> None:
        self.profile = profile
        self._member_lease_s = member_lease_s
        self._shares_accounts = shares_accounts
        folder.mkdir(parents=True)
        self.folder = folder
        self._preset = preset
        self._server_options = tuple(server_options)
        self._node_options = tuple(node_options)
        self._faults = faults
        self.secret = folder / "secret"
        ensure_secret(self.secret)
        ports = free_ports(folder, 11)
        self.etcd = Etcd(folder / "etcd")
        self.etcd.start(ports[0])
        self.registry = self.etcd.endpoint()
        programs = paths.preset_dir(preset) / "cmd"
        self.storage = [
            StorageNode(
                name,
                folder / name,
                NodeSettings(ports[1 + 2 * i], ports[2 + 2 * i], self.registry, CLUSTER_NAME, self.secret, profile, STORAGE, 2),
                [programs / "strata-storenode" / "strata-storenode"],
            )
            for i, name in enumerate(STORAGE)
        ]
        self.memory = self._memory_node(1, slots, ports[7:9])
        self.spare = self._memory_node(2, slots, ports[9:11]) if spare else None
        self.servers: list[Server] = []
        try:
            self._start_nodes()
        except BaseException:
            self.kill()
            raise

    def _memory_node(self, number: int, slots: int, ports: Sequence[int]) -> SharingMemoryNode:
        name = f"memory-{number}"
        pools = self.folder / f"pools-{number}"
        settings = MemorySettings(ports[0], ports[1], "128M", pools, self.registry, CLUSTER_NAME, self.secret)
        program = paths.preset_dir(self._preset) / "cmd" / "strata-memnode" / "strata-memnode"
        node = SharingMemoryNode(name, self.folder / name, settings, [program])
        node.slots = slots
        node.member_lease_s = self._member_lease_s
        return node

    def _start_nodes(self) -> None:
        self.launch_storage(self.storage)
        self.memory.launch()
        for node in (*self.storage, self.memory):
            node.wait_ready()
        assert wait_until(lambda: self.memory.illness() is None, DEADLINE_S), self.memory.log_tail()
        if self.spare is not None:
            self.spare.launch()
            self.spare.wait_ready()

    def memory_nodes(self) -> list[SharingMemoryNode]:
        return [self.memory] if self.spare is None else [self.memory, self.spare]

    def launch_storage(self, nodes: Sequence[StorageNode]) -> None:
        for node in nodes:
            node.launch(extra=self._node_options)

    def add(self) -> Server:
        name = f"compute-{len(self.servers) + 1}"
        server = Server(self.folder / name)
        self.servers.append(server)
        self.start(server)
        if self._shares_accounts and len(self.servers) == 1:
            share_system_tables(server, SHARED_BY_SEVERAL)
        return server

    def start(self, server: Server) -> None:
        self.launch(server)
        server.wait_ready()
        assert server.has_strata(), server.log_tail()

    def points_file(self, server: Server) -> Path:
        return self.folder / f"{server.data.name}.points"

    def launch(self, server: Server) -> None:
        """The first half of start()."""
        options = {
            "profile": self.profile,
            "registry": self.registry,
            "cluster": CLUSTER_NAME,
            "node-name": server.data.name,
            "secret-file": self.secret,
            "buffer-pool-size": "32M",
            "lease-seconds": LEASE_S,
        }
        given = [f"--strata-{name}={value}" for name, value in options.items()]
        settings = Settings(profile=self.profile, preset=self._preset, port=choose_port(None, 23640), options=given)
        env = {"STRATA_FAULT_FILE": str(self.points_file(server))} if self._faults else {}
        server.launch(settings, env=env, extra=self._server_options)

    def kill(self) -> None:
        parts: list[BackgroundProcess] = [*self.servers, *self.memory_nodes(), *self.storage, self.etcd]
        for part in parts:
            part.kill()


@contextmanager
def several_in(folder: Path, **options: Any) -> Iterator[Several]:
    """A new one, which is gone at the end, with its files."""
    shutil.rmtree(folder, ignore_errors=True)
    made = Several(folder, **options)
    try:
        yield made
    finally:
        made.kill()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def nothing_left_of(cluster: Path) -> Iterator[None]:
    """Neither before nor afterwards: a cluster that commands made, in a folder below one of the test's own."""
    shutil.rmtree(cluster.parent, ignore_errors=True)
    try:
        yield
    finally:
        made = Cluster(cluster)
        made.kill()
        for node in made.memory.values():
            node.wipe_pools()  # They lie elsewhere.
        shutil.rmtree(cluster.parent, ignore_errors=True)


@contextmanager
def two_servers_in(folder: Path) -> Iterator[Several]:
    """The same, with a database to work in."""
    with several_in(folder) as made:
        made.add().query("CREATE DATABASE IF NOT EXISTS test", autocommit=True)
        made.add()
        yield made
