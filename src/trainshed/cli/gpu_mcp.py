"""``gpu mcp``: the tools of coding agents."""

from __future__ import annotations

import click


@click.command()
def mcp() -> None:
    """Serve the Model Context Protocol over standard input and output.

    A coding agent starts this itself; add it with `claude mcp add gpu -- gpu mcp`, say. Standard output
    carries protocol messages only. When the agent goes away this ends; the server and its Jobs go on.
    """
    from trainshed.mcp.stdio import main  # noqa: PLC0415 - the protocol's library takes half a second to load

    main()
