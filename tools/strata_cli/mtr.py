"""MariaDB's own test runner (mtr) in a private tree under build/mtr: it writes into its folders, so it gets a copy."""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import mariadb_packages, paths
from .shell import Outcome, StrataError, nice, run_logged

TREE = paths.BUILD / "mtr"
OWN_SUITES = paths.ROOT / "mariadb" / "mysql-test"  # strata, and strata_rpl, whose tests have two servers
OWN_OPTIONS = (
    "--mysqld=--plugin-load-add=ha_strata.so",
    "--mysqld=--plugin-maturity=experimental",
    "--mysqld=--innodb",
)
SELECTED = paths.ROOT / "tests" / "mtr" / "selected.txt"
REWRITTEN = paths.ROOT / "tests" / "mtr" / "rewritten.txt"
REWRITTEN_SUFFIX = "_strata"  # of a suite's copy with another engine
DIFFERENCES = paths.ROOT / "tests" / "mtr" / "differences"
# mtr takes ports 10000 + 30 * thread and up; a run that was killed leaves its ports busy for a while.
BUILD_THREADS = range(300, 640)
RESULT = re.compile(r"^(?P<name>[\w.\-/#]+(?: '[^']*')*)\s+(?:w\d+ )?\[ (?P<result>pass|fail|skipped|disabled|retry-\w+) \]")


# Where a test, or what it gives, names InnoDB as an engine.
NAMES_INNODB = re.compile(r"(engine\s*=?\s*[`'\"]?)innodb\b", re.IGNORECASE)
# A line of SHOW PROCESSLIST, which says for how long: it differs from run to run.
PROCESS = re.compile(r"^[+-]\d+\t\w+\tlocalhost\t")


@dataclass
class MtrResult:
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    outcome: Outcome | None = None


def prepare(preset: str) -> None:
    """Copies the runner and its suites once per MariaDB version; the own suite and the plugin at each call."""
    stamp = TREE / "VERSION"
    if not stamp.exists() or stamp.read_text() != mariadb_packages.version():
        shutil.rmtree(TREE, ignore_errors=True)
        TREE.mkdir(parents=True)
        usr = paths.MARIADB_ROOT / "usr"
        shutil.copytree(usr / "share" / "mysql" / "mysql-test", TREE / "mysql-test")
        for name in ("bin", "sbin", "share"):
            (TREE / name).symlink_to(usr / name)
        plugins = TREE / "lib" / "mysql" / "plugin"
        plugins.mkdir(parents=True)
        for plugin in (usr / "lib" / "mysql" / "plugin").glob("*.so"):
            (plugins / plugin.name).symlink_to(plugin)
        stamp.write_text(mariadb_packages.version())
    link = TREE / "lib" / "mysql" / "plugin" / "ha_strata.so"
    link.unlink(missing_ok=True)
    link.symlink_to(paths.plugin_path(preset))
    for own in OWN_SUITES.iterdir():
        suite = TREE / "mysql-test" / "suite" / own.name
        shutil.rmtree(suite, ignore_errors=True)
        shutil.copytree(own, suite)


def run(
    suite: str,
    arguments: Sequence[str],
    *,
    timeout_s: float,
    tests: Sequence[str] = (),
    label: str = "",
    env: Mapping[str, str] | None = None,
) -> MtrResult:
    """`label` tells the logs of several runs of one suite apart."""
    thread = BUILD_THREADS[os.getpid() % len(BUILD_THREADS)]
    vardir = TREE / "var"
    shutil.rmtree(vardir, ignore_errors=True)
    command: list[str | Path] = [
        "perl",
        "./mariadb-test-run.pl",
        f"--vardir={vardir}",
        f"--build-thread={thread}",
        "--force",
        "--max-test-fail=0",
        "--retry=0",
        "--max-save-core=0",
        "--max-save-datadir=0",
        "--testcase-timeout=5",
        f"--suite={suite}",
        *arguments,
        *tests,
    ]
    result = MtrResult()

    def on_line(line: str) -> None:
        match = RESULT.match(line)
        if not match:
            return
        kept = {"pass": result.passed, "fail": result.failed}.get(match["result"], result.skipped)
        kept.append(match["name"])

    log = paths.LOGS / f"mtr-{suite.replace('/', '-').replace(',', '_')}{f'-{label}' if label else ''}.log"
    environment = {"MTR_BINDIR": str(TREE), "HOME": str(TREE), **(env or {})}
    cwd = TREE / "mysql-test"
    result.outcome = run_logged(nice(command), log, env=environment, cwd=cwd, timeout_s=timeout_s, on_line=on_line)
    return result


def selected(longer: bool) -> list[str]:
    """The tests of MariaDB's own suites that run with every table in STRATA: suite.test; `longer` adds those marked `long`."""
    lines = (line.split("#", 1)[0].split() for line in SELECTED.read_text().splitlines())
    return [words[0] for words in lines if words and (longer or words[1:] != ["long"])]


def rewrite(tests: Sequence[str]) -> list[str]:
    """Copies tests that name InnoDB, suite.test, with STRATA in its place, in what they give as well; the copies' names."""
    suites: dict[str, set[str]] = {}
    for suite, _, test in (name.rpartition(".") for name in tests):
        suites.setdefault(suite, set()).add(test)
    for suite, names in suites.items():
        top = TREE / "mysql-test"
        source = top / suite if suite == "main" else top / "suite" / suite
        target = top / "suite" / f"{suite}{REWRITTEN_SUFFIX}"
        shutil.rmtree(target, ignore_errors=True)
        for folder in (".", "t", "r", "include"):
            for file in sorted((source / folder).glob("*")):
                shared = file.suffix == ".inc" or file.name.split(".")[0] == "suite" or (folder == "." and file.suffix == ".cnf")
                if file.is_file() and (shared or file.name.split(".")[0] in names):
                    (target / folder).mkdir(parents=True, exist_ok=True)
                    text = file.read_bytes().decode("latin-1")  # some are in other character sets: bytes are kept
                    (target / folder / file.name).write_bytes(NAMES_INNODB.sub(r"\g<1>STRATA", text).encode("latin-1"))
    return ["{0}{2}.{1}".format(*name.rsplit(".", 1), REWRITTEN_SUFFIX) for name in tests]


def rewritten() -> list[str]:
    lines = (line.split("#", 1)[0].split() for line in REWRITTEN.read_text().splitlines())
    return [words[0] for words in lines if words]


def own_test(name: str) -> str:
    """suite.test, the suite being `strata` if none is named."""
    suite, _, test = name.rpartition(".")
    suite = suite or "strata"
    if not (OWN_SUITES / suite / "t" / f"{test}.test").exists():
        raise StrataError(f"there is no {paths.relative(OWN_SUITES / suite / 't' / test)}.test")
    return f"{suite}.{test}"


def keep_recorded(tests: Sequence[str]) -> None:
    """What the runner has recorded in its own tree."""
    for suite, _, test in (name.rpartition(".") for name in tests):
        result = Path("r") / f"{test}.result"
        shutil.copy(TREE / "mysql-test" / "suite" / suite / result, OWN_SUITES / suite / result)


def suites_of(tests: Sequence[str]) -> str:
    return ",".join(sorted({test.rsplit(".", 1)[0] for test in tests}))


def differences(log: Path) -> dict[str, list[str]]:
    """What each failed test of a run gave otherwise than recorded: the lines of the runner's diff."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in log.read_text(errors="replace").splitlines():
        match = RESULT.match(line)
        if match:
            lines = found.setdefault(match["name"].split()[0], []) if match["result"] == "fail" else []
        elif line[:1] in ("+", "-") and line[:3] not in ("+++", "---") and not PROCESS.match(line):
            lines.append(line)
    return found


def recorded_differences(test: str) -> list[str] | None:
    """What a test of a suite that runs on both engines gives on STRATA otherwise than its recorded result, where that is known:
    lines as of differences(); those that begin with # say why."""
    path = DIFFERENCES / f"{test}.diff"
    if not path.exists():
        return None
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


def engine_options(engine: str) -> list[str]:
    """For MariaDB's suites, which name no engine: everything they create is in ours."""
    options = [
        f"--combination=--default-storage-engine={engine}",
        f"--mysqld=--default-storage-engine={engine}",
        "--mysqld=--innodb",
    ]
    if engine.upper() == "STRATA":
        options += ["--mysqld=--plugin-load-add=ha_strata.so", "--mysqld=--plugin-maturity=experimental"]
        # As the suites set InnoDB's: they test SQL, not durability, and a sync per statement takes ten times as long.
        options += ["--mysqld=--strata-flush-log-at-commit=2"]
    return options
