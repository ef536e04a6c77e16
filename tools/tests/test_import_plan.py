"""Which tables `./strata import` converts together, in which order, and with which statements."""

import json

from strata_cli.import_plan import (
    Family,
    ForeignKey,
    Table,
    add_keys,
    convert,
    drop_keys,
    families,
    from_json,
    to_json,
)


def key(child: str, parent: str, name: str = "") -> ForeignKey:
    return ForeignKey(("a", child), name or f"{child}_{parent}", ("x",), ("a", parent), ("id",), "CASCADE", "RESTRICT")


def tables(*names: str) -> list[Table]:
    return [Table(("a", name), 10) for name in names]


def names(family: Family) -> list[str]:
    return [table.name[1] for table in family.tables]


def test_tables_without_foreign_keys_go_by_themselves() -> None:
    assert [names(family) for family in families(tables("b", "a"), [])] == [["a"], ["b"]]


def test_relatives_go_together_parents_first() -> None:
    found = families(tables("line", "order", "person", "else"), [key("line", "order"), key("order", "person")])
    assert [names(family) for family in found] == [["else"], ["person", "order", "line"]]
    assert not any(found[1].comes_too_early(table.name) for table in found[1].tables)
    assert found[1].size() == 30


def test_in_a_circle_somebody_comes_before_his_parent() -> None:
    (family,) = families(tables("x", "y", "z"), [key("x", "y"), key("y", "x"), key("z", "x")])
    assert names(family) == ["x", "y", "z"]
    assert [family.comes_too_early(table.name) for table in family.tables] == [True, False, False]


def test_rows_of_a_table_that_refers_to_itself_may_come_before_their_parents() -> None:
    (family,) = families(tables("t"), [key("t", "t")])
    assert family.comes_too_early(("a", "t"))


def test_who_has_to_stay_keeps_its_relatives() -> None:
    (family,) = families([Table(("a", "p"), 1, "it is partitioned"), *tables("c")], [key("c", "p")])
    assert family.obstacles() == {("a", "p"): "it is partitioned", ("a", "c"): "foreign keys tie it to a.p, which stays"}
    (free,) = families(tables("t"), [])
    assert free.obstacles() == {}


def test_statements() -> None:
    one = ForeignKey(("a", "c`d"), "n", ("x", "y"), ("b", "p"), ("i", "j"), "SET NULL", "NO ACTION")
    text = "CONSTRAINT `n` FOREIGN KEY (`x`, `y`) REFERENCES `b`.`p` (`i`, `j`) ON DELETE SET NULL ON UPDATE NO ACTION"
    assert convert(one.child, "STRATA", [one]) == f"ALTER TABLE `a`.`c``d` ENGINE=STRATA, ADD {text}"
    assert convert(one.child, "STRATA", []) == "ALTER TABLE `a`.`c``d` ENGINE=STRATA"
    assert add_keys(one.child, [one]) == f"ALTER TABLE `a`.`c``d` ADD {text}"
    assert drop_keys(one.child, [one]) == "ALTER TABLE `a`.`c``d` DROP FOREIGN KEY `n`"
    assert one.orphans() == (
        "SELECT COUNT(*) FROM `a`.`c``d` c LEFT JOIN `b`.`p` p ON c.`x` = p.`i` AND c.`y` = p.`j`"
        " WHERE c.`x` IS NOT NULL AND c.`y` IS NOT NULL AND p.`i` IS NULL"
    )


def test_a_family_is_the_same_after_the_journal() -> None:
    (family,) = families(tables("x", "y"), [key("x", "y"), key("y", "x")])
    assert from_json(json.loads(json.dumps(to_json(family)))) == family
