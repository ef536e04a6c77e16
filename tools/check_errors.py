#!/usr/bin/env python3
"""Errors are asked for by name or by class (ER3, ER6), never by Abseil's code.

Abseil calls each of our own errors "unknown", so whoever asks a Status for its code() takes them for an unknown outcome.
Tests may: they compare with codes that are Abseil's.
"""

import re
import sys
from pathlib import Path

CODE = re.compile(r"\b(?:raw_code|code)\(\)|\bStatusCode\b|\babsl::Is[A-Z]\w+\(|\babsl::\w+Error\(")
COMMENT = re.compile(r"//.*$")
ALLOWED = ("src/base/status.h", "src/base/status.cc")


def problems_of(name: str, text: str) -> list[str]:
    if name in ALLOWED or re.search(r"_test\.cc$|_test_support\.h$|/testing/", name):
        return []
    return [
        f"{name}:{number}: a status is asked for its code: use is_<name>(), error_of() or error_class()"
        for number, line in enumerate(text.splitlines(), 1)
        if CODE.search(COMMENT.sub("", line))
    ]


def check_tree(root: Path) -> list[str]:
    found: list[str] = []
    for place in ("src", "cmd", "mariadb"):
        for path in sorted((root / place).rglob("*")):
            if path.suffix in (".h", ".cc"):
                found += problems_of(path.relative_to(root).as_posix(), path.read_text())
    return found


def main() -> int:
    problems = check_tree(Path(__file__).resolve().parents[1])
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
