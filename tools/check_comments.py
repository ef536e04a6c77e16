#!/usr/bin/env python3
"""Comments are within the column limit, and numbered ones begin a line each.

clang-format is told to leave comments alone (ReflowComments in .clang-format): it breaks a long line of an indented or
numbered one in a way that runs the next into it. What it would have found, that a line is too long, is found here.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCES = (".h", ".cc")
FOLDERS = ("src", "cmd", "mariadb", "tests", "bench")
COMMENT = re.compile(r"^\s*//|\s//\s")
RUN_TOGETHER = re.compile(r"^\s*//.*[.;:] +[A-Z]{1,3}\d{1,3}  \S")


def column_limit(clang_format: str) -> int:
    found = re.search(r"^ColumnLimit: (\d+)", clang_format, re.MULTILINE)
    if not found:
        raise ValueError(".clang-format has no ColumnLimit")
    return int(found[1])


def check_text(name: str, text: str, limit: int) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > limit and COMMENT.search(line) and "://" not in line:
            yield f"{name}:{number}: the comment goes beyond column {limit}"
        if RUN_TOGETHER.search(line):
            yield f"{name}:{number}: a numbered rule begins in the middle of a line"


def check_tree(root: Path) -> list[str]:
    limit = column_limit((root / ".clang-format").read_text())
    problems: list[str] = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SOURCES:
                problems += check_text(str(path.relative_to(root)), path.read_text(errors="replace"), limit)
    return problems


def main() -> int:
    problems = check_tree(Path(__file__).resolve().parents[1])
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
