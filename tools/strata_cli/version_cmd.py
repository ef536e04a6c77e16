"""`./strata --version`: the project's version, the commit it is built from, and the server it is for."""

import re

from . import mariadb_packages, paths
from .shell import capture


def version() -> str:
    text = (paths.ROOT / "CMakeLists.txt").read_text()
    found = re.search(r"project\(strata VERSION (\S+)", text)
    commit = capture(["git", "-C", paths.ROOT, "rev-parse", "--short", "HEAD"]).stdout.strip()
    server = mariadb_packages.version() if mariadb_packages.is_ready() else "not set up yet (./strata setup)"
    return f"strata {found[1] if found else 'unknown'}{f' ({commit})' if commit else ''}, MariaDB {server}"
