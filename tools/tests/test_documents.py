"""What README, CONTRIBUTING and docs/ name exists: files behind links, paths of the source, and the commands of ./strata with
their options."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from strata_cli.app import app

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTS += sorted((ROOT / "docs" / "manual").rglob("*.md"))
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
INTO_PAGE = re.compile(r"\]\(([^)#\s:]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`|^    (\S.*)$", re.MULTILINE)
# Not patterns of names, and not names to be chosen.
PLACE = re.compile(r"\b(?:src|mariadb|tests|tools|docs|bench|cmd|cmake)/(?!\S*YYYY)[\w./-]++(?![*{<])")
COMMAND = re.compile(r"\./strata((?: [^\s;|)]+)*)")


def code_of(text: str) -> Iterator[str]:
    """What stands between backquotes or is indented."""
    yield from (found[1] or found[2] for found in CODE.finditer(text))


def problems_of_command(words: list[str]) -> list[str]:
    """Of `./strata` and what follows: unknown commands, and options that the command does not have."""
    command: Any = typer.main.get_command(app)
    said = "./strata"
    while words and hasattr(command, "commands"):
        if not re.fullmatch(r"[a-z]+", words[0]):
            break  # an option of its own, or a place holder
        said += f" {words[0]}"
        if words[0] not in command.commands:
            return [f"there is no {said}"]
        command = command.commands[words.pop(0)]
    if "--" in words:
        words = words[: words.index("--")]
    options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    if command.context_settings.get("ignore_unknown_options"):
        return []
    flags = [flag for word in words for flag in re.findall(r"(?<!=)--[a-z][a-z-]*", word)]  # not --option=--of-the-server
    return [f"{said} has no {flag}" for flag in flags if flag not in options]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(document: Path) -> None:
    links = [link for link in LINK.findall(document.read_text()) if "://" not in link]
    assert [link for link in links if not (document.parent / link).exists()] == []


def anchors_of(text: str) -> set[str]:
    """Of a page's headings, as they are made of them."""
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in HEADING.findall(text)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_into_pages_lead_to_headings(document: Path) -> None:
    wrong = []
    for target, anchor in INTO_PAGE.findall(document.read_text()):
        page = document.parent / target if target else document
        if page.suffix == ".md" and anchor not in anchors_of(page.read_text()):
            wrong.append(f"{target}#{anchor}")
    assert wrong == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_places_of_the_source_exist(document: Path) -> None:
    named = {place for code in code_of(document.read_text()) for place in PLACE.findall(code) if f"/{place}" not in code}
    assert sorted(place for place in named if not (ROOT / place.rstrip(".")).exists()) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_and_their_options_exist(document: Path) -> None:
    found = []
    for code in code_of(document.read_text()):
        for words in COMMAND.findall(code.split(" # ")[0].replace("[", "").replace("]", "")):
            found += problems_of_command(words.split())
    assert found == []


def test_a_command_or_an_option_that_is_not_there_is_found() -> None:
    assert problems_of_command(["node", "replace", "s2", "--wipe"]) == []
    assert problems_of_command(["node", "repair", "s2"]) == ["there is no ./strata node repair"]
    assert problems_of_command(["up", "--folder", "x"]) == ["./strata up has no --folder"]
    assert problems_of_command(["farmem", "run", "--local", "64M", "--", "x", "--other"]) == []
