"""The same histories on a Galera cluster, as a control: by design its servers promise less than one server does, so the checker
must find anomalies there. Each server's InnoDB keeps a level among its own clients only; certification at COMMIT compares what
was written, not what was read; and a server shows a commit of another one once it has applied it, which is later.
"""

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from strata_cli import galera_cluster
from strata_cli.galera_cluster import GaleraCluster
from strata_cli.server import Server
from strata_cli.waiting import wait_until

from . import families, workload
from .campaign import AnyClient, Campaign, Plan
from .checker import Report
from .history import History, save

OPTIONS = ("--innodb-stats-persistent=0", "--innodb-log-file-size=64M", "--innodb-buffer-pool-size=64M")
# Waits for what the group had committed when it was sent.
CAUGHT_UP = "SET SESSION wsrep_sync_wait = 15"
# Of a problem that is no anomaly: the cluster does not work.
BROKEN = ("Error", " hangs", "crashed", "CHECK TABLE", "has ended")
SHOWN_MOST = 1500  # characters of an example
OF_FAMILIES = "orphans or lost rows"
DIVERGED = "servers that differ"


class GaleraCampaign(Campaign):
    """Histories that break their level's promises are what it is for; `found` counts them by kind."""

    _engines = ("innodb",)

    def __init__(self, folder: Path, servers: int, *, preset: str = "release", options: tuple[str, ...] = ()) -> None:
        super().__init__(folder, "InnoDB", preset)
        self._cluster = GaleraCluster(
            folder / galera_cluster.PROFILE, servers, preset=preset, server_options=(*OPTIONS, *options)
        )
        self.found: Counter[str] = Counter()  # histories that show such an anomaly
        self.broken: list[str] = []
        self.certification_failures = self.brute_force_aborts = 0

    def start(self) -> None:
        self._cluster.start()

    def stop(self, keep: bool = False) -> None:
        """Keeps the folder, with the servers' logs, if they did not work."""
        self._cluster.kill()
        if not keep and not self.broken:
            shutil.rmtree(self._cluster.folder, ignore_errors=True)

    def family(self, plan: Plan, seconds: float) -> families.Report:
        report = super().family(plan, seconds)
        self._count({text: name_of("client", text, OF_FAMILIES) for text in report.problems})
        return report

    def _keep(self, history: History, report: Report, path: Path) -> None:
        """The first history that shows a kind of anomaly, and tells one of its kind."""
        if new := self._count({problem.text: name_of(problem.kind, problem.text) for problem in report.problems}):
            save(history, path)
            for name, text in new.items():
                print(f"  {name}: {text[:SHOWN_MOST]}")
            print(f"  the history is {path}", flush=True)

    def _count(self, names: dict[str, str]) -> dict[str, str]:
        """`names`: of each problem's text. Returns an example of each anomaly that was not seen before."""
        anomalies = {name: text for text, name in reversed(names.items()) if not is_broken(text)}
        self.broken += [text for text in names if is_broken(text)]
        new = {name: text for name, text in anomalies.items() if name not in self.found}
        self.found += Counter(anomalies.keys())
        return new

    # --- what is under it ---

    def _servers(self) -> Sequence[Server]:
        return self._cluster.servers

    def _make_lists(self) -> None:
        workload.create_table(self._cluster.servers[0], self.engine)
        self._catch_up()

    def _make_families(self) -> None:
        families.create_tables(self._cluster.servers[0], self.engine)
        self._catch_up()

    def _catch_up(self) -> None:
        """Every server has applied what any of them has committed."""
        for server in self._cluster.servers:
            server.query("SELECT COUNT(*) FROM mysql.user", init_command=CAUGHT_UP)

    def _read_final(self, history: History) -> list[str]:
        self._catch_up()
        return super()._read_final(history)

    def _judge(self, clients: list[families.Client]) -> families.Report:
        self._catch_up()
        return super()._judge(clients)

    def _set_globals(self, plan: Plan) -> None:
        """Every commit is durable."""

    def _disturb(self, plan: Plan, seconds: float, clients: Sequence[AnyClient]) -> list[str]:
        def over() -> bool:
            return any(server.pid() is None for server in self._servers()) or any(client.problems for client in clients)

        wait_until(over, seconds)
        return []

    def _recover(self) -> list[str]:
        servers = self._cluster.servers
        gone = [f"{server.data.name} has ended ({end}):\n{server.log_tail(40)}" for server in servers if (end := server.ended())]
        if not gone:
            self.certification_failures = sum(server.counter("wsrep_local_cert_failures") for server in servers)
            self.brute_force_aborts = sum(server.counter("wsrep_local_bf_aborts") for server in servers)
        return gone


def is_broken(text: str) -> bool:
    return any(words in text for words in BROKEN)


def name_of(kind: str, text: str, otherwise: str = "") -> str:
    """Under which an anomaly is counted. What the end shows has no kind of its own."""
    if " than server 1 has" in text:
        return DIVERGED
    return otherwise or (f"{kind}, in real time" if "was over" in text else kind)
