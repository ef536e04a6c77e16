"""What experiments compute from measurements."""

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from strata_cli import paths
from strata_cli.dilation import Validity
from strata_cli.experiments import courses, ladder, report
from strata_cli.experiments.ladder import HEAVY, READ, Pool, Result
from strata_cli.experiments.openaurora import EXPERIMENTS, IMAGES
from strata_cli.shell import StrataError
from typer.testing import CliRunner


def measured(
    name: str, tps: dict[str, float], waited: dict[str, int] | None = None, targets: tuple[float, ...] | None = None
) -> Result:
    result = Result(EXPERIMENTS[name].plan, 80 << 20, [], [], ["abc123"], {"cores": 2})
    for target in targets or result.plan.hit_ratios:
        result.add_pool(Pool(target, 8 << 20, target))
    for point in result.points:
        point.tps = [tps[point.variant], 3 * tps[point.variant]]
        point.transactions = 100
        point.counters = {"log_bytes": 5_000, "elapsed_us": 1_000_000, "others_cpu_us": 500_000, "compute_cpu_us": 700_000}
        if waited:
            point.counters |= {
                "storage_pages_requested_total": 10,
                "storage_pages_waited_log_bytes_total": waited[point.variant],
            }
    return result


REPLAY_TPS = {"LogDB-MV": 100.0, "LogDB-MV-FR": 150.0, "LogDB-MV-SR": 300.0}


def test_figure_18_compares_neighbours_of_the_ladder() -> None:
    result = measured("openaurora-fig18", REPLAY_TPS, {"LogDB-MV": 8000, "LogDB-MV-FR": 2000, "LogDB-MV-SR": 2000})
    findings = EXPERIMENTS["openaurora-fig18"].findings(result)
    assert [finding.ours for finding in findings] == pytest.approx([1.5, 2.0, 0.25, 1.0])
    assert [finding.agrees for finding in findings] == [True, True, True, False]
    assert "1.50 here, 1.50 in the paper; the same direction" in report.sentence(findings[0])


def test_figure_14_stands_on_logdb_with_page_images() -> None:
    tps = {"LogDB, page images": 100.0, "LogDB-MV, page images": 80.0, "LogDB-MV": 90.0}
    findings = EXPERIMENTS["openaurora-fig14"].findings(measured("openaurora-fig14", tps))
    assert [finding.ours for finding in findings] == pytest.approx([0.8, 0.9])
    assert [finding.agrees for finding in findings] == [True, False]


def test_figure_10_takes_similar_for_similar() -> None:
    findings = EXPERIMENTS["openaurora-fig10"].findings(measured("openaurora-fig10", {"Remote Disk": 100.0, "LogDB": 110.0}))
    assert [finding.ours for finding in findings] == pytest.approx([1.1, 1.1, 1.1])
    assert [(finding.least, finding.most) for finding in findings] == [pytest.approx((1.1, 1.1))] * 3, "runs of the same turn"
    assert [finding.agrees for finding in findings] == [False, True, True]
    assert "1.10 here, 2.50 in the paper; hardly any difference here" in report.sentence(findings[0])
    assert "1.10 here, 1.00 in the paper; similar here, too" in report.sentence(findings[1])


def test_pages_changed_in_place_have_images_in_the_log_as_in_the_paper() -> None:
    for experiment in EXPERIMENTS.values():
        for variant in experiment.plan.variants:
            if variant.profile in ("remote-disk", "logdb"):
                assert set(IMAGES) <= set(variant.options), (experiment.plan.name, variant.label)


def test_nothing_is_said_of_a_buffer_that_was_not_measured() -> None:
    experiment = EXPERIMENTS["openaurora-fig18"]
    result = measured("openaurora-fig18", REPLAY_TPS, targets=(0.8,))
    assert experiment.at == 0.4 and experiment.findings(result) == []
    with pytest.raises(StrataError, match=r"nothing was measured for LogDB-MV, 0\.4"):
        result.value("LogDB-MV", 0.4, HEAVY)
    result.add_pool(Pool(0.4, 8 << 20, 0.4))
    assert not result.has(0.4) and experiment.findings(result) == []


def test_what_was_measured_is_kept_with_its_scale(tmp_path: Path) -> None:
    result = measured("openaurora-fig18", REPLAY_TPS)
    report.publish(EXPERIMENTS["openaurora-fig18"], result, tmp_path / "a.json", tmp_path / "a.png")
    content = json.loads((tmp_path / "a.json").read_text())
    assert "8 tables of 20,000 rows (80 MiB)" in content["scale"] and "link 10g" in content["scale"]
    assert "medians of runs: read 2 of 4 s, heavy 2 of 4 s" in content["scale"]
    assert "other programs took 50% of one" in content["scale"]
    assert len(content["points"]) == 3 * 4 * 2
    point = content["points"][0]
    assert (point["variant"], point["hit_ratio"], point["load"]) == ("LogDB-MV", 0.001, "read")
    assert (point["transactions_per_s"], point["runs"]) == (200.0, [100.0, 300.0])
    assert point["costs"]["log_bytes"] == 50.0 and point["costs"]["pages_read"] == 0.0
    assert point["costs"]["compute_cpu_us"] == 7_000.0 and point["costs"]["cores"] == pytest.approx(0.7)
    page = report.markdown(EXPERIMENTS["openaurora-fig18"], result, tmp_path / "a.png")
    assert content["scale"] in page and "![Eager, filtered and smart replay](a.png)" in page
    assert "| 40.0% | heavy | LogDB-MV-FR | 300 | 50 |" in page
    assert (tmp_path / "a.png").stat().st_size > 10_000
    assert ladder.LEAST_POOL == 8 << 20


def test_an_emulated_cluster_is_said_before_any_figure(tmp_path: Path) -> None:
    experiment, file = EXPERIMENTS["openaurora-fig18"], tmp_path / "a.json"
    result = measured("openaurora-fig18", REPLAY_TPS)
    result.plan = replace(result.plan, dilation=6.0, cores={"compute": 4, "storage": 2, "client": 3})
    late = Validity(0.031, "s1", "s1", 0.01, 1.25, 2)
    ladder.Run(50.0, 20, {"log_bytes": 10}, late).add_to(result.points[0])
    said = report.emulation(result)
    assert said.startswith("Emulated: a compute node of 4 cores, 3 storage nodes of 2, clients on 3, time dilated by 6;")
    assert "1.25 of 2 real cores" in said and "1 of 49 runs are VOID, such as: 3.1% of all busy time was late" in said
    report.publish(experiment, result, file, tmp_path / "a.png")
    content = json.loads(file.read_text())
    assert content["emulation"]["statement"] == said and content["emulation"]["void_runs"] == 1
    assert content["settings"]["dilation"] == 6.0 and said in report.caption_of(experiment, result)
    assert report.markdown(experiment, result, tmp_path / "a.png").splitlines()[2] == said
    again = report.read(experiment.plan, file)
    assert again.plan == result.plan and again.points == result.points and report.emulation(again) == said


def test_what_could_not_be_dilated_says_so(tmp_path: Path) -> None:
    experiment, file = EXPERIMENTS["openaurora-fig18"], tmp_path / "a.json"
    result = measured("openaurora-fig18", REPLAY_TPS)
    assert report.emulation(result) == "" and "emulation" not in report.as_json(experiment, result)
    result.undilated_because = "sysbench is static"
    report.save(experiment, result, file)
    assert "all figures in real time" in report.emulation(report.read(experiment.plan, file))


def test_a_void_run_is_repeated_and_kept_as_void_at_last() -> None:
    plan = EXPERIMENTS["openaurora-fig18"].plan

    class Late(FakeSite):
        shares: ClassVar[list[float]] = []

        def measure(self, workload: str, seconds: int) -> ladder.Run:
            return replace(super().measure(workload, seconds), validity=Validity(self.shares.pop(0), "s1", "s1", 0.0, 0.1, 2))

    site: Any = Late(plan.variants[0], [], lambda: True)
    Late.shares = [0.5, 0.01, 0.5]
    assert ladder._measured(site, HEAVY, plan).void == "" and len(Late.shares) == 1
    Late.shares = [0.5] * (courses.VOID_REPEATS + 1)
    assert ladder._measured(site, HEAVY, plan).void and not Late.shares


def test_a_part_is_added_to_what_was_measured_before(tmp_path: Path) -> None:
    experiment, file = EXPERIMENTS["openaurora-fig18"], tmp_path / "a.json"
    result = measured("openaurora-fig18", REPLAY_TPS, targets=(0.8,))
    result.plan = replace(result.plan, rows=7)
    report.save(experiment, result, file)
    again = report.read(experiment.plan, file)
    assert (again.plan, again.pools, again.points, again.commits) == (result.plan, result.pools, result.points, ["abc123"])
    ladder.Run(50.0, 20, {"log_bytes": 10, "log_groups": 1}).add_to(again.points[0])
    assert again.points[0].tps == [100.0, 300.0, 50.0] and again.points[0].transactions == 120
    assert again.points[0].counters["log_bytes"] == 5_010 and again.points[0].counters["log_groups"] == 1
    again.add_pool(Pool(0.4, 8 << 20, 0.4))
    assert [pool.target for pool in again.pools] == [0.4, 0.8]
    assert len(again.points) == 2 * 3 * 2
    report.save(experiment, again, file)
    assert len(json.loads(file.read_text())["points"]) == 3 * 2, "what has no runs yet is left out"
    assert report.read(experiment.plan, file).has(0.8)


class FakeSite:
    """A variant that has been told its speed; notes what is asked of it."""

    def __init__(self, variant: ladder.Variant, asked: list[str], free: Callable[[], bool]) -> None:
        self.variant, self._asked, self._free = variant, asked, free
        self._pool = 0

    def load(self) -> None:
        assert not self._free()
        self._asked.append(f"load {self.variant.label}")

    def data_bytes(self) -> int:
        return 100 << 20

    def restart(self, pool_bytes: int) -> None:
        self._pool = pool_bytes

    def hit_ratio(self) -> float:
        return min(1.0, 0.5 * self._pool / (100 << 20))

    def warm_up(self) -> None:
        pass

    def wait_until_replayed(self) -> None:
        assert not self._free()

    def measure(self, workload: str, seconds: int) -> ladder.Run:
        self._asked.append(f"{self.variant.label}: {workload} {seconds} s")
        return ladder.Run(100.0, 10, {"log_bytes": 1})

    def after_idle(self, workload: str, seconds: int) -> ladder.Run:
        self._asked.append("idle")
        return self.measure(workload, seconds)


def test_an_experiment_goes_through_variants_in_turns_in_parts_under_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(EXPERIMENTS["openaurora-fig10"].plan, seconds=5, heavy_runs=2, light_runs=1, light_seconds=1)
    asked: list[str] = []
    lock = tmp_path / "lock"

    def free() -> bool:
        with lock.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    @contextmanager
    def sites(_: ladder.Plan) -> Iterator[list[FakeSite]]:
        yield [FakeSite(variant, asked, free) for variant in plan.variants]

    monkeypatch.setattr("strata_cli.setup_cmd.ensure_setup", lambda: None)
    monkeypatch.setattr(ladder, "_sites", sites)
    kept: list[bool] = []
    course = ladder.Course((0.8,), repeats=2, lock=lock, keep=lambda so_far: kept.append(so_far.has(0.8)))
    result = ladder.run(plan, course)
    assert free() and kept == [True, True]

    def turn(label: str) -> list[str]:
        heavy = [f"{label}: write_only 5 s"] * 2
        return ["idle", f"{label}: read_only 5 s", "idle", f"{label}: write_only 1 s", *heavy]

    assert asked[:2] == ["load Remote Disk", "load LogDB"]
    assert asked[2:] == turn("Remote Disk") + turn("LogDB") + turn("LogDB") + turn("Remote Disk")
    assert result.pools[0].measured == pytest.approx(0.8, abs=ladder.HIT_TOLERANCE)
    assert result.point("LogDB", 0.8, HEAVY).transactions == 2 * 2 * 10

    size = result.pools[0].bytes
    del asked[:]
    again = ladder.run(plan, ladder.Course((0.8, 0.4), before=result, lock=lock))
    assert asked[2:] == 2 * (turn("Remote Disk") + turn("LogDB")), "an even number of rounds came before"
    assert [pool.target for pool in again.pools] == [0.4, 0.8] and again.pools[1].bytes == size, "not calibrated again"
    assert len(again.point("LogDB", 0.8, HEAVY).tps) == 6 and len(again.point("LogDB", 0.4, HEAVY).tps) == 2


def test_results_of_something_else_are_not_added_to(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    report.save(EXPERIMENTS["openaurora-fig18"], measured("openaurora-fig18", REPLAY_TPS), file)
    with pytest.raises(StrataError, match="holds openaurora-fig18, not openaurora-fig14"):
        report.read(EXPERIMENTS["openaurora-fig14"].plan, file)
    file.write_text(file.read_text().replace("--strata-exact-page-versions=0", "--strata-exact-page-versions=1"))
    with pytest.raises(StrataError, match="variants are not those of now"):
        report.read(EXPERIMENTS["openaurora-fig18"].plan, file)
    with pytest.raises(StrataError, match="cannot be read"):
        report.read(EXPERIMENTS["openaurora-fig18"].plan, tmp_path / "none.json")


def test_hit_ratios_are_chosen_among_those_of_the_plan() -> None:
    plan = EXPERIMENTS["openaurora-fig10"].plan
    assert ladder.chosen_hit_ratios(plan, None) == plan.hit_ratios
    assert ladder.chosen_hit_ratios(plan, "0.8,0.4") == (0.8, 0.4)
    for wrong in ("0.5", "", "much"):
        with pytest.raises(StrataError, match=r"there is 0\.001, 0\.4, 0\.8, 0\.995"):
            ladder.chosen_hit_ratios(plan, wrong)


def test_pages_of_committed_results_are_what_their_json_says() -> None:
    for file in (paths.ROOT / "bench" / "results").glob("*openaurora*.json"):
        experiment = EXPERIMENTS[json.loads(file.read_text())["experiment"]]
        result = report.read(experiment.plan, file)
        page = report.markdown(experiment, result, file.with_suffix(".png"))
        assert file.with_suffix(".md").read_text() == page, (
            f"./strata experiment {result.plan.name} --show --json {file} --page ..."
        )
        assert json.loads(file.read_text()) == json.loads(json.dumps(report.as_json(experiment, result)))
        assert file.with_suffix(".png").exists()


def test_help_shows_examples() -> None:
    from strata_cli.app import app

    said = CliRunner().invoke(app, ["experiment", "--help"], env={"COLUMNS": "150"}).output
    assert "./strata experiment openaurora-fig10 --hit-ratios 0.4 --add" in said
    assert READ == "read"
