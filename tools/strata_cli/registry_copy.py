"""The registry's keys of a cluster, as they are put into a backup and back: all but those that go with a process (leases), with
memory nodes' pools, which no backup holds, or with a change that is under way."""

import base64
import json
from collections.abc import Mapping
from typing import Any

from . import placement
from .shell import StrataError

LEFT_OUT = ("memory", "removal")  # of a stream
IN_SYNC = "in-sync"


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


def checkpoints(keys: dict[str, str], cluster: str) -> dict[str, str]:
    """Where redo begins in each log, and who has every page that was written: what must not have changed while a node's files
    were copied."""
    return {key: value for key, value in keys.items() if _name_in_stream(key, cluster) in ("control", IN_SYNC)}


def alone(keys: dict[str, str], cluster: str, node: str) -> dict[str, str]:
    """The same database with that storage node as the only one. Names may be used again: nodes that had them do not know the new
    cluster's secret."""
    return _regrouped(keys, cluster, node, {})


def spread(keys: dict[str, str], cluster: str, node: str, copies: Mapping[str, int]) -> dict[str, str]:
    """The same with that storage node and others that have the same files, but for their names and, as said here, the numbers of
    their stores of pages. Any of them may be lost, as of a new cluster."""
    return _regrouped(keys, cluster, node, copies)


def store_of(keys: dict[str, str], cluster: str, node: str) -> int:
    """The number of its store of pages."""
    try:
        for key, value in keys.items():
            if _name_in_stream(key, cluster) == IN_SYNC:
                return next(int(one["store"], 16) for one in json.loads(value)["nodes"] if one["name"] == node)
    except (StopIteration, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unusable(error) from None
    raise _unusable("nobody has every page")


def _regrouped(keys: dict[str, str], cluster: str, node: str, copies: Mapping[str, int]) -> dict[str, str]:
    found = dict(keys)
    key = f"/strata/{cluster}/placement"
    try:
        held: dict[str, Any] = json.loads(found[key])
        (group,) = held["groups"]
        place = group["nodes"].index(node)
        held["generation"] += 1
        nodes = [node, *copies]
        group |= {"nodes": nodes, "write_quorum": len(nodes) // 2 + 1}
        group.pop("retired", None)
        joined = group.pop("joined", None)
        if joined and not copies:
            group |= {"joined": [joined[place]]} if joined[place] else {}
        found[key] = json.dumps(held)
        for name, value in keys.items():
            if _name_in_stream(name, cluster) == IN_SYNC:
                found[name] = json.dumps(_with_pages(json.loads(value), node, copies))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unusable(error) from None
    return found


def _with_pages(pages: dict[str, Any], node: str, copies: Mapping[str, int]) -> dict[str, Any]:
    own = [one for one in pages["nodes"] if one["name"] == node]
    if not own:
        raise ValueError(f"{node} has not every page")
    others = [{"name": name, "store": f"{store:016x}"} for name, store in copies.items()]
    return {**pages, "nodes": sorted(own + others, key=lambda one: str(one["name"]))}  # As whoever reads it wants them.


def _unusable(why: object) -> StrataError:
    return StrataError(f"the registry's keys in the backup cannot be used ({why!r}); use another backup")


def _name_in_stream(key: str, cluster: str) -> str:
    """Empty: not the key of a stream."""
    streams = f"/strata/{cluster}/streams/"
    return key.removeprefix(streams).partition("/")[2] if key.startswith(streams) else ""


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _text(coded: str) -> str:
    return base64.b64decode(coded).decode()
