#!/usr/bin/env python3
"""docs/performance.md says what its result files say, and bench/results holds what documents cite, and nothing else.

A file there has a row a line, and is of a commit; where it is of a copy with changes that were not committed,
bench/performance.toml says why it is kept all the same. `--write` formats the files.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from strata_cli.bench import performance, results
from strata_cli.shell import StrataError

CITED = re.compile(r"\b\d{4}-\d\d-\d\d-[\w.-]+\.(?:json|png)\b")
PAGE = re.compile(r"bench/results/([\w.-]+)\.md\b")
KINDS = (".json", ".md", ".png")


def cited(root: Path) -> dict[str, str]:
    """Results by name without the ending, and the document that cites each. A page of bench/results stands for its figures."""
    found: dict[str, str] = {}
    for document in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        if document.exists():
            text = document.read_text()
            names = [Path(name).stem for name in CITED.findall(text)] + PAGE.findall(text)
            found.update({name: str(document.relative_to(root)) for name in names if name != "README"})
    return found


def check_citations(root: Path) -> Iterator[str]:
    wanted = cited(root)
    files = sorted(p for p in (root / "bench" / "results").iterdir() if p.name != "README.md")
    for file in files:
        if file.suffix not in KINDS or file.stem not in wanted:
            yield f"bench/results/{file.name}: no document cites it"
    held = {file.stem for file in files if file.suffix == ".json"}
    yield from (f"{document}: {name}.json is not in bench/results" for name, document in wanted.items() if name not in held)


def check_files(root: Path, uncommitted: set[str]) -> Iterator[str]:
    unfit = set()
    for file in sorted((root / "bench" / "results").glob("*.json")):
        text = file.read_text()
        content = json.loads(text)
        if text != results.text(content):
            yield f"bench/results/{file.name}: not a row a line (--write does it)"
        if results.unfit(results.commits(content)):
            unfit.add(file.name)
    yield from (
        f"bench/results/{name}: not of a commit, and performance.toml does not say why it is kept"
        for name in sorted(unfit - uncommitted)
    )
    yield from (f"performance.toml: {name} is of a commit, or not there" for name in sorted(uncommitted - unfit))


def check_tree(root: Path) -> list[str]:
    try:
        uncommitted = set(performance.listing(root).uncommitted)
        return [*check_citations(root), *check_files(root, uncommitted), *performance.problems(root)]
    except (StrataError, OSError, ValueError, KeyError) as error:
        return [f"a file of results cannot be read: {error}"]


def main() -> int:
    root = Path(__file__).resolve().parents[1]
    if "--write" in sys.argv:
        for file in sorted((root / "bench" / "results").glob("*.json")):
            results.put(json.loads(file.read_text()), file)
    problems = check_tree(root)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
