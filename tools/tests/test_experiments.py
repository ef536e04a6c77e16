"""What experiments compute from measurements."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from strata_cli import paths
from strata_cli.experiments import ladder, report
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
        point.counters = {"log_bytes": 5_000, "elapsed_us": 1_000_000, "others_cpu_us": 500_000}
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
    assert [finding.agrees for finding in findings] == [True, True, True]
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
    assert "8 tables of 40,000 rows (80 MiB)" in content["scale"] and "link 10g" in content["scale"]
    assert "medians of runs: read 2 of 5 s, heavy 2 of 5 s" in content["scale"]
    assert "other programs took 50% of one" in content["scale"]
    assert len(content["points"]) == 3 * 4 * 2
    point = content["points"][0]
    assert (point["variant"], point["hit_ratio"], point["load"]) == ("LogDB-MV", 0.001, "read")
    assert (point["transactions_per_s"], point["runs"]) == (200.0, [100.0, 300.0])
    assert point["costs"]["log_bytes"] == 50.0 and point["costs"]["pages_read"] == 0.0
    page = report.markdown(EXPERIMENTS["openaurora-fig18"], result, tmp_path / "a.png")
    assert content["scale"] in page and "![Eager, filtered and smart replay](a.png)" in page
    assert "| 40.0% | heavy | LogDB-MV-FR | 300 | 50 |" in page
    assert (tmp_path / "a.png").stat().st_size > 10_000
    assert ladder.LEAST_POOL == 8 << 20


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
        assert file.with_suffix(".png").exists()


def test_help_shows_examples() -> None:
    from strata_cli.app import app

    said = CliRunner().invoke(app, ["experiment", "--help"], env={"COLUMNS": "150"}).output
    assert "./strata experiment openaurora-fig10 --hit-ratios 0.4 --add" in said
    assert READ == "read"
