"""What is started, with which words, and what those words name that the Job will not have (e.7, e.10)."""

from __future__ import annotations

import difflib
import os
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass

from trainshed.model.scripts.faults import shown
from trainshed.model.scripts.merge import Entry, Merged, Origin
from trainshed.model.scripts.secret_names import token_shaped
from trainshed.model.scripts.validate import split_words
from trainshed.sdk.packing.errors import invalid_spec
from trainshed.sdk.packing.places import Project, below
from trainshed.sdk.packing.selection import Selection

MAX_ARGUMENT_WARNINGS = 3
MAX_PATH_CHARS = 4096
_EVERYWHERE = frozenset({"/", "/tmp", "/dev/null", "/dev/shm", "/dev/stdin", "/dev/stdout", "/dev/stderr"})  # noqa: S108 - names in arguments
_INTERPRETERS = frozenset({"python", "python3", "bash", "sh"})
_PROGRAMS = (".py", ".sh")


@dataclass(frozen=True, slots=True)
class Started:
    """The entrypoint. Exactly one of script and command."""

    script: str | None
    """Relative to the working directory."""
    command: tuple[str, ...] | None
    args: tuple[str, ...]
    name: str
    """What a Job is called that was given no name."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bases:
    """What relative paths are relative to, by who wrote them: both absolute and resolved."""

    file: str
    argument: str

    def of(self, origin: Origin) -> str:
        return self.file if origin is Origin.FILE else self.argument


def parse_entry(merged: Merged, bases: Bases, project: Project) -> tuple[str | None, tuple[str, ...]]:
    """The script (relative to the root) and its words, or ``None`` and the words of a command.

    Only what the file system says without packing anything. Raises `InvalidSpec` (G63 to G65).
    """
    entry = merged.entry
    if entry is None:
        raise invalid_spec(
            "there is nothing to run: no `script` was given, and gpu.yaml has neither `script` nor `command`",
            "Give the path of a Python file relative to the project, or write gpu.yaml with `gpu init`.",
        )
    base = bases.of(entry.origin)
    words = _words(entry, base)
    args = _as_seen_below(merged.args, bases.of(merged.args_origin), bases, project)
    first = words[0]
    if not first.endswith(".py"):
        if first.startswith(("/", "~")) and below(os.path.normpath(first), project.root) is not None:
            raise invalid_spec(
                f"`{shown(first)}` must be relative to the project", "The Job has the project elsewhere."
            )
        return None, _as_seen_below(words, base, bases, project) + args
    return _script(first, base, project), (*_as_seen_below(words[1:], base, bases, project), *args)


def resolve_entry(script: str | None, words: tuple[str, ...], selection: Selection) -> Started:
    """The entrypoint as the Job runs it, checked against what ships. Raises `InvalidSpec`."""
    project = selection.project
    if script is not None:
        _must_ship(script, selection)
        stem = posixpath.basename(script).removesuffix(".py")
        relative = posixpath.relpath(script, project.workdir or ".")
        warnings = _argument_warnings(words, selection)
        return Started(relative, None, words, stem, tuple(warnings))
    first, *rest = words
    warnings = []
    inside = _inside(first, project)
    program = posixpath.basename(first)
    if inside is not None and os.path.isfile(f"{project.root}/{inside}"):
        _must_ship(inside, selection)
        first = first if "/" in first else f"./{first}"
        if not os.access(f"{project.root}/{inside}", os.X_OK):
            warnings.append(
                f"`{shown(first)}` is not executable: write `bash {shown(first)}`, or `chmod +x` it"
            )
    elif program in _INTERPRETERS and rest and not rest[0].startswith("-"):
        program = posixpath.basename(rest[0])
        named = _inside(rest[0], project)
        if named is not None and (rest[0].endswith(_PROGRAMS) or os.path.isfile(f"{project.root}/{named}")):
            _must_ship(named, selection)
    warnings += _argument_warnings(rest, selection)
    return Started(None, (first, *rest), (), posixpath.splitext(program)[0], tuple(warnings))


def _words(entry: Entry, base: str) -> tuple[str, ...]:
    """The words of an entrypoint; a file whose name has a space stays one word."""
    if entry.line is None:
        return entry.words
    line = entry.line.strip()
    spaces = [place for place, letter in enumerate(line) if letter == " "]
    for end in [len(line), *reversed(spaces)]:
        if " " in line[:end].strip() and os.path.isfile(os.path.join(base, line[:end])):
            return line[:end], *_split(line[end:])
    words = _split(line)
    if not words:
        raise invalid_spec("`script` is empty")
    return words


def _split(line: str) -> tuple[str, ...]:
    try:
        return split_words(line)
    except ValueError as error:
        raise invalid_spec(f"`script` {error}", "Close the quote, or escape it.") from None


def _script(path: str, base: str, project: Project) -> str:
    """The script relative to the root; it must be there."""
    if os.path.isabs(path) or path.startswith("~") or ".." in path.split("/"):
        raise invalid_spec(
            f"`script`: `{shown(path)}` must be relative, without `..`", "Write it relative to the project."
        )
    place = os.path.normpath(os.path.join(base, path))
    inside = below(place, project.root)
    if not inside:
        raise invalid_spec(f"`script`: `{shown(path)}` is not in the project")
    if not os.path.isfile(place):
        what = "is no file" if os.path.lexists(place) else "is not there"
        raise invalid_spec(f"`script`: `{shown(path)}` {what} in {shown(base)}", _near(path, base))
    return inside


def _near(path: str, base: str) -> str:
    """What may have been meant."""
    folder = os.path.join(base, os.path.dirname(path))
    try:
        names = [name for name in sorted(os.listdir(folder))[:2000] if name.endswith(".py")]
    except OSError:
        return f"There is no directory `{shown(os.path.dirname(path))}`."
    near = difflib.get_close_matches(os.path.basename(path), names, n=1)
    where = os.path.join(os.path.dirname(path), near[0]) if near else ""
    return f"Did you mean `{shown(where)}`?" if near else "Give a path relative to the project directory."


def _as_seen_below(words: tuple[str, ...], base: str, bases: Bases, project: Project) -> tuple[str, ...]:
    """Words as they mean the same in the working directory, wherever gpu.yaml lies (d, "Location")."""
    if base == bases.argument:
        return words
    return tuple(_from_workdir(word, base, bases.argument, project) for word in words)


def _from_workdir(word: str, base: str, workdir: str, project: Project) -> str:
    """A word of gpu.yaml that names a file beside it, as the working directory sees that file."""
    if word.startswith(("-", "/")) or os.path.lexists(os.path.join(workdir, word)):
        return word
    place = os.path.normpath(os.path.join(base, word))
    if not os.path.lexists(place) or not below(place, project.root):
        return word
    return os.path.relpath(place, workdir)


def _inside(word: str, project: Project) -> str | None:
    """What a word names in the project, relative to the root."""
    if not word or "\0" in word:
        return None
    return below(os.path.normpath(os.path.join(project.directory, word)), project.root)


def _must_ship(path: str, selection: Selection) -> None:
    """The entrypoint itself has to be in the Job."""
    if path in selection.shipped:
        return
    if not os.path.lexists(f"{selection.project.root}/{path}"):
        raise invalid_spec(
            f"`script`: `{shown(path)}` is not there", "Give a path relative to the project directory."
        )
    why, what_to_do = why_not(path, selection)
    raise invalid_spec(f"`script`: `{shown(path)}` does not ship: {why}", what_to_do)


def why_not(path: str, selection: Selection) -> tuple[str, str]:
    """Why an existing path does not ship, and what to do about it."""
    if path in selection.credentials:
        return "it looks like credentials, which never ship", "Give it another name if it holds none."
    if path in selection.skipped:
        return selection.skipped[path], "Put the file itself there."
    if f"{path}/".startswith(selection.runs):
        return "`runs/` holds outputs and never ships", "Move it elsewhere."
    if selection.project.in_git:
        return "git ignores it", f"Add it to `include`: {shown(path)}"
    return "its folder is of a kind that is not looked at outside git", f"Add it to `include`: {shown(path)}"


def _argument_warnings(words: Iterable[str], selection: Selection) -> list[str]:
    """Arguments that name what the Job will not have (G66); at most three."""
    found: list[str] = []
    for word in words:
        value = word.partition("=")[2] if word.startswith("-") else word
        if said := _argument_warning(value, selection):
            found.append(said)
        elif token_shaped(value):
            found.append(
                "an argument holds what looks like a token, and arguments are stored with the Job: "
                "use `gpu secrets set NAME`, and list NAME under `secrets:` in gpu.yaml"
            )
    more = len(found) - MAX_ARGUMENT_WARNINGS
    if more > 0:
        found = [*found[: MAX_ARGUMENT_WARNINGS - 1], f"{more + 1} more arguments have such a fault"]
    return found


def _argument_warning(value: str, selection: Selection) -> str | None:
    """What to say of one word, if it names something of this machine that the Job will not have there."""
    project = selection.project
    if value in {"", ".", ".."} or len(value) > MAX_PATH_CHARS or "\0" in value or "://" in value:
        return None
    expanded = os.path.expanduser(value)
    absolute = os.path.isabs(expanded)
    place = os.path.normpath(os.path.join(project.directory, expanded))
    try:
        there = os.path.lexists(place)
    except (OSError, ValueError):
        there = False
    if not there or (absolute and place in _EVERYWHERE):
        return None
    inside = below(place, project.root)
    if inside is not None and not absolute and _ships(inside, selection):
        return None
    if inside is None:
        said = "names a path outside the project, which the Job does not have: pass it in `data`"
    elif absolute:
        relative = shown(os.path.relpath(place, project.directory), 80)
        said = f"is an absolute path of this machine: write `{relative}`"
    elif os.path.isdir(place) and not os.listdir(place):
        said = "names an empty directory, which does not ship: have the script make it"
    else:
        why = why_not(inside, selection)[0]
        said = f"does not ship ({why}): add it to `include`, or pass it in `data`"
    return f"argument `{shown(value, 80)}` {said}"


def _ships(inside: str, selection: Selection) -> bool:
    return not inside or inside in selection.shipped or inside in selection.folders
