"""A plugin of pytest for SQLAlchemy's own tests: no foreign keys are made, on either engine (FOREIGN_KEYS in tools.py)."""

from typing import Any

from sqlalchemy.dialects.mysql.base import MySQLDDLCompiler
from sqlalchemy.sql.schema import ForeignKeyConstraint

_add_constraint = MySQLDDLCompiler.visit_add_constraint


def _none(self: MySQLDDLCompiler, constraint: ForeignKeyConstraint, **kw: Any) -> None:
    return None


def _add_others(self: MySQLDDLCompiler, create: Any, **kw: Any) -> str:
    if isinstance(create.element, ForeignKeyConstraint):
        return "DO 0"
    return str(_add_constraint(self, create, **kw))


MySQLDDLCompiler.visit_foreign_key_constraint = _none
MySQLDDLCompiler.visit_add_constraint = _add_others
