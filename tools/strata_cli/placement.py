"""Where a cluster's data lie, as its registry says: read from etcd's JSON gateway, never written (storage nodes do that)."""

import base64
import http.client
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from .shell import StrataError

STREAM = "00000001"  # Of the log; the one there is, where one server writes.
AUTHORITY_STREAM = "00000100"  # Of the memory node that several servers share: whoever has it writes their pages.
TIMEOUT_S = 5.0
ANSWER_BYTES_MAX = 1 << 20
T = TypeVar("T")


@dataclass(frozen=True)
class Placement:
    """Of the one storage group there is."""

    generation: int
    nodes: tuple[str, ...]  # By replica.
    write_quorum: int


def read(etcd_port: int, cluster: str) -> Placement | None:
    """None: there is none yet. Raises StrataError when the registry does not answer, or says something else."""
    return _read(etcd_port, f"/strata/{cluster}/placement", "the placement", _decoded)


def read_in_sync(etcd_port: int, cluster: str, stream: str = STREAM) -> dict[str, int] | None:
    """The storage nodes that have every page that the stream's holder has written, and in which store (one that lost its disk has
    another); None: none was ever written, as under most profiles."""
    key = f"/strata/{cluster}/streams/{stream}/in-sync"
    return _read(etcd_port, key, "the list of storage nodes in sync", _decoded_stores)


def read_holder(etcd_port: int, cluster: str) -> str | None:
    """The compute node that has the database, or had it last; None: there never was one."""
    return _read(etcd_port, f"/strata/{cluster}/streams/{STREAM}/epoch", "who holds the log", _decoded_holder)


def read_streams(etcd_port: int, cluster: str) -> list[int]:
    """The log streams that somebody has ever had an epoch of."""
    root = f"/strata/{cluster}/streams/"
    ends = [base64.b64encode(key.encode()).decode() for key in (root, root[:-1] + chr(ord("/") + 1))]
    answer = call_registry(etcd_port, "/v3/kv/range", {"key": ends[0], "range_end": ends[1], "keys_only": True})
    try:
        keys = [base64.b64decode(entry["key"]).decode() for entry in answer.get("kvs", [])]
        return sorted(int(key.removeprefix(root).split("/")[0], 16) for key in keys if key.endswith("/epoch"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StrataError(f"which log streams there are in the registry cannot be read ({error!r})") from None


def _read(etcd_port: int, key: str, what: str, decoded: Callable[[dict[str, Any]], T]) -> T | None:
    answer = call_registry(etcd_port, "/v3/kv/range", {"key": base64.b64encode(key.encode()).decode()})
    try:
        entries = answer.get("kvs", [])
        if not entries:
            return None
        record = json.loads(base64.b64decode(entries[0]["value"]))
        if record["format"] != 1:
            raise ValueError(f"format {record['format']}")
        return decoded(record)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise StrataError(f"{what} in the registry cannot be read ({error!r})") from None


def _decoded_holder(record: dict[str, Any]) -> str:
    return str(record["holder"]).rsplit(".", 1)[0]  # src/clients/compute/node_identity.h


def _decoded_stores(record: dict[str, Any]) -> dict[str, int]:
    return {str(node["name"]): int(node["store"], 16) for node in record["nodes"]}


def _decoded(record: dict[str, Any]) -> Placement:
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
