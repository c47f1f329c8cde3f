"""What one run of the program shares: the output form, the client, messages to the person.

Every ``--help`` needs it and is to be quick: what shows results and tells of errors is imported when there
are any.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from trainshed.cli.output import Output, View
    from trainshed.sdk import Client
    from trainshed.sdk.errors import TrainshedError

F = TypeVar("F", bound=Callable[..., Any])
MAX_SUGGESTIONS = 3
_OWN_REFUSAL: Mapping[str, Any] = {"code": None, "status": None, "errors": []}
"""What programs find in every refusal, as it is where no server was asked."""


class Session:
    """Made once by the program and handed to every command (``click.pass_obj``)."""

    def __init__(
        self,
        program: str = "trainshed",
        *,
        json: bool = False,
        quiet: bool = False,
        url: str | None = None,
        project: str | None = None,
    ) -> None:
        self.program = program
        self.json = json
        self.quiet = quiet
        """Print ids only, and nothing on stderr but refusals."""
        self.url = url
        self.project = project
        self.job_id: str | None = None
        """The Job that this command follows or waits for: it goes on whatever ends the command."""
        self.task: str | None = None
        """The same for a training task."""
        self.script: str | None = None
        """The same for a Job of ``gpu``."""
        self.submitting = False
        """A Job of ``gpu`` may have been made although no answer came."""
        self.exits: Callable[[TrainshedError], int] | None = None
        """Exit statuses of a group that has its own (`trainshed.cli.gpu_exits`)."""
        self.suggestions: list[str] = []
        """Nearest names for what was not found; shown with the refusal."""

    @property
    def out(self) -> Output:
        from trainshed.cli.output import HumanOutput, JsonOutput  # noqa: PLC0415 - see above

        return JsonOutput() if self.json else HumanOutput()

    @property
    def gpu(self) -> str:
        """How ``gpu`` is called from here."""
        return self.program if self.program == "gpu" else f"{self.program} gpu"

    def exit_for(self, error: TrainshedError) -> int:
        """The exit status for an error that ended the command."""
        from trainshed.cli.exits import exit_for  # noqa: PLC0415 - see above

        return (self.exits or exit_for)(error)

    def show(self, document: Mapping[str, Any], *views: View) -> None:
        """Print the result of the command."""
        self.out.show(document, *views)

    def note(self, message: str) -> None:
        """A message to the person, on stderr; programs that read ``--json`` or ids are not told."""
        if not self.json and not self.quiet:
            _tell(message)

    def warn(self, message: str) -> None:
        """Something the reader has to know even when reading JSON, on stderr."""
        if not self.quiet:
            _tell(f"warning: {message}")

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """A client of the server that this environment names (see ``docs/cli.md``)."""
        from trainshed.sdk.client import Client  # noqa: PLC0415 - 60 ms that `--help` must not pay

        with Client(self.url, project=self.project, on_retry=self.note, on_start=self._starting) as client:
            if client.connection.source == "embedded":
                self._warn_of_ignored_variables()
            yield client

    def _starting(self) -> None:
        self.note("starting a server of your own; this takes some seconds")

    def _warn_of_ignored_variables(self) -> None:
        """A variable that only a start reads is of no use for the server that runs already."""
        from trainshed.sdk import embedded  # noqa: PLC0415 - as above
        from trainshed.sdk.home import find_home  # noqa: PLC0415 - as above

        if not any(os.environ.get(name) for name in embedded.START_VARIABLES):
            return
        server = embedded.find(find_home())
        for name, had in embedded.ignored_variables(server, os.environ).items() if server else ():
            began = f"with {name}={had}" if had else f"without {name}"
            self.warn(
                f"{name}={os.environ[name]} has no effect: your server was started {began}. "
                f"`{self.program}{' daemon' if self.program == 'gpu' else ''} stop` ends it, "
                "and the next command starts it anew."
            )

    def nearest(self, wanted: str, known: Iterable[str]) -> None:
        """Remember the names of ``known`` that ``wanted`` may have meant."""
        import difflib  # noqa: PLC0415 - see above

        self.suggestions = difflib.get_close_matches(wanted, list(known), n=MAX_SUGGESTIONS, cutoff=0.5)

    def report(self, error: TrainshedError) -> None:
        """Tell why the command ended: code, sentence, every field, what to do next."""
        if self.json:
            import json  # noqa: PLC0415 - see above

            document = _error_document(error, self.suggestions)
            if self.exits is not None:
                from trainshed.cli.gpu_exits import code_of  # noqa: PLC0415 - see above

                document["code"] = code_of(error, submitting=self.submitting)
            click.echo(json.dumps(document), err=True)
            return
        for line in _told(error):
            _tell(line.replace("\n", " "))
        if self.suggestions:
            _tell(f"  did you mean {' or '.join(self.suggestions)}?")
        if error.hint and not _has_hints(error):
            _tell(f"hint: {error.hint}")
        if self.submitting:
            from trainshed.cli.gpu_exits import may_be_submitted  # noqa: PLC0415 - see above

            self.submitting = may_be_submitted(error)
        self.tell_what_goes_on()

    def report_misuse(self, error: click.ClickException, called: str) -> None:
        """Tell a program what is wrong with its command line, which called ``called``."""
        import json  # noqa: PLC0415 - see above

        of_gpu = "gpu" in called.split()[:2]
        document = {
            **_OWN_REFUSAL,
            "error": "UsageError",
            "code": "invalid_request" if of_gpu else None,
            "message": error.format_message(),
            "hint": f"`{called} --help` says how it is written.",
        }
        click.echo(json.dumps(document), err=True)

    def tell_what_goes_on(self) -> None:
        """Name the Job or task that this command leaves behind, and how to go on with it."""
        if self.task is not None and not self.json:
            go_on = f"`{self.program} train logs {self.task} --follow`"
            end = f"`{self.program} train stop {self.task}`"
            click.echo(f"{self.task} goes on; {go_on} follows it, {end} ends it.", err=True)
        if self.job_id is not None and not self.json:
            go_on = f"`{self.program} job log {self.job_id} --follow`"
            end = f"`{self.program} job stop {self.job_id}`"
            click.echo(f"{self.job_id} goes on; {go_on} follows it, {end} ends it.", err=True)
        if self.submitting:
            click.echo("It may have been submitted all the same: the same command finds it then.", err=True)
        if self.script is not None:
            go_on = f"`{self.gpu} logs {self.script} -f`"
            end = f"`{self.gpu} cancel {self.script}`"
            click.echo(f"{self.script} goes on; {go_on} follows it, {end} ends it.", err=True)


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

    def chosen(context: click.Context, _: click.Parameter, value: bool) -> bool:  # noqa: FBT001 - click's form
        context.find_object(Session).quiet = value  # type: ignore[union-attr] # main always sets it
        return value

    return click.option(
        "--quiet",
        "-q",
        is_flag=True,
        callback=chosen,
        help="Print ids only, one a line, and nothing else but refusals.",
    )(command)


def interactive() -> bool:
    """Whether a person watches stderr, so that progress may be drawn there."""
    return sys.stderr.isatty()


def _tell(message: str) -> None:
    """A line on stderr, without control characters."""
    from trainshed.cli.output import plain  # noqa: PLC0415 - see above

    click.echo(plain(message), err=True)


def _told(error: TrainshedError) -> Iterator[str]:
    """The refusal: its sentence, or all its faults if there are several; each fault is said once."""
    from trainshed.sdk.errors import ApiError, InvalidSpec  # noqa: PLC0415 - see above

    if isinstance(error, InvalidSpec) and len(found := error.detail.get("errors", ())) > 1:
        yield f"error: {error.code}: {len(found)} faults"
        for each in found:
            yield f"  - {each['message']}{' (' + each['hint'] + ')' if each.get('hint') else ''}"
        return
    places: dict[tuple[str, str], list[str]] = {}
    for fault in getattr(error, "faults", ()):
        places.setdefault((fault.message, fault.code), []).append(fault.path)
    if len(places) <= 1:
        (inner,) = {code for _, code in places} or {""}
        # A refusal's own code may only say that faults follow: the fault's is the one to look up.
        label = f" [{inner}]" if inner not in {"", getattr(error, "code", inner)} else ""
        yield f"error: {error}{label}"
        for (message, _), paths in places.items():
            # `ref` is no option here: it is the ID, which the sentence names.
            if where := [path for path in _untold(paths, f"{error} {message}") if path != "ref"]:
                yield f"  at {_listed(where)}"
        return
    code = getattr(error, "code", type(error).__name__)
    status = f" ({error.status})" if isinstance(error, ApiError) else ""
    codes = {fault_code for _, fault_code in places}
    # One that all faults share is told once; the refusal's own may only say that faults follow.
    shared = f" [{min(codes)}]" if len(codes) == 1 and code not in codes else ""
    yield f"error: {code}{status}{shared}: {_headline(error.message, [message for message, _ in places])}"
    for (message, fault_code), paths in places.items():
        where = _untold(paths, message)
        label = f" [{fault_code}]" if len(codes) > 1 else ""
        yield f"  - {f'{_listed(where)}: ' if where else ''}{message}{label}"
    if hidden := isinstance(error, ApiError) and error.body.get("errors_not_shown"):
        yield f"  … and {hidden} more"


def _headline(said: str, messages: Sequence[str]) -> str:
    """What stands above several faults: the sentence as far as it is none of them, and how many there are."""
    starts = [said.index(message) for message in messages if message in said]
    if not starts:
        return said
    before = said[: min(starts)].rstrip(" :;")
    return f"{before}: {len(messages)} faults" if before else f"{len(messages)} faults"


def _untold(paths: Sequence[str], said: str) -> list[str]:
    """The places of a fault, unless its sentence names them itself."""
    found = [path for path in paths if path]
    return [] if all(f"`{path}`" in said for path in found) else found


def _has_hints(error: TrainshedError) -> bool:
    """Whether each of several faults was told with its own."""
    return len(getattr(error, "detail", {}).get("errors", ())) > 1


def _listed(paths: Sequence[str]) -> str:
    more = len(paths) - 1
    return f"{paths[0]} (and {more} more)" if more else paths[0]


def _error_document(error: TrainshedError, suggestions: list[str]) -> dict[str, Any]:
    from trainshed.sdk.errors import ApiError, InvalidSpec, NotFreezable  # noqa: PLC0415 - see above

    document: dict[str, Any] = {
        **_OWN_REFUSAL,
        "error": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
    }
    if isinstance(error, ApiError):
        document |= {"status": error.status, **_extra(error.body)}
    if isinstance(error, InvalidSpec):
        document |= {"code": error.code, "detail": dict(error.detail)}
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
