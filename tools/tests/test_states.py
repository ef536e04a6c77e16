"""Every state of docs/correctness.md as `./strata status` shows it: not well, with cause, remedy and an exit code that says so.

What processes say is faked, in the words of the sources that the cases name. Words that are no longer there, a state without a
case and a case without a state fail.
"""

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from strata_cli import paths, status
from strata_cli.server import Server
from strata_cli.status import DEGRADED, NOTHING_RUNS, REMEDY_MARK, Process, compute_process, last_words, storage_process
from strata_cli.storage_node import NodeSettings, StorageNode

ERRORS = "src/base/errors.def"
ENGINE = "src/engine/*.cc"
COMPUTE = "src/clients/compute/*.cc"
CLIENTS = "src/clients/storage/*.cc"
NODE = "src/storenode/node/*.cc"
FOLDER = "src/**/*_folder.cc"
REPLAY = "src/storenode/replay/*.cc"

# Who says it: a server that runs, one that goes on without the engine, a storage node that runs, one that did not start; or
# the caller of a function, who has no process of his own to be asked.
SERVER, NO_ENGINE, STORAGE, NO_NODE, CALLER = "server", "no engine", "storage", "no node", "caller"


@dataclass(frozen=True)
class Case:
    """`{}` in the words stands for what differs from case to case, `{~}` for nothing: two strings of a source meet there."""

    who: str
    cause: str
    remedy: str
    sources: tuple[str, ...]


STATES: dict[str, Case] = {
    "taken over": Case(
        SERVER,
        "this node is not the database's writer any more ({}) and answers nothing",
        "stop it, and connect to the one that is",
        (COMPUTE,),
    ),
    "lease lost": Case(
        SERVER,
        "this node has lost its lease in the registry, so that another one may have become the database's writer",
        "wait, it answers again when the registry has given it another lease; if that takes long, look at the registry",
        (COMPUTE,),
    ),
    "log late": Case(
        SERVER,
        "{} cannot be written: no write quorum of storage nodes has taken it for {} s ({})",
        "start the storage nodes that are away; it goes on by itself",
        (CLIENTS,),
    ),
    "log ended": Case(
        SERVER,
        "the log cannot be written any more ({})",
        "restart this server, it recovers from the log",
        ("src/wal/*.cc",),
    ),
    "page writes ended": Case(
        SERVER,
        "the storage nodes that had every page lost their places in the group before another one had copied them",
        "restart this server, it recovers from the log",
        (CLIENTS,),
    ),
    "pages cannot be written back": Case(
        SERVER,
        "changed pages cannot be written back, so that the log grows ({})",
        "wait, it is tried again; the error log says why it failed",
        (ENGINE,),
    ),
    "disk full": Case(
        SERVER,
        "the disk is full, and only what frees room goes on",
        "DELETE, DROP TABLE or TRUNCATE, or free room on the disk",
        (ENGINE,),
    ),
    "decided commits not finished": Case(
        SERVER,
        "{} decided commits could not be finished yet",
        "wait, they are tried again; the error log says why they failed",
        (ENGINE,),
    ),
    "prepared, and no binary log": Case(
        NO_ENGINE,
        "{} transaction(s) are prepared, and whether they are committed stands in the binary log that the server wrote before"
        " it crashed.{}",
        "start with that binary log and its file '*{}",
        ("mariadb/*.cc",),
    ),
    "folder in use": Case(
        NO_NODE,
        "the data folder {} is in use by another process (lock on {})",
        "end that process first",
        (FOLDER, ERRORS),
    ),
    "wrong database": Case(
        NO_ENGINE,
        "the database in {} was made with profile '{}' and cannot be opened with '{}'",
        "set the profile it was made with",
        (ENGINE,),
    ),
    "another secret": Case(
        NO_ENGINE,
        "{}: what listens at the addresses of these storage nodes has another secret than this server: {}",
        "give all processes of the cluster the same secret file, and restart them",
        (CLIENTS, ERRORS),
    ),
    "unsupported": Case(
        NO_NODE,
        "the stamp {} has format {}; this program knows {}",
        "use the newer program that made it",
        (FOLDER,),
    ),
    "damaged file": Case(
        NO_ENGINE,
        "the data folder {} holds '{}' but no file '{}': it is half-initialised, damaged or not of this engine.{}",
        "look into the error log for the place, then restore it from a copy",
        (ENGINE, ERRORS),
    ),
    "log cannot be opened": Case(
        STORAGE,
        "{}",
        "look at its disk and restart it; if that does not help, replace it by a new node",
        (NODE,),
    ),
    "log damaged": Case(STORAGE, "{}", "wait, it is mended with a peer's copy while one can be asked", (NODE,)),
    "pages being copied": Case(STORAGE, "copying pages from a peer: {}", "wait, it goes on by itself", (REPLAY, NODE)),
    "version store ended": Case(STORAGE, "{}", "free room on its disk; it goes on by itself, or once restarted", (NODE,)),
    "files cannot be synced": Case(STORAGE, "{}", "look at its disk; it goes on by itself once a sync ends well", (NODE,)),
    "removed": Case(
        STORAGE,
        "{} was taken out of its storage group{~} in generation {} of the placement",
        "stop it; its data folder is not needed any more",
        ("src/**/group_view.cc", NODE),
    ),
    "not a member": Case(
        STORAGE,
        "it serves, but is not a member: {}",
        "see whether the registry answers; it joins again by itself",
        (NODE,),
    ),
    "being new": Case(STORAGE, "it is new and catches up: log up to {}, does not vote yet", "", ("tools/strata_cli/status.py",)),
    "region withdrawn": Case(CALLER, "its owner offers it no more", "ask its owner for what stands in its place", (ERRORS,)),
}


def table_of_states() -> list[str]:
    text = (paths.ROOT / "docs" / "correctness.md").read_text()
    section = text.split("## States that somebody has to know of", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")]
    return rows[1:]  # Without the heading.


def literals(source: str) -> str:
    """The strings of some sources, those that belong together joined."""
    found = sorted(paths.ROOT.glob(source))
    assert found, source
    joined = re.sub(r'"\s*\+?\s*\n\s*"', "", "\n".join(path.read_text() for path in found))
    return "\n".join(match[1].replace('\\"', '"') for match in re.finditer(r'"((?:[^"\\\n]|\\.)*)"', joined))


def filled(words: str) -> str:
    return words.replace("{~}", "").replace("{}", "7")


def said_by(case: Case) -> str:
    return filled(case.cause) + (REMEDY_MARK + filled(case.remedy) if case.remedy else "")


def node_of(folder: Path, http_port: int) -> StorageNode:
    settings = NodeSettings(1, http_port, "http://127.0.0.1:1", "c", folder / "secret", "logdb", ("s1",), 1)
    return StorageNode("s1", folder / "s1", settings, ["/nowhere"])


@pytest.fixture
def answers() -> Iterator[Callable[[str | None, bool], int]]:
    """Starts a storage node's HTTP server: what is said of its health (None: it is well), whether its log votes. Its port."""
    running: list[ThreadingHTTPServer] = []

    def start(illness: str | None, votes: bool) -> int:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                code, body = 200, json.dumps({"streams": [{"stream": 1, "log_end": 7, "voting": votes}]})
                if self.path == "/healthz":
                    code, body = (200, "ok\n") if illness is None else (503, illness + "\n")
                self.send_response(code)
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, format: str, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        running.append(server)
        return int(server.server_address[1])

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def shown_as(case: Case, folder: Path, answers: Callable[[str | None, bool], int], monkeypatch: pytest.MonkeyPatch) -> Process:
    """What status makes of a process that says this."""
    server = Server(folder / "server")
    facts: dict[str, Any] = {"pid": os.getpid(), "port": 1, "plugin": "ha_strata.so", "strata": "active", "variables": {}}
    if case.who == SERVER:
        facts["variables"] = {"Strata_trouble": said_by(case)}
        return compute_process("compute-1", server, facts)
    if case.who == NO_ENGINE:
        server.log.parent.mkdir(parents=True)
        begins = "2026-11-25 1:02:03 0 [Note] Starting MariaDB 10.11.18 source revision 1 as process 1\n"
        earlier = "2026-11-25 1:02:03 0 [ERROR] STRATA: of an earlier life; to do: nothing\n"
        error = f"2026-11-25 1:02:04 0 [ERROR] STRATA: {said_by(case)}\n2026-11-25 1:02:04 0 [ERROR] Plugin init failed\n"
        server.log.write_text(earlier + begins + error)
        return compute_process("compute-1", server, {**facts, "strata": "not loaded", "variables": {}})
    if case.who == NO_NODE:
        node = node_of(folder, 1)
        node.log.parent.mkdir(parents=True)
        reason = said_by(case).replace("\\", "\\\\").replace('"', '\\"')
        begins = "2026-11-25T01:02:03.000001Z info starting name=s1 data=/d\n"
        node.log.write_text(f'{begins}2026-11-25T01:02:04.000001Z error start_failed reason="{reason}"\n')
        return storage_process(node)
    new = not case.remedy
    node = node_of(folder, answers(None if new else said_by(case), not new))
    monkeypatch.setattr(node, "pid", os.getpid)
    return storage_process(node)


def test_every_state_has_a_case() -> None:
    assert sorted(table_of_states()) == sorted(STATES), "docs/correctness.md and STATES name different states"


@pytest.mark.parametrize("state", STATES)
def test_the_words_are_those_of_the_sources(state: str) -> None:
    case = STATES[state]
    text = "\n".join(literals(source) for source in case.sources)
    pieces = [piece for words in (case.cause, case.remedy) for piece in re.split(r"\{~?\}", words) if piece.strip("; .'():")]
    assert pieces
    for piece in pieces:
        assert piece in text, f"{piece!r} is in none of {', '.join(case.sources)}"


@pytest.mark.parametrize("state", [name for name, case in STATES.items() if case.who != CALLER])
def test_status_names_cause_and_remedy_and_its_exit_code_says_not_well(
    state: str,
    tmp_path: Path,
    answers: Callable[[str | None, bool], int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    case = STATES[state]
    process = shown_as(case, tmp_path, answers, monkeypatch)
    assert not process.healthy
    etcd = Process("registry", "etcd", os.getpid(), "127.0.0.1:1", True)
    facts = {"data": "d", "profile": "p", "socket": "s", "mariadb": "m", "plugin": "x"}
    monkeypatch.setattr(status, "look", lambda data: (dict(facts), [etcd, process]))
    assert status.status(tmp_path, as_json=False) == DEGRADED
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{process.name}: not well: " in shown
    assert " ".join(said_by(case).split()) in shown
    assert status.status(tmp_path, as_json=True) == DEGRADED
    told = json.loads(capsys.readouterr().out)
    assert told["state"] == "degraded" and said_by(case) in told["processes"][1]["reason"]
    if process.pid is None:  # Alone: that nothing runs is the first thing to say, and why the second.
        monkeypatch.setattr(status, "look", lambda data: (dict(facts), [process]))
        assert status.status(tmp_path, as_json=False) == NOTHING_RUNS
        assert " ".join(said_by(case).split()) in " ".join(capsys.readouterr().out.split())


def test_a_callers_error_has_cause_and_remedy() -> None:
    """Nothing to be asked has the state: whoever meets it is told (base/status.h, cause_and_remedy())."""
    declared = re.sub(r'"\s*\n\s*"', "", (paths.ROOT / ERRORS).read_text())
    for case in (case for case in STATES.values() if case.who == CALLER):
        assert re.search(rf'"{re.escape(case.cause)}",\s*"{re.escape(case.remedy)}"', declared)


def test_words_of_an_earlier_life_are_not_the_last(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_words(log) == ""
    error = '2026-11-25T01:02:04.000001Z error start_failed reason="folder \\"d\\" is in use; to do: end that process first"\n'
    log.write_text(error)
    assert last_words(log) == 'folder "d" is in use; to do: end that process first'
    log.write_text(error + "2026-11-25T01:02:05.000001Z info starting name=s1\n")
    assert last_words(log) == ""
    log.write_text('2026-11-25T01:02:04.000001Z error diag message="something without a remedy"\n')
    assert last_words(log) == ""
