"""The command line itself: options and help texts; the work is in the module of each command group."""

import sys

import typer

from . import setup_cmd
from .shell import StrataError, errors

app = typer.Typer(
    name="strata",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Strata: a relational storage engine for MariaDB (ENGINE=STRATA).",
)


@app.callback()
def _root() -> None:
    pass


@app.command()
def setup() -> None:
    """Install build packages, unpack the private MariaDB, prepare Python. Safe to repeat."""
    setup_cmd.setup()


def main() -> None:
    try:
        app(prog_name="./strata")
    except StrataError as error:
        errors.print(f"[red]error:[/] {error}", soft_wrap=True)
        sys.exit(1)
