"""Settings of a server: defaults, then a TOML file, then command line options; all faults at once.

``docs/operations.md`` lists every setting; a test compares the two.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from trainshed.content.addresses import StoreAddress
from trainshed.content.local import DEFAULT_CACHE_BYTES
from trainshed.control.training.catalogs import TrainingRules
from trainshed.engines import local as engines
from trainshed.engines.local import DEFAULT_USER, Isolation
from trainshed.model.images import DOCKER_HUB, RegistryRules, host_fault, parse_mirror, place_fault
from trainshed.policy.effective import ServerPolicy
from trainshed.policy.migration import RETRY_SECONDS
from trainshed.server.config_checks import (
    mirror_fault,
    provider_fault,
    public_url_fault,
    registry_fault,
    secure_url_fault,
)
from trainshed.server.limits import Action, Rate
from trainshed.server.services import BodyLimits

ISOLATIONS = ("none", "bubblewrap")
IMAGE_RUNTIMES = ("auto", "podman", "docker", "none")


def _setting(
    default: Any,
    about: str,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    options: tuple[str, ...] = (),
    check: Callable[[str], str | None] | None = None,
) -> Any:
    rule = {"about": about, "least": least, "most": most, "options": options, "check": check}
    return field(default=default, metadata=rule)


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """``[http]``."""

    max_submission_bytes: int = _setting(8 << 20, "Largest body of a submission.", least=1024)
    max_blob_bytes: int = _setting(64 << 20, "Largest blob, or part of one, in one request.", least=1024)
    max_revision_bytes: int = _setting(32 << 20, "Largest body that publishes a Revision.", least=1024)
    shutdown_seconds: float = _setting(
        10.0, "How long requests may still run after SIGTERM.", least=0, most=600
    )
    public_url: str | None = _setting(
        None, "How clients reach this server; unset, as each request did.", check=public_url_fault
    )
    download_url_seconds: float = _setting(
        900.0, "How long a signed download URL is good.", least=1, most=7 * 86_400
    )

    @property
    def base_url(self) -> str | None:
        """`public_url` without a slash at its end."""
        return self.public_url.rstrip("/") if self.public_url else None


@dataclass(frozen=True, slots=True)
class RateSettings:
    """``[rates]``: requests a second of one key; twice as many may come at once."""

    reads: float = _setting(1000.0, "Reads a second of one key.", least=0.1)
    writes: float = _setting(1000.0, "Changes a second of one key, submissions not counted.", least=0.1)
    submissions: float = _setting(1000.0, "Submissions a second of one key.", least=0.1)


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """``[access]``."""

    run_grants_stop: bool = _setting(True, "A new key with `training.run` also gets `training.stop`.")  # noqa: FBT003 - the default of a setting
    answers: str = _setting(
        "auto",
        "What a yes to a question needs from a process of this machine: a code on its `terminal`, or a"
        " person's `key` alone (behind a proxy on this machine); `auto`: the first on SQLite.",
        options=("auto", "terminal", "key"),
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """``[logs]``."""

    retention_days: float = _setting(90.0, "Days after its end at which a Trial's log is deleted.", least=0)


@dataclass(frozen=True, slots=True)
class ArtifactSettings:
    """``[artifacts]``."""

    retention_days: float | None = _setting(
        None, "Days after its end at which a Trial's Artifacts are deleted; unset, they are kept.", least=0
    )


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """``[trials]``: what a Trial gets where neither request nor Runner says, and bounds for all."""

    cpus: int = _setting(1, "CPU cores.", least=1)
    memory_mb: int = _setting(1024, "Memory in MiB.", least=1)
    storage_mb: int = _setting(1024, "Disk in MiB.", least=1)
    shm_mb: int = _setting(64, "Shared memory in MiB.", least=1)
    gpus: int | None = _setting(None, "GPUs; unset, such a request is refused.", least=1)
    gpu_type: str | None = _setting(None, "GPU model; unset, the only model of the fleet.")
    timeout_seconds: int = _setting(3600, "Run time.", least=1)
    max_timeout_seconds: int = _setting(7 * 86_400, "Longest run time that may be asked for.", least=1)
    stop_grace_seconds: float = _setting(10.0, "Between asking a program to end and killing it.", least=0)
    collect_seconds: int = _setting(300, "How long outputs are collected after a stop.", least=1)
    collect_bytes: int = _setting(10 << 30, "How many bytes of outputs are collected after a stop.", least=0)
    max_active_trials: int | None = _setting(None, "Trials that run at one instant, all projects.", least=1)
    wait_for_nodes: bool = _setting(False, "Accept Trials while there is no node at all.")  # noqa: FBT003 - the default of a setting
    priority_worth_seconds: int = _setting(
        86_400, "How many seconds of waiting a step of priority is worth.", least=1
    )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """``[engine]``: how the machine and other Trials are kept from a Trial."""

    isolation: str = _setting("none", "`none`, or `bubblewrap` around every Trial.", options=ISOLATIONS)
    isolation_network: bool = _setting(True, "An isolated Trial has a network of its own, with only itself.")  # noqa: FBT003 - the default of a setting
    isolation_user: int = _setting(
        DEFAULT_USER, "User and group id of isolated Trials where the server is root.", least=1
    )


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """``[images]``: which registries are asked for images, and how; how images are kept."""

    default_registry: str = _setting(
        DOCKER_HUB, "For names without a registry; empty: they are refused.", check=registry_fault
    )
    mirrors: tuple[str, ...] = _setting(
        (), "`REGISTRY=HOST[:PORT][/PATH]`, asked before the registry, in order.", check=mirror_fault
    )
    insecure_registries: tuple[str, ...] = _setting(
        (), "`HOST[:PORT]` asked over plain HTTP; loopback always is.", check=host_fault
    )
    allowed_registries: tuple[str, ...] = _setting(
        (), "`HOST[:PORT][/PATH]` that images may come from; none named: all.", check=place_fault
    )
    timeout_seconds: float = _setting(
        20.0, "How long a submission waits for the registries of its images.", least=0.1, most=600
    )
    attempts: int = _setting(3, "How often a registry that does not answer is asked.", least=1, most=20)
    pull_retries: int = _setting(
        3, "How often a failed pull is repeated before its Trial fails; -1: for ever.", least=-1
    )
    cache_bytes: int = _setting(50 << 30, "How much disk images that no Trial uses may keep.", least=0)
    runtime: str = _setting(
        "auto", "What runs images: `podman`, `docker`, either (`auto`) or `none`.", options=IMAGE_RUNTIMES
    )
    stall_seconds: float = _setting(60.0, "A pull that gets nothing for so long has failed.", least=1)


@dataclass(frozen=True, slots=True)
class ContentSettings:
    """``[content]``: where blobs lie. Credentials of remote stores come from the environment alone (P9)."""

    url: str | None = _setting(
        None,
        "`file:///…`, `s3://bucket/prefix`, or `gs://…` (Google) and `az://…` (Azure), both untested; "
        "unset, the data folder.",
    )
    endpoint: str | None = _setting(None, "URL of a store that is not its provider's own.")
    region: str | None = _setting(None, "Region of an S3 bucket.")
    allow_http: bool = _setting(False, "Ask a remote store without encryption.")  # noqa: FBT003 - the default of a setting
    timeout_seconds: float = _setting(
        30.0, "How long a remote store may be silent in the middle of a request.", least=0.1, most=3600
    )
    retry_seconds: float = _setting(
        60.0, "How long a request that failed is repeated there.", least=0, most=3600
    )
    max_upload_bytes: int = _setting(1 << 40, "Largest blob that is uploaded in parts.", least=1024)
    upload_reserve_bytes: int = _setting(1 << 30, "Free disk that uploads leave to everything else.", least=0)
    cache_bytes: int = _setting(
        DEFAULT_CACHE_BYTES, "How much disk content that no Trial uses may keep on a node.", least=0
    )
    gc: bool = _setting(True, "Blobs that nothing needs are removed every hour.")  # noqa: FBT003 - the default of a setting
    gc_grace_hours: float = _setting(
        24.0, "How long a blob stays after its last use; 0.1 at least.", least=0.1
    )

    @property
    def address(self) -> StoreAddress:
        return StoreAddress(
            self.url, self.endpoint, self.region, self.allow_http, self.timeout_seconds, self.retry_seconds
        )


def _volume_fault(text: str) -> str | None:
    name, _, path = text.partition("=")
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", name) and path.startswith("/"):
        return None
    return f"must be ID=/FOLDER, as in runs=/srv/runs, not {text!r}"


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """``[training]``: tasks of the kinds `pytorch` and `ray` while nobody applied a catalogue."""

    allow_host_image: bool | None = _setting(
        None, "Tasks may say `image: host`; unset, on a server with SQLite only."
    )
    volumes: tuple[str, ...] = _setting(
        (), "`ID=/FOLDER` of this machine that tasks may mount and write to.", check=_volume_fault
    )
    min_run_seconds: float = _setting(
        600.0, "How long a task runs at least before it may have to make room for another.", least=0
    )

    def rules(self, *, embedded: bool) -> TrainingRules:
        allowed = embedded if self.allow_host_image is None else self.allow_host_image
        return TrainingRules(allowed, dict(text.split("=", 1) for text in self.volumes))


@dataclass(frozen=True, slots=True)
class SecretSettings:
    """``[secrets]``: hidden values are encrypted with a key that is not in the database (P9)."""

    key_file: str | None = _setting(
        None, "Keys, one a line, the newest first; unset, `secrets.key` in the data folder."
    )


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """``[providers]``: where packed projects (``gpu run``) may run."""

    local: bool = _setting(True, "Whether packed projects may run on the controller's own machine.")  # noqa: FBT003 - a default
    use: tuple[str, ...] = _setting(
        (),
        "Further places to use: `kaggle`, `colab`, and `ray`, a Ray cluster of the catalogue.",
        check=provider_fault,
    )
    ray_cluster: str | None = _setting(
        None, "Which cluster of the catalogue `ray` is; unset, the only one that there is."
    )
    poll_seconds: float | None = _setting(
        None, "How often a run elsewhere is looked at; unset, as its provider likes it.", least=0.05
    )
    retry_seconds: float = _setting(
        RETRY_SECONDS,
        "How long a lost run waits for another place, after its first loss; twice as long after each more.",
        least=0.1,
        most=3600,
    )
    kaggle_url: str | None = _setting(
        None, "Where Kaggle answers; unset, at Kaggle. It is sent the login.", check=secure_url_fault
    )
    colab_program: str | None = _setting(
        None, "Google's command line for Colab; unset, `colab` on the server's PATH."
    )

    def options(self, name: str) -> dict[str, object]:
        """What a provider is opened with; it knows its defaults."""
        given: dict[str, object] = {"poll_seconds": self.poll_seconds}
        if name == "kaggle":
            given["url"] = self.kaggle_url
        if name == "colab":
            given["program"] = self.colab_program
        return {key: value for key, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Config:
    """All settings that a file can hold."""

    http: HttpSettings = field(default_factory=HttpSettings)
    rates: RateSettings = field(default_factory=RateSettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    logs: LogSettings = field(default_factory=LogSettings)
    artifacts: ArtifactSettings = field(default_factory=ArtifactSettings)
    trials: TrialSettings = field(default_factory=TrialSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    images: ImageSettings = field(default_factory=ImageSettings)
    content: ContentSettings = field(default_factory=ContentSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    secrets: SecretSettings = field(default_factory=SecretSettings)
    providers: ProviderSettings = field(default_factory=ProviderSettings)

    @property
    def bodies(self) -> BodyLimits:
        return BodyLimits(
            submission=self.http.max_submission_bytes,
            revision=self.http.max_revision_bytes,
            blob=self.http.max_blob_bytes,
        )

    @property
    def limits(self) -> dict[Action, Rate]:
        return {
            action: Rate(per_second, max(1.0, 2 * per_second))
            for action, per_second in (
                (Action.READ, self.rates.reads),
                (Action.WRITE, self.rates.writes),
                (Action.SUBMIT, self.rates.submissions),
            )
        }

    @property
    def registries(self) -> RegistryRules:
        """Which registries there are, for whoever asks them and for whoever pulls from them."""
        default = self.images.default_registry
        return RegistryRules(
            default_registry=default,
            mirrors=tuple(parse_mirror(text, default or DOCKER_HUB) for text in self.images.mirrors),
            insecure=frozenset(self.images.insecure_registries),
            allowed=self.images.allowed_registries,
        )

    @property
    def image_engine(self) -> engines.ImageSettings:
        """How images are got and kept where the engine runs."""
        return engines.ImageSettings(
            registries=self.registries,
            cache_bytes=self.images.cache_bytes,
            stall_seconds=self.images.stall_seconds,
            runtime=self.images.runtime,
        )

    def isolation(self, hide: Sequence[Path]) -> Isolation | None:
        """How Trials are isolated, with folders that none of them sees; ``None`` if they are not."""
        if self.engine.isolation == "none":
            return None
        return Isolation(self.engine.isolation_network, self.engine.isolation_user, tuple(hide))

    @property
    def policy(self) -> ServerPolicy:
        trials = {each.name: getattr(self.trials, each.name) for each in fields(self.trials)}
        return ServerPolicy(**trials, min_run_seconds=self.training.min_run_seconds)


class ConfigFaults(Exception):
    """The settings cannot be used; one line for each fault."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("\n".join(faults))


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, for the documentation."""

    key: str
    kind: str
    default: Any
    about: str


def load(path: Path | None) -> Config:
    """The settings of a file, defaults for the rest. Raises `ConfigFaults` with everything that is wrong."""
    if path is None:
        return Config()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigFaults([f"{path}: {error.strerror}"]) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigFaults([f"{path}: {error}"]) from error
    return parse(document)


def parse(document: Mapping[str, Any]) -> Config:
    """Settings from plain values; raises `ConfigFaults`."""
    faults: list[str] = []
    sections = {section.name: section for section in fields(Config)}
    _unknown("", document, sections, faults)
    found: dict[str, Any] = {}
    for name, section in sections.items():
        table = document.get(name, {})
        if not isinstance(table, dict):
            faults.append(f"{name}: must be a table, as in [{name}]")
            continue
        found[name] = _section(name, _kind_of(section), table, faults)
    if content := found.get("content"):
        faults += [f"content.{key}: {said}" for key, said in content.address.faults()]
    if not faults:
        config = Config(**found)
        if config.trials.timeout_seconds <= config.trials.max_timeout_seconds:
            return config
        faults.append("trials.timeout_seconds: is above trials.max_timeout_seconds")
    raise ConfigFaults(faults)


def settings() -> Iterator[Setting]:
    """Every setting there is, in order."""
    for section in fields(Config):
        kind = _kind_of(section)
        hints = get_type_hints(kind)
        for each in fields(kind):
            words = "/".join(_KINDS.get(option, option.__name__) for option in _options(hints[each.name]))
            yield Setting(f"{section.name}.{each.name}", words, each.default, each.metadata["about"])


def _section(name: str, kind: type, table: Mapping[str, Any], faults: list[str]) -> Any:
    known = {each.name: each for each in fields(kind)}
    _unknown(f"{name}.", table, known, faults)
    hints = get_type_hints(kind)
    values = {}
    for key in table.keys() & known.keys():
        fault = _fault(table[key], _options(hints[key]), known[key].metadata)
        if fault:
            faults.append(f"{name}.{key}: {fault}")
        else:
            kinds = _options(hints[key])
            values[key] = kinds[0](table[key]) if kinds in {(float,), (tuple,)} else table[key]
    return kind(**values)


def _fault(value: Any, options: tuple[type, ...], rule: Mapping[str, Any]) -> str | None:
    if options == (tuple,):
        return _list_fault(value, rule)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = type(value) in options or (float in options and number)
    if not fits:
        words = " or ".join(_WORDS[option] for option in options)
        return f"must be {words}, not {value!r}"
    if rule["options"] and value not in rule["options"]:
        return f"must be {' or '.join(rule['options'])}, not {value!r}"
    if number and not (math.isfinite(value) and rule["least"] <= value <= rule["most"]):
        open_ended = math.isinf(rule["most"])
        allowed = (
            f"{rule['least']:g} or more" if open_ended else f"from {rule['least']:g} to {rule['most']:g}"
        )
        return f"must be {allowed}, not {value}"
    return rule["check"](value) if rule["check"] else None


def _list_fault(value: Any, rule: Mapping[str, Any]) -> str | None:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        return f"must be a list of texts, not {value!r}"
    found = (rule["check"](each) for each in value) if rule["check"] else ()
    return next((fault for fault in found if fault), None)


_KINDS: Mapping[type, str] = {tuple: "list"}
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _unknown(prefix: str, table: Mapping[str, Any], known: Mapping[str, Any], faults: list[str]) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean `{prefix}{near[0]}`?" if near else f"known here: {', '.join(known)}"
            faults.append(f"{prefix}{key}: unknown setting; {hint}")


def _options(hint: Any) -> tuple[type, ...]:
    if get_origin(hint) is tuple:
        return (tuple,)
    return tuple(option for option in get_args(hint) or (hint,) if option is not type(None))


def _kind_of(section: Field[Any]) -> type:
    assert section.default_factory is not MISSING  # noqa: S101 - every section of Config has one
    return type(section.default_factory())
