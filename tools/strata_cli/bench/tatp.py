"""TATP, the Telecom Application Transaction Processing benchmark: its four tables, and what must hold of them after a run. Its
transactions are bench/sysbench/tatp.lua.

What a row holds follows from its key, so that two databases of the same size are the same, and every row that no transaction
may change can be recognized afterwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from .own_mix import Ask, Facts, asked, differences

CHUNK = 5_000  # subscribers of a transaction while loading
BITS = range(1, 11)
UNCHANGED_BITS = range(2, 11)  # The first one is set by a transaction.


def drawn(below: int, *words: str) -> str:
    """A number that follows from these, 0 to below - 1."""
    return f"MOD(CRC32(CONCAT_WS('-', {', '.join(words)})), {below})"


def letters(count: int, *words: str) -> str:
    return f"UPPER(LEFT(MD5(CONCAT_WS('-', {', '.join(words)})), {count}))"


SUBSCRIBER = (
    ["seq", "LPAD(seq, 15, '0')"]
    + [drawn(2, f"'bit {number}'", "seq") for number in BITS]
    + [drawn(16, f"'hex {number}'", "seq") for number in BITS]
    + [drawn(256, f"'byte2 {number}'", "seq") for number in BITS]
    + [drawn(2**31, "'msc'", "seq"), drawn(2**31, "'vlr'", "seq")]
)
ID, NTH = "s.seq", "i.seq"
FIRST_ACCESS, FIRST_FACILITY = drawn(4, "'first access'", ID), drawn(4, "'first facility'", ID)
HOUR, HOURS = drawn(3, "'first hour'", ID, NTH), drawn(8, "'hours'", ID, NTH, "f.seq")
ACTIVE, NUMBER = drawn(100, "'active'", ID, NTH), drawn(2**31, "'number'", ID, NTH, "f.seq")
ACCESS_INFO = [
    ID, f"1 + MOD({FIRST_ACCESS} + {NTH}, 4)", drawn(256, "'data1'", ID, NTH), drawn(256, "'data2'", ID, NTH),
    letters(3, "'data3'", ID, NTH), letters(5, "'data4'", ID, NTH),
]  # fmt: skip
KIND = f"1 + MOD({FIRST_FACILITY} + {NTH}, 4)"
SPECIAL_FACILITY = [
    ID, KIND, f"{ACTIVE} < 85", drawn(256, "'error control'", ID, NTH), drawn(256, "'data_a'", ID, NTH),
    letters(5, "'data_b'", ID, NTH),
]  # fmt: skip
BEGINS = f"8 * MOD({HOUR} + f.seq, 3)"
CALL_FORWARDING = [
    ID, KIND, BEGINS, f"{BEGINS} + 1 + {HOURS}", f"LPAD({NUMBER}, 15, '0')",
]  # fmt: skip
ACCESSES = "i.seq < 1 + " + drawn(4, "'accesses'", ID)
FACILITIES = "i.seq < 1 + " + drawn(4, "'facilities'", ID)
FORWARDINGS = "f.seq < " + drawn(4, "'forwardings'", ID, NTH)

FIXED_OF_SUBSCRIBER = ["s_id", "sub_nbr", "msc_location", *(f"bit_{number}" for number in UNCHANGED_BITS)]
FIXED_OF_SUBSCRIBER += [f"{name}_{number}" for name in ("hex", "byte2") for number in BITS]


def checksum(table: str, columns: list[str]) -> str:
    return f"SELECT SUM(CRC32(CONCAT_WS('-', {', '.join(columns)}))) FROM {table}"


# Which no transaction changes.
UNCHANGED = {
    "subscribers": "SELECT COUNT(*) FROM subscriber",
    "subscribers by their numbers": "SELECT COUNT(*) FROM subscriber FORCE INDEX (sub_nbr) WHERE sub_nbr >= ''",
    "checksum of subscribers": checksum("subscriber", FIXED_OF_SUBSCRIBER),
    "access information": "SELECT COUNT(*) FROM access_info",
    "checksum of access information": checksum("access_info", ["s_id", "ai_type", "data1", "data2", "data3", "data4"]),
    "special facilities": "SELECT COUNT(*) FROM special_facility",
    "checksum of special facilities": checksum("special_facility", ["s_id", "sf_type", "is_active", "error_cntrl", "data_b"]),
}
FORWARDED = "call forwardings"
GROWING = {FORWARDED: "SELECT COUNT(*) FROM call_forwarding"}
# Rows that must not be.
FORBIDDEN = {
    "call forwardings without a special facility": "SELECT COUNT(*) FROM call_forwarding cf LEFT JOIN special_facility sf"
    " ON sf.s_id = cf.s_id AND sf.sf_type = cf.sf_type WHERE sf.s_id IS NULL",
    "call forwardings at wrong hours": "SELECT COUNT(*) FROM call_forwarding WHERE start_time NOT IN (0, 8, 16)"
    " OR end_time NOT BETWEEN start_time + 1 AND start_time + 8 OR LENGTH(numberx) <> 15",
    "special facilities and accesses without a subscriber": "SELECT (SELECT COUNT(*) FROM special_facility LEFT JOIN subscriber"
    " USING (s_id) WHERE sub_nbr IS NULL) + (SELECT COUNT(*) FROM access_info LEFT JOIN subscriber USING (s_id)"
    " WHERE sub_nbr IS NULL)",
    "values that no transaction writes": "SELECT (SELECT COUNT(*) FROM subscriber WHERE bit_1 NOT IN (0, 1)"
    " OR vlr_location > 2147483647) + (SELECT COUNT(*) FROM special_facility WHERE data_a > 255)",
}


@dataclass(frozen=True)
class Tatp:
    subscribers: int  # of each server
    servers: int
    engine: str

    script = "tatp"
    transactions = (
        "get_subscriber_data", "get_new_destination", "get_access_data", "update_subscriber_data", "update_location",
        "insert_call_forwarding", "delete_call_forwarding",
    )  # fmt: skip

    def options(self, shared: int, servers: int) -> list[str]:
        return [f"--subscribers={self.subscribers}", f"--servers={servers}", f"--shared={shared}"]

    def load(self, ask: Ask) -> None:
        for table in self._tables():
            ask(table)
        whole = self.subscribers * self.servers
        for first in range(1, whole + 1, CHUNK):
            of_chunk = f"seq_{first}_to_{min(first + CHUNK - 1, whole)}"
            ask(f"INSERT INTO subscriber SELECT {', '.join(SUBSCRIBER)} FROM {of_chunk}")
            each = f"FROM {of_chunk} s JOIN seq_0_to_3 i"
            ask(f"INSERT INTO access_info SELECT {', '.join(ACCESS_INFO)} {each} WHERE {ACCESSES}")
            ask(f"INSERT INTO special_facility SELECT {', '.join(SPECIAL_FACILITY)} {each} WHERE {FACILITIES}")
            chosen = f"{each} JOIN seq_0_to_2 f WHERE {FACILITIES} AND {FORWARDINGS}"
            ask(f"INSERT INTO call_forwarding SELECT {', '.join(CALL_FORWARDING)} {chosen}")

    def _tables(self) -> list[str]:
        def numbers(name: str, of: str) -> str:
            return ", ".join(f"{name}_{number} {of} NOT NULL" for number in BITS)

        small, ends = "TINYINT UNSIGNED", f"ENGINE={self.engine}"
        return [
            f"CREATE TABLE subscriber (s_id INT UNSIGNED PRIMARY KEY, sub_nbr VARCHAR(15) NOT NULL, {numbers('bit', small)},"
            f" {numbers('hex', small)}, {numbers('byte2', small)}, msc_location INT UNSIGNED NOT NULL,"
            f" vlr_location INT UNSIGNED NOT NULL, UNIQUE KEY sub_nbr (sub_nbr)) {ends}",
            f"CREATE TABLE access_info (s_id INT UNSIGNED NOT NULL, ai_type {small} NOT NULL, data1 SMALLINT UNSIGNED NOT NULL,"
            " data2 SMALLINT UNSIGNED NOT NULL, data3 CHAR(3) NOT NULL, data4 CHAR(5) NOT NULL, PRIMARY KEY (s_id, ai_type),"
            f" FOREIGN KEY (s_id) REFERENCES subscriber (s_id)) {ends}",
            f"CREATE TABLE special_facility (s_id INT UNSIGNED NOT NULL, sf_type {small} NOT NULL, is_active {small} NOT NULL,"
            " error_cntrl SMALLINT UNSIGNED NOT NULL, data_a SMALLINT UNSIGNED NOT NULL, data_b CHAR(5) NOT NULL,"
            f" PRIMARY KEY (s_id, sf_type), FOREIGN KEY (s_id) REFERENCES subscriber (s_id)) {ends}",
            f"CREATE TABLE call_forwarding (s_id INT UNSIGNED NOT NULL, sf_type {small} NOT NULL, start_time {small} NOT NULL,"
            f" end_time {small} NOT NULL, numberx VARCHAR(15) NOT NULL, PRIMARY KEY (s_id, sf_type, start_time),"
            f" FOREIGN KEY (s_id, sf_type) REFERENCES special_facility (s_id, sf_type)) {ends}",
        ]

    def facts(self, ask: Ask) -> Facts:
        return asked(ask, UNCHANGED | GROWING)

    def problems(self, ask: Ask, before: Facts, counted: Mapping[str, int]) -> list[str]:
        forwarded = before[FORWARDED] + counted.get("inserted", 0) - counted.get("deleted", 0)
        wanted = {**before, "subscribers": self.subscribers * self.servers, FORWARDED: forwarded}
        wanted |= dict.fromkeys(FORBIDDEN, 0)
        return differences(wanted, self.facts(ask) | asked(ask, FORBIDDEN))

    def rate(self, transactions: float, counted: Mapping[str, int]) -> float:
        return transactions
