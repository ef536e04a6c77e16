"""What is run: tests that belong to a program or library of somebody else, from its source distribution, with its own runner."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
DATABASES = ("applications", "applications_other", "test", "test_schema", "test_schema_2")


@dataclass(frozen=True)
class Result:
    """Of one run: each test that did not pass, with the last line it left, and how many did."""

    passed: int
    bad: Mapping[str, str]


@dataclass(frozen=True)
class Tool:
    name: str
    source: str  # a requirement of pip, exact: the tests are those of this version
    needs: tuple[str, ...]
    tests: tuple[str, ...]
    command: Callable[["Tool", Path, int], list[str]]  # for a venv's python, in the folder of the source; with a port
    read: Callable[[str], Result]
    folder: str = "."  # in the source
    several: tuple[str, ...] = ()  # those that are also run on several servers; none: only when asked for
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def package(self) -> str:
        return self.source.split("==")[0].lower()


# --- Django ----------------------------------------------------------------------------------------------------------

# All that use models: what is left out needs no database, or tests administration pages.
DJANGO_LABELS = """
aggregation aggregation_regress annotations backends basic bulk_create constraints custom_columns custom_lookups
custom_managers custom_pk datatypes dates datetimes db_functions db_typecasts defer defer_regress delete delete_regress
distinct_on_fields empty expressions expressions_case expressions_window extra_regress field_defaults filtered_relation
fixtures fixtures_regress force_insert_update foreign_object from_db_value generic_relations generic_relations_regress
get_earliest_or_latest get_object_or_404 get_or_create indexes inspectdb introspection known_related_objects lookup
m2m_and_m2o m2m_intermediary m2m_multiple m2m_recursive m2m_regress m2m_signals m2m_through m2m_through_regress m2o_recursive
many_to_many many_to_one many_to_one_null max_lengths migrations model_fields model_inheritance model_inheritance_regress
multiple_database mutually_referential nested_foreign_keys null_fk null_fk_ordering null_queries one_to_one or_lookups
order_with_respect_to ordering prefetch_related properties proxy_models queries queryset_pickle raw_query reserved_names
reverse_lookup save_delete_hooks schema select_for_update select_related select_related_onetoone select_related_regress
serializers transaction_hooks transactions unmanaged_models update update_only_fields
""".split()

# On several servers, too. Together all take long: many tests empty every table of the chosen labels.
DJANGO_SEVERAL = """
aggregation basic bulk_create constraints delete expressions get_or_create lookup model_fields queries schema
select_for_update transaction_hooks transactions update
""".split()

DJANGO_BAD = re.compile(r"^(?:FAIL|ERROR): (\w+) \(([\w.]+)\)", re.MULTILINE)
DJANGO_END = re.compile(r"^Ran (\d+) tests? in", re.MULTILINE)
SECTION_END = re.compile(r"^(?:={70}|-{70})$", re.MULTILINE)


def _django_command(tool: Tool, source: Path, port: int) -> list[str]:
    del source, port  # the settings find the port in the environment
    return ["runtests.py", "--settings=django_settings", "--noinput", "--parallel=1", *tool.tests]


def read_django(text: str) -> Result:
    bad: dict[str, str] = {}
    for found in DJANGO_BAD.finditer(text):
        # Behind the rule below the name: the traceback, up to the next rule.
        parts = SECTION_END.split(text[found.end() :], maxsplit=2)
        lines = parts[1].strip().splitlines() if len(parts) > 1 else []
        bad.setdefault(found[2], lines[-1] if lines else "")
    end = DJANGO_END.search(text)
    if end is None:
        return Result(0, {**bad, "the run itself": text.strip().splitlines()[-1] if text.strip() else "no output"})
    skipped = sum(int(count) for count in re.findall(r"(?:skipped|expected failures)=(\d+)", text[end.start() :]))
    return Result(max(0, int(end[1]) - skipped - len(bad)), bad)


# --- SQLAlchemy ------------------------------------------------------------------------------------------------------

PYTEST_BAD = re.compile(r"^(?:FAILED|ERROR) (\S+::\S+?(?:\[.*?\])?)(?: - (.*))?$", re.MULTILINE)


def _sqlalchemy_command(tool: Tool, source: Path, port: int) -> list[str]:
    del source
    url = f"mysql+pymysql://root@127.0.0.1:{port}/test?charset=utf8mb4"
    return ["-m", "pytest", "-q", "-rfE", "--tb=line", "-p", "no:cacheprovider", "--maxfail=1000000", "--dburi", url, *tool.tests]


def read_pytest(text: str) -> Result:
    bad = {found[1]: (found[2] or "").strip() for found in PYTEST_BAD.finditer(text)}
    end = re.search(r"(\d+) passed.* in [\d.]+s", text)
    if end is None and not re.search(r"\d+ failed.* in [\d.]+s", text):
        bad["the run itself"] = text.strip().splitlines()[-1] if text.strip() else "no output"
    return Result(int(end[1]) if end else 0, bad)


ALL = {
    tool.name: tool
    for tool in (
        Tool(
            name="django",
            source="Django==5.2.19",
            needs=("pymysql>=1.1,<2",),
            tests=tuple(DJANGO_LABELS),
            several=tuple(DJANGO_SEVERAL),
            command=_django_command,
            read=read_django,
            folder="tests",
            env={"PYTHONPATH": str(HERE)},
        ),
        Tool(
            name="sqlalchemy",
            source="SQLAlchemy==2.1.9",
            needs=("pymysql>=1.1,<2", "pytest>=8,<9"),
            tests=("test/dialect/test_suite.py",),
            several=("test/dialect/test_suite.py",),
            command=_sqlalchemy_command,
            read=read_pytest,
            env={"COLUMNS": "400"},  # the width, or what a test failed with is cut off
        ),
        *(
            Tool(
                name=f"sqlalchemy-{part}",
                source="SQLAlchemy==2.1.9",
                needs=("pymysql>=1.1,<2", "pytest>=8,<9"),
                tests=tests,
                command=_sqlalchemy_command,
                read=read_pytest,
                env={"COLUMNS": "400"},
            )
            for part, tests in (("core", ("test/engine", "test/sql")), ("orm", ("test/orm", "test/ext")))
        ),
        # By itself: a test that cannot make its table with a FULLTEXT index leaves another one behind.
        Tool(
            name="sqlalchemy-mysql",
            source="SQLAlchemy==2.1.9",
            needs=("pymysql>=1.1,<2", "pytest>=8,<9"),
            tests=("test/dialect/mysql",),
            several=("test/dialect/mysql",),
            command=_sqlalchemy_command,
            read=read_pytest,
            env={"COLUMNS": "400"},  # the width, or what a test failed with is cut off
        ),
    )
}
