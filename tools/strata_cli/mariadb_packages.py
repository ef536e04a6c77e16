"""The private MariaDB: Debian's own packages, unpacked under build/mariadb and never installed.

The storage engine interface is bound to one exact server version, so server, development files and source are taken
at one version and stay there: a security update of the system's MariaDB cannot break the plugin.
"""

import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

from . import paths, private_apt
from .shell import StrataError, run_logged

SERIES = "10.11."
SOURCE_PACKAGE = "mariadb"
PACKAGES = (
    "mariadb-server-core",
    "mariadb-server",
    "mariadb-client-core",
    "mariadb-client",
    "libmariadb-dev",
    "libmariadbd-dev",
    "mariadb-test",
    "mariadb-test-data",
)
# The server's headers are not packaged (there is no include/.../private), so the source is needed; only these parts.
SOURCE_FOLDERS = ("sql", "include", "wsrep-lib", "libmysqld", "libservices", "strings", "mysys", "storage")
SOURCE_SKIPPED = ("storage/mroonga/", "storage/rocksdb/rocksdb/", "storage/tokudb/", "storage/columnstore/columnstore/")

Say = Callable[[str], None]


def is_ready() -> bool:
    """VERSION is written last, so its presence means that everything before it was done."""
    wanted = (paths.MARIADB_VERSION_FILE, paths.MARIADB_PATHS_CMAKE, mariadbd(), generated_header())
    return all(path.exists() for path in wanted)


def mariadbd() -> Path:
    return paths.MARIADB_ROOT / "usr" / "sbin" / "mariadbd"


def generated_header() -> Path:
    return paths.MARIADB_GEN / "probes_mysql_nodtrace.h"


def version() -> str:
    return paths.MARIADB_VERSION_FILE.read_text().strip()


def fetch(say: Say) -> None:
    if is_ready():
        say(f"private MariaDB {version()} is there")
        return
    say("reading the package lists (private apt configuration)")
    private_apt.refresh()
    debs = paths.MARIADB / "debs"
    debs.mkdir(parents=True, exist_ok=True)
    chosen = _download_newest(complete_versions(), debs, say)
    say(f"unpacking MariaDB {chosen}")
    _unpack_binaries(debs, chosen)
    _unpack_source(debs, chosen)
    _write_results(chosen)
    shutil.rmtree(debs)


def complete_versions() -> list[str]:
    """Versions for which the package lists name every binary and the source, newest first."""
    found = private_apt.source_versions(SOURCE_PACKAGE)
    for package in PACKAGES:
        found &= private_apt.binary_versions(package)
    found = {v for v in found if v.split(":", 1)[-1].startswith(SERIES)}
    return private_apt.newest_first(found)


def _download_newest(candidates: list[str], debs: Path, say: Say) -> str:
    """A mirror may list a version whose files it does not hold (yet), so the files decide, not the list."""
    for chosen in candidates:
        say(f"MariaDB {chosen}: downloading the source (for the server's headers)")
        if not private_apt.download(["source", "-q", "--download-only", "--only-source", f"{SOURCE_PACKAGE}={chosen}"], debs):
            continue
        for number, package in enumerate(PACKAGES, 1):
            say(f"MariaDB {chosen}: downloading package {number} of {len(PACKAGES)}: {package}")
            if not private_apt.download(["download", "-q", f"{package}={chosen}"], debs):
                break
        else:
            return chosen
    tried = ", ".join(candidates) or "none listed"
    raise StrataError(
        f"no MariaDB {SERIES}x could be downloaded completely (server, development files and source; tried: {tried});"
        " see build/logs/setup-apt.log"
    )


def _unpack_binaries(debs: Path, chosen: str) -> None:
    shutil.rmtree(paths.MARIADB_ROOT, ignore_errors=True)
    paths.MARIADB_ROOT.mkdir(parents=True)
    tag = chosen.replace(":", "%3a")
    for package in PACKAGES:
        for deb in debs.glob(f"{package}_{tag}_*.deb"):
            subprocess.run(["dpkg", "-x", str(deb), str(paths.MARIADB_ROOT)], check=True)


def _upstream(chosen: str) -> str:
    return re.sub(r"^\d+:", "", chosen).rsplit("-", 1)[0]


def _unpack_source(debs: Path, chosen: str) -> None:
    archives = sorted(debs.glob(f"{SOURCE_PACKAGE}_{_upstream(chosen)}.orig.tar.*"))
    archives = [a for a in archives if not a.name.endswith(".asc")]
    if not archives:
        raise StrataError("the source package holds no .orig.tar archive")
    target = paths.MARIADB_SOURCE
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tarfile.open(archives[-1]) as archive:
        for member in archive:
            inner = member.name.partition("/")[2]
            if not _is_wanted_source(inner):
                continue
            member.name = inner
            archive.extract(member, target, filter="data") if hasattr(tarfile, "data_filter") else archive.extract(member, target)
    _apply_debian_patches(debs, chosen, target)


def _is_wanted_source(inner: str) -> bool:
    folder, slash, _ = inner.partition("/")
    if not slash:
        return inner in ("VERSION", "COPYING")
    return folder in SOURCE_FOLDERS and not inner.startswith(SOURCE_SKIPPED)


def _apply_debian_patches(debs: Path, chosen: str, target: Path) -> None:
    """Debian's patches seldom touch the headers; those that do are applied so that layouts match the binary."""
    archives = sorted(debs.glob(f"{SOURCE_PACKAGE}_{re.sub(r'^[0-9]+:', '', chosen)}.debian.tar.*"))
    if not archives:
        return
    patches = paths.MARIADB / "debian"
    shutil.rmtree(patches, ignore_errors=True)
    patches.mkdir()
    subprocess.run(["tar", "-xf", str(archives[-1]), "-C", str(patches), "--strip-components=1"], check=True)
    series = patches / "patches" / "series"
    names = series.read_text().split("\n") if series.exists() else []
    log = paths.LOGS / "setup-patches.log"
    for name in (n.strip() for n in names):
        if name and not name.startswith("#") and _touches_headers(patches / "patches" / name):
            outcome = run_logged(["patch", "-p1", "-f", "-i", patches / "patches" / name], log, cwd=target, append=True)
            if not outcome.ok and _failed_in_headers(outcome.tail(60)):
                raise StrataError(f"Debian's patch {name} does not apply to the server headers; see {log}")


HEADER = r"(?:sql|include|wsrep-lib|libmysqld)/[^\n]*\.(?:h|h\.in|ic|inl)"


def _touches_headers(patch: Path) -> bool:
    return bool(re.search(rf"^\+\+\+ [^/\n]+/{HEADER}", patch.read_text(errors="replace"), re.MULTILINE))


def _failed_in_headers(output: str) -> bool:
    return bool(re.search(rf"saving rejects to file {HEADER}\.rej", output))


def _write_results(chosen: str) -> None:
    paths.MARIADB_GEN.mkdir(exist_ok=True)
    template = paths.MARIADB_SOURCE / "include" / "probes_mysql_nodtrace.h.in"
    shutil.copyfile(template, generated_header())
    values = {
        "STRATA_MARIADB_ROOT": paths.MARIADB_ROOT,
        "STRATA_MARIADB_SOURCE": paths.MARIADB_SOURCE,
        "STRATA_MARIADB_GEN": paths.MARIADB_GEN,
        "STRATA_MARIADB_VERSION": _upstream(chosen),
        "STRATA_MARIADB_PACKAGE_VERSION": chosen,
    }
    lines = [f'set({name} "{value}")' for name, value in values.items()]
    paths.MARIADB_PATHS_CMAKE.write_text("# Written by ./strata setup.\n" + "\n".join(lines) + "\n")
    paths.MARIADB_VERSION_FILE.write_text(chosen + "\n")
