#!/usr/bin/env python3
"""Every header of src/ compiles alone: it includes what it uses. Headers seen to compile are remembered by content."""

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FLAGS = ["-std=gnu++20", "-march=x86-64-v2", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror"]
# Lists that are included several times with a macro defined are no headers of their own, and end in .def.
JOBS_MAX = 2


def compile_alone(root: Path, header: Path) -> str:
    """Empty when it compiles, else the compiler's words."""
    source = f'#include "{header.relative_to(root / "src")}"\n'
    command = ["g++", *FLAGS, "-I", str(root / "src"), "-fsyntax-only", "-x", "c++", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True)
    return "" if done.returncode == 0 else f"{header.relative_to(root)} does not compile alone:\n{done.stderr[:2000]}"


def tree_key(root: Path) -> str:
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in sorted((root / "src").rglob("*")):
        if path.suffix in (".h", ".def"):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def main() -> int:
    root = Path(__file__).resolve().parents[1]
    stamp = root / "build" / "checks" / "headers.ok"
    key = tree_key(root)
    if stamp.exists() and stamp.read_text() == key:
        return 0
    headers = sorted((root / "src").rglob("*.h"))
    with ThreadPoolExecutor(min(JOBS_MAX, os.cpu_count() or 1)) as pool:
        problems = [text for text in pool.map(lambda h: compile_alone(root, h), headers) if text]
    for problem in problems:
        print(problem)
    if not problems:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(key)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
