"""The rules of excused.toml."""

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .compare import Difference
from .step import Step

RULES_FILE = Path(__file__).with_name("excused.toml")
RULES_MOST = 10
ACTIONS = ("continue", "rollback")
CODE = re.compile(r"\d+")


@dataclass(frozen=True)
class Rule:
    name: str
    reason: str
    kinds: tuple[str, ...]
    statement: re.Pattern[str]
    action: str
    strata: tuple[int, ...] | None = None
    innodb: tuple[int, ...] | None = None
    warnings: tuple[int, ...] = ()
    only_if: str = ""

    def covers(self, step: Step, difference: Difference) -> bool:
        return (
            difference.kind in self.kinds
            and self.statement.search(step.sql) is not None
            and _allows(self.strata, difference.strata)
            and _allows(self.innodb, difference.innodb)
            and set(difference.codes) <= set(self.warnings)
        )


def _allows(codes: tuple[int, ...] | None, shown: str) -> bool:
    if codes is None:
        return True
    match = CODE.match(shown)
    return (int(match[0]) if match else 0) in codes


def _rule(raw: dict[str, Any]) -> Rule:
    codes = {side: tuple(raw[side]) if side in raw else None for side in ("strata", "innodb")}
    warnings = tuple(raw.get("warnings", ()))
    if raw["action"] not in ACTIONS or not raw["reason"].strip():
        raise ValueError(f"rule {raw['name']}: action or reason")
    return Rule(
        raw["name"],
        raw["reason"],
        tuple(raw["kinds"]),
        re.compile(raw["statement"]),
        raw["action"],
        warnings=warnings,
        only_if=raw.get("only_if", ""),
        **codes,
    )


Conditions = Mapping[str, Callable[[Step], bool]]


class Excuses:
    def __init__(self, path: Path = RULES_FILE) -> None:
        self.rules = [_rule(raw) for raw in tomllib.loads(path.read_text()).get("rule", [])]
        if len(self.rules) > RULES_MOST:
            raise ValueError(f"{len(self.rules)} rules: more than {RULES_MOST} excuses are no comparison")
        self.used: Counter[str] = Counter()

    def sort(self, step: Step, found: list[Difference], conditions: Conditions) -> tuple[list[Difference], bool]:
        """What is left unexplained, and whether the session has to roll back to bring the sides together."""
        left, rollback = [], False
        for difference in found:
            rule = next((rule for rule in self.rules if rule.covers(step, difference)), None)
            if rule is None or (rule.only_if and not conditions[rule.only_if](step)):
                left.append(difference)
                continue
            self.used[rule.name] += 1
            rollback = rollback or rule.action == "rollback"
        return left, rollback
