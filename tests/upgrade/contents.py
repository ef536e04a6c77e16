"""What is in a database whose folder is kept: something of everything that has bytes of its own in pages, undo or log."""

import re
from pathlib import Path

from strata_cli.server import Server

SCHEMA = "kept"
ROWS = 400
# Small files: an archive is kept for good. A log is read with the size of segments that it was written with.
SMALL = ["--strata-buffer-pool-size=16M", "--strata-log-segment-size=4M"]
OF_CLUSTER = ("--strata-buffer-pool-size=16M",)
PREPARED = "kept-branch"  # an XA transaction that only the next server can end

TABLES = (
    """CREATE TABLE numbers (id INT UNSIGNED AUTO_INCREMENT PRIMARY KEY, t TINYINT, s SMALLINT UNSIGNED, m MEDIUMINT, b BIGINT,
       f FLOAT, d DOUBLE, de DECIMAL(20,6), bi BIT(13), y YEAR, KEY (t, s), UNIQUE (b), KEY (de)) ENGINE=STRATA""",
    """CREATE TABLE times (id INT PRIMARY KEY, d DATE, t TIME(3), dt DATETIME(6), ts TIMESTAMP(2) NULL,
       KEY (dt), KEY (d, t)) ENGINE=STRATA""",
    """CREATE TABLE texts (id INT PRIMARY KEY, c CHAR(20) CHARACTER SET latin1, v VARCHAR(200) COLLATE utf8mb4_unicode_ci,
       n VARCHAR(60) COLLATE utf8mb4_nopad_bin, bin VARBINARY(50), e ENUM('red','green','blue'), st SET('a','b','c'),
       long_v VARCHAR(3000),
       KEY (c), KEY (v, n), KEY (bin), KEY (long_v(300))) ENGINE=STRATA""",
    "CREATE TABLE large (id INT PRIMARY KEY, body LONGBLOB, words MEDIUMTEXT, KEY (words(40))) ENGINE=STRATA",
    "CREATE TABLE no_key (a INT, b VARCHAR(30), KEY (a)) ENGINE=STRATA",
    """CREATE TABLE computed (id INT PRIMARY KEY, a INT, kept INT AS (a * 2) STORED, made INT AS (a + 1) VIRTUAL,
       CHECK (a >= 0), KEY (kept), KEY (made)) ENGINE=STRATA""",
    "CREATE TABLE altered (id INT PRIMARY KEY, a INT, b INT) ENGINE=STRATA",
    "CREATE TABLE gone (id INT PRIMARY KEY, a INT) ENGINE=STRATA",
    "CREATE TABLE branches (id INT PRIMARY KEY, a INT) ENGINE=STRATA",
)
FAMILY = (
    "CREATE TABLE parents (id INT PRIMARY KEY, code VARCHAR(20) NOT NULL, UNIQUE (code)) ENGINE=STRATA",
    """CREATE TABLE children (id INT PRIMARY KEY, parent INT, code VARCHAR(20), up INT, KEY (up),
       FOREIGN KEY (parent) REFERENCES parents (id) ON DELETE CASCADE,
       FOREIGN KEY (code) REFERENCES parents (code) ON UPDATE CASCADE ON DELETE SET NULL,
       FOREIGN KEY (up) REFERENCES children (id)) ENGINE=STRATA""",
    "INSERT INTO parents SELECT seq, CONCAT('p', seq) FROM seq_1_to_40",
    "INSERT INTO children SELECT seq, seq MOD 40 + 1, CONCAT('p', seq MOD 40 + 1), NULLIF(seq - 1, 0) FROM seq_1_to_200",
)
FILLED = (
    f"""INSERT INTO numbers SELECT seq, CAST(seq MOD 200 AS SIGNED) - 100, seq, -CAST(seq AS SIGNED),
        seq * 1000003, seq / 7, seq / 11, seq / 13, seq & 8191,
        1970 + seq MOD 100 FROM seq_1_to_{ROWS}""",
    f"""INSERT INTO times SELECT seq, '2001-01-01' + INTERVAL seq DAY, SEC_TO_TIME(seq * 7),
        '2001-01-01' + INTERVAL seq * 1001 SECOND,
        IF(seq MOD 5, '2010-03-04 05:06:07.25' + INTERVAL seq MINUTE, NULL) FROM seq_1_to_{ROWS}""",
    f"""INSERT INTO texts SELECT seq, CONCAT('c', seq MOD 50), CONCAT(IF(seq MOD 3, 'Ärger ', 'arger '), seq),
        CONCAT('n ', seq, IF(seq MOD 2, ' ', '')),
        UNHEX(MD5(seq)), 1 + seq MOD 3, seq MOD 8, REPEAT(CONCAT('w', seq MOD 10), seq MOD 1300) FROM seq_1_to_{ROWS}""",
    """INSERT INTO large SELECT seq, REPEAT(UNHEX(MD5(seq)), seq * 300), REPEAT(CONCAT('word ', seq, ' '), seq * 20)
        FROM seq_1_to_24""",
    f"INSERT INTO no_key SELECT seq MOD 300, CONCAT('row ', seq) FROM seq_1_to_{ROWS}",
    f"INSERT INTO computed (id, a) SELECT seq, seq MOD 77 FROM seq_1_to_{ROWS}",
    f"INSERT INTO altered SELECT seq, seq MOD 91, seq FROM seq_1_to_{ROWS}",
    "INSERT INTO gone SELECT seq, seq FROM seq_1_to_500",
    "INSERT INTO branches SELECT seq, 0 FROM seq_1_to_20",
)
CHANGED = (
    "ALTER TABLE altered ADD INDEX later (a, b)",
    "ALTER TABLE altered RENAME TO renamed",
    "DROP TABLE gone",
    "DELETE FROM numbers WHERE id MOD 3 = 0",
    "UPDATE texts SET v = CONCAT(v, ' changed'), bin = REVERSE(bin) WHERE id MOD 4 = 0",
    "UPDATE large SET body = CONCAT(body, body) WHERE id < 10",
    "DELETE FROM large WHERE id > 20",
    "UPDATE no_key SET a = a + 1000 WHERE a < 20",
    "CREATE SEQUENCE counter START WITH 100 INCREMENT BY 5 CACHE 10 ENGINE=STRATA",
    "CREATE VIEW seen AS SELECT id, b FROM numbers WHERE t > 0",
)


def fill(server: Server, with_family: bool) -> None:
    server.query(f"CREATE DATABASE {SCHEMA}")
    for sql in (*TABLES, *FILLED, *CHANGED, *(FAMILY if with_family else ())):
        server.query(sql, database=SCHEMA, autocommit=True)
    server.query("SELECT NEXT VALUE FOR counter", database=SCHEMA, autocommit=True)


def tables(server: Server) -> list[str]:
    rows = server.query("SHOW FULL TABLES WHERE Table_type IN ('BASE TABLE', 'SEQUENCE')", database=SCHEMA)
    return sorted(row[0] for row in rows)


def facts(server: Server) -> dict[str, list[str]]:
    """What has to be the same with every later version: of each table its definition, and its rows however they are reached.

    Not the next AUTO_INCREMENT: a server that was killed may leave some out.
    """
    found = {}
    for table in tables(server):
        made = re.sub(r" AUTO_INCREMENT=\d+", "", server.query(f"SHOW CREATE TABLE {table}", database=SCHEMA)[0][1])
        checksum = server.query(f"CHECKSUM TABLE {table} EXTENDED", database=SCHEMA)[0][1]
        indexes = sorted({row[2] for row in server.query(f"SHOW INDEX FROM {table}", database=SCHEMA)})
        counts = [server.query(f"SELECT COUNT(*) FROM {table} FORCE INDEX (`{name}`)", database=SCHEMA)[0][0] for name in indexes]
        found[table] = [made, str(checksum), *(f"{name}: {count}" for name, count in zip(indexes, counts, strict=True))]
    return found


def leave_unfinished(server: Server) -> list[object]:
    """One transaction prepared and one under way; the connections that have to stay open for it."""
    prepared = server.connect(database=SCHEMA, autocommit=True)
    with prepared.cursor() as cursor:
        cursor.execute(f"XA START '{PREPARED}'")
        cursor.execute("UPDATE branches SET a = a + 1")
        cursor.execute("INSERT INTO large VALUES (900, REPEAT('x', 100000), 'prepared')")
        cursor.execute(f"XA END '{PREPARED}'")
        cursor.execute(f"XA PREPARE '{PREPARED}'")
    unfinished = server.connect(database=SCHEMA)
    with unfinished.cursor() as cursor:
        cursor.execute("DELETE FROM times WHERE id MOD 2 = 0")
        cursor.execute("UPDATE texts SET c = 'never' WHERE id < 400")
        cursor.execute("INSERT INTO no_key SELECT seq, 'never' FROM seq_1_to_200")
    # What is committed after these changes makes them durable, too.
    server.query("UPDATE renamed SET b = b + 1 WHERE id = 1", database=SCHEMA, autocommit=True)
    return [prepared, unfinished]


def kept_files(datadir: Path) -> list[Path]:
    """Of a server's data directory: the engine's folder and the schema's; the rest is every new server's."""
    return [datadir / "#strata", datadir / SCHEMA]
