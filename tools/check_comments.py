#!/usr/bin/env python3
"""Comments are within the column limit, and numbered ones begin a line each.

clang-format is told to leave comments alone (ReflowComments in .clang-format): it breaks a long line of an indented or
numbered one in a way that runs the next into it. What it would have found, that a line is too long, is found here.
`--write` fills the lines of numbered rules anew where they are too long, or not indented as they should be:

    //   LG12  What state() says is of one moment: quorum_durable never
    //         goes back.
"""

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

SOURCES = (".h", ".cc")
FOLDERS = ("src", "cmd", "mariadb", "tests", "bench")
COMMENT = re.compile(r"^\s*//|\s//\s")
RULE = re.compile(r"^(\s*)//   ([A-Z]{1,3}[1-9]\d{0,2})( +)(?!(?:to|and|of|says|is)\b)(\S.*)$")
RUN_TOGETHER = re.compile(r"^\s*//.*[.;:] +[A-Z]{1,3}\d{1,3}  \S")


def column_limit(clang_format: str) -> int:
    found = re.search(r"^ColumnLimit: (\d+)", clang_format, re.MULTILINE)
    if not found:
        raise ValueError(".clang-format has no ColumnLimit")
    return int(found[1])


def continuation(line: str, indent: str) -> tuple[int, str] | None:
    """How far a line that goes on with a rule is indented behind its slashes, and what it says."""
    if not line.startswith(f"{indent}//") or RULE.match(line):
        return None
    said = line[len(indent) + 2 :]
    depth = len(said) - len(said.lstrip())
    return (depth, said.strip()) if said.strip() and depth >= 3 else None


def filled(indent: str, code: str, words: str, limit: int) -> list[str]:
    begin = f"{indent}//   {code}  "
    rest = f"{indent}//{' ' * (len(begin) - len(indent) - 2)}"
    return textwrap.wrap(
        words, limit, initial_indent=begin, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False
    )


def mended(text: str, limit: int) -> str:
    """Rules that have a list or a table inside are left alone: nobody knows how their lines belong together."""
    lines, out, at = text.split("\n"), [], 0
    while at < len(lines):
        rule = RULE.match(lines[at])
        begin, at = at, at + 1
        if not rule:
            out.append(lines[begin])
            continue
        indent, code, gap, words = rule.groups()
        depth = 3 + len(code) + len(gap)
        depths = set()
        while at < len(lines) and (more := continuation(lines[at], indent)):
            depths.add(more[0])
            words += f" {more[1]}"
            at += 1
        as_it_was = lines[begin:at]
        well = gap == "  " and depths <= {depth} and all(len(line) <= limit for line in as_it_was)
        plain = all(near == 3 or abs(near - depth) <= 2 for near in depths)
        out += as_it_was if well or not plain else filled(indent, code, words, limit)
    return "\n".join(out)


def check_text(name: str, text: str, limit: int) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > limit and COMMENT.search(line) and "://" not in line:
            yield f"{name}:{number}: the comment goes beyond column {limit}"
        if (rule := RULE.match(line)) and rule[3] != "  ":
            yield f"{name}:{number}: two spaces stand behind a rule's code (--write does it)"
        if RUN_TOGETHER.search(line):
            yield f"{name}:{number}: a numbered rule begins in the middle of a line"


def check_tree(root: Path, write: bool = False) -> list[str]:
    limit = column_limit((root / ".clang-format").read_text())
    problems: list[str] = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SOURCES:
                text = path.read_text(errors="replace")
                if write and (better := mended(text, limit)) != text:
                    path.write_text(better)
                    text = better
                problems += check_text(str(path.relative_to(root)), text, limit)
    return problems


def main() -> int:
    problems = check_tree(Path(__file__).resolve().parents[1], "--write" in sys.argv[1:])
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
