"""What the exit status of a command means. ``docs/cli.md`` shows this table; a test compares them."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainshed.sdk.errors import TrainshedError


class Exit(IntEnum):
    """Exit statuses, the same for every command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3
    ACCESS = 4
    NOT_FOUND = 5
    CONFLICT = 6
    UNAVAILABLE = 7
    TIMEOUT = 8
    DIFFERS = 9
    INTERRUPTED = 130


MEANINGS: dict[Exit, str] = {
    Exit.OK: "Done; with `--wait` or `--follow` after `job submit` or `train create`: it completed.",
    Exit.FAILED: "The Job, Trial or task waited for ended failed or cancelled; or a local step failed (a "
    "download that is incomplete or damaged, a file in the way); or bytes that the server stores and this "
    "needs are damaged (`CONTENT_DAMAGED`).",
    Exit.USAGE: "The command line is wrong, or this user's settings are, or a file is no YAML or JSON; "
    "nothing was sent.",
    Exit.REFUSED: "The request was refused: by the server (any 4xx without a line of its own here), or "
    "before sending (`runner publish` of a tree that cannot be published).",
    Exit.ACCESS: "No valid key (401), or the key may not do this (403).",
    Exit.NOT_FOUND: "There is no such thing, or this key may not see it (404, 410).",
    Exit.CONFLICT: "It collides with what is there (409 but for damage, 412).",
    Exit.UNAVAILABLE: "The server cannot answer now: no connection, 5xx or 429, after automatic retries; "
    "`status`: nothing answers.",
    Exit.TIMEOUT: "The time given for waiting ran out; the Job or task goes on.",
    Exit.DIFFERS: "What was compared is not the same: `job rerun` made a Job that runs something else, "
    "`content verify` found damage.",
    Exit.INTERRUPTED: "Interrupted with Ctrl-C; the Job or task goes on. A question was answered with no.",
}


def exit_for(error: TrainshedError) -> Exit:
    """The exit status for an error that ended a command."""
    from trainshed.sdk import errors  # noqa: PLC0415 - not for `--help`

    if isinstance(error, errors.Conflict) and error.code == "CONTENT_DAMAGED":
        # As where the client finds it: nothing collides, a download is damaged.
        return Exit.FAILED
    if isinstance(error, errors.ServerStartFailed):
        from trainshed.sdk.embedded import EXIT_SETTINGS  # noqa: PLC0415 - as above

        return Exit.USAGE if error.status == EXIT_SETTINGS else Exit.UNAVAILABLE
    by_error: tuple[tuple[type[TrainshedError], Exit], ...] = (
        (errors.NotAuthenticated, Exit.ACCESS),
        (errors.PermissionRefused, Exit.ACCESS),
        (errors.NotFound, Exit.NOT_FOUND),
        (errors.Conflict, Exit.CONFLICT),
        (errors.RateLimited, Exit.UNAVAILABLE),
        (errors.ServerUnavailable, Exit.UNAVAILABLE),
        (errors.ApiError, Exit.REFUSED),
        (errors.ConnectionFailed, Exit.UNAVAILABLE),
        (errors.WaitTimeout, Exit.TIMEOUT),
        (errors.ConfigurationError, Exit.USAGE),
        (errors.InvalidSpec, Exit.USAGE),
        (errors.NotFreezable, Exit.REFUSED),
    )
    return next((code for kind, code in by_error if isinstance(error, kind)), Exit.FAILED)
