"""A storage node of a cluster on this machine (daemon_process.py says what is in its folder)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .daemon_process import DaemonProcess


@dataclass(frozen=True)
class Joining:
    """How a node that is in no group gets into one."""

    replaces: str  # In that one's place; "": one more.
    write_quorum: int  # Then; 0: a majority.

    def flags(self) -> list[str]:
        if self.replaces:
            return ["--replaces", self.replaces]
        return ["--join", *(["--write-quorum", str(self.write_quorum)] if self.write_quorum else [])]


@dataclass(frozen=True)
class NodeSettings:
    port: int  # For the nodes' own protocol.
    http_port: int  # For health, status and metrics.
    registry: str
    cluster: str
    secret: Path
    profile: str
    group: tuple[str, ...]
    write_quorum: int
    joining: Joining | None = None  # Instead of group and write quorum.


class StorageNode(DaemonProcess):
    """One folder and the process that serves it, if any. Not thread-safe."""

    kind = "storenode"

    def __init__(self, name: str, folder: Path, settings: NodeSettings, program: Sequence[str | Path]) -> None:
        self.settings = settings
        super().__init__(name, folder, program)

    def ports(self) -> tuple[int, int]:
        return self.settings.port, self.settings.http_port

    def flags(self) -> list[str]:
        settings = self.settings
        given = {
            "--listen": self.address(),
            "--registry": settings.registry,
            "--cluster": settings.cluster,
            "--secret-file": settings.secret,
            "--profile": settings.profile,
        }
        group = ["--initial-group", ",".join(settings.group), "--write-quorum", str(settings.write_quorum)]
        if settings.joining is not None:
            group = settings.joining.flags()
        return [*(str(part) for flag in given.items() for part in flag), *group]
