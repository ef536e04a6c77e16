"""No memory for what is told of foreign keys: the statement fails, and the server goes on.

What the server is told of foreign keys it takes for all there are: SHOW CREATE TABLE, and so a dump, would lose some, and so
would an ALTER that copies a table. One allocation after the other fails that the engine makes for it, in one statement each.
"""

import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.cursors import Cursor
from strata_cli import paths
from strata_cli.server import Server, Settings, choose_port

# Makes an allocation fail of whoever has asked for it with fail_memory(n, ever): the n-th that is made, in this thread, on behalf
# of the functions of FAILING_IN, which are offsets in ha_strata.so; with `ever` all after it, too. Returns how many there were
# since the last call.
FAILING_MEMORY = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unwind.h>
extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
static __thread bool armed, ever, looking;
static __thread long long fails_at, seen;
static struct { uintptr_t from, to; } places[64];
static int count;
static int find(struct dl_phdr_info* info, size_t size, void* unused) {
  if (strstr(info->dlpi_name, "ha_strata.so") == NULL) return 0;
  for (const char* at = getenv("FAILING_IN"); at != NULL && *at != 0 && count < 64; ++count) {
    char* end;
    places[count].from = info->dlpi_addr + strtoul(at, &end, 16);
    places[count].to = places[count].from + strtoul(end + 1, &end, 16);
    at = *end == ',' ? end + 1 : end;
  }
  return 1;
}
static _Unwind_Reason_Code visit(struct _Unwind_Context* context, void* found) {
  const uintptr_t at = _Unwind_GetIP(context);
  for (int i = 0; i < count; ++i)
    if (at > places[i].from && at <= places[i].to) *(bool*)found = true;
  return *(bool*)found ? _URC_END_OF_STACK : _URC_NO_REASON;
}
static bool fails(void) {
  if (!armed || looking) return false;
  bool found = false;
  looking = true;
  _Unwind_Backtrace(visit, &found);
  looking = false;
  if (!found) return false;
  const long long now = seen++;
  if (now != fails_at && !(ever && now > fails_at)) return false;
  errno = ENOMEM;
  return true;
}
void* malloc(size_t bytes) { return fails() ? NULL : __libc_malloc(bytes); }
void* calloc(size_t n, size_t bytes) { return fails() ? NULL : __libc_calloc(n, bytes); }
void* realloc(void* old, size_t bytes) { return fails() ? NULL : __libc_realloc(old, bytes); }
typedef struct { unsigned arg_count; int* arg_type; char** args; } Arguments;
bool fail_memory_init(void* init, Arguments* arguments, char* message) {
  if (count == 0) dl_iterate_phdr(find, NULL);
  for (unsigned i = 0; i < arguments->arg_count; ++i) arguments->arg_type[i] = 2;
  return false;
}
long long fail_memory(void* init, Arguments* arguments, char* null, char* error) {
  const long long before = seen;
  fails_at = *(long long*)arguments->args[0];
  ever = *(long long*)arguments->args[1] != 0;
  armed = fails_at >= 0;
  seen = 0;
  return before;
}
"""
TELLS_OF_KEYS = re.compile(r"^(\w+) (\w+) t .*ha_strata::get_(?:parent_)?foreign_key_(?:list|create_info)\(", re.MULTILINE)
NO_MEMORY = (5, 1037, 1041)
HAS_CHILDREN = 1701
LONG = "with_a_name_as_long_as_may_be_for_much_memory"
TABLES = (
    f"CREATE TABLE parent_{LONG} (a_{LONG} INT, b_{LONG} INT, UNIQUE (a_{LONG}, b_{LONG})) ENGINE=STRATA",
    f"""CREATE TABLE child_{LONG} (id INT PRIMARY KEY, a_{LONG} INT, b_{LONG} INT, c_{LONG} INT, d_{LONG} INT,
        CONSTRAINT one_{LONG} FOREIGN KEY (a_{LONG}, b_{LONG}) REFERENCES parent_{LONG} (a_{LONG}, b_{LONG}) ON DELETE CASCADE,
        CONSTRAINT two_{LONG} FOREIGN KEY (c_{LONG}, d_{LONG}) REFERENCES parent_{LONG} (a_{LONG}, b_{LONG}) ON UPDATE SET NULL)
        ENGINE=STRATA""",
    f"INSERT INTO parent_{LONG} VALUES (1, 1), (2, 2)",
    f"INSERT INTO child_{LONG} VALUES (1, 1, 1, 2, 2), (2, 2, 2, 2, 2)",
)
SHOW = f"SHOW CREATE TABLE child_{LONG}"
ALTERS = (f"ALTER TABLE child_{LONG} FORCE, ALGORITHM=COPY", f"ALTER TABLE child_{LONG} COMMENT = 'again', ALGORITHM=COPY")
LISTS = {
    "constraints": "SELECT constraint_name FROM information_schema.table_constraints WHERE table_schema = 'test'",
    "columns": """SELECT constraint_name, column_name, referenced_table_name, referenced_column_name
                  FROM information_schema.key_column_usage WHERE table_schema = 'test'""",
    "references": """SELECT constraint_name, unique_constraint_name, update_rule, delete_rule, referenced_table_name
                     FROM information_schema.referential_constraints WHERE constraint_schema = 'test'""",
}


@pytest.fixture
def cursor(data: Path) -> Iterator[Cursor]:
    """Of a connection whose blocks of memory are as small as they can be, so that it takes many."""
    data.parent.mkdir(parents=True, exist_ok=True)
    source, plugins = data.with_suffix(".c"), data.with_suffix(".plugins")
    plugins.mkdir(exist_ok=True)
    library, engine = plugins / "failing_memory.so", paths.plugin_path("release")
    (plugins / engine.name).unlink(missing_ok=True)
    (plugins / engine.name).symlink_to(engine)
    source.write_text(FAILING_MEMORY)
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-ftls-model=initial-exec", "-o", library, source, "-lgcc_s"], check=True)
    symbols = subprocess.run(["nm", "-S", "-C", engine], check=True, capture_output=True, text=True).stdout
    places = ",".join(f"{place}:{size}" for place, size in TELLS_OF_KEYS.findall(symbols))
    assert places
    server = Server(data)
    env = {"LD_PRELOAD": str(library), "FAILING_IN": places}
    server.start(Settings(port=choose_port(None, 23506)), env=env, extra=[f"--plugin-dir={plugins}"])
    server.query("CREATE DATABASE test")
    server.query(f"CREATE FUNCTION fail_memory RETURNS INTEGER SONAME '{library.name}'")
    with closing(server.connect(database="test", autocommit=True)) as connection, connection.cursor() as made:
        for statement in ("SET query_alloc_block_size = 1024, query_prealloc_size = 1024", *TABLES):
            made.execute(statement)
        yield made
    assert server.stop()


def ask(cursor: Cursor, sql: str) -> tuple[tuple[Any, ...], ...]:
    cursor.execute(sql)
    return tuple(cursor.fetchall())


def shown_keys(cursor: Cursor) -> list[str]:
    return re.findall("CONSTRAINT .*", ask(cursor, SHOW)[0][1])


def seen(cursor: Cursor) -> int:
    return int(ask(cursor, "SELECT fail_memory(-1, 0)")[0][0])


def each_failure(cursor: Cursor, sql: str, refused: int = 0) -> Iterator[tuple[tuple[Any, ...], ...] | None]:
    """What the statement answers when its n-th allocation fails, or all from there on; None: it fails for that, or is refused."""
    for ever in (0, 1):
        failed = 0
        for number in range(1000):
            ask(cursor, f"SELECT fail_memory({number}, {ever})")
            answer = None
            try:
                answer = ask(cursor, sql)
            except pymysql.MySQLError as error:
                assert error.args[0] in (*NO_MEMORY, refused), error
                failed += error.args[0] != refused
            there_was_one = seen(cursor) > number
            yield answer
            if not there_was_one:
                break
        assert failed > 0 and (answer is None) == (refused != 0), f"{failed} of {number} failed"


@pytest.mark.parametrize("sql", [SHOW, *LISTS.values()], ids=["show", *LISTS])
def test_all_keys_are_told_or_none(cursor: Cursor, sql: str) -> None:
    whole = ask(cursor, sql)
    assert str(whole).count(f"one_{LONG}") >= 1 and str(whole).count(f"two_{LONG}") >= 1
    for answer in each_failure(cursor, sql):
        assert answer in (None, whole)
    assert ask(cursor, sql) == whole


@pytest.mark.parametrize("sql", ALTERS)
def test_no_key_is_lost(cursor: Cursor, sql: str) -> None:
    """Whether the ALTER happened or not."""
    whole = shown_keys(cursor)
    assert len(whole) == 2
    for _ in each_failure(cursor, sql):
        assert shown_keys(cursor) == whole
    for _ in each_failure(cursor, f"TRUNCATE parent_{LONG}", HAS_CHILDREN):
        assert ask(cursor, f"SELECT COUNT(*) FROM parent_{LONG}") == ((2,),)


def test_a_cascade_happens_or_not(cursor: Cursor) -> None:
    before = ask(cursor, f"SELECT * FROM child_{LONG}")
    for answer in each_failure(cursor, f"DELETE FROM parent_{LONG} WHERE a_{LONG} = 1"):
        assert (len(ask(cursor, f"SELECT * FROM child_{LONG}")) == 1) == (answer is not None)
        ask(cursor, f"REPLACE parent_{LONG} VALUES (1, 1)")
        ask(cursor, f"REPLACE child_{LONG} VALUES {before[0]}")
