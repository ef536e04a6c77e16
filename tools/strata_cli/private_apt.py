"""An apt configuration of the project's own, under build/apt.

It reads the machine's configured Debian mirrors (classic .list and deb822 .sources files), adds the source packages,
and keeps lists, cache and state to itself: the system's apt configuration is neither needed to have deb-src nor touched.
"""

import functools
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

from . import paths
from .shell import Outcome, StrataError, capture, retried, run_logged

APT = paths.APT
CONFIG = APT / "apt.conf"
DOWNLOAD_ATTEMPTS_MAX = 4
SYSTEM_APT = Path("/etc/apt")


def _codename() -> str:
    for line in Path("/etc/os-release").read_text().splitlines():
        if line.startswith("VERSION_CODENAME="):
            return line.split("=", 1)[1].strip().strip('"')
    raise StrataError("/etc/os-release names no VERSION_CODENAME; Debian 12 is expected")


def _is_distribution_suite(suite: str, codename: str) -> bool:
    """Debian's own suites only: a third party's repository often has no source index, and none is needed."""
    aliases = {"stable", "oldstable", codename}
    return any(suite == a or suite.startswith((f"{a}-", f"{a}/")) for a in aliases)


def classic_entries(text: str, codename: str) -> list[str]:
    """One-line entries (`deb [options] uri suite components`), each as a binary and a source line."""
    entries: list[str] = []
    for raw in text.splitlines():
        line = raw.split("#", 1)[0].strip()
        match = re.match(r"^deb\s+(\[[^\]]*\]\s+)?(\S+)\s+(\S+)(.*)$", line)
        if match and _is_distribution_suite(match[3], codename):
            rest = f"{match[1] or ''}{match[2]} {match[3]}{match[4]}"
            entries += [f"deb {rest}", f"deb-src {rest}"]
    return entries


def deb822_stanzas(text: str, codename: str) -> list[str]:
    """deb822 stanzas with `Types: deb deb-src`, reduced to Debian's own suites."""
    stanzas: list[str] = []
    for block in re.split(r"\n[ \t]*\n", text):
        lines = [line for line in block.splitlines() if line.strip() and not line.startswith("#")]
        fields = {line.split(":", 1)[0].lower(): line.split(":", 1)[1].strip() for line in lines if _is_field(line)}
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
            continue
        suites = [s for s in fields.get("suites", "").split() if _is_distribution_suite(s, codename)]
        if not suites:
            continue
        kept = _without_fields(lines, {"types", "suites"})
        stanzas.append("\n".join(["Types: deb deb-src", f"Suites: {' '.join(suites)}", *kept]))
    return stanzas


def _is_field(line: str) -> bool:
    return bool(re.match(r"^[A-Za-z][A-Za-z0-9-]*:", line))


def _without_fields(lines: list[str], dropped: set[str]) -> list[str]:
    """Drops fields together with their continuation lines (which start with a blank)."""
    kept: list[str] = []
    dropping = False
    for line in lines:
        if _is_field(line):
            dropping = line.split(":", 1)[0].lower() in dropped
        if not dropping:
            kept.append(line)
    return kept


def configure() -> None:
    codename = _codename()
    lists = [SYSTEM_APT / "sources.list", *sorted((SYSTEM_APT / "sources.list.d").glob("*.list"))]
    classic = [e for f in lists if f.is_file() for e in classic_entries(f.read_text(), codename)]
    stanzas = [
        s for f in sorted((SYSTEM_APT / "sources.list.d").glob("*.sources")) for s in deb822_stanzas(f.read_text(), codename)
    ]
    if not classic and not stanzas:
        raise StrataError("no Debian mirror is configured in /etc/apt/sources.list or /etc/apt/sources.list.d")
    parts = APT / "sources.list.d"
    for folder in (parts, APT / "state" / "lists" / "partial", APT / "cache" / "archives" / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    (APT / "status").touch()
    (APT / "sources.list").write_text("\n".join(classic) + "\n")
    (parts / "mirrors.sources").write_text("\n\n".join(stanzas) + "\n")
    CONFIG.write_text(_config_text(parts))


def _config_text(parts: Path) -> str:
    # The system's apt.conf.d is still read (proxies, certificates); its hooks are cleared: they act on the system.
    return "\n".join(
        [
            f'Dir::State "{APT / "state"}";',
            f'Dir::State::lists "{APT / "state" / "lists"}";',
            f'Dir::State::status "{APT / "status"}";',
            f'Dir::Cache "{APT / "cache"}";',
            f'Dir::Etc::sourcelist "{APT / "sources.list"}";',
            f'Dir::Etc::sourceparts "{parts}";',
            'Dir::Etc::preferences "/dev/null";',
            'Dir::Etc::preferencesparts "/dev/null";',
            'APT::Sandbox::User "root";',
            'Acquire::Retries "4";',
            'Acquire::Languages "none";',
            "#clear APT::Update::Pre-Invoke;",
            "#clear APT::Update::Post-Invoke;",
            "#clear APT::Update::Post-Invoke-Success;",
            "",
        ]
    )


def _environment() -> dict[str, str]:
    return {"APT_CONFIG": str(CONFIG), "LC_ALL": "C"}


def apt(arguments: list[str], cwd: Path, timeout_s: float = 900) -> Outcome:
    log = paths.LOGS / "setup-apt.log"
    return run_logged(["apt-get", *arguments], log, env=_environment(), cwd=cwd, timeout_s=timeout_s, append=True)


def refresh() -> None:
    """Reads the package lists of the machine's mirrors."""
    configure()
    if not retried(lambda: apt(["update", "-q"], APT).ok):
        raise StrataError("could not read the package lists; see build/logs/setup-apt.log")


def download(arguments: list[str], folder: Path) -> bool:
    """Retries what may pass (a stalled mirror), not what will not (a file that is not there)."""
    for attempt in range(DOWNLOAD_ATTEMPTS_MAX):
        outcome = apt(arguments, folder, timeout_s=1800)
        if outcome.ok:
            return True
        if re.search(r"^\s*404\b", outcome.tail(14), re.MULTILINE):
            return False
        time.sleep(3 * (attempt + 1))
    return False


def newest_first(versions: Iterable[str]) -> list[str]:
    return sorted(versions, key=functools.cmp_to_key(_compare_versions), reverse=True)


def _compare_versions(a: str, b: str) -> int:
    if a == b:
        return 0
    return 1 if capture(["dpkg", "--compare-versions", a, "gt", b]).returncode == 0 else -1


def binary_versions(package: str) -> set[str]:
    out = capture(["apt-cache", "show", "--all-versions", package], env={**os.environ, **_environment()}).stdout
    return set(re.findall(r"^Version: (\S+)$", out, re.MULTILINE))


def source_versions(source: str) -> set[str]:
    out = capture(["apt-cache", "showsrc", source], env={**os.environ, **_environment()}).stdout
    return set(re.findall(r"^Version: (\S+)$", out, re.MULTILINE))
