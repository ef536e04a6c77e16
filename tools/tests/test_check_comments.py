"""check_comments finds long comments and rules that were run together, and nothing else."""

from pathlib import Path

from check_comments import check_text, check_tree, column_limit, mended

LIMIT = 100


def test_a_comment_beyond_the_limit_is_found_and_long_code_is_left_to_clang_format() -> None:
    comment = "  // " + "word " * 30
    code = '  auto text = "' + "word " * 30 + '";'
    found = list(check_text("a.h", f"{comment}\n{code}\nint x;  // {'y' * 100}\n// https://{'z' * 100}\n", LIMIT))
    assert found == ["a.h:1: the comment goes beyond column 100", "a.h:3: the comment goes beyond column 100"]


def test_a_rule_that_begins_in_the_middle_of_a_line_is_found() -> None:
    text = "//   L2  The old list holds\n//   it. L3  A young page is moved.\n"
    assert list(check_text("a.h", text, LIMIT)) == ["a.h:2: a numbered rule begins in the middle of a line"]


def test_citations_are_no_beginnings() -> None:
    text = "// B2 and the seal, at every write (L3).\n//   L1  First. L2 holds, too.\n"
    assert not list(check_text("a.h", text, LIMIT))


def test_the_limit_is_the_one_of_clang_format(tmp_path: Path) -> None:
    (tmp_path / ".clang-format").write_text("BasedOnStyle: Google\nColumnLimit: 40\n")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.cc").write_text("// " + "x" * 50 + "\n")
    assert column_limit("ColumnLimit: 40\n") == 40
    assert check_tree(tmp_path) == ["src/a.cc:1: the comment goes beyond column 40"]


def test_a_rule_is_filled_anew_and_one_that_is_well_stays() -> None:
    text = "//   L2 The old list holds at least\n//   some of\n//      the pages: they age.\n//   L10  Well as it is.\nint x;\n"
    assert mended(text, 40) == (
        "//   L2  The old list holds at least\n//       some of the pages: they age.\n//   L10  Well as it is.\nint x;\n"
    )
    table = "//   L3 States:\n//            a  1\n//            b  2\n"
    assert mended(table, 40) == table
    assert list(check_text("a.h", table, LIMIT)) == ["a.h:1: two spaces stand behind a rule's code (--write does it)"]


def test_a_sentence_that_begins_with_codes_is_no_rule() -> None:
    text = "  //   L2 and L3 hold, and this goes on and on\n  //   for long.\n"
    assert mended(text, 30) == text and not [p for p in check_text("a.h", text, LIMIT) if "spaces" in p]
