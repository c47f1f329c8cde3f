"""The whole program: its commands, its options, and what becomes of a failure.

Only click is imported here; a command's module loads when it runs, and what tells of a failure when one
happens.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence

import click

from trainshed import __version__
from trainshed.cli.exits import Exit
from trainshed.cli.lazy import LazyGroup
from trainshed.cli.main import program_name
from trainshed.cli.session import Session

_HERE = "trainshed.cli"
COMMANDS = {
    "job": (f"{_HERE}.job:job", "Submit, watch and stop Jobs."),
    "train": (f"{_HERE}.train:train", "Run PyTorch and Ray tasks on several replicas."),
    "gpu": (f"{_HERE}.gpu:gpu", "Run a project on a GPU, wherever there is one."),
    "trial": (f"{_HERE}.trial:trial", "Look at Trials and fetch what they produced."),
    "artifact": (f"{_HERE}.artifact:artifact", "Delete what Trials produced."),
    "checkpoint": (f"{_HERE}.checkpoint:checkpoint", "Look at, fetch, keep and delete Checkpoints."),
    "runner": (f"{_HERE}.runner:runner", "Publish and look at Runners."),
    "dataset": (f"{_HERE}.content_kinds:dataset", "Publish, share and fetch Datasets."),
    "model": (f"{_HERE}.content_kinds:model", "Publish, share and fetch Models."),
    "recipe": (f"{_HERE}.content_kinds:recipe", "Publish, share and fetch Recipes."),
    "plugin": (
        f"{_HERE}.plugin:plugin",
        "Publish and fetch Plugins, and decide which are allowed.",
    ),
    "pool": (f"{_HERE}.pool:pool", "Look at pools, and take nodes out of them."),
    "quota": (f"{_HERE}.quota:quota", "Look at quotas of training tasks."),
    "catalog": (f"{_HERE}.catalog:catalog", "Show and change what training tasks choose from."),
    "content": (f"{_HERE}.content:content", "Look after what is stored: usage, garbage, damage."),
    "login": (f"{_HERE}.login:login", "Check a key and save it for later commands."),
    "logout": (f"{_HERE}.login:logout", "Forget the saved login."),
    "whoami": (f"{_HERE}.login:whoami", "Show which server and which key are in use."),
    "demo": (f"{_HERE}.demo:demo", "Run the whole path once, on a private server."),
    "doctor": (f"{_HERE}.doctor:doctor", "Say what this machine offers and what is missing for what."),
    "serve": (f"{_HERE}.serve:serve", "Run a server."),
    "status": (f"{_HERE}.serve:status", "Show which server is used, why, and whether it answers."),
    "stop": (f"{_HERE}.serve:stop", "Stop your embedded server; its Jobs go on."),
    "project": (f"{_HERE}.project:project", "Administer projects."),
    "member": (f"{_HERE}.project:member", "Administer the members of a project."),
    "key": (f"{_HERE}.project:key", "Administer the API keys of a project."),
    "completion": (f"{_HERE}.completion:completion", "Print the completion script for a shell."),
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Without TRAINSHED_URL or a saved login, a server of your own is started on first use.",
)
@click.version_option(__version__, "-V", "--version", message="%(prog)s %(version)s")
@click.option("--url", metavar="URL", help="Use this server instead of the one the environment names.")
@click.option("--project", metavar="ID", help="Project to administer; other commands act in the key's own.")
@click.pass_obj
def root(session: Session, url: str | None, project: str | None) -> None:
    """Freeze a training program, run it on GPUs, get back logs, outputs and proof of release."""
    session.url = url
    session.project = project


def run(arguments: Sequence[str] | None = None, program: click.Group = root) -> int:
    """Run the program and return its exit status (`trainshed.cli.exits`)."""
    session = Session(program=program_name())
    given = list(sys.argv[1:] if arguments is None else arguments)
    _fill_in_closed_streams()
    try:
        status = program.main(
            args=given,
            prog_name=session.program,
            standalone_mode=False,
            obj=session,
        )
        sys.stdout.flush()
    except click.ClickException as error:
        with contextlib.suppress(OSError):  # nobody reads it; the exit status still tells
            _tell_misuse(session, program, given, error)
        return Exit.USAGE
    except click.Abort:
        click.echo("interrupted", err=True)
        session.tell_what_goes_on()
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nothing is wrong, and nothing more can be said.
        _give_up_stdout()
        return Exit.OK
    except OSError as error:
        from trainshed.sdk.errors import TrainshedError  # noqa: PLC0415 - not for `--help`

        # Files that a command names are handled where they are used; what remains is the output.
        _give_up_stdout()
        said = error.strerror or type(error).__name__
        where = f"{error.filename}: {said}" if error.filename else f"cannot write the output: {said}"
        session.report(TrainshedError(where))
        return Exit.FAILED
    except Exception as error:
        from trainshed.sdk.errors import TrainshedError  # noqa: PLC0415 - as above

        if not isinstance(error, TrainshedError):
            raise
        with contextlib.suppress(OSError):  # as above
            session.report(error)
        return session.exit_for(error)
    return status if isinstance(status, int) else Exit.OK


def _tell_misuse(
    session: Session, program: click.Group, given: Sequence[str], error: click.ClickException
) -> None:
    """Say what is wrong with the command line, in the form that was asked for."""
    words = given[: given.index("--")] if "--" in given else given
    command, called = _meant(session.program, program, words)
    if (context := getattr(error, "ctx", None)) is not None:  # not of every mistake
        command, called = context.command, context.command_path
    # Whoever mistyped the command meant one that has the option; to others it is the mistake itself.
    has_it = isinstance(command, click.Group) or any("--json" in each.opts for each in command.params)
    asked = has_it and any(word.partition("=")[0] == "--json" for word in words)
    if session.json or asked:
        session.report_misuse(error, called)
        return
    from trainshed.cli.output import plain  # noqa: PLC0415 - not for `--help`

    shown = io.StringIO()
    error.show(file=shown)
    click.echo(plain(shown.getvalue()), err=True, nl=False)


def _meant(name: str, program: click.Group, words: Sequence[str]) -> tuple[click.Command, str]:
    """The command that these words lead to, and how it is called."""
    command: click.Command = program
    called = [name]
    for word in words:
        if not isinstance(command, click.Group):
            break
        if (found := command.get_command(click.Context(command), word)) is not None:
            command = found
            called.append(word)
    return command, " ".join(called)


def _give_up_stdout() -> None:
    """Let nothing fail a second time when the interpreter empties its buffers at its end."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _fill_in_closed_streams() -> None:
    """Give standard streams that were closed (``>&-``) their numbers back.

    Else the next file opened gets the number, and lines for people or programs end up in it. What is written
    to a closed stdout fails, as it does for every program.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
