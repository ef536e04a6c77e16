"""Whether servers that write the same tables show the same: every object's definition, every table's contents, every right.

A server's picture is a dictionary: what was asked for, and the answer as text, or the error. It is taken when nobody writes.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import pymysql
from strata_cli.server import Server
from strata_cli.waiting import wait_until

Picture = dict[str, str]
SYSTEM = "('mysql', 'information_schema', 'performance_schema', 'sys')"
SHOWN_MOST = 12
SHOWN_CHARS = 400
READ_TIMEOUT_S = 60.0
# Each server takes numbers of its own from the cluster's.
OWN = re.compile(r" AUTO_INCREMENT=\d+")

# A name for each, then columns that have to be equal. Where no column is left out, "*".
LISTS: Mapping[str, str] = {
    "databases": "SELECT schema_name, default_character_set_name, default_collation_name, schema_comment"
    f" FROM information_schema.schemata WHERE schema_name NOT IN {SYSTEM}",
    "tables": "SELECT table_schema, table_name, table_type, engine, table_collation, table_comment"
    f" FROM information_schema.tables WHERE table_schema NOT IN {SYSTEM} AND temporary <> 'Y'",
    "columns": "SELECT table_schema, table_name, ordinal_position, column_name, column_type, is_nullable, column_default, extra"
    f" FROM information_schema.columns WHERE table_schema NOT IN {SYSTEM}",
    "indexes": "SELECT table_schema, table_name, index_name, seq_in_index, column_name, non_unique, sub_part, ignored"
    f" FROM information_schema.statistics WHERE table_schema NOT IN {SYSTEM}",
    "constraints": "SELECT * FROM information_schema.table_constraints",
    "foreign keys": "SELECT * FROM information_schema.referential_constraints",
    "checks": "SELECT * FROM information_schema.check_constraints",
    "views": f"SELECT * FROM information_schema.views WHERE table_schema NOT IN {SYSTEM}",
    "triggers": f"SELECT * FROM information_schema.triggers WHERE trigger_schema NOT IN {SYSTEM}",
    "routines": f"SELECT * FROM information_schema.routines WHERE routine_schema NOT IN {SYSTEM}",
    "parameters": f"SELECT * FROM information_schema.parameters WHERE specific_schema NOT IN {SYSTEM}",
    "events": "SELECT event_schema, event_name, definer, event_definition, event_type, execute_at, interval_value,"
    " interval_field, starts, ends, status, on_completion, created, event_comment FROM information_schema.events"
    f" WHERE event_schema NOT IN {SYSTEM}",
    "foreign servers": "SELECT * FROM mysql.servers",
    "roles": "SELECT * FROM mysql.roles_mapping",
    "rights, global": "SELECT * FROM information_schema.user_privileges",
    "rights, of databases": "SELECT * FROM information_schema.schema_privileges",
    "rights, of tables": "SELECT * FROM information_schema.table_privileges",
    "rights, of columns": "SELECT * FROM information_schema.column_privileges",
    "rights, of routines": "SELECT host, db, user, routine_name, routine_type, grantor, proc_priv FROM mysql.procs_priv",
}
Ask = Callable[[str], list[tuple[Any, ...]]]


def _answer(ask: Ask, statement: str) -> str:
    try:
        rows = ask(statement)
    except pymysql.MySQLError as error:
        return f"error {error.args[0]}"
    return "\n".join(sorted(" | ".join(map(str, row)) for row in rows))


def _objects(ask: Ask) -> list[str]:
    """Statements that show each of them."""
    kinds = {"VIEW": "VIEW", "SEQUENCE": "SEQUENCE"}
    found = [
        f"SHOW CREATE {kinds.get(kind, 'TABLE')} `{schema}`.`{name}`"
        for schema, name, kind in ask(
            f"SELECT table_schema, table_name, table_type FROM information_schema.tables WHERE table_schema NOT IN {SYSTEM}"
        )
    ]
    found += [
        f"SHOW CREATE {kind} `{schema}`.`{name}`"
        for kind, schema, name in ask(
            "SELECT routine_type, routine_schema, routine_name FROM information_schema.routines"
            f" WHERE routine_schema NOT IN {SYSTEM}"
        )
    ]
    found += [
        f"SHOW CREATE EVENT `{schema}`.`{name}`"
        for schema, name in ask("SELECT event_schema, event_name FROM information_schema.events")
    ]
    for user, host, role in ask("SELECT user, host, is_role FROM mysql.user"):
        account = f"'{user}'" if role == "Y" else f"'{user}'@'{host}'"
        found += [f"SHOW GRANTS FOR {account}"] + ([f"SHOW CREATE USER {account}"] if role != "Y" else [])
    return found


def tables_of(ask: Ask) -> list[str]:
    """With rows of their own."""
    rows = ask(
        f"SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema NOT IN {SYSTEM}"
        " AND table_type IN ('BASE TABLE', 'SYSTEM VERSIONED') AND temporary <> 'Y'"
    )
    return [f"`{schema}`.`{name}`" for schema, name in rows]


def asker(connection: "pymysql.connections.Connection[Any]") -> Ask:
    def ask(statement: str) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    return ask


def picture(server: Server) -> Picture:
    with closing(server.connect(autocommit=True, read_timeout=READ_TIMEOUT_S)) as connection:
        ask = asker(connection)
        shown = {name: _answer(ask, statement) for name, statement in LISTS.items()}
        for statement in _objects(ask):
            shown[statement] = OWN.sub("", _answer(ask, statement))
        for table in tables_of(ask):
            shown[f"CHECKSUM TABLE {table}"] = _answer(ask, f"CHECKSUM TABLE {table}")
    return shown


def differences(pictures: Mapping[str, Picture]) -> list[str]:
    """By the names of servers; the first is what the others are compared with."""
    (first, model), *others = pictures.items()
    found = []
    for name, shown in others:
        for asked in sorted(model.keys() | shown.keys()):
            if model.get(asked) != shown.get(asked):
                found.append(f"{asked}\n{_unlike(first, model.get(asked), name, shown.get(asked))}")
    return found[:SHOWN_MOST]


def _unlike(first: str, one: str | None, other: str, two: str | None) -> str:
    """Lines that only one of both has."""
    lines, others = (one or "(not there)").splitlines(), (two or "(not there)").splitlines()
    said = [f"    {first}: {line[:SHOWN_CHARS]}" for line in lines if line not in others]
    said += [f"    {other}: {line[:SHOWN_CHARS]}" for line in others if line not in lines]
    return "\n".join(said[:SHOWN_MOST])


def disagreements(servers: Sequence[Server], within_s: float) -> list[str]:
    """What they do not agree on, though they have had so long; an unanswered question is one, too."""
    last: list[str] = []

    def agree() -> bool:
        try:
            last[:] = differences({server.data.name: picture(server) for server in servers})
        except (pymysql.MySQLError, OSError) as error:
            last[:] = [f"the servers cannot be asked: {error}"]
        return not last

    return [] if wait_until(agree, within_s, every_s=1.0) else last


def unwell_tables(server: Server) -> list[str]:
    with closing(server.connect(autocommit=True, read_timeout=READ_TIMEOUT_S)) as connection:
        ask = asker(connection)
        found = []
        for table in tables_of(ask):
            found += [f"{server.data.name}: {row}" for row in ask(f"CHECK TABLE {table} EXTENDED") if row[3] != "OK"]
    return found
