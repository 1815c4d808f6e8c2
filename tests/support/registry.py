"""A schema registry for tests: the part of the REST API of Confluent's registry that producers and ingestd use.

A real one is Apicurio's (`tests.support.apicurio`), which takes too long for tests of seconds. It does not make
descriptors of the sources of Protobuf schemas, as Confluent's registry and this server do.
"""

from __future__ import annotations

import base64
import json
import ssl
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

with warnings.catch_warnings(record=True):  # a library that the client imports warns of its next release
    from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

# What the registry returns of a Protobuf schema unless its descriptor is requested.
SOURCE = 'syntax = "proto3"; message Row { int64 id = 1; }'
_MISSING_SCHEMA = {"error_code": 40403, "message": "Schema not found"}


@dataclass
class RegistryServer:
    """The content of a registry and the requests for it. If `status` is set, it is the answer to every request.

    Like Confluent's registry before 7.8, it returns the descriptors of Protobuf schemas only by their ids, with
    `format=serialized`, and else a source. Schemas of subjects `:.CONTEXT:NAME` are found by ids only with the subject.

    If it `fails_descriptors`, it answers 500 to requests for them, as Apicurio 3.3 does for some files. If it
    `returns_registered`, it answers other requests for Protobuf schemas as Apicurio does, with what was registered. If
    it `hides_ids`, its answers for versions lack the ids of their schemas.

    The versions of the subjects in `deleted` are returned only to requests with the parameter `deleted`. The next
    `lagging` requests are answered as by a replica that does not know any schema yet. `connections` is the number of
    connections that were accepted. A connection is for one request, unless the server `keeps_connections`; then, it
    ends without an answer to a request after `max_requests`.
    """

    url: str = ""
    status: int | None = None
    login: str | None = None
    gets: list[str] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)
    lagging: int = 0
    fails_descriptors: bool = False
    returns_registered: bool = False
    hides_ids: bool = False
    connections: int = 0
    keeps_connections: bool = False
    max_requests: int = sys.maxsize
    _schemas: list[dict[str, Any]] = field(default_factory=list)
    _versions: dict[str, list[int]] = field(default_factory=dict)

    def register(self, subject: str, schema: dict[str, Any]) -> int:
        """Store a schema and return its id."""
        if schema not in self._schemas:
            self._schemas.append(schema)
        identifier = self._schemas.index(schema) + 1
        versions = self._versions.setdefault(subject, [])
        if identifier not in versions:
            versions.append(identifier)
        return identifier

    def status_of(self, query: Mapping[str, str]) -> int:
        """Return the status of the answer to a request for a schema that exists."""
        return 500 if self.fails_descriptors and query.get("format") == "serialized" else 200

    def find(self, path: list[str], query: Mapping[str, str]) -> dict[str, Any] | None:
        """Return the schema at `/schemas/ids/ID` or `/subjects/SUBJECT/versions/VERSION`; None for other paths.

        VERSION may be `latest`.
        """
        identifier, more, is_by_id = 0, {}, path[:2] == ["schemas", "ids"]
        if self.lagging:
            self.lagging -= 1
            return None
        if is_by_id:
            subjects = [subject for subject, ids in self._versions.items() if int(path[2]) in ids]
            is_known = query.get("subject") in subjects or not all(name.startswith(":.") for name in subjects)
            identifier = int(path[2]) if is_known else 0
        elif path[0] == "subjects" and ("deleted" in query or path[1] not in self.deleted):
            versions = self._versions.get(path[1], [])
            version = len(versions) if path[3] == "latest" else int(path[3])
            identifier = versions[version - 1] if versions else 0
            more = {"id": identifier, "subject": path[1], "version": version}
        if not 0 < identifier <= len(self._schemas):
            return None
        if self.hides_ids:
            more.pop("id", None)
        found = {**self._schemas[identifier - 1], **more}
        has_descriptors = self.returns_registered or (is_by_id and query.get("format") == "serialized")
        if found.get("schemaType") == "PROTOBUF" and not has_descriptors:
            found["schema"] = SOURCE
        return found

    def serializer(self, schema: str, **references: str) -> AvroSerializer:
        """Return Confluent's serializer, which registers the schema. It refers to the first versions of subjects.

        `references` are the names of the schemas by their subjects.
        """
        referred = [SchemaReference(name, subject, 1) for subject, name in references.items()]
        return AvroSerializer(self.client(), Schema(schema, "AVRO", referred))

    def client(self) -> SchemaRegistryClient:
        """Return Confluent's client of this registry."""
        options: dict[str, Any] = {"url": self.url}
        if self.login:
            options["basic.auth.user.info"] = self.login
        return SchemaRegistryClient(options)


def serialize(serializer: Any, topic: str, value: Any) -> bytes:
    """Return the value of a record as a producer with the serializer sends it."""
    encoded: bytes = serializer(value, SerializationContext(topic, MessageField.VALUE))
    return encoded


class _Server(ThreadingHTTPServer):
    """Serves the content."""

    def __init__(self, content: RegistryServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content = content


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet for each answer

    def setup(self) -> None:
        super().setup()
        self.server.content.connections += 1
        self.requests = 0

    def do_GET(self) -> None:
        self.requests += 1
        if self.requests > self.server.content.max_requests:
            self.close_connection = True
            return
        self.server.content.gets.append(self.path)
        if self._is_allowed():
            query = dict(parse_qsl(urlsplit(self.path).query))
            found = self.server.content.find(self._parts(), query)
            status = 404 if found is None else self.server.content.status_of(query)
            self._answer(status, _MISSING_SCHEMA if found is None else found)

    def do_POST(self) -> None:
        schema = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._is_allowed():
            self._answer(200, {"id": self.server.content.register(self._parts()[1], schema), **schema})

    def _parts(self) -> list[str]:
        return [unquote(part) for part in urlsplit(self.path).path.split("/")[1:]]

    def _is_allowed(self) -> bool:
        content = self.server.content
        wanted = content.login and f"Basic {base64.b64encode(content.login.encode()).decode()}"
        if content.status is not None:
            self._answer(content.status, {})
        elif wanted and self.headers["Authorization"] != wanted:
            self._answer(401, {"error_code": 401, "message": "Unauthorized"})
        else:
            return True
        return False

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        if not self.server.content.keeps_connections:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        pass


@contextmanager
def registry_server(login: str | None = None, tls: ssl.SSLContext | None = None) -> Iterator[RegistryServer]:
    """Run a registry on the loopback interface; `login` is the required `user:password`."""
    content = RegistryServer(login=login)
    server = _Server(content)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    content.url = f"http{'s' if tls else ''}://localhost:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield content
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
