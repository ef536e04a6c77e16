"""Schemas of programs that Debian packages, loaded as they are with the engine rewritten: on STRATA they have to become what they
become on InnoDB, table by table."""

import gzip
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strata_cli import paths, private_apt
from strata_cli.server import Server
from strata_cli.server_cmd import CLIENT
from strata_cli.shell import StrataError, capture

PLACE = paths.BUILD / "applications" / "debian"


@dataclass(frozen=True)
class Schema:
    name: str
    package: str  # of Debian, in the version that the machine's mirrors have
    files: tuple[str, ...]  # globs below the package's root, in the order of loading


NOW = 1_700_000_000  # for both engines
COMMON = "usr/share/dbconfig-common"
RADIUS = "etc/freeradius/3.0/mods-config/sql"
ALL = (
    Schema("bacula", "bacula-director-mysql", (f"{COMMON}/data/bacula-director-mysql/install/mysql",)),
    Schema("cacti", "cacti", ("usr/share/cacti/conf_templates/cacti.sql",)),
    Schema("ejabberd", "ejabberd", ("usr/share/ejabberd/sql/mysql.sql",)),
    Schema(
        "freeradius",
        "freeradius-config",
        (
            *(f"{RADIUS}/{part}/mysql/schema.sql" for part in ("main", "cui", "dhcp", "ippool")),
            f"{RADIUS}/main/mysql/process-radacct.sql",
        ),
    ),
    Schema("icinga2", "icinga2-ido-mysql", ("usr/share/icinga2-ido-mysql/schema/mysql.sql",)),
    Schema("icingaweb2", "icingaweb2", ("usr/share/icingaweb2/schema/mysql.schema.sql",)),
    Schema(
        "kamailio",
        "kamailio-mysql-modules",
        ("usr/share/kamailio/mysql/standard-create.sql", "usr/share/kamailio/mysql/[!s]*-create.sql"),
    ),
    Schema("kea", "kea-admin", ("usr/share/kea/scripts/mysql/dhcpdb_create.mysql",)),
    Schema("mediawiki", "mediawiki", ("usr/share/mediawiki/maintenance/tables-generated.sql",)),
    Schema("pdns", "pdns-backend-mysql", ("usr/share/pdns-backend-mysql/schema/schema.mysql.sql",)),
    Schema("phpmyadmin", "phpmyadmin", ("usr/share/phpmyadmin/sql/create_tables.sql",)),
    Schema("prelude", "libpreludedb7-mysql", ("usr/share/libpreludedb/classic/mysql.sql",)),
    Schema("request-tracker", "request-tracker5", ("usr/share/request-tracker5/etc/schema.mysql",)),
    Schema("roundcube", "roundcube-core", (f"{COMMON}/data/roundcube/install/mysql",)),
    Schema("rsyslog", "rsyslog-mysql", (f"{COMMON}/data/rsyslog-mysql/install/mysql",)),
    Schema("tango", "tango-db", ("usr/share/tango-db/create_db_tables.sql", "usr/share/tango-db/stored_proc.sql")),
    Schema(
        "zabbix",
        "zabbix-server-mysql",
        tuple(f"usr/share/zabbix-server-mysql/{part}.sql.gz" for part in ("schema", "images", "data", "double")),
    ),
    Schema("zoneminder", "zoneminder", ("usr/share/zoneminder/db/zm_create.sql", "usr/share/zoneminder/db/triggers.sql")),
)

# What chooses a database or reads another file is ours to say; so are users.
NOT_OURS = re.compile(r"^\s*(?:use|source|\\\.|(?:create|drop)\s+(?:database|user)|grant|flush)\b.*$", re.IGNORECASE)
ENGINE = re.compile(r"\b(?:ENGINE|TYPE)(\s*=?\s*)(?:InnoDB|MyISAM|Aria)\b", re.IGNORECASE)
LINE_OF_ERROR = re.compile(r"^(ERROR \d+ \(\w+\)) at line \d+: ")


def rewritten(text: str, engine: str) -> str:
    lines = (line for line in text.splitlines() if not NOT_OURS.match(line))
    return ENGINE.sub(lambda found: f"ENGINE{found[1]}{engine}", "\n".join(lines)) + "\n"


@dataclass
class Loaded:
    errors: list[str] = field(default_factory=list)  # of statements, in their order
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)


def texts(schema: Schema) -> list[str]:
    root = _unpacked(schema.package)
    found = [path for pattern in schema.files for path in sorted(root.glob(pattern))]
    if len(found) < len(schema.files):
        raise StrataError(f"{schema.package} of this Debian has not all of {', '.join(schema.files)}")
    return [_read(path) for path in found]


def _read(path: Path) -> str:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data.decode("utf-8", errors="surrogateescape")


def _unpacked(package: str) -> Path:
    root = PLACE / package
    if (root / ".complete").exists():
        return root
    root.mkdir(parents=True, exist_ok=True)
    private_apt.configure()
    if not private_apt.download(["download", "-q", package], root):
        raise StrataError(f"Debian's package {package} could not be downloaded; see build/logs/setup-apt.log")
    (archive,) = root.glob("*.deb")
    if capture(["dpkg-deb", "-x", archive, root]).returncode != 0:
        raise StrataError(f"{archive.name} could not be unpacked")
    archive.unlink()
    (root / ".complete").touch()
    return root


def load(server: Server, schema: Schema, engine: str) -> Loaded:
    """Into a database of its own. Every statement is tried; what fails is told in the end."""
    database = f"{schema.name.replace('-', '_')}_{engine.lower()}"
    server.query(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
    loaded = Loaded()
    for text in texts(schema):
        options = ["--no-defaults", f"--socket={server.socket}", "-u", "root", "--force", "--default-character-set=utf8mb4"]
        sql = f"SET default_storage_engine={engine}, timestamp={NOW};\n{rewritten(text, engine)}"
        done = subprocess.run(
            [CLIENT, *options, database],
            input=sql.encode("utf-8", errors="surrogateescape"),
            capture_output=True,
            timeout=900,
            check=False,
        )
        said = done.stderr.decode(errors="replace").replace(database, "THE_DATABASE").splitlines()
        loaded.errors += [LINE_OF_ERROR.sub(r"\1: ", line) for line in said if line.startswith("ERROR")]
    for row in server.query("SHOW FULL TABLES WHERE Table_type = 'BASE TABLE'", database=database):
        loaded.tables[row[0]] = _facts(server, database, row[0], engine)
    return loaded


def _facts(server: Server, database: str, table: str, engine: str) -> dict[str, Any]:
    name = f"`{database}`.`{table}`"
    made = server.query(f"SHOW CREATE TABLE {name}")[0][1].replace(database, "THE_DATABASE")
    at = f"WHERE TABLE_SCHEMA = '{database}' AND TABLE_NAME = '{table}'"
    return {
        "definition": re.sub(r" AUTO_INCREMENT=\d+", "", made.replace(f"ENGINE={engine}", "ENGINE=THE_ENGINE")),
        "checksum": server.query(f"CHECKSUM TABLE {name} EXTENDED")[0][1],
        "check": server.query(f"CHECK TABLE {name} EXTENDED")[-1][3],
        "engine is right": server.query(f"SELECT ENGINE FROM information_schema.TABLES {at}")[0][0].upper() == engine.upper(),
    }


def differences(innodb: Loaded, strata: Loaded, expected: Iterable[str]) -> tuple[int, list[str]]:
    """How many tables are the same, and what is different and not expected."""
    known = set(expected)
    problems = []
    same = 0
    for table, wanted in innodb.tables.items():
        found = strata.tables.get(table)
        if table in known:
            continue
        if found is None:
            problems.append(f"{table}: it is not there")
        elif different := [fact for fact in wanted if found[fact] != wanted[fact]]:
            problems += [f"{table}: {fact}: {found[fact]!r} instead of {wanted[fact]!r}" for fact in different]
        else:
            same += 1
    problems += [f"{table}: only STRATA has it" for table in strata.tables if table not in innodb.tables]
    more = [error for error in strata.errors if error not in innodb.errors]
    # The server does not say of which table; each known one may have cost a statement.
    problems += [f"a statement: {error}" for error in more[len(known) :]]
    return same, problems
