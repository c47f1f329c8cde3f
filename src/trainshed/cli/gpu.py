"""``gpu``: packed projects that run somewhere on a GPU. A command's module loads when it runs."""

from __future__ import annotations

from collections.abc import Sequence

import click

from trainshed import __version__
from trainshed.cli.lazy import LazyGroup
from trainshed.cli.program import run
from trainshed.cli.session import Session

_HERE = "trainshed.cli"
COMMANDS = {
    "bundle": (f"{_HERE}.gpu_bundle:bundle", "Show what of a folder would ship, and why the rest would not."),
    "mcp": (f"{_HERE}.gpu_mcp:mcp", "Serve coding agents over standard input and output (MCP)."),
    "init": (f"{_HERE}.gpu_init:init", "Write a gpu.yaml from what the folder holds."),
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "-V", "--version", message="%(prog)s %(version)s")
@click.pass_obj
def gpu(session: Session) -> None:
    """Run a project on a GPU, wherever there is one: pack it, watch it, get its outputs back."""
    del session


def run_gpu(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status."""
    return run(arguments, gpu)
