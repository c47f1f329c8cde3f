"""What the controller of a server is given for packed projects: providers, folders, secrets (contract G)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from trainshed.control.scripts.ground import ScriptWork
from trainshed.control.scripts.secrets import SecretKeeper
from trainshed.control.training.placing import ReadCatalog
from trainshed.engines.providers.contract import Provider
from trainshed.engines.providers.registry import Setting, open_provider
from trainshed.model.scripts.hosts import MACHINE_IDS, host_of
from trainshed.model.scripts.spec import RAY
from trainshed.server.config import Config
from trainshed.server.data_folder import DataFolder


def script_work(
    config: Config, folder: DataFolder, secrets: SecretKeeper, read_catalog: ReadCatalog, *, embedded: bool
) -> ScriptWork:
    """Raises `OSError` where a folder of providers cannot be made.

    ``embedded``: a person's own server, which may write into the folders of that person's projects.
    """
    return ScriptWork(
        folder=folder.root / "scripts",
        logs=folder.root / "engines",
        open_secrets=secrets.open,
        host=this_host(),
        providers=open_providers(config, folder),
        local=config.providers.local,
        ray=RAY in config.providers.use,
        ray_cluster=config.providers.ray_cluster,
        read_catalog=read_catalog,
        deliver=embedded,
        # In isolation a program sees no folder of the server's.
        env_cache=folder.root / "script-environments" if config.engine.isolation == "none" else None,
        retry_seconds=config.providers.retry_seconds,
    )


def open_providers(config: Config, folder: DataFolder) -> dict[str, Provider]:
    """The providers elsewhere that the configuration names; each has a folder of its own."""
    found: dict[str, Provider] = {}
    for name in config.providers.use:
        if name == RAY:
            continue  # the controller makes it of the catalogue's engine
        place = folder.root / "providers" / name
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        found[name] = open_provider(name, Setting(place, time.time, config.providers.options(name)))
    return found


def this_host() -> str:
    """This machine as a packed project names its own; empty where it has no id."""
    for name in MACHINE_IDS:
        try:
            found = host_of(Path(name).read_bytes()[:256])
        except OSError:
            continue
        if found:
            return found
    return ""


def asked_here(work: ScriptWork | None) -> Mapping[str, Provider]:
    """Providers that this process can ask itself."""
    return {} if work is None else work.providers
