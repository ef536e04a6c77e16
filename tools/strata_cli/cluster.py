"""A cluster on this machine: etcd, storage nodes, three at first, memory nodes where the profile has them, and a MariaDB server
as compute node, below one data folder.

    <data>/cluster.json     profile, ports, and where further compute nodes are
    <data>/secret           what the nodes prove to each other that they belong together with
    <data>/lock             one ./strata command at a time
    <data>/etcd/            the registry (etcd_server.py)
    <data>/storage/s1/ ...  the storage nodes (storage_node.py)
    <data>/memory/memory-1/ ...  the memory nodes (memory_node.py); their pools are on tmpfs where there is room
    <data>/computes/        compute nodes that `./strata compute move` and `compute standby add` have made
    <data>/mysql/ ...       the compute node compute-1 (server.py); nothing in it is needed to start it again

A compute node may also live in another folder (`./strata compute up`); one at a time serves the database. Others may stand by
(compute_standby.py), each below a process that watches over it (standby_process.py). Where several servers write the same
tables (profile fusion) all of them are in computes/, and each serves; compute_servers.py adds and removes them. Everything
listens on loopback only; ports stay as they were first chosen, since the processes know each other by them.

Which storage nodes there are is said by the registry's placement; cluster.json follows it (node_changes.py).
"""

import contextlib
import fcntl
import json
import math
import os
import secrets
import shutil
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pymysql

from . import memory_node, paths, placement
from .daemon_process import PORT_TIMEOUT_S, DaemonProcess, check_built, check_port
from .dilation import Emulation
from .etcd_server import Etcd
from .memory_node import MemoryNode, MemorySettings
from .placement import Placement
from .process import BackgroundProcess, kill_all, replace_file, stop_all
from .profile_list import BY_NAME, OF_SEVERAL_WRITERS
from .server import START_TIMEOUT_S as COMPUTE_START_TIMEOUT_S
from .server import Server, Settings, choose_port, port_is_free
from .several_health import decided, is_fenced, one_serves, well
from .shell import StrataError
from .standby_process import StandBy
from .storage_node import Joining, NodeSettings, StorageNode
from .system_tables import SHARED_BY_SEVERAL, share_system_tables
from .waiting import wait_until

STORAGE_NODES = ("s1", "s2", "s3")  # Of a new cluster.
CLUSTER_NAME = "main"
FIRST_COMPUTE = "compute-1"
SECRET_BYTES = 32
# Below what Linux gives to outgoing connections. A folder begins where its path says: clusters seldom want each other's ports.
PORTS_FROM = 24_000
PORTS_APART = 10
PORTS_PLACES = 700
NODE_START_TIMEOUT_S = 60.0
NODE_STOP_TIMEOUT_S = 30.0
COMPUTE_STOP_TIMEOUT_S = 60.0
SMALL_LOCAL_POOL = "64M"  # Of a compute node that has a memory node behind it.
COMPUTE_LEASE_S = 10  # So long another compute node waits for one that was killed.
SERVERS_USUAL = 3  # Of a new cluster whose servers all write.
SERVERS_MAX = 8
SHARED_MEMORY_MAX = 3  # Memory nodes of such a cluster: one serves, the others wait.
DECIDED_TIMEOUT_S = 30.0
MEMORY_WELL_TIMEOUT_S = 300.0  # Until a memory node that servers share has redone what storage lacks.


@dataclass
class NodePorts:
    port: int
    http_port: int


@dataclass
class JoiningPorts(NodePorts):
    """Of a node that has been given no place yet."""

    replaces: str = ""  # In that one's place; else one more.
    write_quorum: int = 0  # Then; 0: a majority.


@dataclass
class MemoryPorts(NodePorts):
    """Of a memory node, and what it has."""

    memory: str  # As in 512M.
    pools: str  # The folder of its pools.


@dataclass(frozen=True)
class Wishes:
    """What `up` and `compute move` may be told of a cluster; None: as it is, or what is usual."""

    memory_nodes: int | None = None  # Of a new cluster, all of them used by compute.
    memory: str | None = None  # Of each of them.
    memory_backup: bool | None = None  # Of a new cluster: each page on two of them.
    buffer_pool: str | None = None  # Of the compute node; as in 64M.
    cores: float | None = None  # That it may use; 0: all there are.
    options: tuple[str, ...] | None = None  # Further ones of the server; they replace those it was given before.
    servers: int | None = None  # Of a new cluster whose servers all write.


@dataclass
class ClusterSettings:
    profile: str
    etcd_port: int
    storage: dict[str, NodePorts]
    computes: dict[str, str] = field(default_factory=dict)  # Name and folder of those that live elsewhere.
    retired: dict[str, NodePorts] = field(default_factory=dict)  # Storage nodes that were replaced; names are not used again.
    joining: dict[str, JoiningPorts] = field(default_factory=dict)
    memory: dict[str, MemoryPorts] = field(default_factory=dict)
    # The memory nodes that compute uses, in the order in which it has its pages on them.
    memory_in_use: list[str] = field(default_factory=list)
    memory_backup: bool = False  # The first two of those have the same pages, and so have the next two.
    buffer_pool: str = ""  # Of the compute node, whichever serves; "": as the plugin has it.
    cores: float = 0.0  # That it may use; 0: all.
    server_options: list[str] = field(default_factory=list)  # Further ones of the compute node, whichever serves.
    standbys: dict[str, int] = field(default_factory=dict)  # Compute nodes that stand by, and their ports.
    read_only: list[str] = field(default_factory=list)  # Of several servers, those that only read.

    def ports(self) -> set[int]:
        nodes = (*self.storage.values(), *self.retired.values(), *self.joining.values(), *self.memory.values())
        return {self.etcd_port, *(port for node in nodes for port in (node.port, node.http_port))}

    def write_quorum(self) -> int:
        return len(self.storage) // 2 + 1


class Cluster:
    """One data folder and the processes that serve it, if any. Not thread-safe."""

    def __init__(
        self,
        data: Path,
        *,
        preset: str = "release",
        program: Sequence[str | Path] | None = None,
        memory_program: Sequence[str | Path] | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.data = data.resolve()
        self.settings_file = self.data / "cluster.json"
        self.secret = self.data / "secret"
        self.preset = preset
        self.node_start_timeout_s = NODE_START_TIMEOUT_S
        self.node_stop_timeout_s = NODE_STOP_TIMEOUT_S
        self.lease_s: float = COMPUTE_LEASE_S
        self.compute_options: tuple[str, ...] = ()  # of the server, beside those that make it a compute node
        self.compute_prefix: tuple[str, ...] = ()  # a command that runs each server, and ends with it
        self.emulation: Emulation | None = None  # whose nodes its processes are
        self._program = program or [paths.storenode_path(preset)]
        self.memory_program: Sequence[str | Path] = memory_program or [paths.memnode_path(preset)]
        self._say = say
        self.etcd = Etcd(self.data / "etcd")
        self.storage: dict[str, StorageNode] = {}
        self.outsiders: dict[str, StorageNode] = {}  # Storage nodes that are in no group: replaced, or about to join.
        self.memory: dict[str, MemoryNode] = {}
        self.computes: dict[str, Server] = {}
        self.standbys: dict[str, StandBy] = {}
        self.profile = ""  # Until it is known.
        if self.exists():
            self._make_parts(self.settings())

    # --- what is on disk ---------------------------------------------------------------------------------------

    def exists(self) -> bool:
        return self.settings_file.exists()

    def settings(self) -> ClusterSettings:
        if not self.exists():
            raise StrataError(f"there is no cluster in {paths.relative(self.data)}")
        try:
            facts = json.loads(self.settings_file.read_text())
            nodes = {name: NodePorts(**ports) for name, ports in facts.pop("storage").items()}
            retired = {name: NodePorts(**ports) for name, ports in facts.pop("retired", {}).items()}
            joining = {name: JoiningPorts(**ports) for name, ports in facts.pop("joining", {}).items()}
            memory = {name: MemoryPorts(**ports) for name, ports in facts.pop("memory", {}).items()}
            in_use = facts.pop("memory_in_use", [])
            used = [in_use] if isinstance(in_use, str) and in_use else list(in_use)  # There was only one once.
            return ClusterSettings(storage=nodes, retired=retired, joining=joining, memory=memory, memory_in_use=used, **facts)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StrataError(
                f"{self.settings_file} cannot be read ({error!r}); it names the cluster's profile and ports"
            ) from error

    def refuse_foreign(self) -> None:
        if not self.exists() and self.data.exists() and any(path.name != "lock" for path in self.data.iterdir()):
            raise StrataError(f"{paths.relative(self.data)} is not empty and holds no cluster; choose another --data folder")

    def check_built(self, profile: str) -> None:
        check_built(self._program[0], paths.plugin_path(self.preset))
        if BY_NAME[profile].has_memory_nodes:
            check_built(self.memory_program[0])

    def create(self, profile: str, wishes: Wishes | None = None) -> None:
        """Chooses ports and makes the secret; on a cluster that is there, checks its profile."""
        self.refuse_foreign()
        wishes = wishes or Wishes()
        if not self.exists():
            settings = self._new_settings(profile, wishes)
            self.data.mkdir(parents=True, exist_ok=True)
            self._keep(settings)
        settings = self.settings()
        if settings.profile != profile:
            raise StrataError(f"{paths.relative(self.data)} holds a database of profile '{settings.profile}'")
        self._check_wishes(settings, wishes)
        ensure_secret(self.secret)
        self._make_parts(settings)
        self.set_compute(wishes.buffer_pool, wishes.cores)
        if wishes.options is not None:
            settings = self.settings()
            settings.server_options = list(wishes.options)
            self._keep(settings)

    def create_around(
        self, profile: str, nodes: Sequence[str], wishes: Wishes, servers: Sequence[str] = (), read_only: Sequence[str] = ()
    ) -> None:
        """A new cluster with these storage nodes, whose files are put there before they are started, and these servers, where
        several write. Nobody else has the folder."""
        settings = self._new_settings(profile, wishes)
        settings.storage = dict(zip(nodes, settings.storage.values(), strict=False))
        settings.computes = {name: str(self.data / "computes" / name) for name in servers}
        settings.read_only = list(read_only)
        self._keep(settings)
        ensure_secret(self.secret)
        self._make_parts(settings)
        self.set_compute(wishes.buffer_pool, None)

    def forget_place(self, to: Path) -> None:
        """Nothing runs here, and the folder is about to become `to`: what would be wrong there goes, which is what compute and
        memory nodes have; they need nothing of it. Of several servers each keeps its data directory, and with it its place."""
        several = self.has_several()
        for server in self.computes.values():
            if several or server.data == self.data:
                if not several:
                    shutil.rmtree(server.datadir, ignore_errors=True)
                shutil.rmtree(server.data / "tmp", ignore_errors=True)
                for path in (server.log, server.pid_file, server.settings_file, server.data / "init.sql", server.socket):
                    path.unlink(missing_ok=True)
        for node in self.memory.values():
            node.wipe()
        shutil.rmtree(self.data / "memory", ignore_errors=True)
        settings = self.settings()
        if several:
            settings.computes = {name: str(to / "computes" / name) for name in settings.computes}
        taken = 0
        for name, ports in settings.memory.items():
            ports.pools = str(memory_node.choose_pools(to, name, ports.memory, taken=taken))
            taken += memory_node.bytes_of(ports.memory)
        self._keep(settings)

    def _new_settings(self, profile: str, wishes: Wishes) -> ClusterSettings:
        with_memory = BY_NAME[profile].has_memory_nodes
        several = BY_NAME[profile].has_several_writers
        self._check_servers(profile, wishes)
        usual = 2 if wishes.memory_backup else 1
        count = (usual if wishes.memory_nodes is None else wishes.memory_nodes) if with_memory else 0
        ports = free_ports(self.data, 1 + 2 * (len(STORAGE_NODES) + count))
        storage = {name: NodePorts(ports[1 + 2 * i], ports[2 + 2 * i]) for i, name in enumerate(STORAGE_NODES)}
        settings = ClusterSettings(profile, ports[0], storage)
        if not with_memory:
            if wishes.memory_nodes or wishes.memory or wishes.memory_backup:
                raise StrataError(f"profile '{profile}' has no memory nodes")
            return settings
        if count == 0:
            raise StrataError(f"profile '{profile}' needs a memory node")
        if wishes.memory_backup and count % 2:
            raise StrataError(f"with --memory-backup memory nodes go in pairs: --memory-nodes 2 or 4, not {count}")
        if several and wishes.memory_backup:
            raise StrataError(f"profile '{profile}' keeps no page twice: a second memory node waits instead (--memory-nodes 2)")
        if several and count > SHARED_MEMORY_MAX:
            raise StrataError(f"profile '{profile}' has 1 to {SHARED_MEMORY_MAX} memory nodes, of which one serves")
        size = memory_node.memory_of(wishes.memory or memory_node.DEFAULT_MEMORY)
        if several:
            memory_node.shared_slots_of(size)  # Says so when it is too little.
            names = (f"compute-{n + 1}" for n in range(wishes.servers or SERVERS_USUAL))
            settings.computes = {name: str(self.data / "computes" / name) for name in names}
        for i in range(count):
            taken = i * memory_node.bytes_of(size)
            pools = memory_node.choose_pools(self.data, f"memory-{i + 1}", size, taken=taken)
            own = ports[2 * (len(STORAGE_NODES) + i) + 1 :]
            settings.memory[f"memory-{i + 1}"] = MemoryPorts(own[0], own[1], size, str(pools))
        settings.memory_in_use = list(settings.memory)
        settings.memory_backup = bool(wishes.memory_backup)
        settings.buffer_pool = SMALL_LOCAL_POOL
        return settings

    def _check_servers(self, profile: str, wishes: Wishes) -> None:
        if not BY_NAME[profile].has_several_writers:
            if wishes.servers not in (None, 1):
                others = " or ".join(OF_SEVERAL_WRITERS)
                raise StrataError(f"--compute {wishes.servers}: profile '{profile}' has one server; several has {others}")
        elif wishes.servers is not None and not 1 <= wishes.servers <= SERVERS_MAX:
            raise StrataError(f"--compute {wishes.servers}: a cluster has 1 to {SERVERS_MAX} servers")

    def _check_wishes(self, settings: ClusterSettings, wishes: Wishes) -> None:
        """Memory nodes and servers of a cluster that is there are changed by other commands."""
        self._check_servers(settings.profile, wishes)
        if self.has_several() and wishes.servers not in (None, len(settings.computes)):
            raise StrataError(
                f"{paths.relative(self.data)} has its servers already ({', '.join(settings.computes)}); they are changed with"
                " ./strata compute add and compute remove"
            )
        sizes = {memory_node.bytes_of(ports.memory) for ports in settings.memory.values()}
        other_size = wishes.memory is not None and sizes != {memory_node.bytes_of(wishes.memory)}
        other_backup = wishes.memory_backup not in (None, settings.memory_backup)
        if other_size or other_backup or wishes.memory_nodes not in (None, len(settings.memory)):
            there = ", ".join(f"{name} {ports.memory}" for name, ports in settings.memory.items()) or "none"
            how = "; they are changed with ./strata node add --memory, node replace and node remove"
            raise StrataError(f"{paths.relative(self.data)} has its memory nodes already ({there}){how}")

    def set_compute(self, buffer_pool: str | None, cores: float | None) -> None:
        """From the next start of a compute node on. None: as before; "" and 0: as the plugin has it, all cores."""
        settings = self.settings()
        if buffer_pool is not None:
            if buffer_pool:
                memory_node.bytes_of(buffer_pool)  # Says so when it is no size.
            settings.buffer_pool = buffer_pool
        if cores is not None:
            settings.cores = cores
        if buffer_pool is not None or cores is not None:
            self._keep(settings)

    def _keep(self, settings: ClusterSettings) -> None:
        replace_file(self.settings_file, json.dumps(asdict(settings), indent=2) + "\n")

    def _make_parts(self, settings: ClusterSettings) -> None:
        self.profile = settings.profile
        known = {**self.outsiders, **self.storage}
        self.storage = {name: self._storage_node(name, ports, settings, known) for name, ports in settings.storage.items()}
        outside = {**settings.retired, **settings.joining}
        self.outsiders = {name: self._storage_node(name, ports, settings, known) for name, ports in outside.items()}
        self.memory = {name: self._memory_node(name, ports, settings) for name, ports in settings.memory.items()}
        for name, folder in self._folders_of_computes(settings).items():
            if name not in self.computes:
                self.computes[name] = Server(Path(folder))
                self.computes[name].name = name
        for name, port in settings.standbys.items():
            if name in self.computes and name not in self.standbys:
                self.standbys[name] = StandBy(self.data, self.computes[name], port)

    def has_several(self) -> bool:
        """Servers that write the same tables, each in a folder of its own."""
        return self.profile in BY_NAME and BY_NAME[self.profile].has_several_writers

    def _folders_of_computes(self, settings: ClusterSettings) -> dict[str, str]:
        return settings.computes if self.has_several() else {FIRST_COMPUTE: str(self.data), **settings.computes}

    def _storage_node(
        self, name: str, ports: NodePorts, settings: ClusterSettings, known: Mapping[str, StorageNode]
    ) -> StorageNode:
        joining = Joining(ports.replaces, ports.write_quorum) if isinstance(ports, JoiningPorts) else None
        node_settings = NodeSettings(
            ports.port,
            ports.http_port,
            registry=_registry(settings),
            cluster=CLUSTER_NAME,
            secret=self.secret,
            profile=settings.profile,
            group=tuple(settings.storage) if name in settings.storage else (name,),
            write_quorum=settings.write_quorum() if name in settings.storage else 1,
            joining=joining,
        )
        if name in known:
            known[name].settings = node_settings
            return known[name]
        return StorageNode(name, self.data / "storage" / name, node_settings, self._program)

    def _memory_node(self, name: str, ports: MemoryPorts, settings: ClusterSettings) -> MemoryNode:
        node_settings = MemorySettings(
            ports.port,
            ports.http_port,
            ports.memory,
            Path(ports.pools),
            registry=_registry(settings),
            cluster=CLUSTER_NAME,
            secret=self.secret,
            shared_slots=memory_node.shared_slots_of(ports.memory) if self.has_several() else 0,
        )
        if name in self.memory:
            self.memory[name].settings = node_settings
            return self.memory[name]
        return MemoryNode(name, self.data / "memory" / name, node_settings, self.memory_program)

    # --- which storage nodes there are -------------------------------------------------------------------------

    def placement(self) -> Placement | None:
        """What the registry says; None before the first start. Raises StrataError when it does not answer."""
        return placement.read(self.settings().etcd_port, CLUSTER_NAME)

    def nodes_in_sync(self) -> dict[str, int] | None:
        """Those that have every page that compute, or the memory node that servers share, has written, as the registry says, and
        the numbers of their stores; None: it writes none, or has not yet."""
        stream = placement.AUTHORITY_STREAM if self.has_several() else placement.STREAM
        return placement.read_in_sync(self.settings().etcd_port, CLUSTER_NAME, stream)

    def streams_begun(self) -> list[int]:
        """The log streams that somebody has ever had an epoch of."""
        return placement.read_streams(self.settings().etcd_port, CLUSTER_NAME)

    def replays(self) -> bool:
        """Storage nodes make the pages from logs."""
        return not BY_NAME[self.profile].pages_are_written

    def follow_placement(self, found: Placement | None) -> None:
        """Takes over what the registry says, after a change that was interrupted before cluster.json knew of it."""
        settings = self.settings()
        if found is None or tuple(settings.storage) == found.nodes:
            return
        known: dict[str, NodePorts] = {**settings.retired, **settings.joining, **settings.storage}
        if missing := [name for name in found.nodes if name not in known]:
            raise StrataError(f"the registry names storage nodes that {self.settings_file} does not know: {', '.join(missing)}")
        settings.retired |= {name: ports for name, ports in settings.storage.items() if name not in found.nodes}
        settings.storage = {name: NodePorts(known[name].port, known[name].http_port) for name in found.nodes}
        settings.joining = {name: ports for name, ports in settings.joining.items() if name not in found.nodes}
        settings.retired = {name: ports for name, ports in settings.retired.items() if name not in found.nodes}
        self._keep(settings)
        self._make_parts(settings)

    def prepare_node(self, name: str | None, replaces: str, write_quorum: int) -> str:
        """Chooses a name and ports for a storage node that is about to join."""
        settings = self.settings()
        used = self.parts()
        begun = next((n for n, ports in settings.joining.items() if ports.replaces == replaces), None)
        chosen = name or begun or next(n for i in range(1, 1000) if (n := f"s{i}") not in used)
        if chosen in settings.storage or chosen in settings.retired:
            raise StrataError(f"{chosen} is, or was, a storage node of this cluster; names are not used again")
        if chosen in used and chosen not in settings.joining:
            raise StrataError(f"{chosen} is another process of this cluster")
        before = settings.joining.get(chosen)
        ports = (before.port, before.http_port) if before else free_ports(self.data, 2, self._ports_known(settings))
        settings.joining[chosen] = JoiningPorts(ports[0], ports[1], replaces, write_quorum)
        self._keep(settings)
        self._make_parts(settings)
        return chosen

    def _ports_known(self, settings: ClusterSettings) -> set[int]:
        """Of all processes of the cluster, also of servers that do not run: they keep theirs."""
        return settings.ports() | {server.settings().port for server in self.computes.values()}

    def forget_joining(self, name: str) -> None:
        """Of one that got no place."""
        settings = self.settings()
        if settings.joining.pop(name, None) is not None:
            self._keep(settings)
            self._make_parts(settings)

    # --- which memory nodes there are --------------------------------------------------------------------------

    def prepare_memory_node(self, name: str | None, memory: str) -> str:
        """Chooses a name, ports and a place for one more. It is there from now on, and not yet started."""
        settings = self.settings()
        chosen = name or next(n for i in range(1, 1000) if (n := f"memory-{i}") not in self.parts())
        if chosen in self.parts():
            raise StrataError(f"{chosen} is another process of this cluster")
        if self.has_several():
            memory_node.shared_slots_of(memory)  # Says so when it is too little.
            if len(settings.memory) > SHARED_MEMORY_MAX:  # One more for a moment, while one is replaced.
                raise StrataError(f"there are {len(settings.memory)} memory nodes ({', '.join(settings.memory)}), and one serves")
            settings.memory_in_use.append(chosen)
        ports = free_ports(self.data, 2, settings.ports())
        ports = free_ports(self.data, 2, self._ports_known(settings))
        pools = memory_node.choose_pools(self.data, chosen, memory)
        settings.memory[chosen] = MemoryPorts(ports[0], ports[1], memory_node.memory_of(memory), str(pools))
        self._keep(settings)
        self._make_parts(settings)
        return chosen

    def use_memory_node(self, name: str, old: str) -> None:
        """In place of another one, from the next start of a compute node on."""
        settings = self.settings()
        settings.memory_in_use = [name if node == old else node for node in settings.memory_in_use]
        self._keep(settings)

    def forget_memory_node(self, name: str) -> None:
        """With all it has. It does not run."""
        settings = self.settings()
        node = self.memory.pop(name)
        node.wipe()
        del settings.memory[name]
        settings.memory_in_use = [node for node in settings.memory_in_use if node != name]
        self._keep(settings)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other ./strata commands from starting and stopping the same processes at the same time."""
        self.data.mkdir(parents=True, exist_ok=True)
        with (self.data / "lock").open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StrataError(f"another ./strata command is at work on {paths.relative(self.data)}") from None
            yield

    def wipe(self) -> None:
        if running := self.running():
            raise StrataError(f"{running[0].name} of {self.data} is still running")
        if not self.exists():
            raise StrataError(f"{self.data} does not look like a cluster's folder; not deleting it")
        for server in self.computes.values():
            if server.data.is_relative_to(self.data):
                server.socket.unlink(missing_ok=True)
        for standby in self.standbys.values():
            standby.leave()
        for node in self.memory.values():
            node.wipe()
        shutil.rmtree(self.data, ignore_errors=True)

    # --- the processes -----------------------------------------------------------------------------------------

    def parts(self) -> dict[str, BackgroundProcess]:
        """Everything by name, in the order in which it is started."""
        return {"etcd": self.etcd, **self.storage, **self.outsiders, **self.memory, **self.computes}

    def part(self, name: str) -> BackgroundProcess:
        self.settings()  # Says so when there is no cluster.
        if name not in self.parts():
            raise StrataError(f"there is no '{name}' in {paths.relative(self.data)}; there is: {', '.join(self.parts())}")
        return self.parts()[name]

    def running(self) -> list[BackgroundProcess]:
        watching = [process for standby in self.standbys.values() for process in (standby, standby.waiting)]
        return [part for part in [*self.parts().values(), *watching] if part.pid() is not None]

    def serving_computes(self) -> list[str]:
        return [name for name, server in self.computes.items() if server.pid() is not None]

    def serving_compute(self) -> str | None:
        """Of several that run, since a stand-by took over from one that lives: the one that the registry names. The first one
        where all of them serve."""
        alive = self.serving_computes()
        if len(alive) > 1 and not self.has_several():
            with contextlib.suppress(StrataError):
                holder = placement.read_holder(self.settings().etcd_port, CLUSTER_NAME)
                return holder if holder in alive else alive[0]
        return alive[0] if alive else None

    def start(
        self, profile: str, *, compute_port: int | None = None, with_compute: bool = True, wishes: Wishes | None = None
    ) -> None:
        """Starts what does not run. When something fails, what this call has started is stopped again."""
        self.create(profile, wishes)
        with self._all_or_nothing() as started:
            self._start_etcd(started)
            self.follow_placement(self.placement())
            for name, node in self.settings().joining.items():
                how = f"replace {node.replaces} --with {name}" if node.replaces else f"add --name {name}"
                self._say(f"  {name:<10} not started: it has no place yet; to go on: ./strata node {how}")
            self._start_nodes([*self.storage, *self.memory], started)
            if with_compute and self.has_several():
                self._start_several(compute_port, started)
            elif with_compute:
                self._start_compute(FIRST_COMPUTE, compute_port, started)
                self.start_standbys()

    def start_node(self, name: str) -> None:
        """A storage node, also one that joins, or a memory node."""
        with self._all_or_nothing() as started:
            self._start_nodes([name], started)

    def start_part(self, name: str) -> None:
        with self._all_or_nothing() as started:
            part = self.part(name)
            if part.pid() is not None:
                raise StrataError(f"{name} already runs (pid {part.pid()})")
            if isinstance(part, Etcd):
                self._start_etcd(started)
            elif isinstance(part, DaemonProcess):
                self._start_nodes([name], started)
            elif name in self.standbys:
                self.start_standbys([name])
            else:
                self._start_compute(name, None, started)

    def start_compute(self, name: str, port: int | None = None) -> None:
        """Also one that stands by as a rule: it serves when this returns."""
        with self._all_or_nothing() as started:
            self._start_compute(name, port, started)

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[list[BackgroundProcess]]:
        started: list[BackgroundProcess] = []
        try:
            yield started
        except BaseException:
            if names := [part.name for part in started if part.pid() is not None]:
                self._say(f"  stopping again: {', '.join(names)}")
            stop_all(started, self.node_stop_timeout_s)
            raise

    def _start_etcd(self, started: list[BackgroundProcess]) -> None:
        if self.etcd.pid() is not None:
            self._already("etcd", self.etcd)
            return
        port = self.settings().etcd_port
        check_port("etcd", port)
        started.append(self.etcd)
        self._started("etcd", self.etcd, self.etcd.start(port), f"127.0.0.1:{port}")

    def _start_nodes(self, names: list[str], started: list[BackgroundProcess]) -> None:
        """All at once: each may have to wait for the others."""
        nodes: dict[str, DaemonProcess] = {**self.storage, **self.outsiders, **self.memory}
        launched: list[DaemonProcess] = []
        for name in names:
            node = nodes[name]
            if node.pid() is not None:
                self._already(name, node)
                continue
            started.append(node)
            node.launch(env=self._environment(name, "memory" if name in self.memory else "storage"))
            launched.append(node)
        for node in launched:
            seconds = node.wait_ready(self.node_start_timeout_s * self._slower())
            self._guard(node)
            self._started(node.name, node, seconds, node.address())

    def _start_compute(self, name: str, port: int | None, started: list[BackgroundProcess]) -> None:
        server = self.computes[name]
        serving = self.serving_compute()
        if self.has_several():
            serving = name if server.pid() is not None else None
        if serving is not None and serving != name:
            self._say(f"  {name:<10} not started: {serving} serves the database (in {self.computes[serving].data})")
            return
        if serving == name:
            self._already(name, server)
            return
        began = time.monotonic()
        chosen = self._launch_compute(name, port, started)
        self._await_compute(name, chosen, began)

    def _launch_compute(self, name: str, port: int | None, started: list[BackgroundProcess]) -> int:
        """Returns its port."""
        server = self.computes[name]
        check_built(paths.plugin_path(self.preset))
        started.append(server)
        chosen = self._port_among_several(name, port) if self.has_several() else choose_port(port, server.settings().port)
        if name in self.standbys:
            self.lead_to(server)
        settings = self.compute_settings(name, chosen)
        environment = self._environment(name, "compute")
        server.launch(settings, env=environment, prefix=self.compute_prefix, keep_socket=name in self.standbys)
        return chosen

    def _await_compute(self, name: str, port: int, began: float) -> None:
        server = self.computes[name]
        server.wait_ready(COMPUTE_START_TIMEOUT_S * self._slower())
        self._guard(server)
        if not server.has_strata():
            about = [line for line in server.log_lines() if "STRATA: " in line] or server.log_lines()
            raise StrataError("\n".join([f"{name} started without STRATA; from {server.log}:", *about[-12:]]))
        if not self.has_several():  # The first of several does so when it has made the database.
            share_system_tables(server)
        if not server.query("SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = 'test'"):
            server.query("CREATE DATABASE IF NOT EXISTS test")
        self._started(name, server, time.monotonic() - began, f"127.0.0.1:{port}")

    def _start_several(self, port: int | None, started: list[BackgroundProcess]) -> None:
        """All at once, since each may have to wait for what only another one's log has; the first time one by itself, which makes
        the database. Those that cannot start leave the others running, and are named at the end."""
        self._await_memory()
        serving = self.serving_computes()
        for name in serving:  # With a memory node that has just started they go on, or are told that they are none any more.
            wait_until(decided(self.computes[name]), DECIDED_TIMEOUT_S * self._slower(), every_s=0.2)
        if fenced := [name for name in serving if is_fenced(self.computes[name])]:
            self._say(f"  {', '.join(fenced)}: of the cluster no more, since a lease was lost; started again")
            kill_all(self.computes[name] for name in fenced)
        started.clear()  # From now on the memory node may have what nobody else has: it is not stopped, whatever fails.
        failed: dict[str, str] = {}
        ports = {name: None if port is None else port + number for number, name in enumerate(self.computes)}
        if not any(server.exists() for server in self.computes.values()):
            first = next(iter(ports))
            self._start_at_once({first: ports.pop(first)}, failed)
            if not failed:
                share_system_tables(self.computes[first], SHARED_BY_SEVERAL)
        launched = self._start_at_once({} if failed else ports, failed)
        if (again := [name for name in failed if name in launched]) and self.serving_computes():
            # One may have looked for what another one was still redoing.
            for name in again:
                self._say(f"  {name:<10} did not start, and is started once more: {failed.pop(name).splitlines()[-1]}")
            self._start_at_once(dict.fromkeys(again), failed)
        if not failed:
            return
        serving = self.serving_computes()
        of_all = f"; {', '.join(serving)} {'serves' if len(serving) == 1 else 'serve'}" if serving else "; the other nodes run"
        raise StrataError("\n".join([f"not started: {', '.join(failed)}{of_all}", *(f"{n}: {why}" for n, why in failed.items())]))

    def _await_memory(self) -> None:
        """Until a memory node serves the servers. Another one that is ill is named, and keeps nobody from starting."""
        late = [node for node in self.memory.values() if not wait_until(well(node), MEMORY_WELL_TIMEOUT_S * self._slower())]
        ills = [f"{node.name} neither serves nor waits: {node.illness()}; see {node.log}" for node in late]
        if ills and not one_serves(self.memory.values()):
            raise StrataError("\n".join(ills))
        for ill in ills:
            self._say(f"  {ill}")

    def _start_at_once(self, ports: Mapping[str, int | None], failed: dict[str, str]) -> Collection[str]:
        """Those that do not run. Returns those that could be launched, whatever became of them."""
        began = time.monotonic()
        launched: dict[str, int] = {}
        for name, port in ports.items():
            if self.computes[name].pid() is not None:
                self._already(name, self.computes[name])
                continue
            with self._noting(name, failed):
                launched[name] = self._launch_compute(name, port, [])
        for name, chosen in launched.items():
            with self._noting(name, failed):
                self._await_compute(name, chosen, began)
        return launched

    @contextlib.contextmanager
    def _noting(self, name: str, failed: dict[str, str]) -> Iterator[None]:
        """What keeps one of several from starting; nothing of it is left running."""
        try:
            yield
        except (StrataError, OSError, pymysql.MySQLError) as error:
            failed[name] = str(error)
            self.computes[name].kill()

    def _port_among_several(self, name: str, wanted: int | None) -> int:
        """The one asked for, the one it had, or one that no other has, whether that one runs or not."""
        if wanted is not None:
            return choose_port(wanted)
        own = self.computes[name].settings()
        if own.cluster:
            if not wait_until(lambda: port_is_free(own.port), PORT_TIMEOUT_S):
                raise StrataError(
                    f"its port {own.port} is in use by another program; to do: end that one, or say ./strata up --port, which"
                    " gives this port to the first server and those behind it to the others"
                )
            return own.port
        others = [server.settings() for other, server in self.computes.items() if other != name]
        taken = {settings.port for settings in others if settings.cluster}
        return free_ports(self.data, 1, taken | self.settings().ports())[0]

    def compute_settings(self, name: str, port: int) -> Settings:
        """What a server needs to be told to serve this cluster's database under that name."""
        settings = self.settings()
        options: dict[str, object] = {
            "profile": settings.profile,
            "registry": _registry(settings),
            "cluster": CLUSTER_NAME,
            "node-name": name,
            "secret-file": self.secret,
            # The registry counts real seconds.
            "lease-seconds": math.ceil(self.lease_s * self._slower()),
        }
        if settings.memory_in_use and not self.has_several():
            options["lego-memnode"] = ",".join(settings.memory_in_use)
        if settings.memory_backup:
            options["lego-backup"] = "ON"
        if settings.buffer_pool:
            options["buffer-pool-size"] = settings.buffer_pool
        standby = self.standbys.get(name)
        elsewhere = [f"--socket={standby.socket}"] if standby and standby.socket != standby.server.socket else []
        return Settings(
            profile=settings.profile,
            preset=self.preset,
            port=port,
            cluster=str(self.data),
            cores=settings.cores,
            options=[
                *(f"--strata-{option}={value}" for option, value in options.items()),
                *elsewhere,
                *(["--read-only=1"] if name in settings.read_only else []),
                *settings.server_options,
                *self.compute_options,
            ],
        )

    def _environment(self, name: str, kind: str) -> Mapping[str, str]:
        return self.emulation.environment(name, kind) if self.emulation else {}

    def _guard(self, part: BackgroundProcess) -> None:
        if self.emulation:
            self.emulation.guard(part.name, part.pid())

    def _slower(self) -> float:
        """How much longer everything takes its processes."""
        return self.emulation.factor if self.emulation else 1.0

    def _already(self, name: str, part: BackgroundProcess) -> None:
        self._say(f"  {name:<10} already running (pid {part.pid()})")

    def _started(self, name: str, part: BackgroundProcess, seconds: float, address: str) -> None:
        self._say(f"  {name:<10} started in {seconds:.1f} s: pid {part.pid()}, {address}")

    def stop(self) -> bool:
        """Compute, memory nodes, storage nodes, etcd: nobody loses what it needs to end cleanly. Returns whether all were."""
        node_limit_s = self.node_stop_timeout_s * self._slower()
        self.stop_standbys()
        clean = self._stop_some(self.computes, COMPUTE_STOP_TIMEOUT_S * self._slower())
        clean = self._stop_some(self.memory, node_limit_s) and clean
        clean = self._stop_some({**self.storage, **self.outsiders}, node_limit_s) and clean
        return self._stop_some({"etcd": self.etcd}, self.node_stop_timeout_s) and clean

    def stop_part(self, name: str) -> bool:
        part = self.part(name)
        self.stop_standbys([name] if name in self.standbys else [])
        limit_s = COMPUTE_STOP_TIMEOUT_S if name in self.computes else self.node_stop_timeout_s
        return self._stop_some({name: part}, limit_s * self._slower())

    def stop_computes(self, names: Collection[str]) -> bool:
        parts = {name: self.computes[name] for name in names}
        return self._stop_some(parts, COMPUTE_STOP_TIMEOUT_S * self._slower())

    def _stop_some(self, parts: Mapping[str, BackgroundProcess], limit_s: float) -> bool:
        running = {name: part for name, part in parts.items() if part.pid() is not None}
        late = stop_all(running.values(), limit_s)
        for name, part in running.items():
            self._say(f"  {name:<10} {f'did not stop within {limit_s:g} s: killed' if part in late else 'stopped'}")
        return not late

    def kill_part(self, name: str) -> int | None:
        """kill -9. Returns the pid it had."""
        part = self.part(name)
        pid = part.pid()
        part.kill()
        return pid

    def kill(self) -> None:
        """kill -9 of everything: for tests that clean up."""
        for standby in self.standbys.values():
            standby.kill_both()
        for part in reversed(self.parts().values()):
            part.kill()

    def disown(self) -> None:
        """Leaves the processes running when this program ends."""
        for part in [*self.parts().values(), *self.standbys.values()]:
            part.disown()

    # --- compute nodes in other folders ------------------------------------------------------------------------

    def spare_compute_folder(self) -> Path:
        """Of a node that neither runs nor stands by, in the cluster's folder, or a new one there: two are enough, in turns."""
        for name, server in self.computes.items():
            if server.pid() is None and server.data.is_relative_to(self.data) and name not in self.standbys:
                return server.data
        names = (f"compute-{n}" for n in range(2, 1000))
        return self.data / "computes" / next(name for name in names if name not in self.computes)

    def lead_to(self, server: Server) -> None:
        """The cluster's socket is that of its first compute node; while another one serves, or one that stood by, a link."""
        place = self.computes[FIRST_COMPUTE].socket
        target = self.standbys[server.name].socket if server.name in self.standbys else server.socket
        if target == place or (place.is_symlink() and place.readlink() == target):
            return
        link = place.with_name(place.name + ".new")
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        link.replace(place)

    def computes_now(self) -> dict[str, Server]:
        """As the cluster's folder says by now."""
        settings = self.settings()
        self._make_parts(settings)
        return {name: server for name, server in self.computes.items() if name in self._folders_of_computes(settings)}

    def remember_standby(self, name: str, port: int) -> None:
        settings = self.settings()
        settings.standbys[name] = port
        self._keep(settings)
        self._make_parts(settings)

    def forget_standby(self, name: str) -> None:
        settings = self.settings()
        settings.standbys.pop(name, None)
        self._keep(settings)
        self.standbys.pop(name, None)

    def start_standbys(self, names: Collection[str] | None = None) -> None:
        """Those named, or all, that do not run."""
        for name, standby in self.standbys.items():
            if standby.pid() is None and (names is None or name in names):
                standby.launch(self.lease_s)
                self._say(f"  {name:<10} stands by")

    def stop_standbys(self, names: Collection[str] | None = None) -> list[str]:
        """Those named, or all. A server that serves goes on. Returns which had run."""
        return [name for name, standby in self.standbys.items() if (names is None or name in names) and standby.leave()]

    @contextlib.contextmanager
    def standbys_held(self) -> Iterator[None]:
        """While the database changes its compute node as somebody wishes, no other one takes it."""
        stopped = self.stop_standbys()
        try:
            yield
        finally:
            self.start_standbys(stopped)

    def add_compute(self, folder: Path, port: int | None) -> Server:
        """Starts a compute node in a folder of its own (or this one's); it takes the database over from the one before."""
        folder = folder.resolve()
        name = self._name_for(folder)
        serving = self.serving_compute()
        if serving == name:
            raise StrataError(f"{name} already runs (pid {self.computes[name].pid()})")
        if serving is not None:
            option = f"--data {paths.relative(self.computes[serving].data)}"
            raise StrataError(f"{serving} still serves the database; first: ./strata compute down {option}")
        self._check_storage_runs()
        name, is_new = self.admit_compute(folder)
        try:
            with self._all_or_nothing() as started:
                self._start_compute(name, port, started)
        except BaseException:
            if is_new:  # One that has never served is no part of the cluster.
                self.forget_compute(folder)
            raise
        return self.computes[name]

    def admit_compute(self, folder: Path) -> tuple[str, bool]:
        """The name of the compute node there; and whether the cluster had not known of it."""
        name = self._name_for(folder)
        is_new = name not in self.computes
        if is_new:
            self._remember_compute(name, folder)
        return name, is_new

    def admit_server(self, name: str, folder: Path, read_only: bool = False) -> None:
        """One more of several, not yet started. Its folder may be there, of one that was removed."""
        server = Server(folder)
        if folder.exists() and any(folder.iterdir()) and server.settings().cluster != str(self.data):
            raise StrataError(f"{paths.relative(folder)} is not empty and holds no compute node of this cluster")
        self._remember_compute(name, folder, read_only)

    def _name_for(self, folder: Path) -> str:
        for name, server in self.computes.items():
            if server.data == folder:
                return name
        server = Server(folder)
        if server.settings().cluster != str(self.data) and folder.exists() and any(folder.iterdir()):
            raise StrataError(f"{paths.relative(folder)} is not empty and holds no compute node of this cluster")
        return next(f"compute-{n}" for n in range(2, 1000) if f"compute-{n}" not in self.computes)

    def _remember_compute(self, name: str, folder: Path, read_only: bool = False) -> None:
        settings = self.settings()
        settings.computes[name] = str(folder)
        if read_only:
            settings.read_only.append(name)
        self._keep(settings)
        self._make_parts(settings)

    def forget_compute(self, folder: Path) -> None:
        """After its folder was deleted, or it could not be started for the first time."""
        settings = self.settings()
        settings.computes = {name: place for name, place in settings.computes.items() if Path(place) != folder.resolve()}
        settings.read_only = [name for name in settings.read_only if name in settings.computes]
        self._keep(settings)
        self.computes = {name: part for name, part in self.computes.items() if name in self._folders_of_computes(settings)}

    def check_others_run(self) -> None:
        """What a server needs in order to start."""
        self._check_storage_runs()
        without = [name for name, node in self.memory.items() if node.pid() is None]
        if without and not (self.has_several() and len(without) < len(self.memory)):
            raise StrataError(f"the cluster in {paths.relative(self.data)} needs {', '.join(without)}: ./strata up")

    def _check_storage_runs(self) -> None:
        alive = sum(node.pid() is not None for node in self.storage.values())
        needed = self.settings().write_quorum()
        if self.etcd.pid() is None or alive < needed:
            raise StrataError(
                f"the cluster in {paths.relative(self.data)} needs etcd and {needed} storage nodes; see ./strata status"
            )


def _registry(settings: ClusterSettings) -> str:
    return f"http://127.0.0.1:{settings.etcd_port}"


def free_ports(folder: Path, count: int, taken: Collection[int] = ()) -> list[int]:
    """`taken`: of processes that are known, whether they run now or not."""
    first = PORTS_FROM + zlib.crc32(os.fsencode(folder)) % PORTS_PLACES * PORTS_APART
    ports = [port for port in range(first, first + 20 * PORTS_APART) if port not in taken and port_is_free(port)][:count]
    if len(ports) < count:
        raise StrataError(f"no {count} free ports between {first} and {first + 20 * PORTS_APART - 1}")
    return ports


def ensure_secret(path: Path) -> None:
    if not path.exists():
        made = path.with_suffix(".new")
        made.unlink(missing_ok=True)
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
        made.replace(path)
    if path.stat().st_size != SECRET_BYTES:
        raise StrataError(f"{path} should hold {SECRET_BYTES} bytes; the cluster's nodes need the same ones")
