"""Declaring operations: what a handler may assume, and what the OpenAPI document says of it, in one place.

A handler is a plain function ``handler(call, **path parameters)``. It runs in a worker thread, after the rate
limit, with the whole body read, the key checked and the permission proved; it answers a shape, a `Reply` or a
Starlette response, and raises `Refusal`. FastAPI routes and documents; it validates nothing, so that every
refusal keeps the one error shape.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import APIRouter, FastAPI, Path
from pydantic import BaseModel, BeforeValidator
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from trainshed.control.scripts.references import job_id_of
from trainshed.model.access import WORKSPACE_ID, KeyKind, Permission, Principal
from trainshed.model.errors import Refusal
from trainshed.model.scripts.refs import REF
from trainshed.model.strict_json import decode_json
from trainshed.server import auth, documents
from trainshed.server.documents import Param
from trainshed.server.errors import error_response
from trainshed.server.limits import BodyStalled, BodyStream, declared_length
from trainshed.server.services import Services
from trainshed.store.visibility import Viewer

_POLICY_VIOLATION, _SERVER_FAILED = 1008, 1011
"""Codes with which a WebSocket is closed."""
NOBODY = Principal("", "", KeyKind.SERVICE, frozenset())
"""Who calls a public operation."""


_PATH: Mapping[str, tuple[str, str]] = {
    "job_id": ("The Job's id, its digits or a prefix of them.", "job_01KB7Q3V9E8Z6R5T4W3X2Y1M0N"),
    "trial_id": ("The Trial's id.", "trial_01KB7Q3V9E8Z6R5T4W3X2Y1M0P"),
    "artifact_id": ("The Artifact's id.", "art_01KB7Q3V9E8Z6R5T4W3X2Y1M0Q"),
    "checkpoint_id": ("The Checkpoint's id.", "ckpt_01KB7Q3V9E8Z6R5T4W3X2Y1M0S"),
    "operation_id": ("The operation's id.", "op_01KB7Q3V9E8Z6R5T4W3X2Y1M0T"),
    "key_id": ("The key's id.", "key_01KB7Q3V9E8Z6R5T4W3X2Y1M0R"),
    "namespace": ("The namespace.", "envloop"),
    "name": ("The name, inside the namespace where there is one.", "bash"),
    "revision": ("A full commit; for reading also a branch or a tag.", "main"),
    "path": ("The file's path inside the Runner or the content.", "main.sh"),
    "kind": ("`datasets`, `models`, `recipes` or `plugins`.", "datasets"),
    "version": ("A version's label or its manifest's SHA-256.", "1.0"),
    "encoded_name": ("The name in URL-safe base64 without padding.", "dGVhbS93b3Jkcw"),
    "sha256": ("The SHA-256 of the bytes: 64 lower-case hex digits.", "0" * 64),
    "workspace": ("The workspace's id.", WORKSPACE_ID),
    "project": ("The project's id.", "default"),
    "user": ("The member's name.", "ada"),
    "ref": (
        "A Job's digits, a prefix of them, or its id; of a task also its name, task_uuid or Trial's id.",
        "llama-sft-7k2m9q",
    ),
    "number": ("The number of a packed project's checkpoint.", "1"),
    "approval_id": ("The question's number.", "1"),
    "provider": ("The provider's name.", "local"),
    "secret": ("The secret's name.", "WANDB_API_KEY"),
    "pool": ("The pool's id.", "default"),
    "cluster": ("The cluster's id.", "local"),
    "cordon_id": ("The cordon's number.", "1"),
}
"""What path parameters of these names mean, and an example of each."""


_UNKNOWN: Mapping[str, tuple[str, ...]] = {
    "job_id": ("JOB_NOT_FOUND",),
    "trial_id": ("TRIAL_NOT_FOUND",),
    "artifact_id": ("ARTIFACT_NOT_FOUND",),
    "checkpoint_id": ("CHECKPOINT_NOT_FOUND",),
    "operation_id": ("OPERATION_NOT_FOUND",),
    "key_id": ("KEY_NOT_FOUND",),
    **dict.fromkeys(("namespace", "name", "revision", "path"), ("RUNNER_NOT_FOUND", "CONTENT_NOT_FOUND")),
    "kind": ("CONTENT_NOT_FOUND",),
    "version": ("CONTENT_NOT_FOUND", "DATASET_REVISION_NOT_FOUND"),
    "encoded_name": ("DATASET_NOT_FOUND",),
    "sha256": ("CONTENT_NOT_FOUND", "BLOB_NOT_FOUND"),
    "project": ("PROJECT_NOT_FOUND",),
    "user": ("MEMBER_NOT_FOUND",),
    "ref": ("JOB_NOT_FOUND",),
    "number": ("CHECKPOINT_NOT_FOUND",),
    "approval_id": ("APPROVAL_NOT_FOUND",),
    "provider": ("PROVIDER_NOT_FOUND",),
    "secret": ("SECRET_NOT_FOUND", "INVALID_REQUEST"),
    **dict.fromkeys(("pool", "cluster", "cordon_id"), ("NOT_FOUND",)),
}
"""With which of these codes an operation that declares it refuses an unknown one."""


_REFERENCES = ("job_id", "ref")
"""Path parameters that name a Job, and so may be a prefix of its digits."""


def _decoded(text: str) -> str:
    return unquote(text, errors="surrogateescape")


def _path_parameter(name: str) -> inspect.Parameter:
    """Ids arrive percent-encoded (contract E b0) and are decoded exactly once, here."""
    description, example = _PATH[name]
    kind: Any = Annotated[str, BeforeValidator(_decoded), Path(description=description, examples=[example])]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind)


@dataclass(slots=True)
class Call:
    """One request that may be carried out."""

    services: Services
    request: HTTPConnection
    principal: Principal
    body: bytes = b""
    """The whole body of an operation that takes JSON."""
    stream: BodyStream | None = None
    """The body of an operation that takes bytes; read it once."""
    any_of: Collection[Permission] = ()
    """The permissions of which the key must hold one."""

    @property
    def query(self) -> Mapping[str, str]:
        return self.request.query_params

    @property
    def project(self) -> str:
        return self.principal.project_id

    @property
    def viewer(self) -> Viewer:
        """What of the project's training tasks the caller may see (contract C5)."""
        who = self.principal
        return Viewer(who.project_id, who.person, everything=who.may(Permission.ADMIN))

    @property
    def head(self) -> bool:
        """Whether only the answer's headers are wanted."""
        return bool(self.request.scope.get("trainshed.head"))

    @property
    def request_id(self) -> str:
        """How the server's log names this request."""
        return str(self.request.scope["trainshed.request_id"])

    async def recheck(self) -> None:
        """Raise `Refusal` once the key was revoked or expired; for answers that last. Cheap to ask often."""
        if hashed := auth.presented_key(self.request.headers):
            await self.services.keys.check(hashed, self.any_of)

    @property
    def now(self) -> float:
        return self.services.clock()

    def json(self) -> Any:
        """The decoded body; raises `Refusal` ``INVALID_REQUEST``."""
        return decode_json(self.body)

    def object(self) -> dict[str, Any]:
        """The decoded body, which must be an object; raises `Refusal` ``INVALID_REQUEST``."""
        value = self.json()
        if not isinstance(value, dict):
            raise Refusal.of("INVALID_REQUEST", "the body must be a JSON object")
        return value


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with another status than 200, or with headers."""

    shape: BaseModel
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[..., Any]
Endpoint = Callable[..., Awaitable[Response]]
SocketEndpoint = Callable[[WebSocket], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Operation:
    """What is declared of one operation."""

    summary: str
    answer: Any = None
    """The shape of a successful answer, or of each event of a stream; ``None`` for bytes or text."""
    any_of: Collection[Permission] = ()
    """The key must hold one of these."""
    refuses: Collection[str] = ()
    """Codes besides those that every operation of its kind may answer."""
    params: Collection[Param] = ()
    takes: Any = None
    """The shape of the JSON body; several alternatives as a union."""
    takes_bytes: bool = False
    """The body is not read for the handler: it takes `Call.stream`."""
    max_body: Callable[[Services], int] | None = None
    """The largest body in bytes; ``None``: a body is not read."""
    answers: Mapping[int, str] = field(default_factory=lambda: {200: "Done."})
    """Statuses of success, all with the same shape, and what each means."""
    plain_answers: Mapping[int, str] = field(default_factory=dict)
    """Further statuses that come without a body."""
    content: str = "application/json"
    public: bool = False
    examples: Mapping[str, Any] = field(default_factory=dict)
    description: str = ""


class Routes:
    """The operations of one resource; `mount` serves them below a prefix, several times if wanted."""

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self._declared: list[tuple[str, str, Endpoint, Operation]] = []
        self._sockets: list[tuple[str, SocketEndpoint]] = []
        self._made: dict[str, list[BaseRoute]] = {}

    def get(self, path: str, operation: Operation) -> Callable[[Handler], Handler]:
        return self._declare("GET", path, operation)

    def post(self, path: str, operation: Operation) -> Callable[[Handler], Handler]:
        return self._declare("POST", path, operation)

    def put(self, path: str, operation: Operation) -> Callable[[Handler], Handler]:
        return self._declare("PUT", path, operation)

    def patch(self, path: str, operation: Operation) -> Callable[[Handler], Handler]:
        return self._declare("PATCH", path, operation)

    def delete(self, path: str, operation: Operation) -> Callable[[Handler], Handler]:
        return self._declare("DELETE", path, operation)

    def socket(self, path: str, operation: Operation) -> Callable[[Handler], Handler]:
        """A WebSocket: ``async handler(call, socket, **path parameters)``, which accepts it or refuses.

        A `Refusal` before that is answered as any other operation would.
        """

        def declare(handler: Handler) -> Handler:
            self._sockets.append((path, _socket_endpoint(handler, operation)))
            return handler

        return declare

    def mount(self, app: FastAPI, prefix: str) -> None:
        # Routes know no application, and making them is most of its cost: a process makes each once.
        if prefix not in self._made:
            self._made[prefix] = self._make(prefix)
        app.router.routes.extend(self._made[prefix])

    def _make(self, prefix: str) -> list[BaseRoute]:
        router = APIRouter()
        for method, path, endpoint, operation in self._declared:
            router.add_api_route(
                prefix + path,
                endpoint,
                methods=[method],
                response_model=None,
                summary=operation.summary,
                description=operation.description or inspect.getdoc(endpoint) or operation.summary,
                openapi_extra=documents.route_extra(operation),
                tags=[self._tag],
            )
        sockets = [WebSocketRoute(prefix + path, endpoint) for path, endpoint in self._sockets]
        return [*router.routes, *sockets]

    def _declare(self, method: str, path: str, operation: Operation) -> Callable[[Handler], Handler]:
        if any(f"{{{name}}}" in path for name in _REFERENCES):
            operation = replace(operation, refuses={*operation.refuses, "AMBIGUOUS_JOB_REF"})

        def declare(handler: Handler) -> Handler:
            self._declared.append((method, path, _endpoint(handler, operation), operation))
            return handler

        return declare


def _endpoint(handler: Handler, operation: Operation) -> Endpoint:
    """The ASGI side of a handler: body, key and permission in front of it, one error shape around it."""
    asynchronous = inspect.iscoroutinefunction(handler)

    async def endpoint(request: Request, **path: str) -> Response:
        services: Services = request.app.state.services
        call = Call(services, request, NOBODY, any_of=operation.any_of)
        try:
            if operation.max_body is not None:
                declared = declared_length(request.headers)
                call.stream = BodyStream(request.receive, declared, operation.max_body(services))
                if not operation.takes_bytes:
                    call.body = await call.stream.whole()
            if asynchronous:
                path = await run_in_threadpool(_admit, call, operation, path)
                return _response(await handler(call, **path))
            return await run_in_threadpool(_carry_out, handler, call, operation, path)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets the one error shape
            if call.stream is not None and not isinstance(error, BodyStalled):
                await call.stream.drain()
            return error_response(error, request.scope["trainshed.request_id"])
        finally:
            if call.principal is not NOBODY and (hashed := auth.presented_key(request.headers)):
                services.limiter.proved(hashed)

    # FastAPI learns the path parameters from the signature; the handler's own begins with the call.
    names = list(inspect.signature(handler).parameters)[1:]
    request = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Request)
    parameters = [request, *map(_path_parameter, names)]
    endpoint.__name__ = handler.__name__
    endpoint.__doc__ = handler.__doc__
    endpoint.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by FastAPI
    endpoint.operation = operation  # type: ignore[attr-defined]  # read by documents.build
    return endpoint


def _socket_endpoint(handler: Handler, operation: Operation) -> SocketEndpoint:
    """The ASGI side of a WebSocket's handler, as `_endpoint` is of the others."""

    async def endpoint(socket: WebSocket) -> None:
        services: Services = socket.app.state.services
        call = Call(services, socket, NOBODY, any_of=operation.any_of)
        path = {name: _decoded(value) for name, value in socket.path_params.items()}
        try:
            refuse_other_origins(socket.headers)
            await handler(call, socket, **await run_in_threadpool(_admit, call, operation, path))
        except WebSocketDisconnect:
            return
        except Exception as error:  # noqa: BLE001 - as above; what is open already can only be closed
            answer = error_response(error, call.request_id)
            if socket.client_state is WebSocketState.CONNECTING:
                await socket.send_denial_response(answer)
            elif socket.application_state is WebSocketState.CONNECTED:
                await socket.close(*_closing(error))
        finally:
            if call.principal is not NOBODY and (hashed := auth.presented_key(socket.headers)):
                services.limiter.proved(hashed)

    return endpoint


def _closing(error: Exception) -> tuple[int, str]:
    if isinstance(error, Refusal):
        return _POLICY_VIOLATION, error.code
    return _SERVER_FAILED, "INTERNAL_ERROR"


def refuse_other_origins(headers: Mapping[str, str]) -> None:
    """Refuse what a browser does for a page of another server. Raises `Refusal` ``ORIGIN_DENIED``.

    No key is sent by a browser on its own, but something before this server may add one.
    """
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower():
        raise Refusal.of("ORIGIN_DENIED", f"a page of `{origin[:200]}` may not open this", path="Origin")


def _admit(call: Call, operation: Operation, path: dict[str, str]) -> dict[str, str]:
    """Let a request in; its path parameters, where ids of Jobs take the place of what people type of them."""
    if not operation.public:
        call.principal = auth.authenticate(call.services.database, call.request.headers, at=call.now)
        auth.require(call.principal, operation.any_of)
    _refuse_what_is_no_text(call, operation, path)
    typed = {name: path[name] for name in _REFERENCES if name in path and REF.fullmatch(path[name])}
    if not typed:
        return path
    with call.services.database.read() as connection:
        return path | {name: job_id_of(connection, call.viewer, text) for name, text in typed.items()}


def _refuse_what_is_no_text(call: Call, operation: Operation, path: Mapping[str, str]) -> None:
    """Refuse NUL and bytes that are no UTF-8: nothing can have such a name, and PostgreSQL takes neither.

    The codes are those that the operation declares for an unknown name or a bad parameter. An operation that
    declares none judges such a name by itself.
    """
    for name, value in path.items():
        code = next((each for each in _UNKNOWN.get(name, ()) if each in operation.refuses), None)
        if code is not None and not _is_text(value):
            said = f"`{name}` holds NUL or is no UTF-8, so nothing has this name"
            raise Refusal.of(code, said, path=name)
    for param in operation.params:
        if param.where == "query" and param.refuses and not _is_text(call.query.get(param.name, "")):
            raise Refusal.of(param.refuses[0], f"`{param.name}` holds NUL", path=param.name)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def _carry_out(handler: Handler, call: Call, operation: Operation, path: dict[str, str]) -> Response:
    return _response(handler(call, **_admit(call, operation, path)))


def _response(answer: Any) -> Response:
    if isinstance(answer, Response):
        return answer
    status, headers = 200, {}
    if isinstance(answer, Reply):
        status, headers, answer = answer.status, dict(answer.headers), answer.shape
    content = type(answer).__pydantic_serializer__.to_json(answer, by_alias=True)
    return Response(content, status, headers, "application/json")
