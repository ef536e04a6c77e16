#!/usr/bin/env python3
"""What is declared once is said once: no profile's name where a trait is to be asked, no page's name and no call's options
made by hand, and tables of docs that are current.

Profiles are in src/base/profiles.def, the calls to a storage node in src/proto/methods.def. A table that is made from such
a file stands between two lines `<!-- made by tools/check_declared.py: NAME -->` and `<!-- end -->`; `--write` makes it anew.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from strata_cli import profile_list

TABLE = re.compile(r"(<!-- made by tools/check_declared\.py: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
METHODS = Path(__file__).resolve().parents[1] / "src" / "proto" / "methods.def"
SOURCES = (".h", ".cc")
# A default, which somebody has to name.
DEFAULT = re.compile(r'^\s*std::string profile = "[^"]+";')


# What stands between fields.
MARKS = ("|", "{", "}")
# Options of a call, by hand.
OPTIONS_BY_HAND = re.compile(r"\bCallOptions(?:\s+\w+)?\s*[;{=]")
# What carries calls, makes those of methods.def, or has methods of its own.
MAKERS_OF_OPTIONS = ("src/transport", "src/proto/calls", "src/farmem")

# "page 5:17", by hand.
PAGE_BY_HAND = re.compile(r'std::to_string\([^;"]*\bspace\)\s*\+\s*":"')


def is_test(path: Path) -> bool:
    return path.stem.endswith("_test") or path.parent.name == "testing"


def names_in_code(name: str, text: str, profiles: tuple[str, ...]) -> list[str]:
    """Lines of code, not of comments, that have a profile's name in quotes. As a key in brackets it is a field of a text."""
    literal = re.compile("|".join(rf'(?<!\[)"{re.escape(profile)}"' for profile in profiles))
    return [
        f"{name}:{number}: ask for a trait in place of the profile {match[0]} (base/profiles.h)"
        for number, line in enumerate(text.splitlines(), 1)
        if (match := literal.search(line.split("//")[0])) and not DEFAULT.match(line)
    ]


def pages_by_hand(name: str, text: str) -> list[str]:
    return [
        f"{name}:{text.count(chr(10), 0, found.start()) + 1}: a page's name is made by name_of() or text_of() (base/page_name.h)"
        for found in PAGE_BY_HAND.finditer(text)
    ]


def options_by_hand(name: str, text: str) -> list[str]:
    """A call that forgets its method's layout is refused where it arrives: found before it is made."""
    return [
        f"{name}:{number}: the options of a call are made by proto::call_of() (proto/calls/calls.h)"
        for number, line in enumerate(text.splitlines(), 1)
        if OPTIONS_BY_HAND.search(line.split("//")[0])
    ]


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def words(constant: str) -> str:
    """kOwnFiles: own files."""
    return re.sub(r"(?<!^)([A-Z])", r" \1", constant.removeprefix("k")).lower()


def profiles_table() -> str:
    head = ("profile", "pages come from", "storage nodes replay", "images in the log", "memory tier", "writers", "in words")
    sources = {"kOwnFiles": "the server's own files", "kWritten": "storage nodes, as compute wrote them"}
    rows = [
        (
            f"`{profile.name}`",
            sources.get(profile.pages, "storage nodes, made from the log"),
            *(words(trait) for trait in (profile.replay, profile.images, profile.memory, profile.writers)),
            profile.what,
        )
        for profile in profile_list.ALL
    ]
    return table(head, rows)


def rows_of_methods(macro: str) -> list[tuple[str, ...]]:
    """The arguments of each line of methods.def whose macro matches, quotes taken off, the macro in front."""
    rows = []
    for line in METHODS.read_text().splitlines():
        if found := re.match(rf"STRATA_({macro})\((.*)\)$", line):
            arguments = re.findall(r'"[^"]*"|[^,\s][^,]*', found[2])
            rows.append((found[1], *(argument.strip('"') for argument in arguments)))
    return rows


def value_of(expression: str) -> int:
    """A limit as C++ writes it: 4u << 20, 60'000'000."""
    number, _, shift = expression.replace("'", "").partition("<<")
    return int(number.strip().removesuffix("u")) << int(shift or 0)


@dataclass(frozen=True)
class Layouts:
    """How the digests of src/proto/internal/layout_digest.h are computed, once more."""

    groups: dict[str, str]
    values: dict[str, int]

    @classmethod
    def declared(cls) -> "Layouts":
        return cls(
            {name: fields for _, name, fields in rows_of_methods("FIELDS")},
            {name: value_of(value) for _, name, value, _ in rows_of_methods("LIMIT|REGION")},
        )

    def words(self, fields: str) -> Iterator[str]:
        written = ["|", *fields.split(), "|"]
        for before, word, after in zip(written, written[1:], written[2:], strict=False):
            if before in MARKS and after in MARKS and word in self.groups:
                yield from self.words(self.groups[word])
            elif found := re.fullmatch(r"(.*\[)(\w+)(\])|(.*:)(\w+)", word):
                yield f"{found[1] or found[4]}{self.values[found[2] or found[5]]}{found[3] or ''}"
            else:
                yield word

    def digest(self, request: str, reply: str) -> int:
        value = 0xCBF29CE484222325
        for word in (*self.words(request), ">", *self.words(reply)):
            for byte in f"{word} ".encode():
                value = (value ^ byte) * 0x100000001B3 % (1 << 64)
        value ^= value >> 32
        return (value ^ value >> 16) & 0xFFFF or 1


def methods_table() -> str:
    services = {
        "LOG": "log",
        "PAGE": "pages",
        "WRITTEN": "written pages",
        "PEER": "peers",
        "POOL": "remote pools",
        "FUSION": "fusion",
    }
    layouts = Layouts.declared()
    head = ("number", "method", "service", "asked by", "is answered", "sent again", "layout", "in words")
    ends = {
        "kAtOnce": "at once",
        "kDurable": "when it is durable",
        "kWaits": "when there is what it waits for, or its time is over",
    }
    again = {"kRepeat": "yes", "kNever": "no"}
    rows = [
        (
            number,
            f"`{counter}`",
            services[macro.removesuffix("_METHOD")],
            words(caller),
            ends[end],
            again[repeat],
            f"`{layouts.digest(request, reply):04x}`",
            what,
        )
        for macro, number, _, counter, caller, end, repeat, request, reply, what in rows_of_methods(r"\w+_METHOD")
    ]
    return table(head, rows)


def fields_table() -> str:
    def code(fields: str) -> str:
        return f"`{fields}`".replace("|", "\\|") if fields else "nothing"

    rows = [(f"`{name}`", code(fields), "") for _, name, fields in rows_of_methods("FIELDS")]
    rows += [(f"`{row[3]}`", code(row[7]), code(row[8])) for row in rows_of_methods(r"\w+_METHOD")]
    return table(("method, or name of fields", "request, or fields", "reply"), rows)


def limits_table() -> str:
    return table(("limit", "value", "of what"), [(f"`{name}`", value, what) for _, name, value, what in rows_of_methods("LIMIT")])


def regions_table() -> str:
    return table(
        ("layout", "version", "of what"), [(f"`{name}`", value, what) for _, name, value, what in rows_of_methods("REGION")]
    )


TABLES: dict[str, Callable[[], str]] = {
    "profiles": profiles_table,
    "methods": methods_table,
    "fields": fields_table,
    "limits": limits_table,
    "regions": regions_table,
}


def with_tables(text: str) -> str:
    return TABLE.sub(lambda found: found[1] + TABLES[found[2]]() + found[4], text)


def check_tree(root: Path, write: bool) -> list[str]:
    problems: list[str] = []
    names = tuple(profile.name for profile in profile_list.ALL)
    for top in ("src", "cmd", "mariadb"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in SOURCES and not is_test(path):
                name, text = str(path.relative_to(root)), path.read_text(errors="replace")
                problems += names_in_code(name, text, names)
                if not name.startswith(MAKERS_OF_OPTIONS):
                    problems += options_by_hand(name, text)
                if path.name != "page_name.h":
                    problems += pages_by_hand(name, text)
    for path in [*sorted((root / "docs").glob("*.md")), *sorted((root / "src").rglob("README.md"))]:
        text = path.read_text()
        if (current := with_tables(text)) == text:
            continue
        if write:
            path.write_text(current)
        else:
            problems.append(f"{path.relative_to(root)}: a table is not current: run tools/check_declared.py --write")
    return problems


def main() -> int:
    problems = check_tree(Path(__file__).resolve().parents[1], "--write" in sys.argv[1:])
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
