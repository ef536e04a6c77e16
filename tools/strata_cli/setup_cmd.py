"""`./strata setup`: build packages, the private MariaDB and etcd, the Python environment. Safe to repeat."""

import os
import re
import shutil
import subprocess
import sys

from . import etcd_packages, mariadb_packages, paths
from .shell import StrataError, capture, console, retried, run_logged

# What the compiler, the checks and the private server need from Debian. The Python environment itself is made by the
# bootstrap script before this module can run.
BUILD_PACKAGES = (
    "g++ cmake ninja-build ccache mold make pkg-config libabsl-dev libgtest-dev libgmock-dev libbenchmark-dev liburing-dev "
    "libssl-dev librocksdb-dev libcurl4-openssl-dev nlohmann-json3-dev libfabric-dev "
    "libcli11-dev clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev "
    "dpkg-dev patch perl xz-utils"
).split()
SERVER_PACKAGES = (
    "libaio1 liburing2 libnuma1 libpcre2-8-0 libpcre2-posix3 libcrypt1 libsystemd0 libssl3 zlib1g libedit2 libncurses6 "
    "libstdc++6 liblz4-1 libsnappy1v5"
).split()
TOOL_PACKAGES = ["sysbench", "python3-venv", "spin"]


def missing_packages() -> list[str]:
    wanted = [*BUILD_PACKAGES, *SERVER_PACKAGES, *TOOL_PACKAGES]
    shown = capture(["dpkg-query", "-W", "-f=${Package} ${db:Status-Abbrev}\n", *wanted]).stdout
    installed = {line.split()[0] for line in shown.splitlines() if re.search(r" ii\s*$", line)}
    return [package for package in wanted if package not in installed]


def _sudo_works() -> bool:
    """May ask for the password, but only at a terminal."""
    if not shutil.which("sudo"):
        return False
    command = ["sudo", "-v"] if sys.stdin.isatty() else ["sudo", "-n", "true"]
    return subprocess.run(command).returncode == 0


def install_packages() -> None:
    missing = missing_packages()
    if not missing:
        console.print("  [green]ok[/]  Debian packages")
        return
    prefix = [] if os.geteuid() == 0 else ["sudo"]
    if prefix and not _sudo_works():
        raise StrataError(f"these Debian packages are missing; as root: apt-get install {' '.join(missing)}")
    console.print(f"  installing {len(missing)} Debian packages: {' '.join(missing)}")
    log = paths.LOGS / "setup-packages.log"
    settings = ["env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C"]
    update = [*prefix, *settings, "apt-get", "update", "-q"]
    install = [*prefix, *settings, "apt-get", "install", "-y", "-q", "--no-install-recommends", *missing]

    def attempt() -> bool:
        run_logged(update, log, append=True)
        return run_logged(install, log, append=True).ok

    if not retried(attempt):
        raise StrataError(f"apt-get could not install: {' '.join(missing)} (see {paths.relative(log)})")
    console.print("  [green]ok[/]  Debian packages")


def missing_libraries() -> list[str]:
    """Shared libraries that the unpacked binaries do not find on this machine."""
    usr = paths.MARIADB_ROOT / "usr"
    names = ("sbin/mariadbd", "bin/mariadb", "bin/mariadb-test", "bin/mysqltest", "bin/my_print_defaults", "bin/mariadb-dump")
    found: set[str] = set()
    for binary in (usr / name for name in names):
        if binary.exists():
            output = capture(["ldd", binary]).stdout
            found |= set(re.findall(r"^\s*(\S+) => not found", output, re.MULTILINE))
    return sorted(found)


def setup() -> None:
    console.print("[bold]Setting up Strata[/]")
    install_packages()
    with console.status("private MariaDB") as status:
        mariadb_packages.fetch(lambda text: status.update(text))
    if libraries := missing_libraries():
        raise StrataError(f"the private MariaDB needs shared libraries this machine lacks: {' '.join(libraries)}")
    console.print(f"  [green]ok[/]  private MariaDB {mariadb_packages.version()} in {paths.relative(paths.MARIADB)}")
    with console.status("private etcd") as status:
        etcd_packages.fetch(lambda text: status.update(text))
    console.print(f"  [green]ok[/]  private etcd {etcd_packages.version()} in {paths.relative(paths.ETCD)}")
    console.print(f"  [green]ok[/]  Python environment in {paths.relative(paths.VENV)}")


def ensure_setup() -> None:
    """What other commands call: silent when there is nothing to do."""
    if missing_packages() or not mariadb_packages.is_ready() or not etcd_packages.is_ready():
        setup()
