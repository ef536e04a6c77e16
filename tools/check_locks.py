#!/usr/bin/env python3
"""What mutexes guard is declared, and Clang's thread safety analysis finds nothing (base/thread_annotations.h, BA10).

Besides the analysis, with warnings as errors, over all sources that are no tests: it does reject what is wrong
(tests/lock_misuse.cc, one wrong use per number), no mutex passes it by, no comment stands where an annotation
belongs, and the places it does not look at are as many as they were. As in check_tidy.py, a file already found clean
is skipped, and many are compiled as one.
"""

import argparse
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import check_tidy

FOLDERS = ("src", "mariadb", "cmd")
FLAGS = ("-fsyntax-only", "-Wno-everything", "-Wthread-safety", "-Wthread-safety-beta", "-Werror", "-ferror-limit=0")
ESCAPE = "STRATA_NO_THREAD_SAFETY_ANALYSIS"
ESCAPES = 4  # each has its reason above it; a new one is a decision: say why, and count it here
MISUSES = 9  # numbers of tests/lock_misuse.cc
WRAPPERS = ("src/base/latch.h", "src/base/thread_annotations.h")
RAW = re.compile(r"\bstd::(mutex|timed_mutex|recursive_mutex|shared_mutex|condition_variable(_any)?|unique_lock|lock_guard)\b")
COMMENT = re.compile(r"//.*\b(guarded by|mutex_? (is )?held|with the mutex held)", re.IGNORECASE)
NOT_HELD = re.compile(r"\b(no|not|never)\b", re.IGNORECASE)


def is_test(path: Path) -> bool:
    return "testing" in path.parts or path.stem.endswith(("_test", "_fuzz", "_bench", "_test_support"))


def source_files(root: Path) -> list[Path]:
    found = [path for folder in FOLDERS for suffix in ("h", "cc") for path in (root / folder).rglob(f"*.{suffix}")]
    return sorted(path for path in found if not is_test(path.relative_to(root)))


def text_problems(root: Path) -> list[str]:
    """What can be seen without a compiler."""
    problems: list[str] = []
    escapes = 0
    for path in source_files(root):
        name = str(path.relative_to(root))
        if name in WRAPPERS:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            escapes += line.count(ESCAPE)
            if raw := RAW.search(line.split("//")[0]):
                problems.append(f"{name}:{number}: {raw[0]} passes the analysis by: use base/latch.h")
            comment = COMMENT.search(line)
            if comment and "STRATA_" not in line and not NOT_HELD.search(line):
                problems.append(f"{name}:{number}: '{comment[1]}' in a comment: say it with base/thread_annotations.h")
    if escapes != ESCAPES:
        problems.append(f"{escapes} functions are not analysed, {ESCAPES} were: see ESCAPES in tools/check_locks.py")
    return problems


def misuse_problems(root: Path) -> list[str]:
    """Whether the annotations do anything: every wrong use is found, and the right one passes."""
    problems: list[str] = []
    for number in range(MISUSES + 1):
        source = str(root / "tools" / "tests" / "lock_misuse.cc")
        command = ["clang++-14", "-std=gnu++20", "-I", str(root / "src"), f"-DMISUSE={number}", *FLAGS, source]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        others = [line for line in done.stderr.splitlines() if " error: " in line and "[-Werror,-Wthread-safety" not in line]
        if others or (done.returncode == 0) != (number == 0):
            problems.append(f"lock_misuse.cc: wrong use {number} is not what the analysis says: {done.stderr or 'nothing'}")
    return problems


class Analysis(check_tidy.Check):
    """The compiler's analysis in place of clang-tidy."""

    def run(self, group: list[check_tidy.Unit], left: float) -> subprocess.CompletedProcess[str]:
        unit = group[0]
        text = "".join(f'#include "{each.path}"\n' for each in group)
        words = [word for word in unit.arguments_for(Path("-")) if word != "-c"]
        at = words.index("-o")
        del words[at : at + 2]
        additions = sorted(set().union(*(each.additions() for each in group)))
        command = ["nice", "-n", "5", "clang++-14", *words[1:-1], *additions, *FLAGS, "-x", "c++", "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=left, cwd=unit.directory)
        clash = any(" error: " in line and "[-Werror,-Wthread-safety" not in line for line in done.stderr.splitlines())
        marked = f"{check_tidy.COMPILE_ERROR}]\n" if clash else ""
        return subprocess.CompletedProcess(command, done.returncode, done.stderr + marked, "")


def units(root: Path, database: Path) -> list[check_tidy.Unit]:
    found = check_tidy.units(root, database, FOLDERS)
    return [unit for unit in found if not is_test(unit.path.relative_to(root))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--time-limit-s", type=float, default=500)
    parser.add_argument("folders", nargs="*", help="analyse only these folders: src/btree, mariadb")
    arguments = parser.parse_args()
    root = Path(__file__).resolve().parents[1]
    cache = root / "build" / "checks" / "locks"
    cache.mkdir(parents=True, exist_ok=True)
    check_tidy.write_database(root / arguments.build, cache)
    wanted = tuple(root / folder for folder in arguments.folders) or (root,)
    sources = check_tidy.Sources(root / "src")
    chosen = [unit for unit in units(root, cache) if any(unit.path.is_relative_to(folder) for folder in wanted)]
    keys = {unit: sources.key(unit, " ".join(FLAGS).encode()) for unit in chosen}
    check = Analysis(root, cache, keys, time.monotonic() + arguments.time_limit_s)
    problems = text_problems(root) + misuse_problems(root)
    with ThreadPoolExecutor(check_tidy.JOBS) as pool:
        findings = [text for text in pool.map(check.together, check_tidy.groups_of(check.unclean(), sources)) if text]
    for text in (*problems, *findings):
        print(text.rstrip())
    print(f"{len(chosen)} files, {len(problems) + len(findings)} places with findings")
    return 1 if problems or findings else 0


if __name__ == "__main__":
    sys.exit(main())
