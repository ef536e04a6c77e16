"""check_results finds tables that are not what their files say, and results that nobody cites or could measure again."""

from pathlib import Path
from typing import Any

import pytest
from check_results import check_tree
from strata_cli.bench import performance, results
from strata_cli.shell import StrataError

MACHINE = {"processor": "a machine", "cores": 2}
DOCUMENT = "# How fast\n\n<!-- made by ./strata bench page: writes -->\n<!-- end -->\n\nFaster than before.\n"
LISTING = """
[[table]]
name = "writes"
command = "./strata bench sysbench"
files = ["2026-01-02-new.json", "2026-01-01-old.json"]
again = ["2026-01-03-again.json"]
below = [{ rows = ["delete"], why = "It does more." }]
"""


def row(workload: str, ratio: float, spread: tuple[float, float], threads: int = 8, **more: Any) -> dict[str, Any]:
    found = {"workload": workload, "threads": threads, "strata": 100.0 * ratio, "innodb": 100.0, "ratio": ratio}
    return {**found, "unit": "x/s", "spread": list(spread), "notes": {}, "p99_ratio": 0.5, "cpu_ratio": None, **more}


def keep(root: Path, name: str, *rows: dict[str, Any], commit: str = "abc") -> None:
    content = {"commit": commit, "machine": MACHINE, "settings": {"rounds": 5, "seconds": 3}, "rows": list(rows)}
    results.put(content, root / "bench" / "results" / f"{name}.json")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout whose page is current."""
    (tmp_path / "docs" / "history").mkdir(parents=True)
    keep(tmp_path, "2026-01-01-old", row("insert", 1.2, (1.1, 1.3)), row("delete", 2.0, (2.0, 2.0)))
    keep(tmp_path, "2026-01-02-new", row("delete", 0.9, (0.8, 0.95)), row("write_only", 0.97, (0.9, 1.1)))
    keep(tmp_path, "2026-01-03-again", row("delete", 0.8, (0.7, 0.9)))
    (tmp_path / "bench" / "performance.toml").write_text(LISTING)
    (tmp_path / "docs" / "performance.md").write_text(DOCUMENT)
    remake(tmp_path)
    assert check_tree(tmp_path) == []
    return tmp_path


def remake(root: Path) -> str:
    performance.write(root)
    return (root / "docs" / "performance.md").read_text()


def listing(root: Path, before: str, after: str) -> None:
    file = root / "bench" / "performance.toml"
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))
    remake(root)


def test_a_row_is_of_the_first_file_that_has_it(root: Path) -> None:
    made = (root / "docs" / "performance.md").read_text()
    assert "| workload | STRATA, x/s | InnoDB, x/s | ratio | spread | p99 | again: ratio (spread), p99, cpu | of |" in made
    assert "| write_only | 97.00 | 100 | 0.97 | 0.90-1.10 | 0.50 |  | a |" in made
    assert "| insert | 120 | 100 | 1.20 | 1.10-1.30 | 0.50 |  | b |" in made
    assert "| delete | 90.00 | 100 | 0.90 | 0.80-0.95 | 0.50 | 0.80 (0.70-0.90), 0.50 | a |" in made
    assert "- a: `2026-01-02-new.json` (commit abc; 5 rounds of 3 s; a machine, 2 cores)\n" in made
    assert made.startswith("# How fast\n") and made.endswith("\nFaster than before.\n")


def test_what_is_below_one_in_every_round_needs_a_reason(root: Path) -> None:
    made = (root / "docs" / "performance.md").read_text()
    assert "- Below 1: **delete (0.90)**. It does more.\n" in made
    assert "- Below 1, but not in every round: write_only (0.97).\n" in made
    listing(root, 'rows = ["delete"]', 'rows = ["insert"]')
    assert check_tree(root) == [
        "performance.toml, writes: 'insert' is said to be below 1, and is not, or is not there",
        "performance.toml, writes: 'delete' is below 1 (0.90) in every round: say why",
    ]


def test_rows_of_several_numbers_of_clients_are_named_with_them(root: Path) -> None:
    rows = [row("delete", 0.9, (0.8, 0.95)), row("delete", 0.7, (0.6, 0.8), threads=64)]
    keep(root, "2026-01-02-new", *rows)
    listing(root, '["delete"]', '["delete at 8", "delete at 64"]')
    assert check_tree(root) == []
    made = (root / "docs" / "performance.md").read_text()
    assert "**delete at 8 (0.90), delete at 64 (0.70)**" in made
    assert "| delete | 64 | 70.00 |" in made


def test_a_table_that_is_not_what_its_file_says_is_found(root: Path) -> None:
    document = root / "docs" / "performance.md"
    document.write_text(document.read_text().replace("| 1.20 |", "| 1.30 |"))
    assert check_tree(root) == [
        "docs/performance.md: its tables are not what their files say; ./strata bench page makes them anew"
    ]


def test_tables_and_list_have_the_same_names(root: Path) -> None:
    document = root / "docs" / "performance.md"
    document.write_text(document.read_text().replace("page: writes", "page: reads"))
    found = check_tree(root)
    assert "performance.md: table reads is not in performance.toml" in found
    assert "performance.toml: table writes is 0 times in performance.md" in found


def test_a_file_that_gives_no_row_goes(root: Path) -> None:
    keep(root, "2026-01-02-new", row("delete", 0.9, (0.8, 0.95)), row("insert", 1.0, (0.9, 1.1)))
    remake(root)
    assert check_tree(root) == ["performance.toml, writes: 2026-01-01-old.json gives no row, others come before it"]
    keep(root, "2026-01-02-new", row("delete", 0.9, (0.8, 0.95)))
    keep(root, "2026-01-03-again", row("select", 1.0, (0.9, 1.1)))
    remake(root)
    assert check_tree(root) == ["performance.toml, writes: 2026-01-03-again.json repeats no row"]


def test_a_result_that_no_document_cites_and_one_that_is_gone_are_found(root: Path) -> None:
    keep(root, "2026-01-04-more", row("insert", 1.0, (0.9, 1.1)))
    assert check_tree(root) == ["bench/results/2026-01-04-more.json: no document cites it"]
    (root / "docs" / "history" / "more.md").write_text("See `2026-01-04-more.json` and 2026-01-05-gone.json.\n")
    assert check_tree(root) == ["docs/history/more.md: 2026-01-05-gone.json is not in bench/results"]


def test_a_page_of_results_is_cited_with_its_figures(root: Path) -> None:
    keep(root, "2026-01-04-fig", row("insert", 1.0, (0.9, 1.1)))
    for kind in (".md", ".png"):
        (root / "bench" / "results" / f"2026-01-04-fig{kind}").write_text("")
    (root / "docs" / "experiments.md").write_text("[page](../bench/results/2026-01-04-fig.md)\n")
    assert check_tree(root) == []


def test_changes_not_committed_want_a_reason_which_the_page_gives(root: Path) -> None:
    keep(root, "2026-01-01-old", row("insert", 1.2, (1.1, 1.3)), commit="abc-dirty")
    remake(root)
    wanted = ["bench/results/2026-01-01-old.json: not of a commit, and performance.toml does not say why it is kept"]
    assert check_tree(root) == wanted
    with (root / "bench" / "performance.toml").open("a") as file:
        file.write('[uncommitted]\n"2026-01-01-old.json" = "the only one"\n')
    assert "**with changes that were not committed**: the only one)" in remake(root)
    assert check_tree(root) == []
    keep(root, "2026-01-01-old", row("insert", 1.2, (1.1, 1.3)))
    remake(root)
    assert check_tree(root) == ["performance.toml: 2026-01-01-old.json is of a commit, or not there"]


def test_a_file_that_is_not_a_row_a_line_is_found(root: Path) -> None:
    file = root / "bench" / "results" / "2026-01-02-new.json"
    file.write_text(file.read_text().replace("\n", " "))
    assert check_tree(root) == ["bench/results/2026-01-02-new.json: not a row a line (--write does it)"]


def test_what_cannot_be_read_is_said(root: Path) -> None:
    (root / "bench" / "results" / "2026-01-02-new.json").write_text("{")
    assert check_tree(root)[0].startswith("a file of results cannot be read: ")
    (root / "bench" / "performance.toml").write_text("[[table]]\n")
    with pytest.raises(StrataError, match="cannot be read"):
        performance.listing(root)


def test_profiles_stand_beside_the_first_one() -> None:
    base = {"value": 100.0, "ratio": 1.0, "spread": [1.0, 1.0], "p99_ms": 2.0, "cpu_us": 50.0}
    other = {"value": 60.0, "ratio": 0.6, "spread": [0.5, 0.7], "p99_ms": 4.0, "cpu_us": 90.0}
    rows = [{"workload": "write_only", "threads": 8, "profiles": {"monolithic": base, "logdb": other}}]
    head, shown = performance._profiles([("a", rows[0])], rows, False)
    assert head[2:5] == ["monolithic", "cpu, us", "profile"]
    assert shown[0].cells[2:] == ("100", "50.00", "logdb", "60.00", "90.00", "0.60", "0.50-0.70", "2.00", "0.60 (0.50-0.70)")
    assert shown[0].name == "write_only on logdb"
