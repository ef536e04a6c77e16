"""What the experiments of LegoBase's figures compute, say and keep; their loads are not run here."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from strata_cli import dilation, paths
from strata_cli.bench import tpch
from strata_cli.bench.sysbench import Bench
from strata_cli.dilation import Wish
from strata_cli.experiments import courses, deployments, legobase, legobase_report, loads
from strata_cli.experiments.comparisons import Bar
from strata_cli.experiments.courses import each_second, possible, warm_up_s
from strata_cli.experiments.deployments import costs_of, crashed, phased
from strata_cli.experiments.legobase import ALONE, EXPERIMENTS, MIB, Phase, Plan, Result, Run, Setup, profile_of
from strata_cli.experiments.result_page import sentence
from strata_cli.profile_list import ALL
from strata_cli.shell import Outcome, StrataError
from typer.testing import CliRunner


def measured(name: str, runs: list[Run]) -> Result:
    return Result(EXPERIMENTS[name].plan, 120 * MIB, runs, ["abc123"], {"cores": 2}, touched_bytes=100 * MIB)


def shares(values: dict[str, float]) -> list[Run]:
    return [Run(label, tps, 10.0) for label, tps in values.items()]


FIGURE_11 = {
    **{"all local": 100.0, "10 % local": 92.0, "25 % local": 93.0, "50 % local": 94.0, "75 % local": 95.0, "100 % local": 99.0},
    **{ALONE: 40.0, "all local, RDMA": 50.0, "10 % local, RDMA": 45.0, "75 % local, RDMA": 49.0},
}


def test_figure_11_compares_with_all_local_over_the_same_link() -> None:
    findings = EXPERIMENTS["lego-fig11"].findings(measured("lego-fig11", shares(FIGURE_11)))
    assert [finding.ours for finding in findings] == pytest.approx([0.92, 1.0, 0.95, 1.0, 0.9, 1.0, 0.98, 1.0])
    assert [finding.agrees for finding in findings] == [True, True, False, True, False, True, True, True]
    assert sentence(findings[2]).endswith("0.95 here, 0.96 in the paper, at least 0.96 wanted; not reached.")
    assert EXPERIMENTS["lego-fig11"].findings(measured("lego-fig11", shares({"all local": 1.0}))) == []


def test_figure_8_compares_with_swapping_of_the_same_share() -> None:
    rates = {"all local": 100.0, "10 % local": 80.0, "50 % local": 90.0, "75 % local": 95.0}
    rates |= {f"{share} % local, the rest swapped": tps for share, tps in ((10, 20.0), (50, 50.0), (75, 60.0))}
    findings = EXPERIMENTS["lego-fig8"].findings(measured("lego-fig8", shares(rates)))
    assert [finding.ours for finding in findings] == pytest.approx([1.8, 1.0, 4.0, 0.6, 0.5])
    assert [finding.agrees for finding in findings if isinstance(finding, Bar)] == [False, True]


def test_a_pool_that_is_swapped_has_room_for_all() -> None:
    setup = Setup("50 % local, the rest swapped", legobase.WRITTEN, 0.5, swapped=True)
    result = measured("lego-fig8", [])
    assert (result.local_bytes(setup), result.pool_bytes(setup)) == (50 * MIB, 360 * MIB)
    assert result.pool_bytes(replace(setup, swapped=False)) == 50 * MIB


def test_figure_9_counts_reads_of_both() -> None:
    def run(label: str, seconds: float, gets: float) -> Run:
        names = [f"Q{number}" for number in range(1, 23)]
        return Run(label, 1.0, queries=dict.fromkeys(names, seconds), gets=dict.fromkeys(names, gets))

    runs = [run("all local", 1.0, 0.0), run("50 % local", 1.1, 100.0), run("50 % local, the rest swapped", 2.2, 450.0)]
    findings = EXPERIMENTS["lego-fig9"].findings(measured("lego-fig9", runs))
    assert [finding.ours for finding in findings] == pytest.approx([2.0, 4.5, 4.5, 4.5, 2.0])


def test_error_bars_are_of_runs_of_the_same_turn() -> None:
    turns = [{**FIGURE_11, "10 % local": 92.0}, {**FIGURE_11, "10 % local": 99.0}, {**FIGURE_11, "10 % local": 80.0}]
    first = EXPERIMENTS["lego-fig11"].findings(measured("lego-fig11", [run for turn in turns for run in shares(turn)]))[0]
    assert (first.least, first.ours, first.most) == pytest.approx((0.8, 0.92, 0.99))


def test_figure_10_is_of_the_production_load() -> None:
    runs = shares({"all local": 100.0, "10 % local": 91.0, ALONE: 35.0})
    findings = EXPERIMENTS["lego-fig10"].findings(measured("lego-fig10", runs))
    assert [finding.ours for finding in findings] == pytest.approx([0.91, 0.35])
    assert all(finding.agrees for finding in findings)


def test_figure_12_compares_each_query() -> None:
    def run(label: str, **seconds: float) -> Run:
        queries = {f"Q{number}": 1.0 for number in range(1, 23)} | seconds
        return Run(label, 1.0, queries=queries, gets=dict.fromkeys(queries, 10.0))

    runs = [run("all local"), run("10 % local", Q4=1.5, Q10=2.5, Q5=1.7, Q2=9.0), run("50 % local", Q11=1.04)]
    runs.append(run(ALONE, Q4=3.0, Q10=2.5))
    findings = EXPERIMENTS["lego-fig12"].findings(measured("lego-fig12", runs))
    assert [finding.ours for finding in findings] == pytest.approx([1.5, 2.0, 2.5, 1.0, 1.04, 1.7])
    assert "slowest other query (Q5)" in findings[-1].what, "Q2 is none of the paper's"
    assert [finding.agrees for finding in findings] == [True, True, False, False, True, False]


def test_figure_14_compares_with_addresses_that_are_looked_up() -> None:
    runs = shares({"10 % local": 150.0, "25 % local": 140.0, "50 % local": 90.0})
    runs += shares({f"{label}, looked up": 100.0 for label in ("10 % local", "25 % local", "50 % local")})
    findings = EXPERIMENTS["lego-fig14"].findings(measured("lego-fig14", runs))
    assert [finding.ours for finding in findings] == pytest.approx([1.5, 1.4, 0.9])
    assert [finding.agrees for finding in findings] == [True, True, False]


def test_figure_15_compares_with_one_server_with_remote_disk_and_with_lost_memory() -> None:
    def run(label: str, until_commit_s: float, warm: float) -> Run:
        return Run(label, 100.0, series=[1.0, 2.0], marks={"until_commit_s": until_commit_s, "warm_up_s": warm, "crash_s": 1.0})

    runs = [run(f"{share} % local", 0.5, 4.0) for share in (10, 25, 50)]
    runs += [run(legobase.MEMORY_LOST, 10.0, 9.0), run(legobase.MEMORY_KILLED, 0.1, 0.0)]
    runs += [run("remote disk", 6.0, 12.0), run("monolithic", 5.0, 20.0)]
    findings = {finding.what: finding for finding in EXPERIMENTS["lego-fig15"].findings(measured("lego-fig15", runs))}
    assert findings["until the first commit, 10 % local"] == Bar(
        "until the first commit, 10 % local", 2.0, 0.5, "s", goal=1.0, least=0.5, most=0.5
    )
    assert findings["warm-up, one server to the slowest of these"].ours == 5.0
    assert findings["warm-up, remote disk to the slowest of these"].ours == 3.0
    assert findings["until the first commit with all memory lost to compute only"].ours == 20.0
    killed = findings["until the first commit when only the memory node is killed"]
    assert sentence(killed).endswith("0.10 s here, at most 1.00 s wanted; reached.")


def test_shares_are_of_what_is_touched_and_too_little_data_is_said() -> None:
    result = measured("lego-fig11", [])
    local = {setup.label: result.local_bytes(setup) // MIB for setup in result.plan.setups}
    assert (local["10 % local"], local["75 % local"], local["all local"]) == (10, 75, 360)
    assert result.too_large_pool() == ""
    result.touched_bytes = 40 * MIB
    assert result.local_bytes(result.plan.setups[1]) == legobase.LEAST_POOL
    assert "10 % local is 20%" in result.too_large_pool() and "25 % local" not in result.too_large_pool()
    assert any("too small" in said for said in legobase_report.remarks(result))


def test_what_is_skipped_is_said() -> None:
    assert any("swap" in said for said in legobase_report.remarks(measured("lego-fig15", [])))


def test_quick_is_smaller_and_known() -> None:
    for experiment in EXPERIMENTS.values():
        short = experiment.plan.shortened()
        assert short != experiment.plan and short.setups == experiment.plan.setups
        assert short.seconds < experiment.plan.seconds or short.scale < experiment.plan.scale


def test_only_what_can_be_emulated_is_dilated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def wished(name: str) -> Plan:
        return replace(EXPERIMENTS[name].plan, dilation=4.0, cores={"compute": 2, "storage": 1, "client": 1})

    for name in ("lego-fig11", "lego-fig12", "lego-fig15", "lego-fig16"):
        with pytest.raises(StrataError, match=f"{name} cannot be dilated: "):
            possible(wished(name), tmp_path)
    asked: list[str] = []

    def why(programs: list[str | Path], _: Path) -> str | None:
        asked.extend(Path(program).name for program in programs)
        return None

    monkeypatch.setattr(dilation, "why_impossible", why)
    assert possible(wished("lego-fig14"), tmp_path) == (wished("lego-fig14"), [])
    assert {"mariadbd", "strata-storenode", "strata-memnode", "sysbench"} <= set(asked)
    monkeypatch.setattr(dilation, "why_impossible", lambda *_: "it is static")
    plan, notes = possible(wished("lego-fig10"), tmp_path)
    assert not plan.wish().dilated and "it is static" in notes[0]


def test_an_emulated_result_says_so_first(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["lego-fig14"]
    runs = [
        Run(setup.label, 100.0, 5.0, costs={"late_share": 0.01, "machine_cores": 1.25}, void="late" if number == 0 else "")
        for number, setup in enumerate(experiment.plan.setups)
    ]
    result = measured("lego-fig14", runs)
    result.plan = replace(result.plan, dilation=8.0, cores={"compute": 4, "storage": 2, "client": 2})
    result.same_figures = 0.03
    legobase_report.save(experiment, result, tmp_path / "a.json")
    page = legobase_report.markdown(experiment, result, tmp_path / "a.png")
    assert page.splitlines()[2].startswith("Emulated: a compute node of 4 cores, a memory node of 1, 3 storage nodes of 2")
    assert "1 of 6 runs are VOID" in page and "at most 3.0%" in page and "1.25 of 2 real cores" in page
    again = legobase_report.read(experiment.plan, tmp_path / "a.json")
    assert again.plan.wish() == Wish(8.0, (("compute", 4), ("storage", 2), ("client", 2))) and again == result


def test_a_caption_names_cores_dilation_and_the_paper() -> None:
    said = legobase_report.caption_of(EXPERIMENTS["lego-fig11"], measured("lego-fig11", shares(FIGURE_11)))
    assert said.startswith("Not dilated: all processes and the load on one machine with 2 cores")
    assert legobase.TITLE in said and "Figure 11, §7.3" in said


def test_costs_are_of_a_transaction() -> None:
    grown = {
        "trx_commits": 80,
        "trx_read_only_commits": 20,
        "lego_remote_hits": 400,
        "lego_get_ns": 1_600_000,
        "log_bytes": 5_000,
    }
    assert costs_of(grown) == {"lego_remote_hits": 4.0, "log_bytes": 50.0, "us_of_a_get": 4.0}
    assert costs_of({}) == {}


def test_a_production_load_runs_its_own_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = said(tmp_path / "a", [1.0])
    log.write_text(log.read_text() + "transactions: 10 (12.50 per sec.)\n 99th percentile: 4.5\n")
    asked: list[tuple[Any, ...]] = []

    def sysbench(_: Bench, *arguments: Any) -> Outcome:
        asked.append(arguments)
        return Outcome(0, 1.0, log)

    monkeypatch.setattr(Bench, "_sysbench", sysbench)
    target = loads.Target(None, None, {}, 1.0, lambda: 0)  # type: ignore[arg-type]
    found = loads.load_of(EXPERIMENTS["lego-fig10"].plan).run(target, 8, 5)
    assert (found.rate, found.p99_ms) == (12.5, 4.5)
    assert asked[0][1] == str(loads.PRODUCTION_SCRIPT) and loads.PRODUCTION_SCRIPT.is_relative_to(paths.ROOT)
    script = loads.PRODUCTION_SCRIPT.read_text()
    assert "SELECTS, INSERTS = 5, 3" in script and script.count("execute_") == 3


def test_answers_must_be_those_of_innodb(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"InnoDB": [(1,)], "STRATA": [(1,)]}
    monkeypatch.setattr(tpch, "generated", lambda _: Path())
    for name in ("load", "analyze"):
        monkeypatch.setattr(tpch.Bench, name, lambda *_: None)
    monkeypatch.setattr(tpch.Bench, "ask", lambda _, engine, number: (answers[engine], 0.5))

    class FakeServer:
        def query(self, _: str) -> list[tuple[Any, ...]]:
            return []

    target = loads.Target(FakeServer(), FakeServer(), {}, 1.0, lambda: 7)  # type: ignore[arg-type]
    load = loads.load_of(EXPERIMENTS["lego-fig12"].plan)
    load.prepare(target)
    found = load.run(target, 1, 0)
    assert found.queries is not None and len(found.queries) == 22 and found.rate == 2.0
    answers["STRATA"] = [(2,)]
    with pytest.raises(StrataError, match="Q1: another answer than InnoDB's"):
        load.run(target, 1, 0)


def test_warm_is_who_is_nearly_as_fast_as_before_for_some_seconds() -> None:
    series = [100.0, 100.0, 0.0, 0.0, 50.0, 95.0, 60.0, 91.0, 89.0, 99.0, 100.0]
    assert warm_up_s(series, 100.0, 4.5) == 2.5, "one second below does not count, three on average do"
    assert warm_up_s(series, 200.0, 4.5) == 6.5, "as long as was looked"


def said(file: Path, rates: list[float]) -> Path:
    file.write_text("".join(f"[ {second}s ] thds: 8 tps: {rate:.2f} qps: 1 \n" for second, rate in enumerate(rates, 1)))
    return file


class FakeDeployment:
    """Of the speed of its cores."""

    def __init__(self) -> None:
        self.cores, self.done = 0.0, list[str]()

    def go_on(self, threads: int, seconds: int) -> list[float]:
        threading.Event().wait(0.2)
        return [100.0 * self.cores] * seconds

    def crash(self, setup: Setup) -> float:
        self.done.append(f"crash {setup.label}")
        return 0.5

    def use_cores(self, cores: float) -> str:
        self.cores = cores
        self.done.append(f"cores {cores:g}")
        return "the cores its threads may run on (1, whole ones only: no cgroup can be made here)"

    def move(self, cores: float) -> float:
        self.cores = cores
        self.done.append(f"move {cores:g}")
        return 0.7


def test_a_load_that_changes_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments, "STEPS_LENGTH", 0.0)
    monkeypatch.setattr(courses.Background, "wait", lambda *_: None)
    phases = (Phase(4, 0.25, False, 1.0), Phase(8, 1.0, True, 1.0, 0.25), Phase(4, 0.5, False, 1.5, 0.25))
    plan = replace(EXPERIMENTS["lego-fig16"].plan, seconds=4, phases=phases, most_cores=2.0)
    there, notes = FakeDeployment(), list[str]()
    run = phased(there, plan, plan.setups[0], notes)  # type: ignore[arg-type]
    assert there.done[:2] == ["cores 0.5", "move 2"] and there.done[-2:] == ["cores 1", "cores 0"]
    assert len(there.done) == 3 + deployments.STEPS and notes == [deployments.WHOLE_CORES]
    marks = run.marks or {}
    assert marks["gap_2_s"] == 0.7 and len(run.series or []) == 14 and marks["phase_2_ends_s"] == 8.0
    used = 4 * 0.5 + (1 * 0.5 + 3 * 2) + (1 * 2 + 5 * 1)
    assert marks["core_seconds"] == pytest.approx(used, abs=0.1)
    assert marks["saved"] == pytest.approx(1 - used / (14 * 2), abs=0.01)


def test_a_crash_comes_in_the_middle_of_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courses.Background, "wait", lambda *_: None)
    plan = replace(EXPERIMENTS["lego-fig15"].plan, seconds=2)
    there = FakeDeployment()
    there.cores = 1.0
    run = crashed(there, plan, plan.setups[3])  # type: ignore[arg-type]
    assert there.done == [f"crash {legobase.MEMORY_LOST}"] and (run.marks or {})["until_commit_s"] == 0.5
    assert len(run.series or []) == 2 * (1 + deployments.BEHIND) and run.tps == 100.0


def test_a_load_that_ends_before_its_time_is_an_error() -> None:
    def ends() -> list[float]:
        raise StrataError("sysbench failed")

    with pytest.raises(StrataError, match="sysbench failed"):
        courses.Background(ends).wait(5)


def test_each_second_of_sysbench(tmp_path: Path) -> None:
    assert each_second(said(tmp_path / "a", [1.5, 0.0, 22.25])) == [1.5, 0.0, 22.25]


def test_a_load_that_lost_its_server_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    asked: list[int] = []

    def run(seconds: int) -> Path:
        asked.append(seconds)
        ends = len(asked) == 1
        now[0] += 3.2 if ends else seconds  # It says nothing of the second in which it ended.
        return said(tmp_path / "a", [10.0, 11.0] if ends else [20.0] * seconds)

    assert courses.series_of(run, 8) == [10.0, 11.0, 0.0, 20.0, 20.0, 20.0, 20.0]
    assert asked == [8, 4]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_all_is_kept_and_shown_again(name: str, tmp_path: Path) -> None:
    experiment = EXPERIMENTS[name]
    marks = {f"{kind}_{n}_{unit}": 1.0 for kind, unit in (("gap", "s"), ("phase", "tps")) for n in (1, 2, 3, 4)}
    marks |= {"until_commit_s": 1.0, "warm_up_s": 2.0, "crash_s": 1.0, "saved": 0.5}
    timed = experiment.plan.crashes or bool(experiment.plan.phases)
    queries = {f"Q{number}": 0.5 + number for number in range(1, 23)} if experiment.plan.load == legobase.TPCH else None
    runs = [
        Run(
            setup.label,
            100.0,
            None if queries or timed else 5.0 + turn,
            [1.0, 2.0] if timed else None,
            marks if timed else None,
            None if timed else {"log_bytes": 10.0},
            queries,
            queries,
        )
        for setup in experiment.plan.setups
        for turn in range(2)
    ]
    result = measured(name, runs)
    result.plan = replace(result.plan, seconds=3)
    file, page = tmp_path / "a.json", tmp_path / "a.md"
    legobase_report.publish(experiment, result, file, tmp_path / "a.png", page)
    assert legobase_report.read(experiment.plan, file) == result
    content = json.loads(file.read_text())
    assert content["findings"] and "medians of 2 runs" in content["scale"] and legobase.TITLE in content["paper"]
    assert (tmp_path / "a.png").stat().st_size > 10_000
    assert content["findings"][0]["sentence"] in page.read_text()
    with pytest.raises(StrataError, match=f"holds {name}, not other"):
        legobase_report.read(replace(experiment.plan, name="other"), file)
    with pytest.raises(StrataError, match="its setups are not those of now"):
        legobase_report.read(replace(experiment.plan, setups=experiment.plan.setups[:0]), file)


def test_pages_of_committed_results_are_what_their_json_says() -> None:
    files = list((paths.ROOT / "bench" / "results").glob("*-lego-*.json"))
    assert files, "this would compare nothing"
    for file in files:
        experiment = EXPERIMENTS[json.loads(file.read_text())["experiment"]]
        result = legobase_report.read(experiment.plan, file)
        page = legobase_report.markdown(experiment, result, file.with_suffix(".png"))
        assert file.with_suffix(".md").read_text() == page, (
            f"./strata experiment {result.plan.name} --show --json {file} --page ..."
        )


def test_what_is_shown_takes_no_settings(tmp_path: Path) -> None:
    from strata_cli.app import app

    for given in (["--quick"], ["--warehouses", "3"], ["--scale", "0.1"]):
        outcome = CliRunner().invoke(app, ["experiment", "lego-fig11", "--show", "--json", str(tmp_path / "a.json"), *given])
        assert isinstance(outcome.exception, StrataError) and "give none" in str(outcome.exception)
    outcome = CliRunner().invoke(app, ["experiment", "openaurora-fig10", "--quick"])
    assert "for the experiments of LegoBase" in str(outcome.exception)


def test_profiles_are_chosen_by_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (profile_of("own"), profile_of("written")) == ("monolithic", "remote-disk")
    without = [profile for profile in ALL if not profile.has_memory_nodes]
    monkeypatch.setattr(legobase, "ALL", without)
    with pytest.raises(StrataError, match="no profile has memory nodes"):
        profile_of("pooled")
    pooled = replace(next(profile for profile in without if profile.name == "remote-disk"), name="pooled", memory="kPool")
    monkeypatch.setattr(legobase, "ALL", [*without, pooled])
    assert (profile_of("written"), profile_of("pooled")) == ("remote-disk", "pooled")
