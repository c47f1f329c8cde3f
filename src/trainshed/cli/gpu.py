"""``gpu``: packed projects that run somewhere on a GPU. A command's module loads when it runs."""

from __future__ import annotations

from collections.abc import Sequence

import click

from trainshed import __version__
from trainshed.cli.gpu_exits import exit_for
from trainshed.cli.lazy import LazyGroup
from trainshed.cli.program import run
from trainshed.cli.session import Session

_HERE = "trainshed.cli"
COMMANDS = {
    "run": (
        f"{_HERE}.gpu_run:run",
        "Run a project's script where there is a GPU, and bring back what it wrote.",
    ),
    "route": (
        f"{_HERE}.gpu_run:route",
        "Say where it would run and whether you would be asked; creates nothing.",
    ),
    "status": (f"{_HERE}.gpu_status:status", "Show what goes on, or everything about one Job."),
    "watch": (f"{_HERE}.gpu_watch:watch", "Watch Jobs as they go on."),
    "jobs": (f"{_HERE}.gpu_jobs:jobs", "List Jobs that have not ended."),
    "history": (f"{_HERE}.gpu_jobs:history", "List Jobs that have ended."),
    "logs": (f"{_HERE}.gpu_logs:logs", "Print what a Job's program wrote."),
    "cancel": (f"{_HERE}.gpu_answers:cancel", "Cancel a Job; what it saved is kept."),
    "approve": (f"{_HERE}.gpu_answers:approve", "Let a Job run that asks for a person."),
    "deny": (f"{_HERE}.gpu_answers:deny", "Refuse a Job that asks for a person."),
    "fetch": (f"{_HERE}.gpu_fetch:fetch", "Bring what a Job wrote."),
    "quota": (f"{_HERE}.gpu_providers:quota", "Show what is left at each provider."),
    "policy": (f"{_HERE}.gpu_policy:policy", "Show and change when a person is asked."),
    "providers": (f"{_HERE}.gpu_providers:providers", "Show where Jobs can run."),
    "login": (f"{_HERE}.gpu_providers:login", "Say what a provider needs to be used, and ask it."),
    "secrets": (f"{_HERE}.gpu_secrets:secrets", "Keep values that Jobs get as variables."),
    "daemon": (f"{_HERE}.gpu_daemon:daemon", "Run, start, stop and look at the server that Jobs go through."),
    "doctor": (f"{_HERE}.gpu_doctor:doctor", "Say what is missing for each provider."),
    "notify": (f"{_HERE}.gpu_notify:notify", "Tell when a Job ends or asks."),
    "bundle": (f"{_HERE}.gpu_bundle:bundle", "Show what of a folder would ship, and why the rest would not."),
    "init": (f"{_HERE}.gpu_init:init", "Write a gpu.yaml from what the folder holds."),
    "setup": (f"{_HERE}.gpu_setup:setup", "Say how coding agents are told of this program."),
    "statusline": (f"{_HERE}.gpu_setup:statusline", "Print one line about Jobs, for a prompt."),
    "mcp": (f"{_HERE}.gpu_mcp:mcp", "Serve the Model Context Protocol over standard input and output."),
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Jobs go through a server of your own, started on first use; it needs no login.",
)
@click.version_option(__version__, "-V", "--version", message="%(prog)s %(version)s")
@click.pass_obj
def gpu(session: Session) -> None:
    """Run a project on a GPU, wherever there is one.

    Pack it, watch it, get its outputs back.
    """
    session.exits = exit_for


def run_gpu(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status."""
    return run(arguments, gpu)
