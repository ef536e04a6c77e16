"""The server's own tables that a cluster keeps in its database."""

from collections.abc import Sequence

from .server import Server

# Users, grants, routines, events, how far a replica has come (docs/adr/2026-11-23-server-tables.md): compute nodes in other
# folders find them in the cluster.
SHARED_SYSTEM_TABLES = (
    *("global_priv", "db", "tables_priv", "columns_priv", "procs_priv", "proxies_priv", "roles_mapping"),
    *("proc", "event", "func", "servers", "table_stats", "column_stats", "index_stats"),
    "gtid_slave_pos",
)
# Of several servers that write the same tables each is a replica of its own, and loads functions of its own.
SHARED_BY_SEVERAL = tuple(name for name in SHARED_SYSTEM_TABLES if name not in ("func", "gtid_slave_pos"))


def share_system_tables(server: Server, tables: Sequence[str] = SHARED_SYSTEM_TABLES) -> None:
    """Once in the life of a cluster there is something to do; when that is interrupted, the next start does the rest."""
    names = ", ".join(f"'{name}'" for name in tables)
    found = server.query(
        "SELECT table_name FROM information_schema.tables"
        f" WHERE table_schema = 'mysql' AND table_name IN ({names}) AND engine <> 'STRATA'"
    )
    for (name,) in found:
        server.query(f"ALTER TABLE mysql.{name} ENGINE=STRATA")
