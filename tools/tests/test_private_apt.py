"""The machine's mirrors, whatever the format they are written in, become deb + deb-src of Debian's own suites."""

from strata_cli.private_apt import classic_entries, deb822_stanzas

CLASSIC = """
# a comment
deb [signed-by=/k.gpg] http://mirror.invalid/debian bookworm main contrib
deb http://mirror.invalid/security bookworm-security main # trailing
deb https://third.invalid/repo nodistro main
#deb http://off.invalid/debian bookworm main
"""

DEB822 = """Types: deb
# a comment
URIs: http://mirror.invalid/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc

Types: deb
URIs: https://third.invalid/repo
Suites: nodistro
Components: main

Enabled: no
Types: deb
URIs: http://off.invalid/debian
Suites: bookworm
Components: main
"""


def test_classic_entries_gain_sources_and_lose_third_parties() -> None:
    assert classic_entries(CLASSIC, "bookworm") == [
        "deb [signed-by=/k.gpg] http://mirror.invalid/debian bookworm main contrib",
        "deb-src [signed-by=/k.gpg] http://mirror.invalid/debian bookworm main contrib",
        "deb http://mirror.invalid/security bookworm-security main",
        "deb-src http://mirror.invalid/security bookworm-security main",
    ]


def test_deb822_stanzas_keep_their_other_fields() -> None:
    (stanza,) = deb822_stanzas(DEB822, "bookworm")
    lines = stanza.splitlines()
    assert lines[:2] == ["Types: deb deb-src", "Suites: bookworm bookworm-updates"]
    assert "URIs: http://mirror.invalid/debian" in lines
    assert lines[-4:] == ["Signed-By:", " -----BEGIN PGP PUBLIC KEY BLOCK-----", " .", " abc"]
