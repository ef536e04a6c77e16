"""Apache Spark, for the one experiment that compares far memory with a distributed database: PyPI's pyspark and Debian's Java 17,
unpacked under build/spark and never installed."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from . import paths, private_apt
from .shell import StrataError

PACKAGES = ("pyspark==3.5.9", "py4j==0.10.9.9")
JAVA_PACKAGE = "openjdk-17-jre-headless"
FOLDER = paths.BUILD / "spark"
PYTHON = FOLDER / "python"
JAVA_ROOT = FOLDER / "java"
VERSION_FILE = FOLDER / "VERSION"
PROGRAM = Path(__file__).parent / "bench" / "tpch_in_spark.py"
FETCH_TIMEOUT_S = 1800.0

Say = Callable[[str], None]


def java_home() -> Path:
    return next((JAVA_ROOT / "usr" / "lib" / "jvm").glob("java-17-openjdk-*"), JAVA_ROOT)


def is_ready() -> bool:
    """VERSION is written last, so its presence means that everything before it was done."""
    return VERSION_FILE.exists() and (java_home() / "bin" / "java").exists()


def fetch(say: Say) -> None:
    if is_ready():
        return
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    _fetch_java(say)
    say(f"Spark: downloading {' and '.join(PACKAGES)}")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(PYTHON), *PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S)
    if done.returncode != 0:
        raise StrataError(f"Spark could not be downloaded: {done.stderr.strip()[-1000:]}")
    VERSION_FILE.write_text(PACKAGES[0] + "\n")


def _fetch_java(say: Say) -> None:
    say("Java: reading the package lists (private apt configuration)")
    private_apt.refresh()
    for version in private_apt.newest_first(private_apt.binary_versions(JAVA_PACKAGE)):
        say(f"Java {version}: downloading")
        if private_apt.download(["download", "-q", f"{JAVA_PACKAGE}={version}"], FOLDER):
            (deb,) = FOLDER.glob("*.deb")
            subprocess.run(["dpkg", "-x", str(deb), str(JAVA_ROOT)], check=True)
            deb.unlink()
            _mend_links()
            return
    raise StrataError("Java 17 could not be downloaded; see build/logs/setup-apt.log")


def _mend_links() -> None:
    """Its settings are links to /etc, which are to be the unpacked ones."""
    for link in (path for path in java_home().rglob("*") if path.is_symlink()):
        target = link.readlink()
        if target.is_absolute():
            link.unlink()
            link.symlink_to(JAVA_ROOT / target.relative_to("/"))


def command(master: str, data: Path, tables: Path, queries: list[str]) -> list[str]:
    """To be run with environment()."""
    return [str(part) for part in (paths.venv_bin("python3"), "-S", PROGRAM, master, data, tables, *queries)]


def environment() -> dict[str, str]:
    return {
        "PATH": f"{java_home() / 'bin'}:/usr/bin:/bin",
        "JAVA_HOME": str(java_home()),
        "SPARK_HOME": str(PYTHON / "pyspark"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(PYTHON),
        "PYSPARK_PYTHON": str(paths.venv_bin("python3")),
        "LC_ALL": "C",
    }
