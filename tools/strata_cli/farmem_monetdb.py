"""MonetDB as a library within a process, unmodified, for experiments with far memory.

PyPI's monetdbe has wheels for Python 3.9 and 3.10 only. What is taken of one is MonetDB's own libraries, which know nothing of
Python: bench/tpch_in_monetdb.py calls them. Unpacked under build/monetdb and never installed.
"""

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from . import paths
from .shell import StrataError

PACKAGE, WHEEL_OF = "monetdbe==0.11", "3.10"
FOLDER = paths.BUILD / "monetdb"
LIBRARIES = FOLDER / "root" / "monetdbe.libs"
VERSION_FILE = FOLDER / "VERSION"
PROGRAM = Path(__file__).parent / "bench" / "tpch_in_monetdb.py"
FETCH_TIMEOUT_S = 600.0

Say = Callable[[str], None]


def is_ready() -> bool:
    """VERSION is written last, so its presence means that everything before it was done."""
    return VERSION_FILE.exists() and any(LIBRARIES.glob("libmonetdbe-*.so*"))


def fetch(say: Say) -> None:
    if is_ready():
        return
    say(f"MonetDB: downloading {PACKAGE}")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    wanted = ["--python-version", WHEEL_OF, "--only-binary=:all:", "--no-deps", "--dest", str(FOLDER), PACKAGE]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", *wanted], capture_output=True, text=True, timeout=FETCH_TIMEOUT_S
    )
    wheels = list(FOLDER.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise StrataError(f"MonetDB could not be downloaded: {done.stderr.strip()[-1000:]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(FOLDER / "root")
    VERSION_FILE.write_text(wheels[0].name + "\n")


def command(data: Path, schema: Path, limit_mib: int = 0) -> list[str]:
    """To be run with environment()."""
    return [str(part) for part in (paths.venv_bin("python3"), "-S", PROGRAM, LIBRARIES, data, schema, limit_mib)]


def environment() -> dict[str, str]:
    """The libraries find each other by it."""
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "LD_LIBRARY_PATH": str(LIBRARIES)}
