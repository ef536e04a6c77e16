"""Where a cluster's data lie, as its registry says: read from etcd's JSON gateway, never written (storage nodes do that)."""

import base64
import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .shell import StrataError

TIMEOUT_S = 5.0
ANSWER_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class Placement:
    """Of the one storage group there is."""

    generation: int
    nodes: tuple[str, ...]  # By replica.
    write_quorum: int


def read(etcd_port: int, cluster: str) -> Placement | None:
    """None: there is none yet. Raises StrataError when the registry does not answer, or says something else."""
    key = base64.b64encode(f"/strata/{cluster}/placement".encode()).decode()
    answer = call_registry(etcd_port, "/v3/kv/range", {"key": key})
    try:
        entries = answer.get("kvs", [])
        return _decoded(base64.b64decode(entries[0]["value"])) if entries else None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise StrataError(f"the placement in the registry cannot be read ({error!r})") from None


def _decoded(text: bytes) -> Placement:
    record = json.loads(text)
    if record["format"] != 1:
        raise ValueError(f"format {record['format']}")
    group = record["groups"][0]
    return Placement(int(record["generation"]), tuple(str(node) for node in group["nodes"]), int(group["write_quorum"]))


def call_registry(port: int, path: str, body: Mapping[str, object]) -> dict[str, Any]:
    """One call of etcd's JSON gateway. Raises StrataError when it does not answer with an object."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", path, json.dumps(body))
        answer = connection.getresponse()
        said = answer.read(ANSWER_BYTES_MAX)
        if answer.status != 200:
            raise http.client.HTTPException(f"HTTP status {answer.status}")
    except (OSError, http.client.HTTPException) as error:
        raise StrataError(f"etcd does not answer on port {port} ({error}); see ./strata status") from None
    finally:
        connection.close()
    try:
        found = json.loads(said)
    except ValueError as error:
        raise StrataError(f"the answer of etcd on port {port} cannot be read ({error}); see ./strata status") from None
    if not isinstance(found, dict):
        raise StrataError(f"the answer of etcd on port {port} cannot be read: it is no object; see ./strata status")
    return found
