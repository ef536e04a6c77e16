"""What check_locks.py sees without a compiler."""

from pathlib import Path

import check_locks
import pytest


def problems(root: Path, text: str) -> list[str]:
    (root / "src").mkdir(exist_ok=True)
    (root / "src" / "file.h").write_text(text)
    return check_locks.text_problems(root)


@pytest.fixture(autouse=True)
def no_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_locks, "ESCAPES", 0)


def test_declared_members_and_plain_remarks_are_well(tmp_path: Path) -> None:
    text = "int a_ STRATA_GUARDED_BY(mutex_);  // guarded by mutex_, as it says\nvoid wait();  // with no mutex held\n"
    assert problems(tmp_path, text) == []


@pytest.mark.parametrize(
    "line",
    [
        "  std::mutex mutex_;",
        "  std::unique_lock lock(mutex_);",
        "  int a_;  // guarded by mutex_",
        "  void f();  // mutex_ held",
    ],
)
def test_what_passes_the_analysis_by_is_found(tmp_path: Path, line: str) -> None:
    assert len(problems(tmp_path, line + "\n")) == 1


def test_functions_that_are_not_analysed_are_counted(tmp_path: Path) -> None:
    assert len(problems(tmp_path, "void f() STRATA_NO_THREAD_SAFETY_ANALYSIS;\n")) == 1


def test_tests_may_do_as_they_like(tmp_path: Path) -> None:
    (tmp_path / "src" / "testing").mkdir(parents=True)
    for name in ("a_test.cc", "testing/b.h"):
        (tmp_path / "src" / name).write_text("std::mutex mutex;\n")
    assert check_locks.text_problems(tmp_path) == []
