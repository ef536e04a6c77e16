"""The registry's keys of a cluster, as they are put into a backup and back: all but those that go with a process (leases), with
memory nodes' pools, which no backup holds, or with a change that is under way."""

import base64
import json
from typing import Any

from . import placement
from .shell import StrataError

LEFT_OUT = ("memory", "removal")  # of a stream


def read(etcd_port: int, cluster: str) -> dict[str, str]:
    prefix = f"/strata/{cluster}/"
    wanted = {"key": _base64(prefix), "range_end": _base64(prefix[:-1] + chr(ord("/") + 1))}
    answer = placement.call_registry(etcd_port, "/v3/kv/range", wanted)
    try:
        entries = {
            _text(entry["key"]): _text(entry["value"]) for entry in answer.get("kvs", []) if not int(entry.get("lease", 0))
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StrataError(f"the keys in the registry cannot be read ({error!r})") from None
    return {key: value for key, value in entries.items() if not key.endswith(tuple(f"/{name}" for name in LEFT_OUT))}


def write(etcd_port: int, keys: dict[str, str]) -> None:
    for key, value in keys.items():
        placement.call_registry(etcd_port, "/v3/kv/put", {"key": _base64(key), "value": _base64(value)})


def checkpoint(keys: dict[str, str], cluster: str) -> tuple[str | None, str | None]:
    """Where redo begins, and who has every page that was written: what must not have changed while a node's files were copied."""
    stream = f"/strata/{cluster}/streams/{placement.STREAM}/"
    return keys.get(stream + "control"), keys.get(stream + "in-sync")


def alone(keys: dict[str, str], cluster: str, node: str) -> dict[str, str]:
    """The same database with that storage node as the only one. Names may be used again: nodes that had them do not know the new
    cluster's secret."""
    found = dict(keys)
    key = f"/strata/{cluster}/placement"
    in_sync = f"/strata/{cluster}/streams/{placement.STREAM}/in-sync"
    try:
        held: dict[str, Any] = json.loads(found[key])
        (group,) = held["groups"]
        place = group["nodes"].index(node)
        held["generation"] += 1
        group |= {"nodes": [node], "write_quorum": 1}
        group.pop("retired", None)
        if joined := group.pop("joined", None):
            group |= {"joined": [joined[place]]} if joined[place] else {}
        found[key] = json.dumps(held)
        if in_sync in found:
            pages = json.loads(found[in_sync])
            pages["nodes"] = [one for one in pages["nodes"] if one["name"] == node]
            if not pages["nodes"]:
                raise ValueError(f"{node} has not every page")
            found[in_sync] = json.dumps(pages)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StrataError(f"the registry's keys in the backup cannot be used ({error!r}); use another backup") from None
    return found


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _text(coded: str) -> str:
    return base64.b64decode(coded).decode()
