"""The schema registry: the section `registry` of the configuration, and a client that reads schemas by their ids.

It uses the REST API of Confluent's registry, which Apicurio, Karapace and Redpanda offer as well.

Invariant: a schema with an id never changes, so each is requested once by a process. No error contains a secret.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from ingestd.clock import Deadline, pause
from ingestd.errors import ConfigError, LoginFailed, RegistryUnavailable
from ingestd.keys import PORT, Doc, Seconds, matching

_URL = matching(
    rf"https?://([^\s/?#@:,\[\]]+|\[[0-9a-fA-F:.]+\])(:{PORT})?(/[^\s?#@]*)?",
    "must be one URL with a port up to 65535 and without user and password, such as https://r.example.com:8081",
)
_WHERE = "registry.url"
# The maximum size of an answer. Descriptors of large Protobuf schemas have some megabytes.
_MAX_BYTES, _CHUNK = 64 << 20, 1 << 16
# Error codes of the REST API.
_NOT_FOUND = 40401, 40402, 40403  # the subject, the version, the schema
# Registries answer requests for larger ids as those for an unknown path. Only damaged records contain such ids.
_MAX_ID = 2**31 - 1
SchemaType = Literal["AVRO", "PROTOBUF"]
_QUERIES: dict[SchemaType, str] = {"AVRO": "", "PROTOBUF": "?format=serialized"}
# Registries still return deleted schemas by their ids, but deleted versions, to which these refer, only with this.
_WITH_DELETED: dict[SchemaType, str] = {"AVRO": "?deleted=true", "PROTOBUF": "?format=serialized&deleted=true"}
_MISSING = "the registry has no {}"
_POLL_SECONDS = 0.1
_MAX_WAITS = 3  # after waiting so many times `lag` for schemas that did not appear, unknown ids are damage for a while
_LOGIN_STATUS = (401, 403)
_BUSY_STATUS = (408, 429)


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """How to access the schema registry. Raises ConfigError if only one of `username` and `password` is set."""

    url: Annotated[str, _URL, Doc("The URL of the schema registry.")]
    username: Annotated[str | None, Doc("The user of HTTP basic authentication; needs `password`.")] = None
    password: Annotated[str | None, Doc("The password; write a reference such as ${FILE:/path}.")] = field(
        default=None, repr=False
    )
    ca_file: Annotated[Path | None, Doc("PEM file with the CA certificates of the registry.")] = None
    timeout: Annotated[Seconds, Doc("The time limit of a request.")] = 10.0
    lag: Annotated[
        Seconds, Doc("How long a schema that the registry does not know is requested again: replicas may lag.")
    ] = 3.0

    def __post_init__(self) -> None:
        if (self.username is None) != (self.password is None):
            raise ConfigError(
                "username and password are needed together", where="registry", hint="set both, or none of them"
            )

    @property
    def address(self) -> str:
        """The address of the registry, as HOST:PORT."""
        parsed = urllib.parse.urlsplit(self.url)
        host = parsed.hostname or ""
        port = parsed.port or (443 if parsed.scheme == "https" else 80)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another one uses: the name by which it is used, and its text."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema of the registry: its text, which for Protobuf is the Base64 text of its descriptor.

    `references` are the schemas that it uses, each after those that it uses itself.
    """

    text: str
    references: tuple[Reference, ...]


class InvalidSchema(ValueError):
    """A schema does not exist, is not valid, or does not describe records. The message is the reason."""


class SchemaMissing(InvalidSchema):
    """The registry does not have a schema or a subject."""


class Registry:
    """A client of the registry, which connects when it is used. Thread-safe. Pickled as its options.

    A schema that a producer has just registered may be missing in a replica of the registry. One that is missing is
    therefore requested again for a while, but not for each of many damaged records with ids that have never existed.
    """

    def __init__(self, options: RegistryOptions, *, memory_seconds: float = 600.0) -> None:
        """`memory_seconds` is how long a wait for a schema that did not appear counts."""
        self._options = options
        self._memory_seconds = memory_seconds
        self._guard = threading.Lock()
        self._schemas: dict[tuple[int, SchemaType], RegisteredSchema] = {}
        self._waits: deque[Deadline] = deque(maxlen=_MAX_WAITS)  # until when the last waits count

    @staticmethod
    def required(registry: Registry | None) -> Registry:
        """Return the registry. Raises ConfigError if there is none, although the schemas of records are in it."""
        if registry is None:
            raise ConfigError(
                "is missing, but the schemas of the records are in it", where="registry", hint="set registry.url"
            )
        return registry

    @classmethod
    def of(cls, options: RegistryOptions | None) -> Registry | None:
        """Return a client, or None without the section `registry`."""
        return None if options is None else cls(options)

    def __reduce__(self) -> tuple[type[Registry], tuple[RegistryOptions]]:
        return Registry, (self._options,)

    def schema(self, identifier: int, kind: SchemaType) -> RegisteredSchema:
        """Return the schema with this id. A registry that cannot return descriptors may return text instead.

        Raises SchemaMissing if there is none, InvalidSchema if its type is not `kind`, RegistryUnavailable,
        LoginFailed, and ConfigError if the URL is not that of a registry.
        """
        what = f"schema {identifier}"
        if identifier > _MAX_ID:
            raise SchemaMissing(_MISSING.format(what))
        with self._guard:
            key = (identifier, kind)
            if key not in self._schemas:
                self._schemas[key] = self._awaited(f"/schemas/ids/{identifier}{_QUERIES[kind]}", kind, what)
            return self._schemas[key]

    def _awaited(self, path: str, kind: SchemaType, what: str) -> RegisteredSchema:
        """Return the schema at a path, which a replica of the registry may not know at once."""
        may_wait = len(self._waits) < _MAX_WAITS or self._waits[0].passed
        deadline = Deadline.after(self._options.lag if may_wait else 0.0)
        while True:
            is_last = deadline.passed  # even if the first answer is late, the schema is requested again
            try:
                return self._registered(self._get(path, what), kind, what)
            except SchemaMissing:
                if is_last:
                    if may_wait:
                        self._waits.append(Deadline.after(self._memory_seconds))
                    raise
            pause(_POLL_SECONDS)

    def latest(self, subject: str, kind: SchemaType) -> RegisteredSchema:
        """Return the latest schema of a subject. Raises the errors of `schema`."""
        what = f"subject {subject}"
        path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest{_QUERIES[kind]}"
        return self._registered(self._get(path, what), kind, what)

    def _registered(self, answer: dict[str, Any], kind: SchemaType, what: str) -> RegisteredSchema:
        found = answer.get("schemaType", "AVRO")
        if found != kind:
            raise InvalidSchema(f"{what} of the registry has the type {found}, not {kind}")
        references = dict(self._references(answer, kind, set()))
        return RegisteredSchema(str(answer["schema"]), tuple(references.values()))

    def _references(
        self, answer: dict[str, Any], kind: SchemaType, known: set[tuple[str, int]]
    ) -> Iterator[tuple[tuple[str, int], Reference]]:
        """Yield the subject, the version and the schema of each reference, in the order of dependency."""
        for reference in answer.get("references") or ():
            key = str(reference["subject"]), int(reference["version"])
            if key not in known:
                known.add(key)
                subject = urllib.parse.quote(key[0], safe="")
                path = f"/subjects/{subject}/versions/{key[1]}{_WITH_DELETED[kind]}"
                found = self._get(path, f"version {key[1]} of the subject {key[0]}, to which a schema refers")
                yield from self._references(found, kind, known)
                yield key, Reference(str(reference["name"]), str(found["schema"]))

    def _get(self, path: str, what: str) -> dict[str, Any]:
        """Return the JSON object at a path, which describes a schema; `what` is what it describes.

        Errors name the URL of the request, not one to which it was redirected, which may contain a secret.
        """
        url = self._options.url.rstrip("/") + path
        request = urllib.request.Request(url, headers={"Accept": "application/vnd.schemaregistry.v1+json"})  # noqa: S310
        if self._options.username is not None:
            login = f"{self._options.username}:{self._options.password}".encode()
            # Not sent again if the server redirects the request.
            request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(login).decode()}")
        try:
            with urllib.request.urlopen(request, timeout=self._options.timeout, context=self._tls()) as response:  # noqa: S310
                answer = json.loads(self._body(response))
        except urllib.error.HTTPError as error:
            raise self._error(error, url, what) from None
        except (ssl.SSLCertVerificationError, urllib.error.URLError) as error:
            reason = error.reason
            if isinstance(error, ssl.SSLCertVerificationError) or isinstance(reason, ssl.SSLCertVerificationError):
                raise LoginFailed(
                    f"the certificate of the schema registry is not trusted: {reason}",
                    where=_WHERE,
                    hint="set registry.ca_file to the CA certificates of the registry",
                ) from None
            raise RegistryUnavailable(f"the schema registry does not answer: {reason}", where=url) from None
        except (ValueError, RecursionError, http.client.InvalidURL):  # the last is of a redirect
            raise self._not_a_registry(url) from None
        except (OSError, http.client.HTTPException) as error:
            raise RegistryUnavailable(f"the schema registry does not answer: {error}", where=url) from None
        if not _is_schema(answer):
            raise self._not_a_registry(url)
        return answer  # type: ignore[no-any-return]  # a dict, by `_is_schema`

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        """Return the body of an answer. Raises OSError if it is cut, too long, or takes longer than the time limit."""
        limit, body = Deadline.after(self._options.timeout), bytearray()
        while part := response.read1(_CHUNK):  # `read` waits for as many bytes
            body += part
            if len(body) > _MAX_BYTES or limit.passed:
                raise OSError(f"the answer is longer than {_MAX_BYTES >> 20} MiB or took too long")
        if response.length:  # of which `read1` does not complain
            raise OSError(f"the connection ended {response.length} bytes before the answer")
        return bytes(body)

    def _tls(self) -> ssl.SSLContext | None:
        if not self._options.url.startswith("https:"):
            return None
        try:
            return ssl.create_default_context(cafile=self._options.ca_file)
        except OSError as error:  # including ssl.SSLError
            raise ConfigError(f"cannot be used: {error}", where="registry.ca_file") from None

    def _error(self, error: urllib.error.HTTPError, url: str, what: str) -> Exception:
        """Return the error that an answer with an HTTP status of 400 or more stands for."""
        try:
            with error:
                body = self._body(error.fp)  # type: ignore[arg-type]  # of an answer, it is its HTTPResponse
        except (OSError, http.client.HTTPException) as broken:
            return RegistryUnavailable(f"the answer of the schema registry is incomplete: {broken}", where=url)
        found = re.search(rb'"error_code"\s*:\s*(\d+)', body)
        if error.code == 404 and found and int(found[1]) in _NOT_FOUND:
            return SchemaMissing(_MISSING.format(what))
        if error.code in _LOGIN_STATUS:
            return LoginFailed(
                f"the schema registry answers {error.code} {error.reason}",
                where=url,
                hint="set registry.username and registry.password to a user who may read schemas",
            )
        if error.code >= 500 or error.code in _BUSY_STATUS:
            return RegistryUnavailable(f"the schema registry answers {error.code} {error.reason}", where=url)
        return self._not_a_registry(url)

    def _not_a_registry(self, url: str) -> ConfigError:
        return ConfigError(
            "the answer is not that of a schema registry",
            where=url,
            hint="set registry.url to the root of Confluent's REST API; for Apicurio, it ends in /apis/ccompat/v7",
        )


def _is_schema(answer: object) -> bool:
    """Return whether an answer describes a schema: whether all that is read of it has the right type."""
    if not isinstance(answer, dict) or not isinstance(answer.get("schema"), str):
        return False
    references = answer.get("references") or []
    return isinstance(references, list) and all(
        isinstance(found, dict) and {"name", "subject"} <= {*found} and str(found.get("version")).isdecimal()
        for found in references
    )
