"""Galera's servers under the same load as those of profile fusion, for figures of systems that are not obtainable: it, too, finds
out at COMMIT who else has changed a row."""

from collections.abc import Sequence
from pathlib import Path

from ..bench.comparison import INNODB
from ..bench.servers import Memory
from ..dilation import Emulation
from ..galera_cluster import GaleraCluster
from ..memory_node import bytes_of
from ..server import Server
from .polardbmp import Plan
from .polardbmp_cluster import COMPUTE_CPU
from .polardbmp_servers import Servers, cpu_us_of

# What a server tells in a variable, as columns.
OF_SERVERS = {"wsrep_local_cert_failures": "refused_at_commit", "wsrep_replicated_bytes": "replicated_bytes"}


class Replicas(Servers):
    """Of one cluster at a time, which is made anew for another number of servers."""

    engine = INNODB
    name_variable = "wsrep_node_name"

    def __init__(self, plan: Plan, folder: Path, emulation: Emulation | None) -> None:
        """`emulation`: has begun."""
        super().__init__(plan, emulation)
        self._folder = folder
        self._has_begun = emulation is not None
        self._cluster: GaleraCluster | None = None

    def use(self, count: int) -> None:
        if self._cluster is not None and len(self._cluster.servers) == count:
            return
        self.end()
        pool = bytes_of(self.plan.pool)
        options = [*Memory(pool, 2 * pool).options_alone(INNODB), "--transaction-isolation=READ-COMMITTED"]
        cluster = GaleraCluster(self._folder, count, server_options=options)
        cluster.emulation = self._emulation
        self._cluster = cluster
        cluster.start(self.make_tables)

    def end(self) -> None:
        """Logs stay where it fails to start, until the next one."""
        if self._cluster is not None:
            self._cluster.kill()
            self._cluster = None

    def serving(self) -> Sequence[Server]:
        return self._cluster.servers if self._cluster is not None else []

    def counters(self) -> dict[str, int]:
        servers = self._cluster.servers if self._cluster is not None else []
        return {column: sum(server.counter(name) for server in servers) for name, column in OF_SERVERS.items()}

    def cpu_us(self) -> dict[str, int]:
        return {COMPUTE_CPU: cpu_us_of(self.serving())}
