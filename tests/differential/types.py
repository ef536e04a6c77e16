"""Column types: how they are declared and small pools of values, so that rows meet each other often.

A type's `exact` says that values which compare equal are the same bytes. DISTINCT, GROUP BY, MIN and MAX may show any of several
equal values, so they are only asked of exact types.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

SMALL_BYTES = 64


@dataclass(frozen=True, slots=True)
class Type:
    sql: str
    family: str
    good: tuple[str, ...]  # literals the type holds as they are; also used in conditions
    wild: tuple[str, ...]  # literals that are converted, cut or refused
    exact: bool = True
    key_bytes: int = 8  # of the whole column in an index; 0: only a prefix can be indexed
    characters: int = 0  # of strings: how long a prefix may be; 0: no prefix
    bytes_per_character: int = 1
    collation: str = ""
    indexable: bool = True
    sums: bool = False  # SUM and AVG are exact
    whole: bool = False  # no index on a prefix
    sortable: bool = True  # by every plan in the same order

    @property
    def text(self) -> bool:
        return self.family == "text"


# charset, collation, bytes per character, equal means same bytes
COLLATIONS = (
    ("utf8mb4", "utf8mb4_general_ci", 4, False),
    ("utf8mb4", "utf8mb4_unicode_ci", 4, False),
    ("utf8mb4", "utf8mb4_unicode_520_ci", 4, False),
    ("utf8mb4", "utf8mb4_uca1400_ai_ci", 4, False),
    ("utf8mb4", "utf8mb4_uca1400_as_cs", 4, False),
    ("utf8mb4", "utf8mb4_uca1400_nopad_as_ci", 4, False),
    ("utf8mb4", "utf8mb4_general_nopad_ci", 4, False),
    ("utf8mb4", "utf8mb4_unicode_nopad_ci", 4, False),
    ("utf8mb4", "utf8mb4_bin", 4, False),
    ("utf8mb4", "utf8mb4_nopad_bin", 4, True),
    ("utf8mb4", "utf8mb4_german2_ci", 4, False),
    ("utf8mb4", "utf8mb4_spanish2_ci", 4, False),
    ("utf8mb3", "utf8mb3_general_ci", 3, False),
    ("utf8mb3", "utf8mb3_bin", 3, False),
    ("latin1", "latin1_swedish_ci", 1, False),
    ("latin1", "latin1_german2_ci", 1, False),
    ("latin1", "latin1_bin", 1, False),
    ("latin1", "latin1_nopad_bin", 1, True),
    ("latin2", "latin2_czech_cs", 1, False),
    ("cp1251", "cp1251_general_ci", 1, False),
    ("ascii", "ascii_general_ci", 1, False),
    ("ucs2", "ucs2_general_ci", 2, False),
    ("utf16", "utf16_unicode_ci", 4, False),
    ("utf32", "utf32_general_ci", 4, False),
    ("sjis", "sjis_japanese_ci", 2, False),
    ("gbk", "gbk_chinese_ci", 2, False),
    ("tis620", "tis620_thai_ci", 1, False),
)

# These weigh one character as several, several as one, or as nothing: 'ss' and 'ß' are equal and their first characters are
# not, so a look-up by a prefix and a scan differ, in both engines. Such words and indexes on prefixes do not meet.
EXPANDING = ("unicode", "uca1400", "german2", "spanish2", "czech")

WORDS = (
    "", " ", "a", "A", "b", "B", "ab", "aB", "AB", "a ", "a  ", " a", "abc", "abd", "b c", "z", "ss", "aa", "ch", "0", "00", "9",
    "-1", "%", "_",
    "a_b", "a%", "\\\\", "\\'", "x\\ty", "\\0", "a\\0", "Ab\\n",
)  # fmt: skip
WORDS_LATIN = ("ä", "Ä", "ae", "é", "e", "E", "ß", "ö", "ñ", "ÿ")
WORDS_WIDE = ("日本", "日", "я", "Я", "ж", "Ω", "\u0131", "İ", "ﬁ", "e\u0301", "\u200d", "가", "ส")
WORDS_ASTRAL = ("😀", "😀a", "\U0001d49c", "𐐀", "𐐨")


def _quoted(text: str) -> str:
    return f"'{text}'"


def _ints(rng: random.Random) -> Type:
    name, bits = rng.choice((("TINYINT", 8), ("SMALLINT", 16), ("MEDIUMINT", 24), ("INT", 32), ("INT", 32), ("BIGINT", 64)))
    unsigned = rng.random() < 0.3
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    numbers = [*range(0, 13), low, low + 1, high, high - 1, 100, 127] + ([] if unsigned else [-1, -2, -5, -100])
    wild = (str(high + 1), str(low - 1), "1.5", "'7'", "'12abc'", "'x'", "''", "2.5e0", "TRUE")
    suffix = (" UNSIGNED" + (" ZEROFILL" if rng.random() < 0.2 else "")) if unsigned else ""
    good = tuple(str(n) for n in numbers)
    return Type(name + suffix, "unsigned" if unsigned else "int", good, wild, key_bytes=bits // 8, sums=True)


def _decimal(rng: random.Random) -> Type:
    digits = rng.choice((1, 4, 9, 10, 18, 30, 65))
    scale = rng.choice([s for s in (0, 1, 2, 5, 9, 10, 30) if s <= digits])
    whole = digits - scale
    good = ["0"] + (["1", "-1", "2", "7", "-3"] if whole else []) + (["0.1", "-0.5", "0.9"] if scale else [])
    good += ["1.5", "-2.3"] if whole and scale else []
    good += [
        "9" * whole + ("." + "9" * scale if scale else ""),
        "-" + ("9" * whole or "0") + ("." + "9" * scale if scale else ""),
    ]
    good = [g if g and not g.startswith(".") else "0" + g for g in good]
    wild = ("9" * (whole + 1), "0.123456789012345678901234567890123456", "'1.25x'", "''", "1e70", "-1e70")
    return Type(f"DECIMAL({digits},{scale})", "decimal", tuple(good), wild, key_bytes=30, sums=True)


def _floats(rng: random.Random) -> Type:
    good = ("0", "1", "-1", "2", "0.5", "-0.25", "3.25", "100", "1e10", "-1e10", "1e-5", "0.1", "16777217")
    wild = ("1e308", "-1e308", "1e39", "'1.5abc'", "''")
    return Type(rng.choice(("FLOAT", "DOUBLE", "DOUBLE", "DOUBLE UNSIGNED")), "float", good, wild)


def _bit(rng: random.Random) -> Type:
    bits = rng.choice((1, 2, 5, 8, 9, 17, 33, 64))
    good = ("b'0'", "b'1'", "b'" + "1" * bits + "'", "b'" + "10" * (bits // 2) + "'" if bits > 1 else "b'1'")
    return Type(f"BIT({bits})", "bit", good, ("b'" + "1" * min(bits + 1, 64) + "'", "-1", "'a'"))


def _year(_: random.Random) -> Type:
    return Type(
        "YEAR", "year", ("1901", "1999", "2000", "2026", "2155", "0", "1970"), ("1800", "'99'", "70", "'x'", "3000"), key_bytes=1
    )


DATES = (
    "1000-01-01",
    "1999-12-31",
    "2000-01-01",
    "2000-02-29",
    "2024-02-29",
    "2026-11-21",
    "9999-12-31",
    "1970-01-02",
    "2026-11-22",
)
DATES_WILD = ("'2023-02-30'", "'0000-00-00'", "'garbage'", "'2000-00-10'", "''", "20000101", "'2000-1-1'", "0")
TIMES = ("00:00:00", "00:00:01", "10:11:12", "23:59:59", "12:00:00", "10:11:12.5", "10:11:12.123456")


def _fraction(rng: random.Random) -> str:
    digits = rng.choice((0, 0, 0, 1, 3, 6))
    return f"({digits})" if digits else ""


def _date(_: random.Random) -> Type:
    return Type("DATE", "date", tuple(map(_quoted, DATES)), (*DATES_WILD, "'2000-01-01 10:11:12'"), key_bytes=3)


def _time(rng: random.Random) -> Type:
    good = (*TIMES, "-00:00:01", "-838:59:59", "838:59:59", "-10:11:12", "100:00:00")
    return Type("TIME" + _fraction(rng), "time", tuple(map(_quoted, good)), ("'900:00:00'", "'10:61:00'", "'x'", "101112", "-1"))


def _datetime(rng: random.Random) -> Type:
    good = [f"'{day} {rng.choice(TIMES)}'" for day in DATES]
    return Type("DATETIME" + _fraction(rng), "datetime", tuple(good), (*DATES_WILD, "'2000-01-01 25:00:00'"))


def _timestamp(rng: random.Random) -> Type:
    good = [f"'{day} {rng.choice(TIMES)}'" for day in ("1970-01-02", "1999-12-31", "2000-02-29", "2026-11-21", "2037-12-31")]
    return Type(
        "TIMESTAMP" + _fraction(rng), "timestamp", tuple(good), (*DATES_WILD, "'1969-01-01 00:00:00'", "'2039-01-01 00:00:00'")
    )


def _expanding(collation: str) -> bool:
    return any(name in collation for name in EXPANDING)


# Sort keys of these weigh accents, and case, behind all letters: in long columns max_sort_length cuts them off.
LEVELS = "_as_"
SORTABLE_CHARACTERS = 255


def _kinds(collation: str, whole: bool) -> tuple[bool, bool]:
    """Plain words only? Words with NUL? ('a' and 'a\\0' differ in NOPAD collations, and sort as equal.)"""
    plain = _expanding(collation) and not whole
    return plain, not plain and "nopad" not in collation


def _words(
    rng: random.Random, charset: str, length: int, plain: bool = False, nul: bool = True
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    candidates = [w for w in WORDS if not (plain and w == "ch") and (nul or "\\0" not in w)]
    if plain:
        charset = "ascii"
    if charset in ("utf8mb4", "utf8mb3", "latin1", "ucs2", "utf16", "utf32"):
        candidates += WORDS_LATIN
    if charset in ("utf8mb4", "utf8mb3", "ucs2", "utf16", "utf32"):
        candidates += WORDS_WIDE
    if charset in ("utf8mb4", "utf16", "utf32"):
        candidates += WORDS_ASTRAL
    chosen = rng.sample(candidates, 14) + [rng.choice(candidates) + rng.choice(candidates) for _ in range(8)]
    good = [_quoted(w) for w in chosen if len(w.replace("\\", "")) <= length]
    # Long equal beginnings: keys that only differ behind a prefix, or behind a page's common part.
    for tail in ("", "a", "b", "B", " "):
        if length > 8:
            good.append(f"'{'Lang' * min(length // 4 - 1, 12)}{tail}'")
    wild = ["'" + "w" * min(length + 1, 400) + "'", "'" + "w" * min(length, 400) + "   '", "'日本語😀'", "12", "1.5"]
    return tuple(good or ["''"]), tuple(wild)


LONG_KEY_BYTES = 3072
# Written as long phrases by some collations: their weights take many times the place of the text.
LONG_CHARACTERS = ("a", "B", "z", "é", "ß", "日", "ﷺ", "가", "я")


def long_characters(rng: random.Random) -> Type:
    """A string that fills a key, or more than one; its values begin alike for as long as an entry keeps of them."""
    charset, collation, width, _ = rng.choice(COLLATIONS)
    length = rng.choice((255, 700, 768, 1000, 1024, 1536, 3000, 3072))
    length = min(length, LONG_KEY_BYTES // width)
    letters = [c for c in LONG_CHARACTERS if charset not in ("latin1", "latin2", "cp1251", "ascii", "tis620") or c.isascii()]
    letters = [c for c in letters if charset not in ("sjis", "gbk") or c in "aBz日я"]
    first = rng.choice(letters)
    same = rng.choice((length - 3, length - 20, length // 2))
    tails = ["", "a", "b", "A", "ab", " ", "a ", "z", rng.choice(letters), rng.choice(letters) + "b"]
    if "nopad" not in collation:
        tails.append("\\0")
    good = tuple(f"CONCAT(REPEAT('{first}', {same}), '{tail}')" for tail in tails)
    good += (f"REPEAT('{first}', {length})", f"REPEAT('{rng.choice(letters)}', {length})", "'a'", "''", f"'{first}'")
    sql = f"VARCHAR({length}) CHARACTER SET {charset} COLLATE {collation}"
    return Type(
        sql, "text", good, (f"REPEAT('w', {length + 1})", "12"), False, length * width, length, width, collation, whole=True,
    )  # fmt: skip


def long_bytes(rng: random.Random) -> Type:
    length = rng.choice((255, 1000, 2000, 3000, 3072))
    first = rng.choice(("00", "ff", "61"))
    tails = ("''", "'a'", "x'00'", "x'ff'", "x'0001'", "'b'", "' '")
    good = (*(f"CONCAT(REPEAT(x'{first}', {length - 3}), {tail})" for tail in tails), "''", "'a'", f"REPEAT('q', {length})")
    return Type(f"VARBINARY({length})", "binary", good, (f"REPEAT('w', {length + 1})", "17"), True, length, length, whole=True)


def long_key_type(rng: random.Random) -> Type:
    return long_bytes(rng) if rng.random() < 0.25 else long_characters(rng)


def _characters(rng: random.Random) -> Type:
    charset, collation, width, exact = rng.choice(COLLATIONS)
    length = rng.choice((1, 3, 10, 10, 20, 40, 60, 150, 255))
    # CHAR with a NOPAD collation: InnoDB compares values filled up with spaces, the server (and STRATA) without.
    variable = rng.random() < 0.7 or "nopad" in collation
    if rng.random() < 0.08 and variable:
        length = rng.choice((256, 700, 2000))
    whole = _expanding(collation) and ("czech" in collation or rng.random() < 0.5)
    good, wild = _words(rng, charset, length, *_kinds(collation, whole))
    if length >= 255:
        good += (f"REPEAT('{rng.choice('abxyz')}{rng.choice('ABC')}', {rng.randint(60, length // 2)})",)
    name = f"{'VARCHAR' if variable else 'CHAR'}({length}) CHARACTER SET {charset} COLLATE {collation}"
    sortable = LEVELS not in collation or length <= SORTABLE_CHARACTERS
    return Type(name, "text", good, wild, exact, length * width, length, width, collation, whole=whole, sortable=sortable)


def _text(rng: random.Random) -> Type:
    charset, collation, width, exact = rng.choice(COLLATIONS)
    name, most = rng.choice((("TINYTEXT", 60), ("TEXT", 8000), ("MEDIUMTEXT", 30000), ("LONGTEXT", 60000)))
    whole = _expanding(collation) and ("czech" in collation or rng.random() < 0.5)
    good, wild = _words(rng, charset, 60, *_kinds(collation, whole))
    if most > 60:
        good += tuple(
            f"REPEAT('{rng.choice('abcxyz')}{rng.choice('ABC ')}', {rng.randint(100, most // (2 * width))})" for _ in range(3)
        )
    sql = f"{name} CHARACTER SET {charset} COLLATE {collation}"
    return Type(
        sql,
        "text",
        good,
        wild,
        exact,
        0,
        60,
        width,
        collation,
        indexable=not whole,
        whole=whole,
        sortable=LEVELS not in collation,
    )


BYTES = ("''", "'a'", "x'00'", "x'ff'", "x'0001'", "x'ff00'", "'abc'", "x'ffffff'", "x'6100'", "' '", "'a '", "'A'", "x'7f80'")


def _binary(rng: random.Random) -> Type:
    length = rng.choice((1, 3, 8, 9, 16, 33, 100, 255))
    good = tuple(b for b in BYTES if len(b) < 4 or length > 2)
    wild = ("'" + "w" * (length + 1) + "'", "'日本'", "17")
    return Type(f"{rng.choice(('BINARY', 'VARBINARY', 'VARBINARY'))}({length})", "binary", good, wild, True, length, length)


def _blob(rng: random.Random) -> Type:
    name, most = rng.choice((("TINYBLOB", 200), ("BLOB", 20000), ("MEDIUMBLOB", 100000), ("LONGBLOB", 40000)))
    good = BYTES + tuple(
        f"REPEAT(x'{rng.randrange(256):02x}{rng.randrange(256):02x}', {rng.randint(1, most // 2)})" for _ in range(3)
    )
    return Type(name, "binary", good, ("12", "REPEAT('q', 70000)"), True, 0, 200)


def medium_blob(rng: random.Random) -> Type:
    """Several of these make a row as long as a page can take, with some values outside."""
    good = tuple(f"REPEAT(x'{rng.randrange(256):02x}', {rng.choice((20, 39, 40, 90, 300, 900, 2500))})" for _ in range(6))
    return Type("BLOB", "binary", good, ("12", "''", "REPEAT('q', 9000)"), True, 0, 200)


def _enum(rng: random.Random) -> Type:
    members = rng.sample(["a", "b", "c", "d e", "Z", "10", "ä", "long member name"], rng.randint(1, 6))
    good = tuple(_quoted(m) for m in members)
    sql = "ENUM(" + ",".join(good) + ") CHARACTER SET " + rng.choice(("utf8mb4", "latin1"))
    return Type(sql, "enum", good, ("'nosuch'", "1", "0", "99", "''"), key_bytes=2)


def _set(rng: random.Random) -> Type:
    members = rng.sample(["a", "b", "c", "d", "e f", "g"], rng.randint(1, 6))
    good = [_quoted(",".join(sorted(rng.sample(members, rng.randint(0, len(members))), key=members.index))) for _ in range(5)]
    sql = "SET(" + ",".join(map(_quoted, members)) + ") CHARACTER SET latin1"
    return Type(sql, "set", tuple(good), ("'nosuch'", "1", "99", "'a,a'"), key_bytes=8)


def _json(_: random.Random) -> Type:
    good = ("'{\"a\": 1}'", "'[]'", "'[1, 2]'", "'null'", "'\"x\"'", "'{}'", '\'{"a": {"b": []}}\'')
    return Type("JSON", "json", good, ("'{bad'", "''", "1"), False, 0, 40, 4, "utf8mb4_bin")


def _inet(rng: random.Random) -> Type:
    if rng.random() < 0.5:
        return Type(
            "INET6",
            "inet6",
            ("'::'", "'::1'", "'2001:db8::ff00:42:8329'", "'ff::'", "'::ffff:1.2.3.4'"),
            ("'x'", "'1'"),
            key_bytes=16,
        )
    return Type("INET4", "inet4", ("'0.0.0.0'", "'1.2.3.4'", "'255.255.255.255'", "'10.0.0.1'"), ("'x'", "'1'"), key_bytes=4)


def _uuid(_: random.Random) -> Type:
    good = tuple(f"'{a}'" for a in ("00000000-0000-0000-0000-000000000000", "123e4567-e89b-12d3-a456-426655440000",
                                    "ffffffff-ffff-ffff-ffff-ffffffffffff", "fffffffe-ffff-1fff-8fff-ffffffffffff"))  # fmt: skip
    return Type("UUID", "uuid", good, ("'x'", "'1'"), key_bytes=16)


def _geometry(rng: random.Random) -> Type:
    good: tuple[str, ...] = ("ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('POINT(-3 4.5)')", "POINT(0, 0)")
    name = rng.choice(("POINT", "GEOMETRY"))
    if name == "GEOMETRY":
        good = (*good, "ST_GeomFromText('LINESTRING(0 0, 1 1, 2 2)')")
    return Type(name, "geometry", good, ("'x'", "12"), False, 0, indexable=False, sortable=False)


MAKERS: tuple[tuple[int, Callable[[random.Random], Type]], ...] = (
    (22, _ints), (8, _decimal), (5, _floats), (3, _bit), (2, _year), (4, _date), (4, _time), (4, _datetime), (4, _timestamp),
    (24, _characters), (7, _text), (7, _binary), (4, _blob), (4, _enum),
    (3, _set), (2, _json), (2, _inet), (1, _uuid), (1, _geometry),
)  # fmt: skip


def random_type(rng: random.Random) -> Type:
    maker = rng.choices([m for _, m in MAKERS], [w for w, _ in MAKERS])[0]
    return maker(rng)


def key_type(rng: random.Random) -> Type:
    """A type for a primary key: mostly numbers and short strings."""
    if rng.random() < 0.6:
        return _ints(rng)
    while True:
        chosen = random_type(rng)
        if chosen.key_bytes and chosen.key_bytes <= 400 and chosen.family not in ("bit", "float"):
            return chosen


def plain_int() -> Type:
    numbers = tuple(str(n) for n in range(0, 40))
    return Type("INT", "int", (*numbers, "-1", "1000"), ("2147483648", "'x'", "1.5"), key_bytes=4, sums=True)
