"""Asking the log's writer, through the registry, to take a storage node out (src/cluster/node_removals.h).

The request goes with a lease, so that one whose asker was killed is not carried out long after. Withdrawn or answered, it changes
nothing any more: the writer's change of the placement removes it in the same step.
"""

import base64
import contextlib
import json
from collections.abc import Iterator
from typing import Any

from . import placement
from .shell import StrataError


class RemovalRequest:
    """While it is asked; leaving withdraws it. Raises StrataError when the registry does not answer."""

    def __init__(self, etcd_port: int, cluster: str) -> None:
        self._port = etcd_port
        self._key = _base64(f"/strata/{cluster}/streams/{placement.STREAM}/removal")

    @contextlib.contextmanager
    def asked(self, node: str, generation: int, seconds: int) -> Iterator[None]:
        lease = self._call("/v3/lease/grant", {"TTL": seconds})["ID"]
        record = json.dumps({"format": 1, "node": node, "generation": generation})
        try:
            self._call("/v3/kv/put", {"key": self._key, "value": _base64(record), "lease": lease})
            yield
        finally:
            self._call("/v3/lease/revoke", {"ID": lease})

    def refusal(self) -> str | None:
        """Why the writer does not do it; None: it has not said so."""
        entries = self._call("/v3/kv/range", {"key": self._key}).get("kvs", [])
        if not entries:
            return None
        try:
            refused = json.loads(base64.b64decode(entries[0]["value"])).get("refused")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StrataError(f"the answer of the log's writer cannot be read ({error!r})") from None
        return None if refused is None else str(refused)

    def _call(self, path: str, body: dict[str, object]) -> dict[str, Any]:
        return placement.call_registry(self._port, path, body)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
