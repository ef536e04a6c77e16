"""What the experiments with disaggregated memory compute from measurements."""

from dataclasses import replace
from pathlib import Path

import pytest
from strata_cli import paths
from strata_cli.experiments import ddc, ddc_course, ddc_report
from strata_cli.experiments.ddc_result import MIB, MODELLED_FETCH_S, PAGE, SHARES, Plan, Result, Row, share_of
from strata_cli.experiments.ddc_sessions import ALL_LOCAL
from strata_cli.shell import StrataError

FIGURES = {4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24}


def of_shares(name: str, times: tuple[float, ...] = (1.0, 2.0, 5.0, 20.0), fetched: tuple[int, ...] = (0, 1, 3, 9)) -> Result:
    plan = ddc.EXPERIMENTS[name].plan
    rows = [
        Row(setup, f"Q{number}", seconds * number, remote_bytes=pages * number * PAGE, faults=pages * number)
        for setup, seconds, pages in zip((ALL_LOCAL, *SHARES), times, fetched, strict=True)
        for number in plan.queries
    ]
    return Result(plan, 100 * MIB, rows)


def test_every_figure_of_the_paper_has_an_experiment() -> None:
    found = {int(name.removeprefix("ddc-fig").split("-")[0]) for name in ddc.EXPERIMENTS}
    assert found == FIGURES and len(FIGURES) == 20


def test_shares_are_whole_pages_and_not_too_small() -> None:
    assert share_of(100 * MIB, 0.4) == 40 * MIB
    assert share_of(100 * MIB, 0.006) == 1 * MIB
    assert share_of(123_456_789, 0.1) % PAGE == 0


def test_slowdowns_leave_query_20_out_for_postgresql_only() -> None:
    for name, averaged in (("ddc-fig8", 2.0), ("ddc-fig6", 2.0 + 98 / 22)):
        result = of_shares(name)
        result.rows = [
            replace(row, seconds=row.seconds * 50) if (row.setup, row.query) == ("40 %", "Q20") else row for row in result.rows
        ]
        first = ddc.EXPERIMENTS[name].findings(result)[0]
        assert first.ours == pytest.approx(averaged)


def test_the_modelled_time_is_the_local_one_and_what_was_fetched() -> None:
    result = of_shares("ddc-fig6")
    assert result.modelled("10 %", "Q9") == pytest.approx(9.0 + 3 * 9 * MODELLED_FETCH_S)
    assert result.modelled("none", "Q9") is None


def test_fetched_bytes_are_compared_with_the_size_of_the_data() -> None:
    findings = ddc.EXPERIMENTS["ddc-fig20"].findings(of_shares("ddc-fig20"))
    assert [one.ours for one in findings] == pytest.approx(
        [3 * 11.5 * PAGE / (100 * MIB), 9 * 11.5 * PAGE / (100 * MIB), 3.0, 9 / 11.5]
    )


def test_a_query_that_did_not_get_through_has_a_note_and_no_time() -> None:
    plan = ddc.EXPERIMENTS["ddc-fig12"].plan
    rows = [Row(ALL_LOCAL, f"Q{number}", 1.0) for number in plan.queries]
    for share in ddc_course.SIZE_SHARES:
        for number in plan.queries:
            rows.append(Row(ddc_course.label_of("far", share), f"Q{number}", 2.0))
            fails = share < 0.1 and number == 9
            rows.append(
                Row(
                    ddc_course.label_of("disk", share),
                    f"Q{number}",
                    0.0 if fails else 8.0 / share,
                    note="it ended" if fails else "",
                )
            )
    result = Result(plan, 100 * MIB, rows)
    q16, q9, stable, failed = ddc.EXPERIMENTS["ddc-fig12"].findings(result)
    assert ddc_report.said(q16).startswith("Q16, 5% of the data local") and q16.ours == pytest.approx(80.0)
    assert ddc_report.said(q9).startswith("Q9, 10% of the data local") and q9.ours == pytest.approx(40.0)
    assert stable.agrees and failed.agrees and "Q9 with disk, 5% local" in ddc_report.said(failed)


def test_mixes_have_as_many_of_each_as_they_say() -> None:
    took = {f"Q{number}": float(number) for number in range(1, 23)}
    mixes = ddc_course.mixes_of(took)
    assert {mix: len(names) for mix, names in mixes.items()} == dict.fromkeys(ddc_course.MIX_SHARES, 50)
    short = [name for name in mixes["short-heavy"] if took[name] <= 7]
    long = [name for name in mixes["long-heavy"] if took[name] > 15]
    assert len(short) == len(long) == 40
    assert mixes == ddc_course.mixes_of(took) != ddc_course.mixes_of(took, seed=7)


@pytest.mark.parametrize("name", ["ddc-fig6", "ddc-fig8", "ddc-fig20"])
def test_a_result_is_read_as_it_was_written_and_its_page_made_again(tmp_path: Path, name: str) -> None:
    experiment, result = ddc.EXPERIMENTS[name], of_shares(name)
    ddc_report.save(experiment, result, tmp_path / "a.json")
    again, commit = ddc_report.read(experiment.plan, tmp_path / "a.json")
    assert again == result
    page = ddc_report.markdown(experiment, again, commit, tmp_path / "a.png")
    assert page.count("\n| Q") == 22 and "here, " in page
    ddc_report.plot(experiment, again, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000
    with pytest.raises(StrataError):
        ddc_report.read(Plan("ddc-fig7", "cold"), tmp_path / "a.json")


def test_nothing_is_said_of_a_result_that_is_not_whole() -> None:
    for experiment in ddc.EXPERIMENTS.values():
        assert isinstance(ddc_report.findings(experiment, Result(experiment.plan, 1)), list)


KEPT = sorted((paths.ROOT / "bench" / "results").glob("*-ddc-*.json"))


@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.stem)
def test_pages_kept_are_made_of_what_was_measured(file: Path) -> None:
    name = "ddc-" + file.stem.split("-ddc-")[1]
    experiment = ddc.EXPERIMENTS[name]
    result, commit = ddc_report.read(experiment.plan, file)
    assert file.with_suffix(".md").read_text() == ddc_report.markdown(experiment, result, commit, file.with_suffix(".png"))
    assert file.with_suffix(".png").exists()


@pytest.mark.parametrize("name", ["ddc-fig15", "ddc-fig16"])
def test_a_short_run_by_scale_has_no_scale_that_the_data_cannot_have(name: str) -> None:
    """TPC-H below 0.01 has parts with the same supplier twice."""
    plan = ddc.EXPERIMENTS[name].plan.shortened()
    assert plan.scale * min(ddc_course.SCALE_STEPS) >= 0.01
