#!/usr/bin/env python3
"""Every numbered rule (K9, LG12) is defined once in the repository, and every citation of one finds its definition.

A rule is defined where a line of a comment is indented by three and has two spaces behind the code, or where an item of a
list in Markdown begins with the code in bold letters:

    //   LG12  What state() says is of one moment.
    - **LG12** What state() says is of one moment.

Anywhere else in a comment or in Markdown a code is a citation, alone or as an end of a range (LG1-LG13, LG1 to LG13). A
README that repeats a header's rule cites it: "- LG12 ...", without bold letters. What looks like a code and is none (a query
of a benchmark, a library) is in tools/invariants.toml, with the reason. What is frozen (ADRs, the changelog) is
not looked at.
"""

import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

CODE = r"[A-Z]{1,3}[1-9]\d{0,2}"
DEFINITION_COMMENT = re.compile(rf"^\s*//   ({CODE})  (?=\S)")
DEFINITION_MARKDOWN = re.compile(rf"^\s*- \*\*({CODE})(?: \([^)]*\))?\*\*")
# Not as a part of a word, a number or an expression, but as the second end of LG1-LG13.
CITATION = re.compile(rf"(?<![\w.#$%&=+<-])({CODE})(?![\w(=]|\.\d|-\d)|(?<=\d-)({CODE})(?!\w)")
MESSAGE_OF_A_TEST = re.compile(rf'<< "({CODE})\b')
CPP = (".h", ".cc", ".def")
HASH_COMMENTS = (".toml", ".cmake", ".test", ".inc", ".cnf", ".txt")
FOLDERS = ("bench", "cmake", "cmd", "docs", "mariadb", "src", "tests", "tools")
FROZEN = ("docs/adr/", "docs/history/", "changelog/", "CHANGELOG.md", "bench/results/")


@dataclass(frozen=True)
class Place:
    name: str
    line: int

    def __str__(self) -> str:
        return f"{self.name}:{self.line}"


@dataclass(frozen=True)
class NoCode:
    """Texts that match are no citations, in files whose names match."""

    text: re.Pattern[str]
    files: re.Pattern[str]

    def covers(self, code: str, name: str) -> bool:
        return bool(self.text.fullmatch(code) and self.files.search(name))


@dataclass
class Codes:
    definitions: dict[str, list[Place]] = field(default_factory=dict)
    citations: dict[str, list[Place]] = field(default_factory=dict)


def load_exceptions(text: str) -> list[NoCode]:
    table = tomllib.loads(text).get("no_code", [])
    for row in table:
        if not row.get("why"):
            raise ValueError(f"invariants.toml: {row} has no reason")
    return [NoCode(re.compile(row["text"]), re.compile(row.get("files", ""))) for row in table]


def python_prose(text: str) -> Iterator[tuple[int, str]]:
    """Comments and strings over several lines, which are documentation more often than not."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.startswith('"""')):
                yield from enumerate(token.string.split("\n"), token.start[0])
    except (tokenize.TokenError, SyntaxError):
        return  # ruff says so.


def prose(name: str, text: str) -> Iterator[tuple[int, str]]:
    """The lines, by number, in which codes are looked for."""
    suffix = Path(name).suffix
    if suffix == ".py":
        yield from python_prose(text)
        return
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        if suffix == ".md":
            fenced ^= line.lstrip().startswith("```")
            if not fenced:
                yield number, line
        else:
            mark = "//" if suffix in CPP else "#"
            at = re.search(rf"(?:^|\s){re.escape(mark)}", line)
            if at:
                yield number, line[at.start() :]
            elif suffix == ".cc" and (message := MESSAGE_OF_A_TEST.search(line)):
                yield number, message[1]


def scan(files: Iterable[tuple[str, str]], exceptions: list[NoCode]) -> Codes:
    codes = Codes()
    for name, text in files:
        defines = DEFINITION_MARKDOWN if name.endswith(".md") else DEFINITION_COMMENT if name.endswith(CPP) else None
        for number, line in prose(name, text):
            place = Place(name, number)
            begun = 0
            if defines and (match := defines.match(line)):
                codes.definitions.setdefault(match[1], []).append(place)
                begun = match.end(1)
            for match in CITATION.finditer(line, begun):
                code = match[1] or match[2]
                if not any(exception.covers(code, name) for exception in exceptions):
                    codes.citations.setdefault(code, []).append(place)
    return codes


def problems(codes: Codes) -> list[str]:
    found: list[str] = []
    for code, places in codes.definitions.items():
        if len(places) > 1:
            found.append(f"{places[1]}: {code} is defined at {places[0]} already")
    for code, places in codes.citations.items():
        if code not in codes.definitions:
            found += [f"{place}: {code} is defined nowhere" for place in places]
    return sorted(found)


def sources(root: Path) -> Iterator[tuple[str, str]]:
    places = [place for folder in FOLDERS for place in (root / folder).rglob("*")]
    for path in sorted([*places, *root.iterdir()]):
        name = str(path.relative_to(root))
        if path.suffix in (*CPP, *HASH_COMMENTS, ".md", ".py") and not name.startswith(FROZEN) and path.is_file():
            yield name, path.read_text(errors="replace")


def main() -> int:
    root = Path(__file__).resolve().parents[1]
    exceptions = load_exceptions((root / "tools" / "invariants.toml").read_text())
    found = problems(scan(sources(root), exceptions))
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
