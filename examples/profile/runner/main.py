"""Runs a Recipe: reads the frozen Job Profile, imports the Recipe's entrypoint and calls it.

The function is called with ``parameters`` (as frozen, defaults included), ``inputs`` (name -> the files that
the Profile chose, sorted) and ``outputs`` (a folder whose files become Artifacts). It works with any Recipe:
change ``[recipe] entrypoint`` in ``runner.toml`` to run yours.
"""

import importlib
import json
import os
import re
import shutil
import sys
from fnmatch import translate
from pathlib import Path


def main():
    """Call the Recipe with what was frozen."""
    snapshot = Path(os.environ["TRAINSHED_PROFILE"])
    profile = json.loads(snapshot.read_bytes())
    # The Recipe's own modules come first, then those it depends on, then plugins.
    sys.path[:0] = [
        os.environ["TRAINSHED_RECIPE"],
        *folders("TRAINSHED_DEPENDENCIES", "*"),
        *folders("TRAINSHED_PLUGINS", "*/*"),
    ]
    sys.dont_write_bytecode = True  # what was published is read-only
    outputs = Path("outputs")
    outputs.mkdir(exist_ok=True)
    shutil.copyfile(snapshot, outputs / "profile.json")
    module, _, function = profile["recipe"]["entrypoint"].partition(":")
    inputs = {name: chosen_files(name, each) for name, each in profile["inputs"].items()}
    for name, files in inputs.items():
        print(f"{name}: {len(files)} files of {profile['inputs'][name]['uri']}", flush=True)
    run = getattr(importlib.import_module(module), function)
    run(parameters=profile["parameters"], inputs=inputs, outputs=outputs)


def folders(variable, pattern):
    """What lies in the folder that ``variable`` names; nothing where it is not set."""
    root = os.environ.get(variable)
    return sorted(str(place) for place in Path(root).glob(pattern)) if root else []


def chosen_files(name, chosen):
    """The files of an input: those of its split, those of its config, or all of them."""
    root = Path(os.environ["TRAINSHED_INPUTS"]) / name
    patterns = [each for split in chosen.get("files", {"": ["**"]}).values() for each in split]
    paths = sorted(place for place in root.rglob("*") if place.is_file())
    return [place for place in paths if any(matches(each, place.relative_to(root)) for each in patterns)]


def matches(pattern, path):
    """Whether a pattern, read part by part, matches a relative path; ``**`` stands for any parts."""

    def rest(wanted, parts):
        if not wanted:
            return not parts
        if wanted[0] == "**":
            return rest(wanted[1:], parts) or bool(parts and rest(wanted, parts[1:]))
        return bool(parts and re.match(translate(wanted[0]), parts[0]) and rest(wanted[1:], parts[1:]))

    return rest(pattern.split("/"), path.parts)


if __name__ == "__main__":
    main()
