"""``trainshed`` and ``el``: one program, two names. The program itself is `trainshed.cli.program`.

Nothing is imported here that Python has not loaded anyway. Loading click alone can take 0.1 s on a slow or
busy machine, and the help of the program is what is asked for first: it is kept as text, and a test compares
the two.
"""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False
"""As in `trainshed`: type checkers take it as true."""
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COLUMNS = 80
"""How wide the text is. A narrower terminal gets the same, laid out for it by click."""
HELP = """\
Usage: {program} [OPTIONS] COMMAND [ARGS]...

  Freeze a training program, run it on GPUs, get back logs, outputs and proof
  of release.

Options:
  -V, --version  Show the version and exit.
  --url URL      Use this server instead of the one the environment names.
  --project ID   Project to administer; other commands act in the key's own.
  -h, --help     Show this message and exit.

Commands:
  job         Submit, watch and stop Jobs.
  train       Run PyTorch and Ray tasks on several replicas.
  gpu         Run a project on a GPU, wherever there is one.
  trial       Look at Trials and fetch what they produced.
  artifact    Delete what Trials produced.
  checkpoint  Look at, fetch, keep and delete Checkpoints.
  runner      Publish and look at Runners.
  dataset     Publish, share and fetch Datasets.
  model       Publish, share and fetch Models.
  recipe      Publish, share and fetch Recipes.
  plugin      Publish and fetch Plugins, and decide which are allowed.
  pool        Look at pools, and take nodes out of them.
  quota       Look at quotas of training tasks.
  catalog     Show and change what training tasks choose from.
  content     Look after what is stored: usage, garbage, damage.
  login       Check a key and save it for later commands.
  logout      Forget the saved login.
  whoami      Show which server and which key are in use.
  demo        Run the whole path once, on a private server.
  doctor      Say what this machine offers and what is missing for what.
  serve       Run a server.
  status      Show which server is used, why, and whether it answers.
  stop        Stop your embedded server; its Jobs go on.
  project     Administer projects.
  member      Administer the members of a project.
  key         Administer the API keys of a project.
  completion  Print the completion script for a shell.

  Without TRAINSHED_URL or a saved login, a server of your own is started on
  first use.
"""


GARBAGE_AFTER = 100_000
"""New objects between two looks for garbage; Python's own 700 is for programs that stay."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit status (`trainshed.cli.exits`)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given in (["--help"], ["-h"]) and sys.stdout is not None and _columns(os.environ) >= COLUMNS:
        # What cannot be written is told of as for every other command, below.
        try:
            sys.stdout.write(HELP.replace("{program}", program_name()))
            sys.stdout.flush()
        except OSError:
            pass
        else:
            return 0
    # A command is over before its garbage matters; looking for it took a twentieth of a publication's time.
    if given[:1] != ["serve"]:
        gc.set_threshold(GARBAGE_AFTER)
    from trainshed.cli.program import run  # noqa: PLC0415 - see above

    return run(arguments)


def gpu_main(arguments: Sequence[str] | None = None) -> int:
    """Run ``gpu``, the commands of script Jobs, and return its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given in (["--help"], ["-h"]) and sys.stdout is not None and _columns(os.environ) >= COLUMNS:
        from trainshed.cli.gpu_help import HELP as GPU_HELP  # noqa: PLC0415 - only this program's

        try:
            sys.stdout.write(GPU_HELP.replace("{program}", program_name()))
            sys.stdout.flush()
        except OSError:
            pass
        else:
            return 0
    gc.set_threshold(GARBAGE_AFTER)
    from trainshed.cli.gpu import run_gpu  # noqa: PLC0415 - see above

    return run_gpu(arguments)


def program_name() -> str:
    """The name that the program was called by."""
    name = os.path.basename(sys.argv[0])  # noqa: PTH119 - see above
    return name if name in {"el", "gpu", "trainshed"} else "trainshed"


def _columns(environ: Mapping[str, str]) -> int:
    """The width of the terminal, found as click finds it."""
    try:
        named = int(environ.get("COLUMNS", "0"))
    except ValueError:
        named = 0
    if named > 0:
        return named
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or COLUMNS
    except (OSError, ValueError):
        return COLUMNS
