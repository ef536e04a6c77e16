"""What the experiments of PolarDB-MP's figures compute, say and keep; their servers and loads are not run here."""

import json
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql
import pytest
from strata_cli import compute_servers, dilation, galera_cluster, paths
from strata_cli.bench.servers import MIB
from strata_cli.dilation import Wish
from strata_cli.experiments import courses, polardbmp, polardbmp_course, polardbmp_report
from strata_cli.experiments.command import numbers
from strata_cli.experiments.comparisons import Bar
from strata_cli.experiments.courses import possible
from strata_cli.experiments.polardbmp import (
    EXPERIMENTS,
    GALERA,
    GROWTH,
    INDEXES,
    RECOVERY,
    STARTED_AGAIN,
    STAYS_DOWN,
    SURVIVOR,
    TATP,
    TPCC,
    VICTIM,
    Plan,
    Result,
    Run,
    indexes_label,
    scaling_label,
    summed,
    survivor_share,
)
from strata_cli.experiments.polardbmp_cluster import OF_MEMORY, OF_SERVERS, Primaries
from strata_cli.experiments.polardbmp_course import Moment, phases
from strata_cli.experiments.polardbmp_galera import Replicas
from strata_cli.experiments.polardbmp_servers import SCRIPTS
from strata_cli.experiments.result_page import sentence
from strata_cli.shell import Outcome, StrataError
from typer.testing import CliRunner

FIG7 = "polardbmp-fig7"


def measured(name: str, runs: list[Run], **changes: Any) -> Result:
    return Result(EXPERIMENTS[name].plan.changed(changes), 120 * MIB, runs, ["abc123"], {"cores": 2})


def scaling(rates: dict[tuple[str, int, int], float]) -> list[Run]:
    return [Run(scaling_label(*key), tps) for key, tps in rates.items()]


def test_figure_7_compares_with_one_server_and_with_nothing_shared() -> None:
    rates = {(load, shared, 1): 100.0 for load in ("read_only", "read_write", "write_only") for shared in (0, 100)}
    rates |= {("read_only", 0, 8): 790.0, ("read_only", 100, 8): 640.0, ("read_write", 0, 8): 630.0}
    rates |= {("read_write", 100, 8): 550.0, ("write_only", 0, 8): 700.0, ("write_only", 100, 8): 280.0}
    findings = EXPERIMENTS[FIG7].findings(measured(FIG7, scaling(rates), nodes=(1, 8), shared=(0, 100)))
    assert [finding.ours for finding in findings] == pytest.approx([7.9, 6.4, 6.3, 5.5, 7.0, 2.8, 550 / 630, 0.4])
    assert [finding.agrees for finding in findings] == [True, True, False, True, True, False, True, True]
    assert sentence(findings[5]) == "write_only, 100 % shared: 8 servers to one: 2.80 here, 3.00 in the paper; not reached."
    assert EXPERIMENTS[FIG7].findings(measured(FIG7, scaling(rates))) == [], "of four servers nothing was measured"


def test_with_fewer_servers_than_the_papers_a_share_of_its_ratio_is_wanted() -> None:
    rates = {("read_write", 100, 1): 100.0, ("read_write", 100, 4): 280.0}
    changes = {"loads": ["read_write"], "nodes": (1, 4), "shared": (100,)}
    (found,) = EXPERIMENTS[FIG7].findings(measured(FIG7, scaling(rates), **changes))
    assert isinstance(found, Bar) and found.paper is None and found.goal == pytest.approx(2.7) and found.agrees
    assert "in the paper 5.4 times with 8" in found.what


def test_figure_8_wants_as_many_times_as_there_are_servers() -> None:
    found = {1: (100.0, 50.0), 2: (170.0, 60.0), 4: (300.0, 100.0)}
    runs = [
        Run(scaling_label(TATP, 0, servers), tps, costs={"compute_cpu_us": us, "memory_cpu_us": us, "storage_cpu_us": 0.0})
        for servers, (tps, us) in found.items()
    ]
    findings = EXPERIMENTS["polardbmp-fig8"].findings(measured("polardbmp-fig8", runs))
    told = [(finding.paper, finding.ours, finding.agrees) for finding in findings]
    assert told == [(2.0, 1.7, True), (1.0, 1.2, True), (4.0, 3.0, False), (1.0, 2.0, False)]


def test_figure_9_compares_new_orders_and_how_long_transactions_take() -> None:
    runs = [Run(scaling_label(TPCC, 0, servers), tps, p95_ms=ms) for servers, tps, ms in ((1, 100.0, 10.0), (2, 190.0, 16.0))]
    result = measured("polardbmp-fig9", runs, nodes=(1, 2))
    findings = EXPERIMENTS["polardbmp-fig9"].findings(result)
    assert [(finding.ours, finding.agrees) for finding in findings] == [(1.9, True), (1.6, False)]
    page = polardbmp_report.markdown(EXPERIMENTS["polardbmp-fig9"], result, Path("a.png"))
    assert (
        "| setup | new orders/min | to one server | 95th percentile, ms |" in page
        and "| tpcc, 2 servers | 190 | 1.90 | 16.0 |" in page
    )
    assert "conditions 1 to 4" in page and "2 warehouses of each server, with 100,000 items" in page


def of_systems(name: str, rates: dict[tuple[str, str, int], float]) -> Result:
    plan = EXPERIMENTS[name].plan
    shared = dict(plan.mixes)
    runs = [Run(plan.label(load, shared[load], servers, system), tps) for (system, load, servers), tps in rates.items()]
    return measured(name, runs, nodes=(1, 4))


OF_SYSTEMS = {
    (system, load, servers): tps
    for system, rates in (("fusion", {1: 100.0, 4: 300.0}), (GALERA, {1: 120.0, 4: 150.0}))
    for load in ("read_write", "write_only")
    for servers, tps in rates.items()
}


def test_figures_11_and_12_set_galera_and_published_ratios_beside_ours(tmp_path: Path) -> None:
    result = of_systems("polardbmp-fig11", OF_SYSTEMS)
    findings = EXPERIMENTS["polardbmp-fig11"].findings(result)
    assert [finding.ours for finding in findings[:4]] == pytest.approx([3.0, 1.25, 2.4, 2.0])
    assert findings[2].paper == pytest.approx(3.0) and findings[3].paper == 3.17 and all(each.agrees for each in findings)
    page = polardbmp_report.markdown(EXPERIMENTS["polardbmp-fig11"], result, Path("a.png"))
    assert "Taurus-MM 1.5 times with 4 and 1.88 times with 8 (read_write, 50 % shared)" in page and "Aurora" not in page
    assert "in turns with a Galera cluster of as many" in page and "replicated bytes" in page
    polardbmp_report.plot(EXPERIMENTS["polardbmp-fig11"], result, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000
    few = EXPERIMENTS["polardbmp-fig12"].findings(of_systems("polardbmp-fig12", OF_SYSTEMS))
    assert "Aurora-MM's less than 1.5 times" in few[0].what and [finding.ours for finding in few[:2]] == [3.0, 1.25]


def test_two_systems_are_measured_in_turns() -> None:
    plan = EXPERIMENTS["polardbmp-fig11"].plan
    assert plan.mixes == [("read_write", 50), ("write_only", 30)]
    assert [setup.system for setup in plan.setups] == ["fusion", GALERA] * 6
    assert len({setup.label for setup in plan.setups}) == 12
    with pytest.raises(StrataError, match="a percentage for each of read_write, write_only"):
        plan.changed({"shared": (50,)})
    with pytest.raises(StrataError, match="in its specification"):
        EXPERIMENTS["polardbmp-fig9"].plan.changed({"shared": (10,)})
    with pytest.raises(StrataError, match="one of each server"):
        EXPERIMENTS["polardbmp-fig9"].plan.changed({"warehouses": 0})


def test_figure_10_compares_each_number_of_servers_with_the_first() -> None:
    marks = {f"phase_{number}_tps": rate for number, rate in enumerate((100.0, 190.0, 230.0, 390.0), 1)}
    findings = EXPERIMENTS["polardbmp-fig10"].findings(measured("polardbmp-fig10", [Run(polardbmp.GROWING, 1.0, marks=marks)]))
    assert [(finding.ours, finding.agrees) for finding in findings] == [(1.9, True), (2.3, False), (3.9, True)]


def test_figure_13_compares_with_no_index() -> None:
    rates = {0: (1000.0, 1.0), 1: (820.0, 1.1), 2: (700.0, 1.2), 4: (500.0, 2.0), 8: (150.0, 4.0)}
    runs = [Run(indexes_label(count), tps, 5.0, alone) for count, (tps, alone) in rates.items()]
    findings = EXPERIMENTS["polardbmp-fig13"].findings(measured("polardbmp-fig13", runs))
    assert [finding.ours for finding in findings] == pytest.approx([0.82, 1.1, 0.15, 4.0])
    assert [finding.agrees for finding in findings] == [True, True, False, True]


def test_figure_14_tells_of_both() -> None:
    marks = {"killed_s": 15.0, "back_s": 4.0, "takeover_s": 6.0, "warm_up_s": 11.0, "survivor_share": 0.95}
    runs = [Run(STARTED_AGAIN, 1.0, marks=marks), Run(STAYS_DOWN, 1.0, marks={"takeover_s": 12.0, "survivor_share": 0.5})]
    findings = EXPERIMENTS["polardbmp-fig14"].findings(measured("polardbmp-fig14", runs))
    assert [finding.ours for finding in findings] == [4.0, 11.0, 0.95, 0.5, 6.0, 12.0]
    assert [finding.agrees for finding in findings] == [True, False, True, False, True, False]


def test_the_survivor_is_compared_with_itself_before() -> None:
    before, away = [50.0, 100.0, 100.0, 100.0], [90.0, 80.0, 100.0, 70.0]
    assert survivor_share(before + away + [0.0], 4, 1.0) == pytest.approx(0.9), "three seconds at least"
    assert survivor_share(before + away + [0.0], 4, 4.2) == pytest.approx(0.85)
    assert survivor_share([], 4, 1.0) == 0.0


def test_rates_of_all_servers_are_added() -> None:
    totals = summed({"a": [1.0, 2.0, 3.0, 4.0], "b": [0.0, 0.0, 5.0]})
    assert totals == [1.0, 2.0, 8.0, 4.0]
    assert phases(totals, 2, 2) == {"phase_1_tps": 2.0, "phase_2_tps": 4.0}, "of the second half of its time"


def test_a_plan_that_cannot_be_measured_is_refused() -> None:
    plan = EXPERIMENTS[FIG7].plan
    for settings, why in (
        ({"nodes": (2, 4)}, "1 first"),
        ({"nodes": (1, 4, 2)}, "1 first"),
        ({"nodes": (1, 9)}, "at most 8"),
        ({"shared": (0, 101)}, "percentages"),
    ):
        with pytest.raises(StrataError, match=why):
            plan.changed(settings)
    for name, nodes, why in (("14", (3,), "has two servers"), ("13", (1, 2), "takes one number"), ("10", (9,), "at most 8")):
        with pytest.raises(StrataError, match=why):
            EXPERIMENTS[f"polardbmp-fig{name}"].plan.changed({"nodes": nodes})
    assert plan.changed({"nodes": [1, 8]}).shared_group == 9
    assert len(plan.setups) == len(plan.loads) * len(plan.nodes) * len(plan.shared)
    assert numbers("nodes", "1,2,8") == (1, 2, 8)
    with pytest.raises(StrataError, match="as in 1,2,4"):
        numbers("nodes", "1;2")


def test_quick_is_smaller() -> None:
    for experiment in EXPERIMENTS.values():
        short = experiment.plan.shortened()
        assert short.seconds < experiment.plan.seconds and short.rows <= experiment.plan.rows
        assert len(short.setups) <= len(experiment.plan.setups)


def test_only_what_can_be_emulated_is_dilated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def wished(name: str) -> Plan:
        return replace(EXPERIMENTS[name].plan, dilation=4.0, cores={"compute": 2, "storage": 1, "client": 1})

    with pytest.raises(StrataError, match="polardbmp-fig14 cannot be dilated: "):
        possible(wished("polardbmp-fig14"), tmp_path)
    asked: list[str] = []

    def why(programs: list[str | Path], _: Path) -> str | None:
        asked.extend(Path(program).name for program in programs)
        return None

    monkeypatch.setattr(dilation, "why_impossible", why)
    assert possible(wished(FIG7), tmp_path) == (wished(FIG7), [])
    assert {"mariadbd", "strata-storenode", "strata-memnode", "sysbench"} <= set(asked)
    monkeypatch.setattr(dilation, "why_impossible", lambda *_: "it is static")
    plan, notes = possible(wished(FIG7), tmp_path)
    assert not plan.wish().dilated and "it is static" in notes[0]


def test_leases_that_others_judge_last_longer_where_time_is_slower(tmp_path: Path) -> None:
    plan = replace(EXPERIMENTS[FIG7].plan, dilation=6.0, cores={"compute": 2, "storage": 1, "client": 1})
    said = [str(word) for word in Primaries(plan, tmp_path / "slow", 2).cluster.memory_program]
    assert said[1:] == ["--lease", "60", "--fusion-lease", "12"]
    assert len(Primaries(EXPERIMENTS[FIG7].plan, tmp_path / "real", 2).cluster.memory_program) == 1
    settings = (paths.ROOT / "cmd" / "strata-memnode" / "settings.cc").read_text()
    assert '"--fusion-lease"' in settings and "fusion_lease_s = 2;" in settings


def test_an_emulated_result_says_so_first(tmp_path: Path) -> None:
    experiment = EXPERIMENTS[FIG7]
    costs = {"late_share": 0.01, "machine_cores": 1.25}
    runs = [
        Run(setup.label, 100.0, 5.0, costs=costs, void="late" if number == 0 else "")
        for number, setup in enumerate(experiment.plan.setups)
    ]
    result = measured(FIG7, runs, dilation=8.0, cores={"compute": 4, "storage": 2, "client": 2})
    result.same_figures = 0.03
    polardbmp_report.save(experiment, result, tmp_path / "a.json")
    page = polardbmp_report.markdown(experiment, result, tmp_path / "a.png")
    assert page.splitlines()[2].startswith("Emulated: up to 4 servers of 4 cores each, a memory node of 1, 3 storage nodes of 2")
    assert f"1 of {len(runs)} runs are VOID" in page and "at most 3.0%" in page and "1.25 of 2 real cores" in page
    assert "--dilation" not in page
    again = polardbmp_report.read(experiment.plan, tmp_path / "a.json")
    assert again.plan.wish() == Wish(8.0, (("compute", 4), ("storage", 2), ("client", 2))) and again == result


def test_a_page_says_who_else_used_the_machine() -> None:
    result = measured("polardbmp-fig13", [Run(indexes_label(0), 1.0, costs={"others_cores": 1.24})])
    assert "Other programs took up to 1.2 of 2 cores meanwhile." in polardbmp_report.remarks(result)
    assert any("--dilation" in said for said in polardbmp_report.remarks(result))
    caption = polardbmp_report.caption_of(EXPERIMENTS["polardbmp-fig13"], result)
    assert caption.startswith("Not dilated: all processes share 2 cores") and polardbmp.TITLE in caption


def test_what_is_counted_is_what_servers_and_memory_nodes_tell() -> None:
    told = "".join((paths.ROOT / file).read_text() for file in ("src/engine/status.cc", "mariadb/cluster.cc"))
    assert [name for name in OF_SERVERS if f'"{name}"' not in told] == []
    told = (paths.ROOT / "src" / "memnode" / "node" / "memory_node_status.cc").read_text()
    assert [name for name in OF_MEMORY if f'"{name}"' not in told] == []
    assert {*OF_SERVERS.values(), *OF_MEMORY.values()} <= set(polardbmp_report.COSTS)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[list[str], dict[str, str]]]:
    """The commands that would have been run, and their environments."""
    found: list[tuple[list[str], dict[str, str]]] = []

    def run(command: list[str], log: Path, *, env: dict[str, str], timeout_s: float) -> Outcome:
        found.append((command, env))
        return Outcome(0, 1.0, log)

    monkeypatch.setattr("strata_cli.experiments.polardbmp_servers.run_logged", run)
    return found


class FakeServer:
    def __init__(self, name: str) -> None:
        self.name, self.socket = name, Path(f"/sockets/{name}")
        self.queries: list[str] = []

    def query(self, text: str, **_: Any) -> list[tuple[Any, ...]]:
        self.queries.append(text)
        return []


def test_a_load_is_told_its_groups(asked: list[tuple[list[str], dict[str, str]]], tmp_path: Path) -> None:
    primaries = Primaries(EXPERIMENTS[FIG7].plan, tmp_path / "a", 4)
    servers: list[Any] = [FakeServer("compute-1"), FakeServer("compute-2")]
    primaries.run("write_only", 30, servers, 16, 8)
    primaries.run("production", 0, servers[:1], 8, 8)
    (command, environment), (_, other) = asked
    assert {"--shared=30", "--shared_group=5", "--tables=8", "--threads=16", "--time=8", "--rand-type=uniform"} <= set(command)
    assert "--mysql-socket=/sockets/compute-1,/sockets/compute-2" in command and command[-1] == "run"
    assert (environment["STRATA_MIX"], other["STRATA_MIX"]) == ("oltp_write_only", "production")
    assert command[1] == str(SCRIPTS / "groups.lua") and Path(command[1]).exists()


def test_our_own_mixes_are_counted_and_checked_on_every_server(
    asked: list[tuple[list[str], dict[str, str]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    printed = tmp_path / "bench-polardbmp-all.log"
    printed.write_text("tally get_access_data 5\ntally inserted 2\n    transactions:    5      (1.00 per sec.)\n")
    monkeypatch.setattr(paths, "LOGS", tmp_path)
    primaries = Primaries(EXPERIMENTS["polardbmp-fig8"].plan, tmp_path / "a", 4)
    servers: list[Any] = [FakeServer("compute-1"), FakeServer("compute-2")]
    for _ in range(2):
        primaries.run(TATP, 10, servers, 16, 8)
    command, _ = asked[0]
    assert {"--subscribers=100000", "--servers=2", "--shared=10", "--percentile=99", "--threads=16"} <= set(command)
    assert command[1] == str(SCRIPTS / "tatp.lua") and not any(word.startswith("--tables") for word in command)
    monkeypatch.setattr(primaries, "serving", lambda: servers)
    counted: list[dict[str, int]] = []

    def problems(ask: Any, before: Any, of: dict[str, int]) -> list[str]:
        counted.append(dict(of))
        return [] if len(counted) < 2 else ["a row is gone"]

    assert primaries._mix is not None
    monkeypatch.setattr(type(primaries._mix), "problems", lambda _, *given: problems(*given))
    with pytest.raises(StrataError, match=r"compute-2 does not hold .*a row is gone"):
        primaries.check()
    assert counted == [{"get_access_data": 10, "inserted": 4}] * 2
    assert "inserted 4" in primaries.checked()


def test_galera_gets_the_same_load_and_its_servers_are_nodes(
    asked: list[tuple[list[str], dict[str, str]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = replace(EXPERIMENTS["polardbmp-fig11"].plan, dilation=4.0, cores={"compute": 2, "storage": 1, "client": 1})
    emulation = dilation.Emulation(plan.wish(), tmp_path / "nodes")
    emulation.begin()
    replicas = Replicas(plan, tmp_path / "g", emulation)
    started: list[int] = []
    monkeypatch.setattr(galera_cluster.GaleraCluster, "start", lambda cluster, fill: started.append(len(cluster.servers)))
    for count in (2, 2, 4):
        replicas.use(count)
    assert started == [2, 4], "one that is there already is kept"
    replicas.run("write_only", 30, replicas.serving(), 16, 8)
    command, environment = asked[-1]
    assert {"--name_variable=wsrep_node_name", "--shared=30", "--shared_group=5", "--mysql-db=bench_innodb"} <= set(command)
    assert environment["STRATA_DILATE_FACTOR"] == "4.000"
    replicas.make_tables(FakeServer("server-1"))  # type: ignore[arg-type]
    command, environment = asked[-1]
    assert command[-1] == "prepare" and "STRATA_DILATE_FACTOR" not in environment, "in real time"
    launched: list[dict[str, str]] = []
    cluster = replicas._cluster
    assert cluster is not None
    server = cluster.servers[0]
    monkeypatch.setattr(type(server), "launch", lambda _, settings, *, env, extra: launched.append(env))
    cluster._launch(server, founds=True)
    cluster._launch(server, founds=False, emulation=emulation)
    assert launched[0] == {} and launched[1]["STRATA_DILATE_CORES"] == "2"
    assert cluster._slower == 4.0


def test_a_table_has_the_indexes_that_are_asked_for(tmp_path: Path) -> None:
    primaries = Primaries(EXPERIMENTS["polardbmp-fig13"].plan, tmp_path / "a", 2)
    server: Any = FakeServer("compute-1")
    primaries.cluster.computes = {"compute-1": server}
    primaries.make_wide(2)
    _, create, fill = server.queries
    assert create.count("KEY (c") == 2 and create.count("INT NOT NULL") == 8 and fill.endswith("FROM seq_1_to_50000")
    script = (SCRIPTS / "secondary_indexes.lua").read_text()
    assert "COLUMNS, MOST = 8" in script and "INTO wide" in script


class FakePrimaries:
    """Two servers and more, of which one can be killed."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.alive = threading.Event()
        self.cluster = None

    def use(self, count: int) -> None:
        self.alive.set()
        self.done.append(f"use {count}")

    def run(self, *_: Any) -> None:
        self.done.append("warm up")

    def wait_until_quiet(self) -> None: ...

    def go_on(self, name: str, load: str, shared: int, threads: int, seconds: int) -> list[float]:
        threading.Event().wait(0.3)
        return [100.0 if name == VICTIM else 50.0] * seconds

    def named(self, name: str) -> "FakePrimaries":
        return self

    def first(self) -> "FakePrimaries":
        self.name = VICTIM
        return self

    def launch(self, name: str) -> None:
        self.alive.set()
        self.done.append(f"launch {name}")

    def kill(self) -> None:
        self.alive.clear()
        self.done.append("kill")

    def ended(self) -> None: ...

    def query(self, text: str, **_: Any) -> list[tuple[Any, ...]]:
        if not self.alive.is_set():
            threading.Event().wait(0.01)
            raise pymysql.OperationalError(2013, "gone")
        return []

    @contextmanager
    def watched(self) -> Any:
        yield lambda: ({"machine_cores": 1.0}, "")

    def connect(self) -> "FakePrimaries":
        return self

    def cursor(self) -> Any:
        return self

    def execute(self, text: str) -> None: ...

    def __enter__(self) -> "FakePrimaries":
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...


def test_a_killed_server_is_started_at_once_and_its_rows_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courses.Background, "wait", lambda *_: None)
    plan = EXPERIMENTS["polardbmp-fig14"].plan.changed({"seconds": 4})
    there: Any = FakePrimaries()
    run = polardbmp_course.one_run(there, plan, plan.setups[0])
    assert there.done == ["use 2", "warm up", "warm up", "kill", f"launch {VICTIM}"]
    marks = run.marks or {}
    assert marks["killed_s"] == 4.0 and 0 <= marks["back_s"] < 5 and 0 <= marks["takeover_s"] < 5
    assert marks["survivor_share"] == 1.0 and run.costs == {"machine_cores": 1.0} and set(run.series or {}) == {VICTIM, SURVIVOR}


def test_who_takes_over_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    there: Any = FakePrimaries()
    moment = Moment(there, 1)
    there.alive.set()
    assert moment.when() > 0
    monkeypatch.setattr(polardbmp_course, "COMMIT_LIMIT_S", 0.05)
    there.alive.clear()
    with pytest.raises(StrataError, match="nobody took over"):
        Moment(there, 1).when()


def test_servers_are_added_while_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courses.Background, "wait", lambda *_: None)
    names, removed = iter(("compute-2", "compute-3")), []

    def add(*_: object) -> compute_servers.Added:
        return compute_servers.Added(next(names), "", 1, 0.5, False)

    monkeypatch.setattr(compute_servers, "add", add)
    monkeypatch.setattr(compute_servers, "remove", lambda _, name, *__: removed.append(name))
    plan = EXPERIMENTS["polardbmp-fig10"].plan.changed({"seconds": 2, "nodes": (3,)})
    there: Any = FakePrimaries()
    run = polardbmp_course.one_run(there, plan, plan.setups[0])
    assert set(run.series or {}) == {VICTIM, "compute-2", "compute-3"} and removed == ["compute-2", "compute-3"]
    assert (run.marks or {})["start_3_s"] == 0.5 and (run.marks or {})["phase_3_tps"] == 200.0


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_all_is_kept_and_shown_again(name: str, tmp_path: Path) -> None:
    experiment = EXPERIMENTS[name]
    plan = experiment.plan
    timed = plan.kind in (RECOVERY, GROWTH)
    marks = {f"{kind}_{n}_{unit}": 1.0 for kind, unit in (("added", "s"), ("phase", "tps")) for n in (1, 2, 3, 4)}
    marks |= {"killed_s": 1.0, "back_s": 1.0, "takeover_s": 2.0, "warm_up_s": 1.0, "survivor_share": 1.0}
    runs = [
        Run(
            setup.label,
            100.0 + turn,
            None if timed else 5.0,
            1.5 if plan.kind == INDEXES else None,
            {"page_transfers": 3.25, "machine_cores": 1.5},
            {VICTIM: [1.0, 2.0], SURVIVOR: [2.0]} if timed else None,
            marks if timed else None,
        )
        for setup in plan.setups
        for turn in range(2)
    ]
    result = measured(name, runs, seconds=3)
    file, page = tmp_path / "a.json", tmp_path / "a.md"
    polardbmp_report.publish(experiment, result, file, tmp_path / "a.png", page)
    assert polardbmp_report.read(plan, file) == result
    content = json.loads(file.read_text())
    assert content["findings"] and "medians of 2 runs" in content["scale"] and polardbmp.TITLE in content["paper"]
    assert (tmp_path / "a.png").stat().st_size > 10_000
    assert content["findings"][0]["sentence"] in page.read_text() and (timed or "| 3.2 |" in page.read_text())
    with pytest.raises(StrataError, match=f"holds {name}, not other"):
        polardbmp_report.read(replace(plan, name="other"), file)
    content["setups"] = content["setups"][1:]
    file.write_text(json.dumps(content))
    with pytest.raises(StrataError, match="its setups are not those of now"):
        polardbmp_report.read(plan, file)


def test_pages_of_committed_results_are_what_their_json_says() -> None:
    for file in (paths.ROOT / "bench" / "results").glob("*-polardbmp-*.json"):
        experiment = EXPERIMENTS[json.loads(file.read_text())["experiment"]]
        result = polardbmp_report.read(experiment.plan, file)
        page = polardbmp_report.markdown(experiment, result, file.with_suffix(".png"))
        assert file.with_suffix(".md").read_text() == page, (
            f"./strata experiment {result.plan.name} --show --json {file} --page ..."
        )


def test_options_are_for_those_that_have_them(tmp_path: Path) -> None:
    from strata_cli.app import app

    def refusal(*arguments: str) -> str:
        outcome = CliRunner().invoke(app, ["experiment", *arguments, "--json", str(tmp_path / "a.json")])
        assert isinstance(outcome.exception, StrataError)
        return str(outcome.exception)

    for given in (["--quick"], ["--nodes", "1,2"], ["--shared", "0"], ["--seconds", "3"]):
        assert "give none" in refusal(FIG7, "--show", *given)
    assert "for the experiments of PolarDB-MP" in refusal("lego-fig11", "--nodes", "1,2")
    assert "for experiments with TPC-C" in refusal(FIG7, "--warehouses", "3")
    assert "for the experiments of OpenAurora" in refusal(FIG7, "--add")
