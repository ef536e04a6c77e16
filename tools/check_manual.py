#!/usr/bin/env python3
"""The manual (docs/manual) tells of everything that is declared, and its tables are current.

Settings come from mariadb/settings.def, errors from src/base/errors.def with their SQL numbers from mariadb/error_map.cc. A text
that is made from them stands between two lines `<!-- made by tools/check_manual.py: NAME -->` and `<!-- end -->`; `--write`
makes it anew. Status variables, the columns of information_schema tables and errors have to be described by hand: what is
declared and not described is found, and so is what is described and not there.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MANUAL = Path("docs") / "manual"
MADE = re.compile(r"(<!-- made by tools/check_manual\.py: ([\w ]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')

# A table of the columns of an information_schema table.
COLUMNS = re.compile(r"^\| column \| what \|\n((?:\|.*\n)+)", re.MULTILINE)

# A number's unit is in its name, or is the first of these words that its text has.
NAMED_UNITS = (("_seconds", "seconds"), ("_s", "seconds"), ("_ms", "milliseconds"), ("_size", "bytes"), ("_bytes", "bytes"))
UNITS = ("seconds", "milliseconds", "bytes", "pages", "files", "threads", "memory nodes", "places", "position")
CHOICES = re.compile(r"\b\d: |\(\d\)")  # a text that says what each value means

OF_CLUSTERS = (
    "registry", "cluster", "node_name", "secret_file", "link", "full_page_images", "exact_page_versions", "lease_seconds",
    "start_timeout", "stand_by", "stand_by_neighbours", "replay_backlog_size",
)  # fmt: skip
OF_MEMORY_NODES = "lego_"
VARIABLES = ("variables of a server", "variables of a cluster", "variables of memory nodes")
CHANGED = {
    "LIVE": "`SET GLOBAL`",
    "USER": "`SET SESSION`, `SET GLOBAL`",
    "SWITCH": "`SET SESSION`, `SET GLOBAL`",
    "ACT": "`SET SESSION`, which does it at once",
}

# What the server makes of what a handler returns, in handler::print_error(); and of the texts that are the engine's own.
SERVER_ERRORS = {
    "HA_ERR_LOCK_DEADLOCK": (1213, "ER_LOCK_DEADLOCK"),
    "HA_ERR_ROLLBACK": (4060, "ER_ROLLBACK_ONLY"),
    "HA_ERR_RECORD_CHANGED": (1020, "ER_CHECKREAD"),
    "HA_ERR_LOCK_WAIT_TIMEOUT": (1205, "ER_LOCK_WAIT_TIMEOUT"),
    "HA_ERR_ABORTED_BY_USER": (1317, "ER_QUERY_INTERRUPTED"),
    "HA_ERR_FOUND_DUPP_KEY": (1062, "ER_DUP_ENTRY"),
    "HA_ERR_KEY_NOT_FOUND": (1032, "ER_KEY_NOT_FOUND"),
    "HA_ERR_CRASHED": (1034, "ER_NOT_KEYFILE"),
    "HA_ERR_RECORD_FILE_FULL": (1114, "ER_RECORD_FILE_FULL"),
    "HA_ERR_UNSUPPORTED": (1112, "ER_UNSUPPORTED_EXTENSION"),
    "HA_ERR_TO_BIG_ROW": (1030, "ER_GET_ERRNO"),
    "HA_ERR_TABLE_DEF_CHANGED": (1412, "ER_TABLE_DEF_CHANGED"),
    "HA_ERR_COMMIT_ERROR": (1180, "ER_ERROR_DURING_COMMIT"),
    "HA_ERR_ROW_IS_REFERENCED": (1451, "ER_ROW_IS_REFERENCED_2"),
    "HA_ERR_NO_REFERENCED_ROW": (1452, "ER_NO_REFERENCED_ROW_2"),
    "HA_ERR_FOREIGN_DUPLICATE_KEY": (1761, "ER_FOREIGN_DUPLICATE_KEY_WITH_CHILD_INFO"),
    "HA_ERR_CANNOT_ADD_FOREIGN": (1215, "ER_CANNOT_ADD_FOREIGN"),
    "HA_ERR_FK_DEPTH_EXCEEDED": (1296, "ER_GET_ERRMSG"),
}
OURS = (1296, "ER_GET_ERRMSG")
OURS_MAY_PASS = (1297, "ER_GET_TEMPORARY_ERRMSG")

CLASSES = {
    "retry": "It passes by itself: the same may be tried again.",
    "statement": "The statement is undone, the transaction goes on.",
    "abort_trx": "The whole transaction is rolled back: begin it anew.",
    "unknown": "It may be done or not: look before you repeat it.",
    "ends_right": "This process does not go on with it; another one may.",
    "fatal": "It stays so until somebody changes what is stored or set up.",
}


class DeclarationError(Exception):
    pass


@dataclass(frozen=True)
class Setting:
    kind: str
    name: str
    numbers: tuple[str, ...]
    text: str  # what it is for
    default_text: str = ""

    @property
    def unit(self) -> str:
        if self.kind in ("TEXT", "ACT"):
            return "text"
        if self.kind in ("FLAG", "SWITCH"):
            return "`ON` or `OFF`"
        if CHOICES.search(self.text) and number(self.numbers[2]) <= 9:
            return "a choice"
        for ending, unit in NAMED_UNITS:
            if self.name.endswith(ending):
                return unit
        words = self.text.lower()
        found = [(match.start(), unit) for unit in UNITS if (match := re.search(rf"\b{unit}\b", words))]
        if not found:
            raise DeclarationError(f"mariadb/settings.def: the text of {self.name} names no unit ({', '.join(UNITS)})")
        return min(found)[1]

    @property
    def default(self) -> str:
        if self.kind in ("TEXT", "ACT"):
            return f"`{self.default_text}`" if self.default_text else "empty"
        if self.kind in ("FLAG", "SWITCH"):
            return "`ON`" if self.numbers[0] == "true" else "`OFF`"
        return amount(number(self.numbers[0]), self.unit)

    @property
    def range(self) -> str:
        if len(self.numbers) < 3:
            return ""
        return f"{amount(number(self.numbers[1]), self.unit)} to {amount(number(self.numbers[2]), self.unit)}"


@dataclass(frozen=True)
class Error:
    name: str
    cls: str
    cause: str
    remedy: str


def number(expression: str) -> int:
    """128ULL << 20"""
    if expression.strip() == "ULONG_MAX":
        return 2**64 - 1
    match = re.fullmatch(r"(\d+)[UL]*(?:\s*<<\s*(\d+))?", expression.strip())
    if not match:
        raise DeclarationError(f"mariadb/settings.def: {expression} is no number that this tool can read")
    return int(match[1]) << int(match[2] or 0)


def amount(value: int, unit: str) -> str:
    """Bytes as an option file takes them, where it can be said so shortly."""
    if unit != "bytes":
        return f"{value:,}".replace(",", "\u202f") if value >= 10_000 else str(value)
    for size, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value and value % size == 0:
            return f"{value // size} {name}"
    return str(value)


def arguments(text: str) -> list[str]:
    """Of a macro: strings that stand side by side are one."""
    parts: list[str] = []
    begin = 0
    covered = [(match.start(), match.end()) for match in STRING.finditer(text)]
    for comma in (match.start() for match in re.finditer(",", text)):
        if not any(first < comma < last for first, last in covered):
            parts.append(text[begin:comma])
            begin = comma + 1
    parts.append(text[begin:])
    return ["".join(STRING.findall(part)) if '"' in part else part.strip() for part in parts]


def calls(text: str, macro: str) -> list[tuple[str, list[str]]]:
    """Each line, or lines, `macro...(...)`: what stands behind the macro's name, and its arguments."""
    code = "\n".join(line for line in text.splitlines() if not line.startswith("//"))
    found = re.finditer(rf'^{macro}(\w*)\s*\(((?:"(?:[^"\\]|\\.)*"|[^")])*)\)', code, re.MULTILINE)
    return [(match[1], arguments(match[2])) for match in found]


def settings_of(text: str) -> list[Setting]:
    settings = []
    for kind, given in calls(text, "STRATA_SETTING_"):
        name, *numbers, what = given
        if kind == "TEXT":
            settings.append(Setting(kind, name, (), what, numbers[0]))
        else:
            settings.append(Setting(kind, name, tuple(numbers), what))
    return settings


def errors_of(text: str) -> list[Error]:
    return [Error(given[0], given[2], given[3], given[4]) for _, given in calls(text, "STRATA_ERROR")]


def handler_errors_of(text: str) -> dict[str, tuple[str, bool]]:
    """Of error_map.cc: for each error the handler's, and whether its text is the engine's own."""
    body = text[text.index("switch (error_of(status))") :]
    body = body[: body.index("\n}")]
    found: dict[str, tuple[str, bool]] = {}
    names: list[str] = []
    for match in re.finditer(r"case Error::(\w+):|return ([^;]+);", body):
        if match[1]:
            names.append(match[1])
            continue
        handler = re.findall(r"HA_ERR_\w+", match[2])
        for name in names:
            found[name] = (handler[-1] if handler else "", match[2].rstrip("}").endswith("true"))
        names = []
    return found


def shown_number(error: Error, handler_errors: dict[str, tuple[str, bool]]) -> tuple[int, str]:
    if error.name not in handler_errors:
        raise DeclarationError(f"mariadb/error_map.cc: no case for {error.name}")
    handler, ours = handler_errors[error.name]
    if ours:
        return OURS_MAY_PASS if error.cls == "retry" else OURS
    if handler not in SERVER_ERRORS:
        raise DeclarationError(f"tools/check_manual.py: which error the server makes of {handler} is not known")
    return SERVER_ERRORS[handler]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def variables(settings: Sequence[Setting]) -> str:
    rows = [
        (
            f"`strata_{setting.name}`",
            setting.default,
            " ".join(part for part in (setting.range and f"{setting.range},", setting.unit) if part),
            CHANGED.get(setting.kind, "at the start"),
            cell(setting.text),
        )
        for setting in settings
    ]
    return table(("variable", "default", "range and unit", "changed", "what"), rows)


def part_of(setting: Setting) -> str:
    """Which table it is in."""
    if setting.name.startswith(OF_MEMORY_NODES):
        return VARIABLES[2]
    return VARIABLES[1] if setting.name in OF_CLUSTERS else VARIABLES[0]


class Tree:
    """What is declared, read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.settings = settings_of((root / "mariadb" / "settings.def").read_text())
        self.errors = errors_of((root / "src" / "base" / "errors.def").read_text())
        self.handler_errors = handler_errors_of((root / "mariadb" / "error_map.cc").read_text())
        known = {setting.name for setting in self.settings}
        if strangers := [name for name in OF_CLUSTERS if name not in known]:
            raise DeclarationError(f"tools/check_manual.py: mariadb/settings.def has no {', '.join(strangers)}")

    def made(self, what: str) -> str:
        if what in VARIABLES:
            return variables([setting for setting in self.settings if part_of(setting) == what])
        for error in self.errors:
            if what == f"error {error.name}":
                return self.error_text(error)
        raise DeclarationError(f"nothing is called '{what}'")

    def error_text(self, error: Error) -> str:
        code, name = shown_number(error, self.handler_errors)
        return (
            f"### {error.cause}\n\n"
            f"To do: {error.remedy}.\n\n"
            f"Error {code} (`{name}`), {error.name.replace('_', ' ')}. {CLASSES[error.cls]}\n"
        )

    def counters(self) -> set[str]:
        """Names of status variables, without what they begin with."""
        found = {"trouble", "cluster_trouble"}
        for place in ("src/engine/status.cc", "mariadb/cluster.cc", "mariadb/shared_statistics.cc"):
            found |= set(re.findall(r'\{"([a-z][a-z0-9_]+)",', (self.root / place).read_text()))
        return found

    def columns(self) -> set[str]:
        return set(re.findall(r'\bColumn\("(\w+)"', (self.root / "mariadb" / "information.cc").read_text()))


def with_made(text: str, tree: Tree) -> str:
    return MADE.sub(lambda found: found[1] + tree.made(found[2]) + found[4], text)


def not_described(tree: Tree, pages: dict[Path, str]) -> list[str]:
    """What is declared and not in the manual, or the other way round."""
    text = "\n".join(pages.values())
    columns = {name for lines in COLUMNS.findall(text) for name in re.findall(r"^\| `(\w+)` \|", lines, re.MULTILINE)}
    made = {found[2] for found in MADE.finditer(text)}
    wanted = {f"error {error.name}" for error in tree.errors} | set(VARIABLES)
    named = set(re.findall(r"`Strata_(\w+)`", text))
    used = set(re.findall(r"`(?:@@)?(strata_[a-z0-9_]+)", text))
    problems = {
        "no page has the part": wanted - made,
        "this status variable is not described: Strata_": tree.counters() - named,
        "there is no status variable Strata_": named - tree.counters(),
        "this column of information_schema is not described:": tree.columns() - columns,
        "no table of information_schema has a column": columns - tree.columns(),
        "there is no variable": used - {f"strata_{setting.name}" for setting in tree.settings},
    }
    return [
        f"{MANUAL}: {problem}{'' if problem.endswith('_') else ' '}{name}"
        for problem, names in problems.items()
        for name in sorted(names)
    ]


def check_tree(root: Path, write: bool) -> list[str]:
    pages = {path: path.read_text() for path in sorted((root / MANUAL).rglob("*.md"))}
    problems: list[str] = []
    try:
        tree = Tree(root)
        for path, text in pages.items():
            current = with_made(text, tree)
            if current == text:
                continue
            pages[path] = current
            if write:
                path.write_text(current)
            else:
                problems.append(f"{path.relative_to(root)}: a part is not current: run tools/check_manual.py --write")
        problems += not_described(tree, pages)
    except DeclarationError as error:
        problems.append(str(error))
    return problems


def main() -> int:
    problems = check_tree(Path(__file__).resolve().parents[1], "--write" in sys.argv[1:])
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
