import re

from check_errors import check_tree, problems_of
from strata_cli import paths


def test_codes_are_found_where_they_may_not_be() -> None:
    asks = "if (status.code() == x) return;\n// status.code() in a comment\nreturn Status(StatusCode::kUnknown, text);\n"
    assert [line.split(":")[1] for line in problems_of("src/wal/log.cc", asks)] == ["1", "3"]
    assert problems_of("src/base/status.h", asks) == [] == problems_of("src/wal/log_test.cc", asks)
    assert problems_of("src/wal/log.cc", "is_fenced(status); error_class(status); decode(); exit_code(); x.http_code();\n") == []


def test_nobody_asks_for_a_code_here() -> None:
    assert check_tree(paths.ROOT) == []


def test_the_map_to_the_servers_errors_follows_the_classes() -> None:
    """What may pass is a temporary error; where the server has no text of its own, ours goes along."""
    classes = dict(
        re.findall(r"^STRATA_ERROR\((\w+), \d+, (\w+),", (paths.ROOT / "src/base/errors.def").read_text(), re.MULTILINE)
    )
    source = (paths.ROOT / "mariadb/error_map.cc").read_text()
    groups = re.findall(r"((?:    case Error::\w+:\n)+)((?:      .*\n)+)", source)
    mapped = {name: body for cases, body in groups for name in re.findall(r"Error::(\w+)", cases)}
    assert mapped.keys() == {*classes, "ok"}
    for name, cls in classes.items():
        assert ("HA_ERR_NO_CONNECTION" in mapped[name]) == (cls == "retry"), name
        if cls in ("retry", "ends_right") or "HA_ERR_INTERNAL_ERROR" in mapped[name]:
            assert ", true}" in mapped[name], f"{name}: the client would read a number"
        # What the server rolls back whole: by its own number, or where it would only end the statement, by ours (1020).
        ends = any(code in mapped[name] for code in ("HA_ERR_ROLLBACK", "HA_ERR_RECORD_CHANGED"))
        assert (cls == "abort_trx") == ends, name
