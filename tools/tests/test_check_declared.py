"""Profiles are declared once: the list is read as C++ reads it, names elsewhere in code and stale tables are found."""

from pathlib import Path

import pytest
from check_declared import TABLES, Layouts, check_tree, names_in_code, options_by_hand, pages_by_hand, value_of, with_tables
from strata_cli import profile_list

NAMES = ("monolithic", "logdb")


def test_the_list_is_the_one_that_is_compiled() -> None:
    assert profile_list.MONOLITHIC == "monolithic" and "monolithic" not in profile_list.OF_CLUSTERS
    written = [profile.name for profile in profile_list.ALL if profile.pages_are_written]
    assert written[0] == "remote-disk" and profile_list.BY_NAME["logdb"].has_one_version
    pooled = [profile for profile in profile_list.ALL if profile.has_memory_nodes and not profile.has_several_writers]
    assert pooled[0].pages_are_written and not pooled[-1].pages_are_written
    with pytest.raises(ValueError, match="not as the others"):
        profile_list.parse('STRATA_PROFILE("a", kWritten)\n')


def test_a_name_in_code_is_found_and_one_in_a_comment_or_a_default_is_not() -> None:
    text = 'if (profile == "logdb") replay();\n// "logdb" has versions\n  std::string profile = "logdb";\nsay("logdb-mv");\n'
    assert names_in_code("a.cc", text, NAMES) == ['a.cc:1: ask for a trait in place of the profile "logdb" (base/profiles.h)']
    assert names_in_code("a.cc", 'json["logdb"] = said;\n', NAMES) == []


def test_tests_may_name_profiles(tmp_path: Path) -> None:
    (tmp_path / "src" / "testing").mkdir(parents=True)
    for name in ("src/a_test.cc", "src/testing/b.cc", "src/c.cc"):
        (tmp_path / name).write_text('open("logdb");\n')
    assert [problem.split(":")[0] for problem in check_tree(tmp_path, write=False)] == ["src/c.cc"]


def test_a_stale_table_is_found_and_written_anew(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "a.md"
    page.write_text("Before.\n<!-- made by tools/check_declared.py: profiles -->\n| old |\n<!-- end -->\nAfter.\n")
    assert check_tree(tmp_path, write=False) == ["docs/a.md: a table is not current: run tools/check_declared.py --write"]
    assert check_tree(tmp_path, write=True) == []
    text = page.read_text()
    assert text == with_tables(text) and text.startswith("Before.\n<!--") and text.endswith("<!-- end -->\nAfter.\n")
    assert all(f"`{name}`" in text for name in profile_list.BY_NAME) and set(TABLES) >= {"profiles", "methods"}


def test_tables_of_messages_have_every_method_and_limit() -> None:
    methods, fields, limits = (TABLES[name]() for name in ("methods", "fields", "limits"))
    assert "| 4 | `log_append` | log | compute | when it is durable | no | `2556` | log of the epoch |" in methods
    assert "| 33 | `write_pages` | written pages | compute | at once | no |" in methods
    assert "| `log_truncate` | `stream u32 \\| epoch u64 \\| below u64` | nothing |" in fields
    assert "| `kReadBytesMax` | 4u << 20 |" in limits
    assert methods.count("\n") == 2 + 61


def test_digests_of_layouts_are_those_that_are_compiled() -> None:
    """The same as in Layouts.TheSameFieldsHaveTheSameDigestEverywhere (src/proto/proto_test.cc)."""
    layouts = Layouts({"g": "x u8 | y u32", "h": "g | z u64"}, {"kMax": 7, "kTimes": 2})
    assert layouts.digest("", "") == 0x892A
    assert layouts.digest("a u8 | b text", "") == 0x0F68
    assert layouts.digest("", "a u8 | b text") == 0x5FBF
    assert layouts.digest("h", "items[kMax] { g | t text }") == 0xC542
    assert layouts.digest("r region:kTimes | s[] { g u8 }", "status | ?llsn u64") == 0xC554
    assert layouts.digest("h", "") == layouts.digest("x u8 | y u32 | z u64", "") != layouts.digest("h u8", "")
    assert layouts.digest("items[kMax] { z u64 }", "") != Layouts({}, {"kMax": 8}).digest("items[kMax] { z u64 }", "")
    with pytest.raises(KeyError):
        layouts.digest("items[kNone] { z u64 }", "")


def test_limits_are_read_as_they_are_compiled() -> None:
    assert [value_of(text) for text in ("256", "4u << 20", "60'000'000", "1")] == [256, 4 << 20, 60_000_000, 1]
    assert Layouts.declared().values["kPageWaitUsMax"] == 60_000_000 and Layouts.declared().values["kTableLayout"] >= 1


def test_options_of_a_call_made_by_hand_are_found(tmp_path: Path) -> None:
    by_hand = "  transport::CallOptions call;\n  const CallOptions options{.method = kRead};\n  CallOptions other = {};\n"
    assert [problem.split(":")[1] for problem in options_by_hand("a.cc", by_hand)] == ["1", "2", "3"]
    fine = "CallOptions call_of(uint16_t method);\nvoid ask(const CallOptions& call);\n// CallOptions call;\n"
    assert not options_by_hand("a.cc", fine)
    for folder in ("src/clients", "src/transport"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.cc").write_text(by_hand)
    assert {problem.split(":")[0] for problem in check_tree(tmp_path, write=False)} == {"src/clients/a.cc"}


def test_a_page_named_by_hand_is_found() -> None:
    by_hand = 'return error("page " + std::to_string(id.space) +\n   ":" + std::to_string(id.number));\n'
    assert [problem.split(":")[1] for problem in pages_by_hand("a.cc", "x();\n" + by_hand)] == ["2"]
    assert not pages_by_hand("a.cc", 'log("space " + std::to_string(id.space) + " is gone");\n')
