"""Requests of operators: pause, resume, flush, another position, a reload of the configuration, and a preview.

A preview changes nothing, but it shows records, so it needs the same rights. It ends soon after its client disconnects.

Invariant: a change that was accepted is carried out even if its client disconnects. An answer never takes longer than
`_MAX_WAIT_SECONDS`; a request that is not done by then is answered with 202 and continues. If it fails then, that is
logged.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from http import HTTPStatus
from typing import Any

from anyio import fail_after, to_thread
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from ingestd.clock import monotonic
from ingestd.daemon.http.access import Access, Refused
from ingestd.daemon.http.fleet import Fleet
from ingestd.daemon.http.status import Json
from ingestd.errors import IngestdError
from ingestd.ingest.control import PositionChange, Request
from ingestd.ingest.inspection.preview import AtOffset, AtTime, InvalidStart, parse_start
from ingestd.ingest.monitoring import events
from ingestd.kafka.ranges import Offsets, TopicPartition
from ingestd.spark.engine import JobGroup

_ACTIONS = {"pause": "pause", "resume": "resume", "flush": "flush", "offsets": "set_position"}
_MAX_BODY_BYTES = 256 * 1024
_BODY_SECONDS = 10.0
_CANCEL_SECONDS = 1.0
_DEFAULT_WAIT_SECONDS = 10.0
_MAX_WAIT_SECONDS = 60.0
_MAX_AUTHOR = 100
_DEFAULT_RECORDS, _MAX_RECORDS = 20, 1000
# The number of a partition has one form, so that none can be named twice.
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
_OFFSETS_FORM = '{"offsets": {"TOPIC": {"0": 1234}}, "expected": {"TOPIC": {"0": 1000}}}'


class Changes:
    """Carries out the requests to one fleet."""

    def __init__(self, fleet: Fleet, access: Access) -> None:
        self._fleet = fleet
        self._access = access
        self._previewing = ""  # the preview that is running, as "of the mapping NAME for ADDRESS"
        self._previewing_since = 0.0

    async def change(self, name: str, verb: str, http: HttpRequest) -> tuple[int, Json]:
        """Carry out pause, resume, flush or offsets. Returns the HTTP status and the document. Raises IngestdError."""
        fields = await self._checked(http)
        if name not in self._fleet.monitors:
            raise unknown_mapping(name)
        control = self._fleet.controls.get(name)
        if control is None:
            raise Refused(409, "the mapping accepts no requests", where=f"mapping {name}")
        action = _ACTIONS[verb]
        change = _position_change(fields) if action == "set_position" else None
        wait_seconds = _wait_seconds(fields)
        request = Request(action, _author(fields.pop("by", ""), http), change)  # type: ignore[arg-type]
        _refuse_unknown(fields)
        code, answer = await _answer(control.submit(request), wait_seconds, {"mapping": name, "action": verb})
        if code == HTTPStatus.ACCEPTED:
            request.done.add_done_callback(partial(_report_failure, name, request))
        return code, answer

    async def reload(self, http: HttpRequest) -> tuple[int, Json]:
        """Read the configuration again. Returns the HTTP status and the document. Raises IngestdError."""
        fields = await self._checked(http)
        wait_seconds = _wait_seconds(fields)
        _refuse_unknown(fields)
        return await _answer(self._fleet.reload(), wait_seconds, {"action": "reload"})

    async def preview(self, name: str, http: HttpRequest) -> Json:
        """Return what the mapping would make of records of its topics. Raises IngestdError."""
        fields = await self._checked(http)
        if name not in self._fleet.monitors:
            raise unknown_mapping(name)
        limit, at = fields.pop("limit", _DEFAULT_RECORDS), fields.pop("at", None)
        if type(limit) is not int or not 1 <= limit <= _MAX_RECORDS:
            raise Refused(400, f"must be a number from 1 to {_MAX_RECORDS:,}", where="body: limit")
        if at is not None and not isinstance(at, str):
            raise Refused(400, "must be a text", where="body: at", hint="send a time, or TOPIC:PARTITION:OFFSET")
        _refuse_unknown(fields)
        if self._previewing:
            seconds = monotonic() - self._previewing_since
            raise Refused(
                409,
                f"another preview is running: {self._previewing}, since {seconds:.0f} s",
                where=f"mapping {name}",
                hint="try again when it has ended",
            )
        self._previewing, self._previewing_since = f"of the mapping {name} for {_author('', http)}", monotonic()
        group = JobGroup("preview")
        watch = asyncio.create_task(self._cancel_when_left(http, group))
        try:
            work = partial(self._fleet.preview, name, limit, None if at is None else _start(at), group)
            return (await to_thread.run_sync(work, abandon_on_cancel=True)).document(name)
        finally:
            watch.cancel()
            self._previewing = ""

    async def _cancel_when_left(self, http: HttpRequest, group: JobGroup) -> None:
        """Cancel the Spark jobs of a preview, also those that it starts later, when its client has disconnected."""
        while (await http.receive())["type"] != "http.disconnect":
            pass
        while True:
            self._fleet.cancel(group)
            await asyncio.sleep(_CANCEL_SECONDS)

    async def _checked(self, http: HttpRequest) -> Json:
        """Return the fields of a request of an operator. Raises Refused."""
        await to_thread.run_sync(self._access.check_change, http)
        body = await _body(http)
        try:
            fields = json.loads(body or b"{}", object_pairs_hook=_object)
            json.dumps(fields, ensure_ascii=False).encode()  # an escape sequence may be half a character
        except (ValueError, RecursionError):
            raise Refused(400, "the body is not JSON", where="body", hint="send an object or nothing") from None
        if not isinstance(fields, dict):
            raise Refused(400, "the body must be a JSON object", where="body", hint="send an object or nothing")
        return fields


def _object(pairs: list[tuple[str, Any]]) -> Json:
    """Return a JSON object. Raises Refused if a name occurs twice, because one of its values would be ignored."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise Refused(400, "a name occurs twice in one object", where="body")
    return fields


def unknown_mapping(name: str) -> Refused:
    """Return the error for a name that no mapping has."""
    return Refused(
        404, "no mapping has this name", where=f"mapping {name[:100]}", hint="GET /status lists all mappings"
    )


async def _body(http: HttpRequest) -> bytes:
    body = bytearray()
    try:
        with fail_after(_BODY_SECONDS):
            async for part in http.stream():
                body += part
                if len(body) > _MAX_BODY_BYTES:
                    raise Refused(413, f"the body is longer than {_MAX_BODY_BYTES:,} bytes", where="body")
    except ClientDisconnect:
        raise Refused(400, "the client disconnected before the end of the body", where="body") from None
    except TimeoutError:
        raise Refused(408, f"the body did not arrive within {_BODY_SECONDS:.0f} s", where="body") from None
    return bytes(body)


async def _answer(future: Future[None], seconds: float, document: Json) -> tuple[int, Json]:
    """Wait for the end of a request, and return the HTTP status and the document. Raises what prevented the request."""
    done = asyncio.wrap_future(future)
    # `asyncio.wait` does not cancel the future, which would withdraw the request.
    await asyncio.wait([done], timeout=seconds)
    if not done.done():
        done.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return HTTPStatus.ACCEPTED, {**document, "result": "accepted"}
    done.result()
    return HTTPStatus.OK, {**document, "result": "done"}


def _report_failure(mapping: str, request: Request, done: Future[None]) -> None:
    """Log that a request was not carried out, because its client has got another answer already."""
    error = None if done.cancelled() else done.exception()
    if error is not None:
        events.request_failed(mapping, request.action, request.by, error)


def _author(by: Any, http: HttpRequest) -> str:
    """Return who sent the request: the name that the client gives, if any, and always its address."""
    address = http.client.host if http.client else "unknown address"
    if not isinstance(by, str) or len(by) > _MAX_AUTHOR or not by.isprintable():
        raise Refused(400, f"must be a text of at most {_MAX_AUTHOR} characters", where="body: by")
    return f"{by} ({address})" if by else address


def _wait_seconds(fields: Json) -> float:
    value = fields.pop("wait_seconds", _DEFAULT_WAIT_SECONDS)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MAX_WAIT_SECONDS:
        raise Refused(400, f"must be a number from 0 to {_MAX_WAIT_SECONDS:.0f}", where="body: wait_seconds")
    return float(value)


def _start(text: str) -> AtTime | AtOffset:
    try:
        return parse_start(text)
    except InvalidStart as error:
        raise Refused(400, error.what, where="body: at") from None


def _refuse_unknown(fields: Mapping[str, Any]) -> None:
    if fields:
        raise Refused(400, "unknown field", where=f"body: {sorted(fields)[0][:100]}", hint="see docs/monitor.md")


def _position_change(fields: Json) -> PositionChange:
    offsets, expected = (_offsets(fields.pop(key, None), key) for key in ("offsets", "expected"))
    if not offsets:
        raise Refused(400, "must contain at least one offset", where="body: offsets", hint=_OFFSETS_FORM)
    if not expected.keys() <= offsets.keys():
        raise Refused(
            400,
            "must not name partitions that offsets does not name",
            where="body: expected",
            hint="send the committed positions that you saw, from GET /mappings/NAME",
        )
    return PositionChange(expected=expected, offsets=offsets)


def _offsets(value: Any, key: str) -> Offsets:
    try:
        items = [(topic, *item) for topic, partitions in value.items() for item in partitions.items()]
    except AttributeError:
        items = [("", "", None)]
    if not all(
        _PARTITION.fullmatch(partition) and type(offset) is int and offset >= 0 for _, partition, offset in items
    ):
        raise Refused(400, "must contain offsets by topic and partition", where=f"body: {key}", hint=_OFFSETS_FORM)
    return {TopicPartition(topic, int(partition)): offset for topic, partition, offset in items}


def status_of(error: IngestdError) -> int:
    """Return the HTTP status of an error: 409 for a request that the mapping or the configuration refused."""
    return error.status if isinstance(error, Refused) else 409
