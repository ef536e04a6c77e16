#!/usr/bin/env python3
"""Every folder with sources has a README.md for somebody from outside: what it is for in three or four sentences, and an example.

    # name: what it is
    ## Purpose    its first paragraph: what the folder does, for whom, what would break without it
    ## Example    one case, worked out with numbers

A folder below those of REQUIRED is described by the README above it, or has one of its own, in the same form.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

PLACES = ("src", "cmd", "mariadb", "bench", "tests")
REQUIRED = ("mariadb", "src/*", "src/clients/*", "src/storenode/*", "cmd/*", "bench/*", "tests/*", "tests/e2e/crash")
SOURCES = {".h", ".cc", ".py"}
ELSEWHERE = ("bench/results", "mariadb/mysql-test")  # data: check_results.py; the server's own form
PURPOSE_SENTENCES = range(3, 5)
EXAMPLE_CHARS_MIN = 150

SECTION = re.compile(r"^## (\w+)[^\n]*\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
SENTENCE_END = re.compile(r"[.!?][)`*]*(?=\s+[A-Z`*(]|\s*$)")


def problems_of(text: str) -> Iterator[str]:
    if not re.match(r"# \S[^\n]*\n", text):
        yield "begins with no title"
    sections = {name: body.strip() for name, body in SECTION.findall(text)}
    purpose = sections.get("Purpose")
    if purpose is None:
        yield "has no section 'Purpose'"
    else:
        sentences = len(SENTENCE_END.findall(purpose.split("\n\n")[0]))
        if sentences not in PURPOSE_SENTENCES:
            yield f"'Purpose' opens with {sentences} sentences: what it does, for whom, what would break without it"
    example = sections.get("Example")
    if example is None:
        yield "has no section 'Example'"
    elif len(example) < EXAMPLE_CHARS_MIN or not re.search(r"\d", example):
        yield "'Example' is not worked out, with numbers"


def required_folders(root: Path) -> Iterator[Path]:
    for pattern in REQUIRED:
        for folder in root.glob(pattern):
            if folder.is_dir() and any(p.suffix in SOURCES for p in folder.iterdir()):
                yield folder


def readmes(root: Path) -> Iterator[Path]:
    for place in PLACES:
        for readme in (root / place).rglob("README.md"):
            if not readme.relative_to(root).as_posix().startswith(ELSEWHERE):
                yield readme


def check_tree(root: Path) -> list[str]:
    missing = [folder for folder in sorted(required_folders(root)) if not (folder / "README.md").exists()]
    problems = [f"{folder.relative_to(root).as_posix()}: README.md is missing" for folder in missing]
    for readme in sorted(readmes(root)):
        problems += [f"{readme.relative_to(root).as_posix()} {problem}" for problem in problems_of(readme.read_text())]
    return problems


def main() -> int:
    problems = check_tree(Path(__file__).resolve().parents[1])
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
