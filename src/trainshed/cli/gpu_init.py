"""``gpu init``: a gpu.yaml with comments, from what the folder holds."""

from __future__ import annotations

import json
import os
import sys

import click

from trainshed.cli.session import Session, json_option


@click.command()
@click.argument("path", required=False, default=".")
@click.option("--force", is_flag=True, help="Replace a gpu.yaml that is there.")
@click.option("--stdout", "print_it", is_flag=True, help="Print it and write nothing.")
@click.option(
    "--schema", is_flag=True, help="Print the JSON Schema of gpu.yaml, for editors, and write nothing."
)
@json_option
@click.pass_obj
def init(session: Session, *, path: str, force: bool, print_it: bool, schema: bool) -> None:
    """Write a gpu.yaml from what the folder holds."""
    if schema:
        from trainshed.model.scripts.schema import gpu_yaml_schema  # noqa: PLC0415 - not for `--help`

        sys.stdout.write(json.dumps(gpu_yaml_schema(), indent=2) + "\n")
        return
    from trainshed.cli.output import Sentence  # noqa: PLC0415 - not for `--help`
    from trainshed.sdk.errors import LocalFileError  # noqa: PLC0415 - as above
    from trainshed.sdk.packing.first_file import draft, write_draft  # noqa: PLC0415 - as above

    project = os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 - links stay as they were named
    found = draft(project)
    if print_it:
        sys.stdout.write(found.text)
        return
    target = f"{project}/gpu.yaml"
    if os.path.lexists(target) and not force:
        raise LocalFileError(
            f"{target} is there already", hint="`--force` replaces it, `--stdout` only prints."
        )
    write_draft(target, found.text)
    document = {"path": target, "script": found.script, "deps": found.deps, "data": list(found.data)}
    told = "it runs " + found.script if found.script else "fill in `script`"
    session.show(document, Sentence(lambda _: f"wrote {target}; {told}. `gpu bundle` shows what would ship."))
