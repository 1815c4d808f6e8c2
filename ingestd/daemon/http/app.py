"""The routes of the server and the form of its answers.

Invariant: every error is a JSON object with the strings `error`, `where` and `hint`. Every answer forbids browsers to
load anything from other hosts and to show the page in a frame. Documents about all mappings are made in another thread,
one after the other, so that many requests for them do not delay the answers to probes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from anyio import move_on_after, to_thread
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ingestd.daemon.http import health, status
from ingestd.daemon.http.access import Access, Refused
from ingestd.daemon.http.changes import Changes, status_of, unknown_mapping
from ingestd.daemon.http.fleet import Fleet
from ingestd.daemon.http.history import SPANS, History
from ingestd.daemon.http.live import STREAM_SECONDS, Live
from ingestd.errors import ConfigFaults, IngestdError
from ingestd.ingest.monitoring import events
from ingestd.ingest.monitoring.monitor import Snapshot

T = TypeVar("T")
# Returns the body of /metrics and its content type.
RenderMetrics = Callable[[], tuple[bytes, str]]
_STATIC = Path(__file__).parent / "static"
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


def application(fleet: Fleet, access: Access, history: History, live: Live, metrics: RenderMetrics) -> Starlette:
    """Return the ASGI application that serves `fleet`."""
    server = _Endpoints(fleet, access, history, live, metrics)
    return Starlette(
        routes=[
            Route("/", server.page),
            Mount("/static", StaticFiles(directory=_STATIC)),
            Route("/livez", server.livez),
            Route("/readyz", server.readyz),
            Route("/metrics", server.metrics),
            Route("/status", server.status),
            Route("/events", server.events),
            Route("/mappings/{name}", server.mapping),
            Route("/mappings/{name}/commits", server.commits),
            Route("/mappings/{name}/history", server.history),
            *(
                Route(f"/mappings/{{name}}/{verb}", server.change, methods=["POST"], name=verb)
                for verb in ("pause", "resume", "flush", "offsets")
            ),
            Route("/mappings/{name}/preview", server.preview, methods=["POST"]),
            Route("/reload", server.reload, methods=["POST"]),
        ],
        middleware=[Middleware(_Rules, access=access)],
        exception_handlers={
            IngestdError: _refused,  # type: ignore[dict-item]  # a handler accepts a subclass of Exception
            HTTPException: _http_error,  # type: ignore[dict-item]
            Exception: _defect,
        },
    )


class _Endpoints:
    """What the routes answer."""

    def __init__(self, fleet: Fleet, access: Access, history: History, live: Live, metrics: RenderMetrics) -> None:
        self._fleet = fleet
        self._history = history
        self._live = live
        self._metrics = metrics
        self._changes = Changes(fleet, access)
        self._turn = asyncio.Semaphore(1)

    async def page(self, _request: Request) -> Response:
        return FileResponse(_STATIC / "index.html")

    async def livez(self, _request: Request) -> Response:
        return _json(*health.liveness(self._fleet.stuck()))

    async def readyz(self, _request: Request) -> Response:
        snapshots = (monitor.snapshot() for monitor in self._fleet.monitors.values())
        return _json(*health.readiness(snapshots, self._fleet.policies_read_at, self._fleet.policies_error))

    async def metrics(self, _request: Request) -> Response:
        body, content_type = await self._made(self._metrics)
        return Response(body, headers={"content-type": content_type})

    async def status(self, _request: Request) -> Response:
        return await self._made(lambda: _json(200, status.status(self._fleet, self._history)))

    async def mapping(self, request: Request) -> Response:
        seen = self._snapshot(request)
        return _json(200, status.mapping_details(seen, self._history.records_per_second(seen.name)))

    async def commits(self, request: Request) -> Response:
        return _json(200, status.commits(self._snapshot(request)))

    async def history(self, request: Request) -> Response:
        name, span = self._snapshot(request).name, request.query_params.get("span", "1h")
        if span not in SPANS:
            raise Refused(400, "no chart has this span", where="parameter span", hint=f"use {', '.join(SPANS)}")
        return _json(200, {"version": status.VERSION, "name": name, **self._history.read(name, span)})

    async def events(self, _request: Request) -> Response:
        return _EventStream(self._live.open(), media_type="text/event-stream")

    async def change(self, request: Request) -> Response:
        verb = request.url.path.rpartition("/")[2]
        return _json(*await self._changes.change(request.path_params["name"], verb, request))

    async def preview(self, request: Request) -> Response:
        return _json(200, await self._changes.preview(request.path_params["name"], request))

    async def reload(self, request: Request) -> Response:
        return _json(*await self._changes.reload(request))

    async def _made(self, make: Callable[[], T]) -> T:
        """Return a document that takes long to make. Raises Refused if the server stops before its turn."""
        async with self._turn:
            if self._live.is_closed:
                raise Refused(503, "the daemon is stopping")
            return await to_thread.run_sync(make)

    def _snapshot(self, request: Request) -> Snapshot:
        name: str = request.path_params["name"]
        monitor = self._fleet.monitors.get(name)
        if monitor is None:
            raise unknown_mapping(name)
        return monitor.snapshot()


class _EventStream(StreamingResponse):
    """A response that ends, even if its client has stopped reading it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            with move_on_after(STREAM_SECONDS + 1):
                await super().__call__(scope, receive, send)
        finally:
            # A generator that is no longer read would keep its stream open.
            await self.body_iterator.aclose()  # type: ignore[attr-defined]


class _Rules:
    """Checks the header Host of each request and adds the headers that protect browsers to each response."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request (see the ASGI specification)."""

        async def send_protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self._access.check_host(Headers(scope=scope).get("host", ""))
        except Refused as error:
            await _error(error.status, error.what, error.where, error.hint)(scope, receive, send_protected)
        else:
            await self._app(scope, receive, send_protected)


def _json(code: int, document: dict[str, Any]) -> Response:
    return JSONResponse(document, code)


def _error(code: int, what: str, where: str = "", hint: str = "", headers: Any = None) -> Response:
    return JSONResponse({"error": what, "where": where, "hint": hint}, code, headers)


async def _refused(_request: Request, error: IngestdError) -> Response:
    code = status_of(error)
    if isinstance(error, ConfigFaults):
        return _error(code, str(error), "configuration", "correct the files and reload again")
    return _error(code, error.what, error.where, error.hint, {"www-authenticate": "Bearer"} if code == 401 else None)


async def _http_error(request: Request, error: HTTPException) -> Response:
    if error.status_code == 405:
        hint = "allowed: " + ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
    else:
        hint = "docs/monitor.md lists all paths"
    what = HTTPStatus(error.status_code).phrase.lower()
    return _error(error.status_code, what, f"{request.method} {request.url.path[:200]}", hint, error.headers)


async def _defect(request: Request, error: Exception) -> Response:
    place = f"{request.method} {request.url.path[:200]}"
    events.http_failed(f"{place}: {type(error).__name__}: {error}")
    return _error(500, f"a defect of ingestd: {type(error).__name__}", place)
