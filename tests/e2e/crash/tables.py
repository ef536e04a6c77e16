"""Checks that need no knowledge of the workload: CHECK TABLE, and every index read against the table itself."""

from .session import RETRY, Refused, Session

LOCK_WAIT_S = 20  # Longer than a rollback goes on in the background.

# Warnings of InnoDB about entries that its own rollback is about to remove, or that wait for its purge.
INNODB_DOUBTS = "InnoDB: "


def check_table(session: Session, table: str) -> list[str]:
    rows = [row for row in session.execute(f"CHECK TABLE `{table}` EXTENDED") if not row[3].startswith(INNODB_DOUBTS)]
    bad = [f"{row[2]}: {row[3]}" for row in rows if row[2] not in ("status", "note") or (row[2] == "status" and row[3] != "OK")]
    return [f"CHECK TABLE {table}: {text}" for text in bad]


def indexes_of(session: Session, table: str) -> dict[str, list[tuple[str, bool]]]:
    """Secondary indexes: name -> (column, is it nullable), in key order."""
    indexes: dict[str, list[tuple[str, bool]]] = {}
    for row in session.execute(f"SHOW INDEX FROM `{table}`"):
        if row[2] != "PRIMARY":
            indexes.setdefault(row[2], []).append((row[4], row[9] == "YES"))
    return indexes


def index_agrees(session: Session, table: str, index: str, columns: list[tuple[str, bool]]) -> list[str]:
    """The same rows must come out of the index (in key order, and looked up through it) as out of the table."""
    shown = [row[0] for row in session.execute(f"SHOW COLUMNS FROM `{table}`")]
    row_hash = "CRC32(CONCAT_WS('|', " + ", ".join(f"IFNULL(`{c}`, 'NULL')" for c in shown) + "))"
    first, nullable = columns[0]
    everything = (
        f"(`{first}` IS NULL OR `{first}` >= {_lowest(session, table, first)})"
        if nullable
        else (f"`{first}` >= {_lowest(session, table, first)}")
    )
    sums = f"COUNT(*), IFNULL(SUM({row_hash}), 0), BIT_XOR({row_hash})"
    others = "PRIMARY" if _has_primary(session, table) else ""
    by_table = session.execute(f"SELECT {sums} FROM `{table}` {_ignore_all(session, table, others)}")
    by_index = session.execute(f"SELECT {sums} FROM `{table}` FORCE INDEX (`{index}`) WHERE {everything}")
    keys = ", ".join(f"`{column}`" for column, _ in columns)
    key_hash = f"CRC32(CONCAT_WS('|', {', '.join(f'IFNULL(`{c}`, 0)' for c, _ in columns)}))"
    key_sums = f"COUNT(*), IFNULL(SUM({key_hash}), 0)"
    keys_by_table = session.execute(f"SELECT {key_sums} FROM `{table}` {_ignore_all(session, table, others)}")
    ordered = f"SELECT {keys} FROM `{table}` FORCE INDEX (`{index}`) ORDER BY {keys} LIMIT 10000000"
    keys_by_index = session.execute(f"SELECT {key_sums} FROM ({ordered}) AS by_index")
    problems: list[str] = []
    if by_table != by_index:
        problems.append(f"{table}.{index}: rows through the index {by_index}, in the table {by_table}")
    if keys_by_table != keys_by_index:
        problems.append(f"{table}.{index}: keys in the index {keys_by_index}, in the table {keys_by_table}")
    return problems


def _has_primary(session: Session, table: str) -> bool:
    return any(row[2] == "PRIMARY" for row in session.execute(f"SHOW INDEX FROM `{table}`"))


def _ignore_all(session: Session, table: str, kept: str) -> str:
    names = sorted({row[2] for row in session.execute(f"SHOW INDEX FROM `{table}`")} - {kept})
    return "IGNORE INDEX (" + ", ".join(f"`{name}`" for name in names) + ")" if names else ""


def _lowest(session: Session, table: str, column: str) -> str:
    kind = next(row[1] for row in session.execute(f"SHOW COLUMNS FROM `{table}`") if row[0] == column)
    return "-9223372036854775808" if "int" in kind.lower() else "''"


def verify_table(session: Session, table: str) -> list[str]:
    problems = check_table(session, table)
    for index, columns in indexes_of(session, table).items():
        problems += index_agrees(session, table, index, columns)
    return problems


def rows_are_free(session: Session, table: str) -> list[str]:
    """No row is locked by a transaction that nobody can end any more."""
    try:
        session.execute(f"SET SESSION innodb_lock_wait_timeout = {LOCK_WAIT_S}")
        if session.execute("SHOW VARIABLES LIKE 'strata_lock_wait_timeout'"):
            session.execute(f"SET SESSION strata_lock_wait_timeout = {LOCK_WAIT_S}")
        session.execute(f"SELECT COUNT(*) FROM `{table}` FOR UPDATE")
    except Refused as error:
        if error.code not in RETRY:
            raise
        return [f"{table}: rows are locked though nobody is at work: {error}"]
    finally:
        session.rollback()
    return []
