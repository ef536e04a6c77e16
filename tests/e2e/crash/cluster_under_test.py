"""The processes of one run: a cluster (strata_cli.cluster) whose storage nodes can lose power, run out of disk or die at a fault
point, and compute nodes one after the other, each in a folder of its own."""

import random
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import pymysql
from pausing import pause
from relay import Relay
from strata_cli import paths
from strata_cli.cluster import Cluster, Wishes
from strata_cli.daemon_process import DaemonProcess
from strata_cli.memory_node import MemoryNode
from strata_cli.process import BackgroundProcess, kill_all
from strata_cli.profile_list import BY_NAME
from strata_cli.server import Server
from strata_cli.shell import StrataError
from strata_cli.storage_node import StorageNode
from strata_cli.system_tables import share_system_tables
from strata_cli.waiting import wait_until

from .workloads import Failure

COMPUTE_LEASE_S = 2  # the shortest there is
NODE_LEASE_S = 1
START_TIMEOUT_S = 60.0
WELL_TIMEOUT_S = 60.0
EQUAL_TIMEOUT_S = 120.0  # Eager replay of a busy machine may be far behind.
COMPARE_TIMEOUT_S = 60.0
SMALL_COMPUTE = (
    "--loose-strata-buffer-pool-size=8M",
    "--loose-strata-log-checkpoint-size=4M",
    "--loose-strata-checkpoint-interval=1",
    "--loose-strata-lego-tier1-interval-ms=100",
)
MEMORY_TIMEOUT_S = 2  # for which compute waits for a memory node
POOL_OPTIONS = (f"--loose-strata-lego-timeout-s={MEMORY_TIMEOUT_S}",)
SMALL_MEMORY, USUAL_MEMORY = "16M", "128M"
SMALL_NODE = (
    *("--page-cache=4M", "--log-cache=4M", "--version-map=4M", "--memtable=16M", "--log-segment=2M"),
    *("--checkpoint-interval=2", "--reader-lease=1", "--replay-lag=1M"),
)


class ClusterUnderTest:
    """Not thread-safe. `relays`: all talk to a storage node goes through a relay, for links to be cut. `errors`: fault points and
    disks can be made to fail while the processes run."""

    def __init__(
        self,
        folder: Path,
        profile: str,
        preset: str,
        *,
        seed: int,
        small: bool,
        power_loss: bool,
        memory_nodes: int = 1,
        memory_backup: bool = False,
        relays: bool = False,
        errors: bool = False,
        compute_options: tuple[str, ...] = (),
    ) -> None:
        self.cluster = Cluster(folder / "cluster", preset=preset)
        self.cluster.lease_s = COMPUTE_LEASE_S
        with_memory = BY_NAME[profile].has_memory_nodes
        wishes = Wishes(memory_nodes=memory_nodes, memory=SMALL_MEMORY if small else USUAL_MEMORY, memory_backup=memory_backup)
        self.cluster.create(profile, wishes if with_memory else None)
        self.sectors_lost = 0
        self._folder = folder
        self._preset = preset
        self._rng = random.Random(f"power loss {seed}")
        self._power_loss = power_loss
        self.node_options = (f"--lease={NODE_LEASE_S}", *(SMALL_NODE if small else ()))
        pool_options = POOL_OPTIONS if with_memory else ()
        self._compute_options = ("--skip-networking", *(SMALL_COMPUTE if small else ()), *pool_options, *compute_options)
        self._errors = errors
        self._computes: list[Server] = []
        linked: dict[str, DaemonProcess] = {**self.cluster.storage, **self.cluster.memory} if relays else {}
        self.links = {name: Relay(node.ports()[0]) for name, node in linked.items()}

    # --- all of it ---------------------------------------------------------------------------------------------

    def found(self) -> None:
        """Starts everything for the first time."""
        self.start_etcd()
        self.start_nodes(self.cluster.storage)
        self.start_memory()
        self.start_compute(fresh=True)
        share_system_tables(self.compute)

    def kill_all(self) -> None:
        kill_all([*self._computes, *self.cluster.memory.values(), *self.cluster.storage.values(), self.cluster.etcd])

    def close(self, *, keep: bool = False) -> None:
        """Nothing runs afterwards, and no memory is taken. `keep`: what it held is among the other files of the run."""
        self.kill_all()
        for node in self.cluster.memory.values():
            if keep and node.settings.pools.exists():
                shutil.copytree(node.settings.pools, self._folder / "pools" / node.name, dirs_exist_ok=True)
            node.wipe_pools()
        for link in self.links.values():
            link.close()

    def start_etcd(self) -> None:
        self.cluster.start_part("etcd")

    # --- storage nodes -----------------------------------------------------------------------------------------

    def node(self, name: str) -> StorageNode:
        return self.cluster.storage[name]

    def full_marker(self, name: str) -> Path:
        return self.node(name).folder / "full"

    def failing_marker(self, name: str) -> Path:
        return self.node(name).folder / "failing"

    def points_file(self, name: str) -> Path:
        """Where fault points of a storage node, or of the compute nodes ("compute"), are switched on and off."""
        return self._folder / "points" if name == "compute" else self.node(name).folder / "points"

    def start_nodes(self, names: Iterable[str], fault: str = "") -> None:
        names = list(names)
        for name in names:
            self.launch_node(name, fault)
        for name in names:
            self.wait_node(name)

    def launch_node(self, name: str, fault: str = "") -> None:
        node = self.node(name)
        env = {"STRATA_FULL_DISK": str(self.full_marker(name))}
        if self._errors:
            env |= {"STRATA_FAILING_DISK": str(self.failing_marker(name)), "STRATA_FAULT_FILE": str(self.points_file(name))}
        if fault:
            env["STRATA_FAULT"] = fault
        if self._power_loss:
            env["STRATA_POWER_LOSS_JOURNAL"] = str(self._journal(node))
        node.launch(env=env, extra=(*self.node_options, *self._advertised(name)))

    def _advertised(self, name: str) -> tuple[str, ...]:
        return ("--advertise", f"127.0.0.1:{self.links[name].port}") if name in self.links else ()

    def wait_node(self, name: str) -> None:
        self.node(name).wait_ready(START_TIMEOUT_S)

    def kill_nodes(self, names: Iterable[str]) -> None:
        nodes = [self.node(name) for name in names]
        kill_all(nodes)
        for node in nodes:
            self.lose_power(node)

    def wipe_node(self, name: str) -> None:
        """Its disk is lost, and an empty one is in its place."""
        node = self.node(name)
        if node.pid() is not None:
            raise Failure(f"{name} is still running")
        shutil.rmtree(node.data)
        journal = self._journal(node)
        journal.unlink(missing_ok=True)
        shutil.rmtree(journal.with_name(journal.name + ".removed"), ignore_errors=True)

    def dead_nodes(self) -> list[str]:
        return [name for name, node in self.cluster.storage.items() if node.pid() is None]

    def died_at_point(self, name: str) -> bool:
        """Of a node that is not there any more: whether kill -9 took it."""
        node = self.node(name)
        node.wait_exit(5)
        if node.last_signal() == signal.SIGKILL:
            self.lose_power(node)
            return True
        return False

    def _journal(self, node: StorageNode) -> Path:
        return node.folder / "power_loss"

    def lose_power(self, node: StorageNode) -> None:
        """Takes back or tears what was written and not yet synced when it died."""
        if not self._power_loss:
            return
        tool = paths.preset_dir(self._preset) / "src" / "io" / "strata_power_loss"
        journal = self._journal(node)
        if not journal.exists():
            raise Failure(f"{node.name} wrote no power-loss journal {journal}")
        command = [str(tool), "--journal", str(journal), "--seed", str(self._rng.getrandbits(32))]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise Failure(f"strata_power_loss failed: {done.stdout}{done.stderr}")
        if match := re.search(r"(\d+) sectors reverted", done.stdout):
            self.sectors_lost += int(match[1])

    def wait_well(self, names: Sequence[str]) -> None:
        """Until each is healthy and votes with all of the log that any of them has now."""
        wanted = self._newest_log_end(names)
        if not wait_until(lambda: not self.unwell(names, wanted), WELL_TIMEOUT_S):
            raise Failure("storage nodes do not get well again: " + "; ".join(self.unwell(names, wanted)))

    def wait_in_sync(self) -> None:
        """Where compute writes the pages: until every node has all that it has written, those that were away included."""
        if not BY_NAME[self.cluster.settings().profile].pages_are_written:
            return
        if not wait_until(lambda: self._in_sync() == len(self.cluster.storage), WELL_TIMEOUT_S):
            raise Failure(f"{self._in_sync()} storage nodes are in sync; the server says:\n{self.compute.log_tail(30)}")

    def compare_pages(self, *, mend: bool = False) -> str:
        """Until all nodes have the same pages, byte for byte; returns what the tool says of them. Nobody may be writing.

        What compute does in the background, and dropped spaces that one node has reclaimed and another has not, end soon.
        `mend`: reads as compute does, so that damage that is met is mended."""
        said = [""]

        def are_equal() -> bool:
            equal, said[0] = self._compare_pages_once(mend)
            return equal

        if not wait_until(are_equal, EQUAL_TIMEOUT_S, every_s=0.2):
            raise Failure(f"pages differ between the storage nodes: {said[0]}")
        return said[0]

    def _compare_pages_once(self, mend: bool) -> tuple[bool, str]:
        tool = paths.preset_dir(self._preset) / "src" / "storenode" / "copy" / "strata_compare_pages"
        addresses = [node.address() for node in self.cluster.storage.values()]
        how = ["--written"] if BY_NAME[self.cluster.settings().profile].pages_are_written else ["--mend"] if mend else []
        command = [str(tool), *how, str(self.cluster.secret), *addresses]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPARE_TIMEOUT_S)
        return done.returncode == 0, (done.stdout + done.stderr).strip()

    def _in_sync(self) -> int:
        try:
            shown = self.compute.query("SHOW GLOBAL STATUS LIKE 'strata_cluster_page_nodes_in_sync'", read_timeout=5.0)
        except pymysql.MySQLError:
            return 0
        return int(str(shown[0][1])) if shown else 0

    def unwell(self, names: Sequence[str], wanted: int = 0) -> list[str]:
        """Which of them are not healthy, and whose log does not go to `wanted` or has no vote."""
        logs = {name: self._logs(name) for name in names}
        ill = [f"{name}: {illness}" for name in names if (illness := self.node(name).illness()) is not None]
        none = [f"{name} has no log" for name in names if not logs[name]]
        ends = [(name, log["log_end"]) for name in names for log in logs[name]]
        late = [f"{name}'s log ends at {end} of {wanted}" for name, end in ends if end < wanted]
        mute = [f"{name} does not vote" for name in names for log in logs[name] if not log["voting"]]
        return [*ill, *none, *late, *mute]

    def _newest_log_end(self, names: Sequence[str]) -> int:
        return max((log["log_end"] for name in names for log in self._logs(name)), default=0)

    def _logs(self, name: str) -> list[dict[str, int]]:
        streams: list[dict[str, int]] = self.node(name).status().get("streams", [])
        return streams

    # --- memory nodes ------------------------------------------------------------------------------------------

    def memory_node(self, name: str) -> MemoryNode:
        return self.cluster.memory[name]

    def start_memory(self, fault: str = "") -> None:
        """All that do not run. With relays compute reaches them over TCP; without over a socket, and maps their pools."""
        env = {"STRATA_FAULT": fault} if fault else {}
        started = {name: node for name, node in self.cluster.memory.items() if node.pid() is None}
        for name, node in started.items():
            node.launch(env=env, extra=(f"--lease={NODE_LEASE_S}", *self._advertised(name)))
        for node in started.values():
            node.wait_ready(START_TIMEOUT_S)

    def kill_memory(self, names: Sequence[str], *, with_compute: bool = False, wipe: bool = False) -> None:
        nodes = [self.memory_node(name) for name in names]
        kill_all([*nodes, *([self.compute] if with_compute else [])])
        for node in nodes if wipe else []:
            node.wipe_pools()

    # --- compute nodes -----------------------------------------------------------------------------------------

    @property
    def compute(self) -> Server:
        return self._computes[-1]

    def launch_compute(self, *, fresh: bool, fault: str = "") -> Server:
        """In the folder of the one before, or in an empty one."""
        if fresh or not self._computes:
            name = f"compute-{len(self._computes) + 1}"
            server = Server(self._folder / name)
            server.name = name
            self._computes.append(server)
        settings = self.cluster.compute_settings(self.compute.name, 0)
        env = {"STRATA_FAULT": fault} if fault else {}
        if self._errors:
            env["STRATA_FAULT_FILE"] = str(self.points_file("compute"))
        self.compute.launch(settings, env=env, extra=self._compute_options)
        return self.compute

    def wait_compute(self) -> None:
        self.compute.wait_ready(START_TIMEOUT_S)
        if not self.compute.has_strata():
            about = [line for line in self.compute.log_lines() if "STRATA: " in line] or self.compute.log_lines()
            raise Failure("\n".join([f"{self.compute.name} started without STRATA:", *about[-12:]]))

    def start_compute(self, *, fresh: bool, fault: str = "") -> None:
        self.launch_compute(fresh=fresh, fault=fault)
        self.wait_compute()

    def start_compute_or_crash(self, *, fresh: bool, fault: str) -> bool:
        """True: it died at its fault point before it was up."""
        try:
            self.start_compute(fresh=fresh, fault=fault)
            return False
        except (StrataError, Failure, pymysql.MySQLError) as error:  # The point may come between two questions to it.
            self.compute.wait_exit(5)
            if self.compute.last_signal() != signal.SIGKILL:
                raise Failure(f"start with fault {fault}: {error}") from error
            return True

    def forget_folder(self, server: Server) -> None:
        """Its machine is gone."""
        shutil.rmtree(server.data, ignore_errors=True)
        server.socket.unlink(missing_ok=True)


def pause_process(process: BackgroundProcess) -> int:
    pid = process.pid()
    if pid is None:
        raise Failure(f"{process.name} is not running")
    pause(pid)
    return pid
