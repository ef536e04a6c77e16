"""The manual is compared with what is declared: settings, errors and their numbers, status variables, columns."""

from pathlib import Path

import pytest
from check_manual import DeclarationError, Setting, Tree, check_tree, errors_of, handler_errors_of, settings_of

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = """// STRATA_SETTING_COUNT(name, default, least, most, why)
STRATA_SETTING_TEXT (data_dir, "#strata", "Folder of the data; in it, files")
STRATA_SETTING_BYTES(pool_size, 128ULL << 20, 8ULL << 20, 1ULL << 46, 1 << 20, "Memory (cached, "
                     "for pages)")
STRATA_SETTING_LIVE (at_commit, 1, 0, 2, "1: durable; 0 and 2: in the background, for seconds")
STRATA_SETTING_USER (wait, 50, 0, 100000000, "Seconds a statement waits for files")
STRATA_SETTING_SWITCH(careful, false,
                      "Be careful")
"""


def test_settings_are_read_with_unit_default_and_range() -> None:
    found = settings_of(SETTINGS)
    assert [(s.name, s.unit, s.default, s.range) for s in found] == [
        ("data_dir", "text", "`#strata`", ""),
        ("pool_size", "bytes", "128 MiB", "8 MiB to 64 TiB"),
        ("at_commit", "a choice", "1", "0 to 2"),
        ("wait", "seconds", "50", "0 to 100\u202f000\u202f000"),
        ("careful", "`ON` or `OFF`", "`OFF`", ""),
    ]
    assert found[1].text == "Memory (cached, for pages)"


def test_a_number_without_a_unit_is_found() -> None:
    with pytest.raises(DeclarationError, match="the text of many names no unit"):
        _ = Setting("COUNT", "many", ("1", "0", "99"), "How many there may be").unit


def test_every_setting_and_error_that_is_declared_is_read() -> None:
    tree = Tree(ROOT)
    settings = (ROOT / "mariadb" / "settings.def").read_text()
    errors = (ROOT / "src" / "base" / "errors.def").read_text()
    assert len(tree.settings) == sum(line.startswith("STRATA_SETTING_") for line in settings.splitlines())
    assert len(tree.errors) == sum(line.startswith("STRATA_ERROR(") for line in errors.splitlines())
    assert set(tree.handler_errors) == {error.name for error in tree.errors} | {"ok"}


def test_numbers_of_errors_follow_the_map() -> None:
    text = """Mapped mapped(const Status& status) {
  switch (error_of(status)) {
    case Error::deadlock:
      return says_something ? Mapped{HA_ERR_ROLLBACK, "rolled back"} : Mapped{HA_ERR_LOCK_DEADLOCK};
    case Error::peer_down:
    case Error::timed_out:
      return {HA_ERR_NO_CONNECTION, "not reachable", true};
  }
}
"""
    assert handler_errors_of(text) == {
        "deadlock": ("HA_ERR_LOCK_DEADLOCK", False),
        "peer_down": ("HA_ERR_NO_CONNECTION", True),
        "timed_out": ("HA_ERR_NO_CONNECTION", True),
    }
    assert errors_of('STRATA_ERROR(busy, 35, retry, "too much, already", "try (again)")\n')[0].remedy == "try (again)"


def small_tree(root: Path, page: str) -> None:
    """A copy of what is declared, and a manual of one page."""
    for name in ("settings.def", "error_map.cc", "cluster.cc", "shared_statistics.cc", "information.cc"):
        place = f"mariadb/{name}"
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text((ROOT / place).read_text())
    for place in ("src/base/errors.def", "src/engine/status.cc"):
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text((ROOT / place).read_text())
    (root / "docs" / "manual").mkdir(parents=True)
    (root / "docs" / "manual" / "a.md").write_text(page)


def test_what_is_missing_stale_or_invented_is_found(tmp_path: Path) -> None:
    page = (
        "<!-- made by tools/check_manual.py: error deadlock -->\nold\n<!-- end -->\n"
        "`Strata_trouble` `Strata_nonsense` `strata_data_dir` `strata_nonsense=1`\n"
        "| column | what |\n|---|---|\n| `TRX_ID` | it |\n| `NONSENSE` | not it |\n"
    )
    small_tree(tmp_path, page)
    found = "\n".join(check_tree(tmp_path, write=False))
    for problem in (
        "docs/manual/a.md: a part is not current",
        "no page has the part error lock_wait_timeout",
        "no page has the part variables of a server",
        "this status variable is not described: Strata_log_lsn",
        "there is no status variable Strata_nonsense",
        "this column of information_schema is not described: WAITED_MS",
        "no table of information_schema has a column NONSENSE",
        "there is no variable strata_nonsense",
    ):
        assert problem in found
    for fine in ("error deadlock\n", "Strata_trouble", "described: TRX_ID", "strata_data_dir"):
        assert fine not in found
    check_tree(tmp_path, write=True)
    assert "Error 1213 (`ER_LOCK_DEADLOCK`)" in (tmp_path / "docs" / "manual" / "a.md").read_text()


def test_a_part_that_nobody_makes_is_found(tmp_path: Path) -> None:
    small_tree(tmp_path, "<!-- made by tools/check_manual.py: error nonsense -->\n<!-- end -->\n")
    assert check_tree(tmp_path, write=False) == ["nothing is called 'error nonsense'"]
