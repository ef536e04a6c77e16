"""TPC-H in MonetDB's memory (embedded: the database is a library in this process), as a program of its own: for farmem, which
runs it on remote memory. It knows nothing of that.

    python3 tpch_in_monetdb.py LIBRARIES DATA SCHEMA LIMIT_MIB

LIBRARIES is the folder with libmonetdbe, DATA has tpchgen-cli's *.tbl, LIMIT_MIB is what the database believes to have for
itself (0: all of the machine's). Says `ready`, then reads lines of JSON, a list of lists of SQL statements, and answers each
with a line: a list for each list, of {"seconds", "rows", "digest"} for each statement. The lists of one line are run at once,
each by a client of its own. Ends with its input.
"""

import ctypes
import hashlib
import json
import re
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any


class _Column(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
    ]


class _Result(ctypes.Structure):
    _fields_ = [("rows", ctypes.c_int64), ("columns", ctypes.c_size_t), ("name", ctypes.c_char_p), ("last_id", ctypes.c_int64)]


class _Options(ctypes.Structure):
    _fields_ = [
        ("memory_limit_mib", ctypes.c_int),
        ("query_timeout", ctypes.c_int),
        ("session_timeout", ctypes.c_int),
        ("threads", ctypes.c_int),
        ("remote", ctypes.c_void_p),
        ("server", ctypes.c_void_p),
        ("trace_file", ctypes.c_char_p),
    ]


# Bytes of a value, by type: bool, int8, int16, int32, int64, int128, size, float, double, text, blob, date, time, timestamp.
_WIDTHS = (1, 1, 2, 4, 8, 16, 8, 4, 8, 8, 16, 4, 8, 12)
_TEXT, _BLOB, _TIME = 9, 10, 12
_THREADS = 2


class Library:
    def __init__(self, folder: Path) -> None:
        self.calls = ctypes.CDLL(str(next(folder.glob("libmonetdbe-*.so*"))))
        for name in ("query", "error", "result_fetch", "cleanup_result"):
            getattr(self.calls, f"monetdbe_{name}").restype = ctypes.c_char_p


class Client:
    """One client of the database that this process is, with a thread of its own: the database keeps things for each."""

    def __init__(self, library: Library, limit_mib: int) -> None:
        self._calls = library.calls
        self._thread = ThreadPoolExecutor(1)
        self._thread.submit(self._open, limit_mib).result()

    def start(self, texts: list[str]) -> "Future[list[dict[str, Any]]]":
        return self._thread.submit(lambda: [self._ask(text) for text in texts])

    def _open(self, limit_mib: int) -> None:
        self._database = ctypes.c_void_p()
        options = _Options(memory_limit_mib=limit_mib, threads=_THREADS)
        if self._calls.monetdbe_open(ctypes.byref(self._database), None, ctypes.byref(options)) != 0:
            why = self._calls.monetdbe_error(self._database) if self._database else None
            raise RuntimeError(f"the database does not open: {(why or b'no memory').decode(errors='replace')}")

    def _check(self, error: bytes | None) -> None:
        if error:
            raise RuntimeError(error.decode(errors="replace"))

    def _ask(self, text: str) -> dict[str, Any]:
        result, changed = ctypes.POINTER(_Result)(), ctypes.c_int64()
        started = time.monotonic()
        said = self._calls.monetdbe_query(self._database, text.encode(), ctypes.byref(result), ctypes.byref(changed))
        seconds = time.monotonic() - started
        self._check(said)
        if not result:
            return {"seconds": seconds, "rows": 0, "digest": ""}
        try:
            digest = hashlib.sha256()
            for number in range(result.contents.columns):
                column = ctypes.POINTER(_Column)()
                self._check(self._calls.monetdbe_result_fetch(result, ctypes.byref(column), ctypes.c_size_t(number)))
                for value in _values(column.contents):
                    digest.update(value + b"\0")
            return {"seconds": seconds, "rows": result.contents.rows, "digest": digest.hexdigest()[:16]}
        finally:
            self._check(self._calls.monetdbe_cleanup_result(self._database, result))


def _values(column: _Column) -> list[bytes]:
    if column.type == _TEXT:
        texts = ctypes.cast(column.data, ctypes.POINTER(ctypes.c_char_p))
        return [texts[at] or b"" for at in range(column.count)]
    if not 0 <= column.type < len(_WIDTHS) or column.type in (_BLOB, _TIME):
        raise RuntimeError(f"a column of type {column.type}, which TPC-H has not")
    return [ctypes.string_at(column.data, _WIDTHS[column.type] * column.count)] if column.count else []


def load(client: Client, data: Path, schema: Path) -> None:
    for match in re.finditer(r"CREATE TABLE (\w+) \((.*?)\n\);", schema.read_text(), re.DOTALL):
        lines = (line.strip().rstrip(",") for line in match[2].splitlines())
        columns = [line for line in lines if line and not line.startswith(("INDEX", "--"))]
        make = f"CREATE TABLE {match[1]} ({', '.join(columns)})"
        fill = f"COPY INTO {match[1]} FROM '{data / match[1]}.tbl' USING DELIMITERS '|', E'|\\n' NULL AS ''"
        client.start([make, fill]).result()


def main(libraries: Path, data: Path, schema: Path, limit_mib: int) -> None:
    library = Library(libraries)
    clients = [Client(library, limit_mib)]
    load(clients[0], data, schema)
    print("ready", flush=True)
    for line in sys.stdin:
        lists = json.loads(line)
        while len(clients) < len(lists):
            clients.append(Client(library, limit_mib))
        running = [client.start(texts) for client, texts in zip(clients, lists, strict=False)]
        print(json.dumps([answers.result() for answers in running]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
