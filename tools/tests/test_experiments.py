"""What experiments compute from measurements."""

import json
from pathlib import Path

import pytest
from strata_cli.experiments import ladder, report
from strata_cli.experiments.ladder import HEAVY, READ, Point, Pool, Result
from strata_cli.experiments.openaurora import EXPERIMENTS
from strata_cli.shell import StrataError


def measured(name: str, tps: dict[str, float], waited: dict[str, int] | None = None) -> Result:
    plan = EXPERIMENTS[name].plan
    pools = [Pool(target, 8 << 20, target) for target in plan.hit_ratios]
    counters = {
        label: {"storage_pages_requested_total": 10, "storage_pages_waited_log_bytes_total": bytes_}
        for label, bytes_ in (waited or {}).items()
    }
    points = [
        Point(variant.label, pool.target, load, [tps[variant.label], 3 * tps[variant.label]], counters.get(variant.label, {}))
        for variant in plan.variants
        for pool in pools
        for load in (READ, *plan.loads)
    ]
    return Result(plan, 80 << 20, pools, points)


def test_figure_18_compares_neighbours_of_the_ladder() -> None:
    tps = {"LogDB-MV": 100.0, "LogDB-MV-FR": 150.0, "LogDB-MV-SR": 300.0}
    result = measured("openaurora-fig18", tps, {"LogDB-MV": 8000, "LogDB-MV-FR": 2000, "LogDB-MV-SR": 2000})
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


def test_what_was_measured_is_kept_with_its_scale(tmp_path: Path) -> None:
    tps = {"LogDB-MV": 100.0, "LogDB-MV-FR": 150.0, "LogDB-MV-SR": 300.0}
    result = measured("openaurora-fig18", tps)
    report.publish(EXPERIMENTS["openaurora-fig18"], result, tmp_path / "a.json", tmp_path / "a.png")
    content = json.loads((tmp_path / "a.json").read_text())
    assert "8 tables of 40,000 rows (80 MiB)" in content["scale"] and "link 10g" in content["scale"]
    assert len(content["points"]) == 3 * 4 * 2
    assert content["points"][0] == {
        "variant": "LogDB-MV",
        "hit_ratio": 0.001,
        "load": "read",
        "transactions_per_s": 200.0,
        "runs": [100.0, 300.0],
        "waited_log_bytes_per_page": 0.0,
        "counters": {},
    }
    assert (tmp_path / "a.png").stat().st_size > 10_000
    with pytest.raises(StrataError, match="nothing was measured for LogDB"):
        result.value("LogDB", 0.4, HEAVY)
    assert ladder.LEAST_POOL == 8 << 20
