"""check_readmes finds folders without a README, and those that do not open for somebody from outside."""

from pathlib import Path

from check_readmes import check_tree, problems_of
from strata_cli import paths

GOOD = """# x: what it is

## Purpose
It keeps things. The folder above takes them from here, e.g. with `take()`. Without it they would be lost (all of them).

More about it. And more. And more. And more.

## Example
A caller puts 3 things of 16 bytes each, takes 1 away, and finds 2; after a crash, whenever it comes, there are 2 or 3 of
them, and the one that was taken away never comes back.
"""


def test_the_form_that_is_asked_for() -> None:
    assert not list(problems_of(GOOD))


def test_what_is_missing_is_named() -> None:
    def found(text: str) -> list[str]:
        return list(problems_of(text))

    assert found("x\n" + GOOD.split("\n", 1)[1]) == ["begins with no title"]
    assert found(GOOD.replace("## Purpose", "## Aim")) == ["has no section 'Purpose'"]
    assert found(GOOD.replace("## Example", "## Case")) == ["has no section 'Example'"]
    short = GOOD.replace("It keeps things. ", "")
    assert len(found(short)) == 1 and "opens with 2 sentences" in found(short)[0]
    for vague in (GOOD.replace("3", "some").replace("16", "few").replace("1 away", "one away").replace("2", "two"), GOOD[:-100]):
        assert found(vague) == ["'Example' is not worked out, with numbers"]


def test_folders_with_sources_need_one(tmp_path: Path) -> None:
    for name in ("src/a", "src/a/deep", "src/storenode/b", "src/empty", "tests/c", "tests/e2e/crash"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("src/a/a.cc", "src/a/deep/d.cc", "src/storenode/b/b.h", "tests/c/c.py", "tests/e2e/crash/run.py"):
        (tmp_path / name).write_text("")
    missing = ["src/a", "src/storenode/b", "tests/c", "tests/e2e/crash"]
    assert check_tree(tmp_path) == [f"{name}: README.md is missing" for name in missing]
    for name in missing:
        (tmp_path / name / "README.md").write_text(GOOD)
    (tmp_path / "src" / "a" / "deep" / "README.md").write_text("# nothing\n")  # One that is there has the form.
    assert [problem.split(" ")[0] for problem in check_tree(tmp_path)] == ["src/a/deep/README.md"] * 2


def test_the_projects_own() -> None:
    assert check_tree(paths.ROOT) == []
