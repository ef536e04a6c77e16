"""What the experiments of LegoBase's figures compute, say and keep; their loads are not run here."""

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from strata_cli.experiments import deployments, legobase, legobase_report
from strata_cli.experiments.deployments import crashed, each_second, phased, warm_up_s
from strata_cli.experiments.legobase import EXPERIMENTS, Bar, Phase, Result, Run, profile_of
from strata_cli.profile_list import ALL
from strata_cli.shell import StrataError


def measured(name: str, runs: list[Run]) -> Result:
    return Result(EXPERIMENTS[name].plan, 80 << 20, runs, ["abc123"], {"cores": 2})


def shares(values: dict[str, float]) -> list[Run]:
    return [Run(label, tps, 10.0) for label, tps in values.items()]


FIGURE_11 = {
    **{"all local": 100.0, "10% local": 92.0, "25% local": 93.0, "50% local": 94.0, "75% local": 95.0, "100% local": 99.0},
    "10%, no memory node": 40.0,
}


def test_figure_11_compares_with_all_local() -> None:
    findings = EXPERIMENTS["lego-fig11"].findings(measured("lego-fig11", shares(FIGURE_11)))
    assert [finding.ours for finding in findings] == pytest.approx([0.92, 1.0, 0.95, 1.0, 0.4])
    assert [finding.agrees for finding in findings] == [True, True, False, True, True]
    assert legobase_report.sentence(findings[2]).endswith("0.95 here, 0.96 in the paper; not reached.")
    assert EXPERIMENTS["lego-fig11"].findings(measured("lego-fig11", shares({"all local": 1.0}))) == []


def test_figure_14_compares_with_addresses_that_are_looked_up() -> None:
    runs = shares({"10% local": 150.0, "25% local": 140.0, "50% local": 90.0})
    runs += shares({f"{label}, looked up": 100.0 for label in ("10% local", "25% local", "50% local")})
    findings = EXPERIMENTS["lego-fig14"].findings(measured("lego-fig14", runs))
    assert [finding.ours for finding in findings] == pytest.approx([1.5, 1.4, 0.9])
    assert [finding.agrees for finding in findings] == [True, True, False]


def test_figure_15_compares_with_one_server_and_with_lost_memory() -> None:
    def run(label: str, until_commit_s: float, warm: float) -> Run:
        return Run(label, 100.0, series=[1.0, 2.0], marks={"until_commit_s": until_commit_s, "warm_up_s": warm, "crash_s": 1.0})

    runs = [run(f"{share}% local", 1.0, 4.0) for share in (10, 25, 50)]
    runs += [run("10% local, memory lost", 20.0, 9.0), run("monolithic", 10.0, 20.0)]
    findings = {finding.what: finding for finding in EXPERIMENTS["lego-fig15"].findings(measured("lego-fig15", runs))}
    assert findings["until the first commit, 10% local"] == Bar("until the first commit, 10% local", 2.0, 1.0, "s")
    assert findings["warm-up of one server to the slowest of these"].ours == 5.0
    assert findings["until the first commit with all memory lost to compute only"].ours == 20.0


def test_warm_is_who_is_nearly_as_fast_as_before_for_some_seconds() -> None:
    series = [100.0, 100.0, 0.0, 0.0, 50.0, 95.0, 60.0, 91.0, 95.0, 99.0, 100.0]
    assert warm_up_s(series, 100.0, 4.5) == 2.5
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

    def crash(self, loses_memory: bool) -> float:
        self.done.append(f"crash {loses_memory}")
        return 0.5

    def use_cores(self, cores: float) -> None:
        self.cores = cores
        self.done.append(f"cores {cores:g}")

    def move(self, cores: float) -> float:
        self.cores = cores
        self.done.append(f"move {cores:g}")
        return 0.7


def test_a_load_that_changes_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments, "process_cores", lambda: 2)
    monkeypatch.setattr(deployments, "STEP_S", 0.0)
    monkeypatch.setattr(deployments._Background, "wait", lambda *_: None)
    phases = (Phase(4, 0.25, False), Phase(8, 1.0, True), Phase(4, 0.5, False))
    plan = replace(EXPERIMENTS["lego-fig16"].plan, seconds=4, phases=phases)
    there = FakeDeployment()
    run = phased(there, plan, plan.setups[0])  # type: ignore[arg-type]
    assert there.done[:2] == ["cores 0.5", "move 2"] and there.done[-1] == "cores 1" and len(there.done) == 2 + deployments.STEPS
    marks = run.marks or {}
    assert marks["gap_2_s"] == 0.7 and len(run.series or []) == 12
    used = 4 * 0.5 + (1 * 0.5 + 3 * 2) + (1 * 2 + 3 * 1)
    assert 0 < marks["saved"] < 1 and marks["core_seconds"] == pytest.approx(used, abs=0.1)


def test_a_crash_comes_in_the_middle_of_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments._Background, "wait", lambda *_: None)
    plan = replace(EXPERIMENTS["lego-fig15"].plan, seconds=2)
    there = FakeDeployment()
    there.cores = 1.0
    run = crashed(there, plan, plan.setups[3])  # type: ignore[arg-type]
    assert there.done == ["crash True"] and (run.marks or {})["until_commit_s"] == 0.5
    assert len(run.series or []) == 2 * (1 + deployments.BEHIND) and run.tps == 100.0


def test_a_load_that_ends_before_its_time_is_an_error() -> None:
    def ends() -> list[float]:
        raise StrataError("sysbench failed")

    with pytest.raises(StrataError, match="sysbench failed"):
        deployments._Background(ends).wait(5)


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

    assert deployments.series_of(run, 8) == [10.0, 11.0, 0.0, 20.0, 20.0, 20.0, 20.0]
    assert asked == [8, 4]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_all_is_kept_and_shown_again(name: str, tmp_path: Path) -> None:
    experiment = EXPERIMENTS[name]
    marks = {f"{kind}_{n}_{unit}": 1.0 for kind, unit in (("gap", "s"), ("phase", "tps")) for n in (1, 2, 3)}
    marks |= {"until_commit_s": 1.0, "warm_up_s": 2.0, "crash_s": 1.0, "saved": 0.5}
    timed = experiment.plan.crashes or bool(experiment.plan.phases)
    runs = [
        Run(setup.label, 100.0, 5.0, [1.0, 2.0] if timed else None, marks if timed else None)
        for setup in experiment.plan.setups
        for _ in range(2)
    ]
    result = measured(name, runs)
    result.plan = replace(result.plan, seconds=3)
    file, page = tmp_path / "a.json", tmp_path / "a.md"
    legobase_report.publish(experiment, result, file, tmp_path / "a.png", page)
    assert legobase_report.read(experiment.plan, file) == result
    content = json.loads(file.read_text())
    assert content["findings"] and "medians of 2 runs" in content["scale"]
    assert (tmp_path / "a.png").stat().st_size > 10_000
    assert content["findings"][0]["sentence"] in page.read_text()
    with pytest.raises(StrataError, match=f"holds {name}, not other"):
        legobase_report.read(replace(experiment.plan, name="other"), file)


def test_profiles_are_chosen_by_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (profile_of("own"), profile_of("written")) == ("monolithic", "remote-disk")
    without = [profile for profile in ALL if not profile.has_memory_nodes]
    monkeypatch.setattr(legobase, "ALL", without)
    with pytest.raises(StrataError, match="no profile has memory nodes"):
        profile_of("pooled")
    pooled = replace(next(profile for profile in without if profile.name == "remote-disk"), name="pooled", memory="kPool")
    monkeypatch.setattr(legobase, "ALL", [*without, pooled])
    assert (profile_of("written"), profile_of("pooled")) == ("remote-disk", "pooled")
