"""What the benches compute from measurements, and what they read from the drivers' output."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from strata_cli import paths
from strata_cli.bench import footprint, micro, process, profiles, report, results, servers, sysbench, tpcc, tpch, transfers
from strata_cli.bench.comparison import INNODB, STRATA, Row, Sample, in_turns
from strata_cli.shell import Outcome, StrataError
from typer.testing import CliRunner


def test_engines_are_measured_in_turns_and_the_order_alternates() -> None:
    order: list[str] = []

    def measure(engine: str) -> Sample:
        order.append(engine)
        return Sample(1.0)

    in_turns(Row("w", 1, "memory", "x"), (STRATA, INNODB), 3, measure)
    assert order == [STRATA, INNODB, INNODB, STRATA, STRATA, INNODB]


def test_ratio_of_medians_and_spread_of_neighbours() -> None:
    ours = [Sample(100.0, 2.0), Sample(90.0, 3.0), Sample(300.0, 4.0)]
    theirs = [Sample(50.0, 6.0), Sample(60.0, 6.0), Sample(100.0, 9.0)]
    row = Row("w", 1, "memory", "x", {STRATA: ours, INNODB: theirs})
    assert row.ratio == pytest.approx(100 / 60)
    assert row.p99_ratio == pytest.approx(0.5)
    assert row.spread is not None
    assert list(row.spread) == pytest.approx([1.5, 3.0])


def test_one_engine_alone_has_no_ratio() -> None:
    row = Row("w", 1, "memory", "x", {STRATA: [Sample(1.0)]})
    assert (row.ratio, row.p99_ratio, row.spread) == (None, None, None)


def test_where_less_is_better_the_ratio_still_speaks_for_us_above_one() -> None:
    row = Row("Q1", 1, "scale 1", "s", {STRATA: [Sample(2.0)], INNODB: [Sample(6.0)]}, less_is_better=True)
    assert row.ratio == pytest.approx(3.0)
    assert row.spread == (3.0, 3.0)
    assert row.as_json()["better"] == "less"


def test_an_engine_without_a_value_says_why() -> None:
    row = Row("Q1", 1, "scale 1", "s", {INNODB: [Sample(6.0)]}, less_is_better=True, notes={STRATA: "timeout"})
    assert row.ratio is None
    assert list(report.table([row]).columns[3].cells) == ["timeout"]
    assert report.line(row) == "  Q1, 1 thread, scale 1: STRATA timeout, InnoDB 6.00 s"


def profiles_plan() -> profiles.Plan:
    workloads = (sysbench.Workload.write_only,)
    return profiles.Plan(("monolithic", "logdb"), "10g", workloads, (8,), 8, 1000, 3, 2, "REPEATABLE-READ")


def test_profiles_stand_beside_the_first_one(tmp_path: Path) -> None:
    samples = {
        "monolithic": [Sample(100.0, 2.0, 50.0), Sample(300.0, 4.0, 50.0)],
        "logdb": [Sample(50.0, 8.0, 90.0), Sample(200.0, 8.0, 90.0)],
    }
    row = Row("write_only", 8, "memory", "transactions/s", samples)
    plan = profiles_plan()
    assert profiles.ratio(row, "logdb", "monolithic") == pytest.approx(125 / 200)
    assert profiles.spread(row, "logdb", "monolithic") == (0.5, 200 / 300)
    shown = profiles.table(plan.profiles, [row])
    assert [list(column.cells) for column in shown.columns] == [["write_only"], ["8"], ["200"], ["125 (0.62)"]]
    file = tmp_path / "figures.json"
    profiles.save(plan, [row], file)
    content = json.loads(file.read_text())
    assert content["settings"]["link"] == "10g"
    found = content["rows"][0]["profiles"]["logdb"]
    assert (found["value"], found["p99_ms"], found["cpu_us"], found["rounds"]) == (125.0, 8.0, 90.0, [50.0, 200.0])
    assert content["rows"][0]["profiles"]["monolithic"]["ratio"] == 1.0
    assert "| 125 | 0.62 | 0.50-0.67 |" in report.markdown([file])


def test_a_profile_that_is_not_known_or_comes_twice_is_refused() -> None:
    assert profiles.chosen("monolithic,logdb-mv-sr") == ("monolithic", "logdb-mv-sr")
    for text in ("", "logdb,logdb", "monolithic,innodb"):
        with pytest.raises(StrataError, match="give different ones of monolithic, remote-disk, logdb"):
            profiles.chosen(text)
    with pytest.raises(StrataError, match="--link 40g: there is none, 1g, 10g, 30g, rdma25g"):
        profiles.chosen_link("40g")


def test_every_row_is_shown_and_saved_as_it_comes(tmp_path: Path) -> None:
    samples = {STRATA: [Sample(100.0, 2.0), Sample(300.0, 2.0)], INNODB: [Sample(100.0, 4.0), Sample(200.0, 4.0)]}
    row = Row("w", 8, "memory", "rows/s", samples)
    assert report.line(row) == "  w, 8 threads, memory: STRATA 200, InnoDB 150 rows/s, ratio 1.33 (1.00-1.50), p99 0.50"
    file = tmp_path / "figures.json"
    for rows in ([row], [row, row]):
        report.save(rows, {"rounds": 2}, file)
        assert len(json.loads(file.read_text())["rows"]) == len(rows)
    assert list(tmp_path.iterdir()) == [file]
    shown = report.markdown([file])
    assert shown.count("| w | 8 | memory | 200 | 150 | rows/s | 1.33 | 1.00-1.50 | 0.50 |  |") == 2
    file.write_text("{}")
    with pytest.raises(StrataError, match=r"figures\.json: not a file"):
        report.markdown([file])


def test_cpu_time_and_what_the_host_took_are_shown(tmp_path: Path) -> None:
    ours, theirs = Sample(100.0, cpu_us=40.0, stolen=0.2), Sample(100.0, cpu_us=50.0, stolen=0.1)
    row = Row("w", 8, "memory", "rows/s", {STRATA: [ours], INNODB: [theirs]})
    assert row.cpu_ratio == pytest.approx(0.8)
    assert report.line(row).endswith("ratio 1.00, cpu 0.80, 15% stolen")
    file = tmp_path / "figures.json"
    report.save([row], {}, file)
    assert "| 1.00 | 1.00-1.00 |  | 0.80 |" in report.markdown([file])
    content = json.loads(file.read_text())
    del content["rows"][0]["cpu_ratio"]  # as files of earlier versions
    file.write_text(json.dumps(content))
    assert "| 1.00 | 1.00-1.00 |  |  |" in report.markdown([file])


def test_stolen_time_is_a_share_of_all() -> None:
    before = process.MachineTime.now()
    assert 0.0 <= before.stolen_since() <= 1.0


def outcome(folder: Path, text: str) -> Outcome:
    log = folder / "log"
    log.write_text(text)
    return Outcome(0, 1.0, log)


def test_sysbench_output(tmp_path: Path) -> None:
    text = "    transactions:                        5000   (250.12 per sec.)\n         99th percentile:      12.30\n"
    assert sysbench.parse(outcome(tmp_path, text)) == Sample(250.12, 12.3)
    with pytest.raises(StrataError):
        sysbench.parse(outcome(tmp_path, "FATAL: nothing\n"))


def test_go_tpc_output_and_its_failures(tmp_path: Path) -> None:
    head = "[Summary] NEW_ORDER - Takes(s): 25.0, Count: 9, TPM: 1.0, Avg(ms): 10.2, 99th(ms): 32.5, 99.9th(ms): 48.2\n"
    assert tpcc.parse(outcome(tmp_path, head + "tpmC: 21946.3, tpmTotal: 1\n"), 8) == Sample(21946.3, 32.5)
    cancelled = "[Summary] NEW_ORDER_ERR - Takes(s): 25.0, Count: 4, TPM: 1\ntpmC: 1.0\n"
    assert tpcc.parse(outcome(tmp_path, cancelled), 8).value == 1.0
    with pytest.raises(StrataError, match="40 transactions failed"):
        tpcc.parse(outcome(tmp_path, cancelled.replace("Count: 4", "Count: 40")), 8)


def test_tpch_sources() -> None:
    created = [statement.split()[2] for statement in tpch.schema()]
    assert sorted(created) == sorted(tpch.TABLES)
    for number in tpch.QUERIES:
        text = tpch.query_text(number, 0.1)
        assert text.startswith(f"-- Q{number}, ")
        assert ":" not in text.split("\n", 1)[1], "a parameter was left open"
    assert "* 0.001\n" in tpch.query_text(11, 0.1)
    assert "* 0.00001\n" in tpch.query_text(11, 10)


def test_tpch_queries_chosen() -> None:
    assert tpch.chosen(None) == tuple(range(1, 23))
    assert tpch.chosen("Q1, 6,22") == (1, 6, 22)
    for wrong in ("0", "23", "a", ""):
        with pytest.raises(StrataError):
            tpch.chosen(wrong)


def test_warm_up_ends_when_the_rate_is_near_the_steady_one() -> None:
    counts = [0.0] * 10  # sysbench has not begun
    for step in range(100):
        counts.append(counts[-1] + min(100.0, 10.0 * (step + 1)))
    samples = [(10.0 + 0.1 * i, count) for i, count in enumerate(counts)]
    assert footprint.warm_up_s(samples) == pytest.approx(1.1, abs=0.15)
    with pytest.raises(StrataError, match="too few samples"):
        footprint.warm_up_s(samples[:14])


def test_counters_of_both_engines() -> None:
    names = {"strata_log_lsn": "5000", "strata_log_checkpoint_lsn": "1000", "strata_buffer_pool_writes": "2"}
    ours = footprint.Counters.of(STRATA, {**names, "strata_buffer_pool_dirty": "3"})
    assert ours == footprint.Counters(5000, 2 * 16384, 3, 4000)
    names = {"innodb_lsn_current": "70", "innodb_pages_written": "5", "innodb_dblwr_pages_written": "4"}
    theirs = footprint.Counters.of(INNODB, {**names, "innodb_buffer_pool_pages_dirty": "1", "innodb_checkpoint_age": "9"})
    assert theirs == footprint.Counters(70, 9 * 16384, 1, 9)


def test_transactions_of_a_run(tmp_path: Path) -> None:
    line = "    transactions:                        5000   (250.12 per sec.)\n"
    assert sysbench.transactions(outcome(tmp_path, line)) == 5000
    with pytest.raises(StrataError):
        sysbench.transactions(outcome(tmp_path, line.replace("5000", "0")))


def test_a_process_as_the_system_sees_it(tmp_path: Path) -> None:
    before = process.cpu_s(os.getpid())
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert 0.04 < process.cpu_s(os.getpid()) - before < 5
    assert process.resident_bytes(os.getpid()) > 1 << 20
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"x" * 10000)
    assert 10000 <= process.disk_bytes(tmp_path) == process.disk_bytes(tmp_path / "a" / "b") < 100000


def test_micro_times_and_limits() -> None:
    found = micro.parse(
        {
            "benchmarks": [
                {"name": "limit/sync/real_time", "real_time": 2.0, "cpu_time": 0.1, "time_unit": "us"},
                {"name": "a/b", "real_time": 9.0, "cpu_time": 3.0, "time_unit": "ns", "label": "limit: sync x4"},
                {"name": "c/iterations:7", "real_time": 9.0, "cpu_time": 3.0, "time_unit": "ns", "items_per_second": 1e8},
            ]
        }
    )
    assert found == [
        micro.Operation("limit/sync", 2000.0),
        micro.Operation("a/b", 3.0, "sync", 4),
        micro.Operation("c", 10.0),
    ]
    assert found[1].limit_ns({"sync": 2000.0}) == 8000.0
    assert micro.table(found, {"sync": 2000.0}).row_count == 3


def test_a_second_bench_is_refused(tmp_path: Path) -> None:
    lock = tmp_path / "bench" / "lock"
    with servers.alone(lock), pytest.raises(StrataError, match="another"), servers.alone(lock):
        pass
    with servers.alone(lock):
        pass


def test_figures_of_single_operations_become_a_table_with_their_limits(tmp_path: Path) -> None:
    file = tmp_path / "micro.json"
    rows = [
        {"name": "limit/memcpy_16k", "ns": 100.0, "limit": None, "limit_ns": None},
        {"name": "page/compact", "ns": 250.0, "limit": "memcpy_16k", "limit_ns": 100.0},
        {"name": "rpc/append_4k", "ns": 46000.0, "limit": None, "limit_ns": None},
    ]
    file.write_text(json.dumps({"commit": "abc", "machine": {}, "rows": rows}))
    shown = report.markdown([file])
    assert shown.startswith("Commit abc.\n")
    assert "| page/compact | 250.0 ns | memcpy_16k | 100.0 ns | 2.5 |" in shown
    assert "| rpc/append_4k | 46.0 us |  |  |  |" in shown
    assert "limit/" not in shown


def test_every_kind_of_result_is_shown(tmp_path: Path) -> None:
    restart = {"profile": "logdb", "until_commit_s": [0.5, 0.7, 0.6], "median_s": 0.6}
    variant = {"way": "tcp", "local": "16M", "policy": "fifo", "prefetch": 15}
    files = {
        "restart": {"commit": "abc", "settings": {"rounds": 3}, "rows": [restart]},
        "farmem": {"commit": "abc", "settings": {}, "rows": [{"variant": variant, "seconds": [1.0], "faults": 1200}]},
        "experiment": {
            "experiment": "e",
            "commits": ["a", "b"],
            "settings": {},
            "points": [{"variant": "LogDB", "load": "heavy"}],
        },
    }
    for name, content in files.items():
        results.write(content, tmp_path / f"{name}.json")
    shown = report.markdown([tmp_path / f"{name}.json" for name in files])
    assert "Commit abc; rounds 3." in shown and "| logdb | 0.6 |" in shown
    assert "| tcp, 16M, fifo, 15 | 1,200 |" in shown
    assert "Commit a, b." in shown and "| LogDB | heavy |" in shown


def test_a_result_has_a_row_a_line_and_reads_as_it_was(tmp_path: Path) -> None:
    content = {"commit": "abc", "machine": {"cores": 2}, "settings": None, "rows": [{"b": 0.1 + 0.2, "a": None}, {"b": [1, 2]}]}
    file = tmp_path / "new" / "a.json"
    results.write(content, file)
    assert file.read_text().splitlines()[4:7] == ['"rows": [', '{"b": 0.30000000000000004, "a": null},', '{"b": [1, 2]}']
    assert json.loads(file.read_text()) == content
    assert list(file.parent.iterdir()) == [file]


def test_changes_not_committed_are_refused_where_results_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    for unfit, said in (("abc-dirty", "changes that were not committed"), ("unknown", "not known")):
        monkeypatch.setattr(results, "commit", lambda unfit=unfit: unfit)
        kept = tmp_path / "results" / "a.json"
        with pytest.raises(StrataError, match=said):
            results.accepted(kept)
        with pytest.raises(StrataError, match=said):
            results.write({"commit": unfit, "rows": []}, kept)
        assert not kept.exists()
        assert results.accepted(tmp_path / "a.json") == tmp_path / "a.json"
        results.write({"commit": unfit, "rows": []}, tmp_path / "a.json")
    monkeypatch.setattr(results, "commit", lambda: "abc")
    assert results.accepted(kept) == kept
    assert results.accepted(None) is None


def test_a_bench_that_would_be_refused_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from strata_cli.app import app

    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setattr(results, "commit", lambda: "abc-dirty")
    monkeypatch.setattr(micro, "run", lambda *_: pytest.fail("it began"))
    found = CliRunner().invoke(app, ["bench", "micro", "--json", str(tmp_path / "a.json")])
    assert isinstance(found.exception, StrataError) and "commit first" in str(found.exception)


def test_the_commit_is_that_of_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that a bench itself writes over makes no change."""
    monkeypatch.setattr(paths, "ROOT", tmp_path)

    def git(*arguments: str) -> None:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        subprocess.run(command, check=True, capture_output=True)

    def commit() -> str:
        results.commit.cache_clear()
        return results.commit()

    try:
        assert commit() == "unknown"
        git("init", "-q")
        kept, source = tmp_path / "bench" / "results" / "a.json", tmp_path / "a.cc"
        kept.parent.mkdir(parents=True)
        for file in (kept, source):
            file.write_text("1")
        git("add", "-A")
        git("commit", "-qm", "first")
        kept.write_text("2")
        clean = commit()
        assert clean != "unknown" and not clean.endswith("-dirty")
        source.write_text("2")
        assert results.commit() == clean, "as it was when first asked"
        assert commit() == clean + "-dirty"
    finally:
        results.commit.cache_clear()


def test_what_a_process_cost_is_counted() -> None:
    before = transfers.costs_of(os.getpid())
    time.sleep(0.01)
    spent = transfers.costs_of(os.getpid()) - before
    assert spent.cpu_us > 0
    assert spent.switches >= 1, "it slept"


def test_the_rounds_of_a_build_are_one_row() -> None:
    def measured(preset: str, cpu_us: float) -> transfers.Measured:
        return transfers.Measured(preset, 1, 100.0, 1.0, {"servers": cpu_us, "memory": 10.0}, {"servers": 2.0})

    found = transfers.table([measured("before", 100.0), measured("release", 50.0), measured("before", 200.0)])
    cells = [list(column.cells) for column in found.columns]
    assert cells[0] == ["before", "release"]
    assert cells[3] == ["160", "60"]
