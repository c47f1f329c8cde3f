"""The client: one object that finds a server and offers its resources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from trainshed.sdk.answers import mapping
from trainshed.sdk.discovery import Connection, find_connection, running_embedded
from trainshed.sdk.home import find_home
from trainshed.sdk.transport import RetryPolicy, Transport, route

if TYPE_CHECKING:
    from trainshed.sdk.admin import Keys, Members, Projects
    from trainshed.sdk.approvals import ApprovalRules, Approvals, Providers, Secrets
    from trainshed.sdk.artifacts import Artifacts
    from trainshed.sdk.blobs import BlobUploads
    from trainshed.sdk.catalogs import Catalog
    from trainshed.sdk.checkpoints import Checkpoints
    from trainshed.sdk.contents import Contents, Plugins
    from trainshed.sdk.jobs import Jobs, TrainingJobs
    from trainshed.sdk.pools import Pools, Quotas
    from trainshed.sdk.runners import Runners
    from trainshed.sdk.scripts import Scripts
    from trainshed.sdk.stored_content import StoredContent
    from trainshed.sdk.tasks import Tasks
    from trainshed.sdk.trials import Trials

DEFAULT_TIMEOUT_SECONDS = 30.0


class Client:
    """Talks to one Trainshed server. Safe to share between threads; close it or use it in ``with``.

    Without arguments the server is found as ``trainshed.sdk.discovery`` describes: environment, saved
    login, then this user's embedded server, started on first use. ``timeout`` is in seconds and bounds each
    wait for the network, not a whole call with its retries.

    ::

        with Client() as client:
            job = client.training_jobs.submit({"spec": {"runner": "envloop/bash@main", ...}})
            for record in client.jobs.follow(job.job_id):
                print(record.text)
            job = client.jobs.wait(job.job_id)
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        project: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        retry: RetryPolicy | None = None,
        on_retry: Callable[[str], None] | None = None,
        on_start: Callable[[], None] | None = None,
        connection: Connection | None = None,
    ) -> None:
        """``connection`` skips the search.

        ``on_retry`` is told in a sentence: once when calls have to be repeated, and once when the server
        answers again. ``on_start`` is called before an embedded server is started, which takes seconds.
        """
        found = connection or find_connection(url, api_key, project, on_start=on_start)
        self._transport = Transport(
            found,
            timeout=timeout,
            retry=retry,
            rediscover=_rediscover if found.source == "embedded" else None,
            on_retry=on_retry,
        )

    @cached_property
    def training_jobs(self) -> TrainingJobs:
        """Submitting, and what only training Jobs have."""
        from trainshed.sdk.jobs import TrainingJobs  # noqa: PLC0415 - only what is used is imported

        return TrainingJobs(self._transport)

    @cached_property
    def tasks(self) -> Tasks:
        """Training tasks of kind pytorch and ray."""
        from trainshed.sdk.tasks import Tasks  # noqa: PLC0415 - only what is used is imported

        return Tasks(self._transport)

    @cached_property
    def scripts(self) -> Scripts:
        """Jobs of packed projects."""
        from trainshed.sdk.scripts import Scripts  # noqa: PLC0415 - only what is used is imported

        return Scripts(self._transport)

    @cached_property
    def approvals(self) -> Approvals:
        """Questions to people about Jobs of every kind."""
        from trainshed.sdk.approvals import Approvals  # noqa: PLC0415 - only what is used is imported

        return Approvals(self._transport)

    @cached_property
    def approval_policy(self) -> ApprovalRules:
        """When a person is asked."""
        from trainshed.sdk.approvals import ApprovalRules  # noqa: PLC0415 - only what is used is imported

        return ApprovalRules(self._transport)

    @cached_property
    def providers(self) -> Providers:
        """The places where script Jobs run."""
        from trainshed.sdk.approvals import Providers  # noqa: PLC0415 - only what is used is imported

        return Providers(self._transport)

    @cached_property
    def secrets(self) -> Secrets:
        """Values that Jobs list by name."""
        from trainshed.sdk.approvals import Secrets  # noqa: PLC0415 - only what is used is imported

        return Secrets(self._transport)

    @cached_property
    def pools(self) -> Pools:
        """Pools, clusters and cordons."""
        from trainshed.sdk.pools import Pools  # noqa: PLC0415 - only what is used is imported

        return Pools(self._transport)

    @cached_property
    def quotas(self) -> Quotas:
        """Quotas of training tasks."""
        from trainshed.sdk.pools import Quotas  # noqa: PLC0415 - only what is used is imported

        return Quotas(self._transport)

    @cached_property
    def catalog(self) -> Catalog:
        """The catalogue that training tasks choose from."""
        from trainshed.sdk.catalogs import Catalog  # noqa: PLC0415 - only what is used is imported

        return Catalog(self._transport)

    @cached_property
    def jobs(self) -> Jobs:
        """Jobs: read, wait, follow, stop."""
        from trainshed.sdk.jobs import Jobs  # noqa: PLC0415 - only what is used is imported

        return Jobs(self._transport)

    @cached_property
    def trials(self) -> Trials:
        """Trials and what they produced."""
        from trainshed.sdk.trials import Trials  # noqa: PLC0415 - only what is used is imported

        return Trials(self._transport)

    @cached_property
    def artifacts(self) -> Artifacts:
        """Artifacts: delete. `trials` lists and downloads them."""
        from trainshed.sdk.artifacts import Artifacts  # noqa: PLC0415 - only what is used is imported

        return Artifacts(self._transport)

    @cached_property
    def checkpoints(self) -> Checkpoints:
        """Checkpoints: list, download, pin, delete."""
        from trainshed.sdk.checkpoints import Checkpoints  # noqa: PLC0415 - only what is used is imported

        return Checkpoints(self._transport)

    @cached_property
    def runners(self) -> Runners:
        """Runners: publish, read, share."""
        from trainshed.sdk.runners import Runners  # noqa: PLC0415 - only what is used is imported

        return Runners(self._transport)

    @cached_property
    def blob_uploads(self) -> BlobUploads:
        """Bringing bytes to the server, by their digests."""
        from trainshed.sdk.blobs import BlobUploads  # noqa: PLC0415 - only what is used is imported

        return BlobUploads(self._transport)

    @cached_property
    def datasets(self) -> Contents:
        """Datasets: publish, read, download, share."""
        from trainshed.sdk.contents import Contents  # noqa: PLC0415 - only what is used is imported

        return Contents(self._transport, "datasets")

    @cached_property
    def models(self) -> Contents:
        """Models: publish, read, download, share."""
        from trainshed.sdk.contents import Contents  # noqa: PLC0415 - only what is used is imported

        return Contents(self._transport, "models")

    @cached_property
    def recipes(self) -> Contents:
        """Recipes: publish, read, download, share."""
        from trainshed.sdk.contents import Contents  # noqa: PLC0415 - only what is used is imported

        return Contents(self._transport, "recipes")

    @cached_property
    def plugins(self) -> Plugins:
        """Plugins: the same, and approving them."""
        from trainshed.sdk.contents import Plugins  # noqa: PLC0415 - only what is used is imported

        return Plugins(self._transport)

    @cached_property
    def projects(self) -> Projects:
        """Administration of projects."""
        from trainshed.sdk.admin import Projects  # noqa: PLC0415 - only what is used is imported

        return Projects(self._transport)

    @cached_property
    def members(self) -> Members:
        """Administration of members."""
        from trainshed.sdk.admin import Members  # noqa: PLC0415 - only what is used is imported

        return Members(self._transport)

    @cached_property
    def keys(self) -> Keys:
        """Administration of API keys."""
        from trainshed.sdk.admin import Keys  # noqa: PLC0415 - only what is used is imported

        return Keys(self._transport)

    @cached_property
    def content(self) -> StoredContent:
        """Administration of what is stored: usage, garbage, damage."""
        from trainshed.sdk.stored_content import StoredContent  # noqa: PLC0415 - only what is used is imported

        return StoredContent(self._transport)

    def speak_as(self, source: str) -> Self:
        """Say with every call who makes it: ``agent``, ``cli`` or ``shell`` (contract G, c.6)."""
        self._transport.said = source
        return self

    @property
    def connection(self) -> Connection:
        """The server in use and where its address came from."""
        return self._transport.connection

    def me(self) -> Mapping[str, Any]:
        """Who this key is: project, workspace, permissions (contract E a)."""
        return mapping(self._transport.call("GET", route("me")), "an identity")

    def system(self) -> Mapping[str, Any]:
        """What the server offers: nodes, GPUs, enforced limits, storage, version."""
        return mapping(self._transport.call("GET", route("system")), "a system report")

    def close(self) -> None:
        """Close the connections; the server and its Jobs go on."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _rediscover() -> Connection | None:
    return running_embedded(find_home())
