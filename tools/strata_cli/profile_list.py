"""The profiles of src/base/profiles.def, for the tools: names and what they mean, declared there once."""

import re
from dataclasses import dataclass

from . import paths

SOURCE = paths.ROOT / "src" / "base" / "profiles.def"
ROW = re.compile(r'^STRATA_PROFILE\("([^"]+)", (\w+), (\w+), (\w+), (\w+), (\w+), "([^"]+)"\)$', re.MULTILINE)


@dataclass(frozen=True)
class Profile:
    name: str
    pages: str  # kOwnFiles, kWritten, kReplayed
    replay: str  # kNone, kInPlace, kEager, kFiltered, kSmart
    images: str  # kNeedless, kNeeded
    memory: str  # kNone, kPool, kShared
    writers: str  # kOne, kSeveral
    what: str

    @property
    def of_cluster(self) -> bool:
        return self.pages != "kOwnFiles"

    @property
    def has_several_writers(self) -> bool:
        """Several servers write the same tables, each read-write."""
        return self.writers == "kSeveral"

    @property
    def pages_are_written(self) -> bool:
        return self.pages == "kWritten"

    @property
    def has_memory_nodes(self) -> bool:
        """Between compute and storage."""
        return self.memory != "kNone"

    @property
    def has_one_version(self) -> bool:
        """Storage nodes make pages in place."""
        return self.replay == "kInPlace"


def parse(text: str) -> tuple[Profile, ...]:
    rows = tuple(Profile(*row) for row in ROW.findall(text))
    if len(rows) != len(re.findall("^STRATA_PROFILE", text, re.MULTILINE)):
        raise ValueError(f"{SOURCE}: a line is not as the others are")
    return rows


ALL = parse(SOURCE.read_text())
BY_NAME = {profile.name: profile for profile in ALL}
OF_CLUSTERS = tuple(profile.name for profile in ALL if profile.of_cluster)
# What has one compute node, as most tools and tests take for granted.
OF_ONE_WRITER = tuple(name for name in OF_CLUSTERS if not BY_NAME[name].has_several_writers)
OF_SEVERAL_WRITERS = tuple(name for name in OF_CLUSTERS if BY_NAME[name].has_several_writers)
MONOLITHIC = next(profile.name for profile in ALL if not profile.of_cluster)  # of a server by itself
