"""What a cluster's backup holds of the registry, and what a restored cluster gets of it."""

import base64
import json

import pytest
from strata_cli import placement, registry_copy
from strata_cli.shell import StrataError

PREFIX = "/strata/main/"
STREAM = f"{PREFIX}streams/{placement.STREAM}/"
AUTHORITY = f"{PREFIX}streams/{placement.AUTHORITY_STREAM}/"
PLACEMENT = {
    "format": 1,
    "generation": 4,
    "groups": [{"id": 1, "nodes": ["s1", "s4", "s3"], "write_quorum": 2, "joined": [0, 3, 0], "retired": ["s2"]}],
}
STORES = [{"name": name, "store": f"{number:016x}"} for number, name in enumerate(("s1", "s3", "s4"), 7)]
IN_SYNC = {"format": 1, "nodes": STORES}


def keys() -> dict[str, str]:
    return {
        f"{PREFIX}identity": "{}",
        f"{PREFIX}placement": json.dumps(PLACEMENT),
        f"{STREAM}control": '{"lsn": 5}',
        f"{STREAM}in-sync": json.dumps(IN_SYNC),
    }


def test_keys_of_processes_and_pools_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(key: str, value: str, lease: int = 0) -> dict[str, object]:
        coded = {name: base64.b64encode(text.encode()).decode() for name, text in (("key", key), ("value", value))}
        return {**coded, **({"lease": str(lease)} if lease else {})}

    kept = keys()
    there = [entry(key, value) for key, value in kept.items()]
    there += [entry(f"{PREFIX}members/s1", "x", lease=77), entry(f"{STREAM}memory", "x"), entry(f"{STREAM}removal", "x")]
    monkeypatch.setattr(placement, "call_registry", lambda *_: {"count": "7", "kvs": there})
    assert registry_copy.read(1, "main") == kept
    monkeypatch.setattr(placement, "call_registry", lambda *_: {"kvs": [{"key": "not base 64"}]})
    with pytest.raises(StrataError, match="cannot be read"):
        registry_copy.read(1, "main")


@pytest.mark.parametrize(("node", "joined"), [("s1", None), ("s4", [3])])
def test_a_restored_cluster_has_one_storage_node(node: str, joined: list[int] | None) -> None:
    found = registry_copy.alone(keys(), "main", node)
    held = json.loads(found[f"{PREFIX}placement"])
    assert held["generation"] == 5
    (group,) = held["groups"]
    assert (group["nodes"], group["write_quorum"], group.get("joined"), "retired" in group) == ([node], 1, joined, False)
    assert [one["name"] for one in json.loads(found[f"{STREAM}in-sync"])["nodes"]] == [node]
    assert found[f"{STREAM}control"] == keys()[f"{STREAM}control"]


def test_where_pages_are_made_from_the_log_nobody_is_in_sync() -> None:
    found = keys()
    del found[f"{STREAM}in-sync"]
    assert f"{STREAM}in-sync" not in registry_copy.alone(found, "main", "s3")
    assert registry_copy.checkpoints(found, "main") == {f"{STREAM}control": '{"lsn": 5}'}


def of_several() -> dict[str, str]:
    """The memory node that servers share writes their pages."""
    found = keys()
    found[f"{AUTHORITY}in-sync"] = found.pop(f"{STREAM}in-sync")
    return {**found, f"{AUTHORITY}control": '{"lsn": 0}', f"{PREFIX}streams/00000002/control": '{"lsn": 9}'}


def test_of_several_servers_all_checkpoints_count() -> None:
    told = registry_copy.checkpoints({**of_several(), f"{PREFIX}streams/00000002/epoch": "{}"}, "main")
    assert set(told) == {f"{STREAM}control", f"{AUTHORITY}control", f"{AUTHORITY}in-sync", f"{PREFIX}streams/00000002/control"}
    assert registry_copy.checkpoints(of_several(), "other") == {}


def test_a_restored_cluster_has_copies_of_its_storage_node() -> None:
    found = registry_copy.spread(of_several(), "main", "s4", {"s1": 77, "s2": 78})
    (group,) = json.loads(found[f"{PREFIX}placement"])["groups"]
    assert group == {"id": 1, "nodes": ["s4", "s1", "s2"], "write_quorum": 2}
    # In the order of names, whatever the group's is; the numbers of those that were there are not taken for the copies'.
    assert json.loads(found[f"{AUTHORITY}in-sync"])["nodes"] == [
        {"name": "s1", "store": f"{77:016x}"},
        {"name": "s2", "store": f"{78:016x}"},
        {"name": "s4", "store": f"{9:016x}"},
    ]
    assert registry_copy.store_of(of_several(), "main", "s4") == 9
    for wrong in ("s2", "s5"):
        with pytest.raises(StrataError, match="cannot be used"):
            registry_copy.store_of(of_several(), "main", wrong)
    with pytest.raises(StrataError, match="cannot be used"):
        registry_copy.store_of({f"{PREFIX}identity": "{}"}, "main", "s4")


def test_keys_that_do_not_fit_are_refused() -> None:
    lagging = {**keys(), f"{STREAM}in-sync": json.dumps({**IN_SYNC, "nodes": STORES[1:]})}
    for wrong in (lagging, {**keys(), f"{PREFIX}placement": "{"}, {f"{PREFIX}identity": "{}"}):
        with pytest.raises(StrataError, match="cannot be used"):
            registry_copy.alone(wrong, "main", "s1")
