"""The files that `--json` writes: a line for each row, so that a difference between two runs can be read.

bench/results holds those that documents cite. What is written there names the commit that it is of: neither a copy with changes
that were not committed nor an unknown commit is accepted, before anything is measured.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from .. import paths
from ..shell import StrataError, capture

FOLDER = paths.ROOT / "bench" / "results"
DIRTY = "-dirty"
UNKNOWN = "unknown"


def text(content: Mapping[str, Any]) -> str:
    """JSON, each key on a line of its own and each row (of any list of objects), in the order in which they are given."""
    parts = [f"{json.dumps(key)}: {_value(value)}" for key, value in content.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _value(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
        return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
    return json.dumps(value)


def write(content: Mapping[str, Any], file: Path) -> None:
    _accepted(file, commits(content))
    put(content, file)


def put(content: Mapping[str, Any], file: Path) -> None:
    """Whole, or what was there before. Also of what was measured earlier, and is only said anew."""
    file.parent.mkdir(parents=True, exist_ok=True)
    whole = file.with_name(file.name + ".new")
    whole.write_text(text(content))
    whole.replace(file)


def measured(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], machine: Mapping[str, Any]) -> dict[str, Any]:
    """What every benchmark leaves: where and with what the rows were measured, and the rows."""
    return {"commit": commit(), "machine": machine, "settings": settings, "rows": list(rows)}


@cache
def commit() -> str:
    """Of the sources as they were when it was first asked. Files in bench/results, which a bench itself may write, do not count
    as changes."""
    head = capture(["git", "-C", paths.ROOT, "rev-parse", "--short", "HEAD"])
    if head.returncode != 0:
        return UNKNOWN
    changes = capture(["git", "-C", paths.ROOT, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results"])
    return head.stdout.strip() + (DIRTY if changes.returncode != 0 or changes.stdout.strip() else "")


def accepted(file: Path | None) -> Path | None:
    """The file that `--json` names, or why it cannot be written: asked before a bench begins."""
    if file is not None:
        _accepted(file, [commit()])
    return file


def _accepted(file: Path, found: Sequence[str]) -> None:
    if file.resolve().parent == FOLDER.resolve() and (why := unfit(found)):
        raise StrataError(f"{paths.relative(file.resolve())}: {why}; commit first, or write to a file elsewhere")


def unfit(commits: Sequence[str]) -> str:
    """Why nobody could measure the same again, or nothing."""
    if any(one.endswith(DIRTY) for one in commits):
        return "results kept in bench/results are of a commit, and here are changes that were not committed"
    if not commits or UNKNOWN in commits:
        return "results kept in bench/results are of a commit, and it is not known which this is"
    return ""


def commits(content: Mapping[str, Any]) -> list[str]:
    """An experiment may be of several."""
    return list(content["commits"]) if "commits" in content else [content["commit"]]
