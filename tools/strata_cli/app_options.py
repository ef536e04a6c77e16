"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    Path | None, typer.Option("--data", help="Data folder of the server or cluster.", show_default="the one used last, else data")
]
LoseLocalTables = Annotated[
    bool, typer.Option("--lose-local-tables", help="Although a compute node has tables of other engines, which only it has.")
]

PORT_HELP = "TCP port of SQL on loopback; a free one when not given."
BufferPool = Annotated[
    str | None,
    typer.Option("--buffer-pool-size", help="Local memory for pages of a cluster's compute node.", show_default="as before"),
]
Cores = Annotated[
    float | None,
    typer.Option(help="That a cluster's compute node may use, as in 1.5; 0: all.", show_default="as before"),
]
Port = Annotated[int | None, typer.Option(help=PORT_HELP, min=1, max=65535)]
AsJson = Annotated[bool, typer.Option("--json", help="Print only what came of it, as JSON.")]
