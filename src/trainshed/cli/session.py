"""What one run of the program shares: the output form, the client, messages to the person."""

from __future__ import annotations

import contextlib
import difflib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trainshed.cli.output import HumanOutput, JsonOutput, Output, View, plain
from trainshed.sdk.errors import ApiError, NotFreezable, TrainshedError

if TYPE_CHECKING:
    from trainshed.sdk import Client

F = TypeVar("F", bound=Callable[..., Any])
MAX_SUGGESTIONS = 3


@dataclass
class Session:
    """Made once by ``main`` and handed to every command (``click.pass_obj``)."""

    program: str = "trainshed"
    json: bool = False
    url: str | None = None
    project: str | None = None
    suggestions: list[str] = field(default_factory=list)
    """Nearest names for what was not found; shown with the refusal."""

    @property
    def out(self) -> Output:
        return JsonOutput() if self.json else HumanOutput()

    def show(self, document: Mapping[str, Any], *views: View) -> None:
        """Print the result of the command."""
        self.out.show(document, *views)

    def note(self, message: str) -> None:
        """A message to the person, on stderr; programs that read ``--json`` are not told."""
        if not self.json:
            click.echo(plain(message), err=True)

    def warn(self, message: str) -> None:
        """Something the reader has to know even when reading JSON, on stderr."""
        click.echo(f"warning: {plain(message)}", err=True)

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """A client of the server that this environment names (see ``docs/cli.md``)."""
        from trainshed.sdk.client import Client  # noqa: PLC0415 - 60 ms that `--help` must not pay

        with Client(self.url, project=self.project, on_retry=self.note) as client:
            yield client

    def nearest(self, wanted: str, known: Iterable[str]) -> None:
        """Remember the names of ``known`` that ``wanted`` may have meant."""
        self.suggestions = difflib.get_close_matches(wanted, list(known), n=MAX_SUGGESTIONS, cutoff=0.5)

    def report(self, error: TrainshedError) -> None:
        """Tell why the command ended: code, sentence, every field, what to do next."""
        if self.json:
            click.echo(json.dumps(_error_document(error, self.suggestions)), err=True)
            return
        click.echo(f"error: {plain(str(error))}", err=True)
        for fault in getattr(error, "faults", ()):
            if fault.path or fault.message != error.message:
                where = f"{fault.path}: " if fault.path else ""
                click.echo(f"  - {plain(where + fault.message)} [{plain(fault.code)}]", err=True)
        hidden = error.body.get("errors_not_shown") if isinstance(error, ApiError) else None
        if hidden:
            click.echo(f"  … and {hidden} more", err=True)
        if self.suggestions:
            click.echo(f"  did you mean {' or '.join(map(plain, self.suggestions))}?", err=True)
        if error.hint:
            click.echo(f"hint: {plain(error.hint)}", err=True)


def json_option(command: F) -> F:
    """``--json`` on a command that prints data."""

    def chosen(context: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's form
        if value:
            context.find_object(Session).json = True  # type: ignore[union-attr] # main always sets it

    return click.option(
        "--json",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=chosen,
        help="Print one JSON document on stdout; messages stay on stderr.",
    )(command)


def quiet_option(command: F) -> F:
    """``--quiet`` on a command whose ids a script goes on with."""
    return click.option("--quiet", "-q", is_flag=True, help="Print ids only, one a line.")(command)


def interactive() -> bool:
    """Whether a person watches stderr, so that progress may be drawn there."""
    return sys.stderr.isatty()


def _error_document(error: TrainshedError, suggestions: list[str]) -> dict[str, Any]:
    document: dict[str, Any] = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    if isinstance(error, ApiError):
        document |= {"status": error.status, **_extra(error.body)}
    if isinstance(error, ApiError | NotFreezable):
        document["code"] = error.code
        document["errors"] = [
            {"path": fault.path, "code": fault.code, "message": fault.message} for fault in error.faults
        ]
    if suggestions:
        document["did_you_mean"] = suggestions
    return document


def _extra(body: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key not in {"code", "message", "hint", "errors"}}
