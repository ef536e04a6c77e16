"""Obeys what ./strata expects of strata-storenode, and stores nothing: for the failures a real one cannot be made to show.

    storage_stand_in.py FOLDER --name s1 ...

FOLDER/s1, if there is one, says how s1 misbehaves: `exit 1`, `silent` (never ready), `deaf` (SIGTERM does nothing), `ill`.
"""

import argparse
import json
import signal
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

STATUS = {
    "streams": [{"stream": 1, "last_epoch": 3, "log_begin": 0, "log_end": 5000, "quorum_durable": 4000}],
    "values": {"replay_backlog_bytes": 100, "version_store_bytes": 1 << 20},
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    for flag in ("name", "data", "listen", "http", "registry", "cluster", "secret-file", "profile", "initial-group"):
        parser.add_argument(f"--{flag}", required=True)
    parser.add_argument("--write-quorum", type=int, required=True)
    return parser.parse_args()


def port_of(address: str) -> int:
    host, port = address.rsplit(":", 1)
    assert host == "127.0.0.1"
    return int(port)


def handler(name: str, ill: bool, status: dict[str, Any]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            health = (503, b"the disk is full") if ill else (200, b"ok")
            code, body = health if self.path == "/healthz" else (200, json.dumps({"name": name, **status}).encode())
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def main() -> None:
    serve(arguments(), STATUS)


def serve(given: argparse.Namespace, status: dict[str, Any]) -> None:
    """Until SIGTERM, as it is told to."""
    how = given.folder / given.name
    behaviour = how.read_text() if how.exists() else ""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: None if behaviour == "deaf" else stop.set())
    print(f"{given.name} begins in {given.data}", file=sys.stderr, flush=True)
    assert len(Path(given.secret_file).read_bytes()) == 32
    if behaviour.startswith("exit"):
        print("error: somebody else's database is in the folder", file=sys.stderr, flush=True)
        sys.exit(int(behaviour.split()[1]))
    listening = socket.create_server(("127.0.0.1", port_of(given.listen)))
    http = ThreadingHTTPServer(("127.0.0.1", port_of(given.http)), handler(given.name, behaviour == "ill", status))
    threading.Thread(target=http.serve_forever, daemon=True).start()
    if behaviour != "silent":
        print(f"ready address={given.listen} http={given.http}", flush=True)
    stop.wait()
    listening.close()


if __name__ == "__main__":
    main()
