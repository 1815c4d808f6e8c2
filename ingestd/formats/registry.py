"""The schema registry: the section `registry` of the configuration, and a client that reads schemas by their ids.

It uses the REST API of Confluent's registry, which Apicurio, Karapace and Redpanda offer as well.

Invariant: a schema with an id never changes, so each is requested once by a process. A schema is missing only if the
registry has answered so, at most `Patience.missing_seconds` ago. No error contains a secret.
"""

from __future__ import annotations

import base64
import http.client
import json
import math
import ssl
import threading
import urllib.error
import urllib.parse
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Literal, TypeGuard

from ingestd.clock import Deadline, pause
from ingestd.errors import ConfigError, LoginFailed, RegistryUnavailable
from ingestd.http_connections import KeptConnections
from ingestd.keys import PORT, Doc, Seconds, matching

_URL = matching(
    rf"https?://([^\s/?#@:,\[\]]+|\[[0-9a-fA-F:.]+\])(:{PORT})?(/[^\s?#@]*)?",
    "must be one URL with a port up to 65535 and without user and password, such as https://r.example.com:8081",
)
_WHERE = "registry.url"
# The maximum size of an answer. Descriptors of large Protobuf schemas have some megabytes.
_MAX_BYTES = 64 << 20
# Of the schemas to which one refers, directly and through others.
_MAX_REFERENCES, _MAX_DEPTH = 1_000, 100
# Error codes of the REST API.
_NOT_FOUND = 40401, 40402, 40403  # the subject, the version, the schema
# Registries answer requests for larger ids as those for an unknown path. Only damaged records contain such ids.
_MAX_ID = 2**31 - 1
SchemaType = Literal["AVRO", "PROTOBUF"]
_QUERIES: dict[SchemaType, dict[str, str]] = {"AVRO": {}, "PROTOBUF": {"format": "serialized"}}
# Registries still return deleted schemas by their ids, but deleted versions, to which these refer, only with this.
_WITH_DELETED = {"deleted": "true"}
_MISSING = "the registry has no {}"
_URL_HINT = "set registry.url to the root of Confluent's REST API; for Apicurio, it ends in /apis/ccompat/v7"
_POLL_SECONDS = 0.1
_MAX_WAITS = 3  # after waiting so many times `lag` for schemas that did not appear, unknown ids are damage for a while
_PASSED = Deadline(-math.inf)
_MAX_REMEMBERED = 100_000  # ids that have no usable schema
_LOGIN_STATUS = (401, 403)
_DESCRIPTORS_HINT = "set format.descriptor_set and format.message, which describe the messages without the registry"
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


@dataclass(frozen=True, slots=True)
class Patience:
    """How a client treats ids without a schema, which may be those of a new schema or of damaged records.

    `missing_seconds` is how long the answer counts that there is no schema, and `waits_seconds` how long a wait for a
    schema that did not appear counts. After `requests` answers of that kind within `period_seconds`, the client waits
    for the end of the period before it requests another schema. `failures` is how often, every `failure_seconds`, it
    requests descriptors from a registry that fails for them but returns the source, which is a defect and no outage.
    """

    missing_seconds: float = 30.0
    waits_seconds: float = 600.0
    requests: int = 1_000
    period_seconds: float = 2.0
    failures: int = 5
    failure_seconds: float = 0.5


class Registry:
    """A client of the registry, which connects when it is used. Thread-safe. Pickled as its options.

    A schema that a producer has just registered may be missing in a replica of the registry. One that is missing is
    therefore requested again for a while, but not for each of many damaged records with ids that have never existed.
    Such records may have millions of ids. Each costs a request, as only the registry can tell it from that of a schema.
    Requests are sent one after the other on one connection, and the client waits when there are many.
    """

    def __init__(self, options: RegistryOptions, patience: Patience = Patience()) -> None:
        self._options = options
        self._patience = patience
        self._guard = threading.Lock()
        self._schemas: dict[tuple[int, SchemaType], RegisteredSchema] = {}
        # Why there is no schema with an id, and until when this counts; the oldest are first.
        self._missing: dict[tuple[int, SchemaType], tuple[str, Deadline]] = {}
        # Until when the last answers without a schema count, and the last waits for one.
        self._answers: deque[Deadline] = deque(maxlen=patience.requests)
        self._waits: deque[Deadline] = deque(maxlen=_MAX_WAITS)
        self._connecting = threading.Lock()
        self._connections = KeptConnections(options.timeout, partial(_tls, options.ca_file))
        weakref.finalize(self, self._connections.close)

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
        LoginFailed, and ConfigError if the URL is not that of a registry, or if only its descriptors are not returned.
        """
        what = f"schema {identifier}"
        if identifier > _MAX_ID:
            raise SchemaMissing(_MISSING.format(what))
        key = (identifier, kind)
        with self._guard:
            if key not in self._schemas:
                self._require_not_missing(key)
                try:
                    self._schemas[key] = self._awaited(identifier, kind, what)
                except SchemaMissing as error:
                    self._remember(key, str(error))
                    raise
            return self._schemas[key]

    def _require_not_missing(self, key: tuple[int, SchemaType]) -> None:
        """Raise SchemaMissing if the registry has answered so, not long ago. Wait if there were many such answers."""
        reason, until = self._missing.get(key, ("", _PASSED))
        if not until.passed:
            raise SchemaMissing(reason)
        if len(self._answers) == self._patience.requests:
            pause(self._answers[0].left)

    def _remember(self, key: tuple[int, SchemaType], reason: str) -> None:
        """Store that there is no schema with an id."""
        self._missing.pop(key, None)
        if len(self._missing) == _MAX_REMEMBERED:
            del self._missing[next(iter(self._missing))]
        self._missing[key] = reason, Deadline.after(self._patience.missing_seconds)
        self._answers.append(Deadline.after(self._patience.period_seconds))

    def _awaited(self, identifier: int, kind: SchemaType, what: str) -> RegisteredSchema:
        """Return the schema with an id, which a replica of the registry may not know at once."""
        may_wait = len(self._waits) < _MAX_WAITS or self._waits[0].passed
        deadline = Deadline.after(self._options.lag if may_wait else 0.0)
        while True:
            is_last = deadline.passed  # even if the first answer is late, the schema is requested again
            try:
                return self._registered(self._by_id(identifier, kind, what), kind, what)
            except SchemaMissing:
                if is_last:
                    if may_wait:
                        self._waits.append(Deadline.after(self._patience.waits_seconds))
                    raise
            pause(_POLL_SECONDS)

    def latest(self, subject: str, kind: SchemaType) -> RegisteredSchema:
        """Return the latest schema of a subject. Raises the errors of `schema`."""
        what = f"subject {subject}"
        return self._registered(self._version(subject, "latest", {}, kind, what), kind, what)

    def _registered(self, answer: dict[str, Any], kind: SchemaType, what: str) -> RegisteredSchema:
        _require_type(answer, kind, what)
        references = dict(self._references(answer, kind, set(), what))
        return RegisteredSchema(str(answer["schema"]), tuple(references.values()))

    def _references(
        self, answer: dict[str, Any], kind: SchemaType, known: set[tuple[str, int]], what: str, depth: int = 0
    ) -> Iterator[tuple[tuple[str, int], Reference]]:
        """Yield the subject, the version and the schema of each reference, in the order of dependency."""
        for reference in answer.get("references") or ():
            key = str(reference["subject"]), int(reference["version"])
            if key in known:
                continue
            known.add(key)
            if depth == _MAX_DEPTH or len(known) > _MAX_REFERENCES:
                limits = f"at most {_MAX_REFERENCES} others, {_MAX_DEPTH} levels deep"
                raise InvalidSchema(f"{what} of the registry refers to too many schemas; it may refer to {limits}")
            version = f"version {key[1]} of the subject {key[0]}, to which a schema refers"
            referenced = self._version(key[0], str(key[1]), _WITH_DELETED, kind, version)
            yield from self._references(referenced, kind, known, what, depth + 1)
            yield key, Reference(str(reference["name"]), str(referenced["schema"]))

    def _version(
        self, subject: str, version: str, query: dict[str, str], kind: SchemaType, what: str
    ) -> dict[str, Any]:
        """Return the answer of the registry for a version of a subject.

        For Protobuf, it is the answer for the id of that version. Confluent's registry before 7.4.8, 7.5.7, 7.6.4 and
        7.7.2 returns descriptors only there, and elsewhere the source.
        """
        path = f"/subjects/{_quoted(subject)}/versions/{version}{_query(query)}"
        answer = self._get(path, what)
        if not _QUERIES[kind]:
            return answer
        _require_type(answer, kind, what)
        if not isinstance(answer.get("id"), int):
            raise ConfigError(
                f"the answer for {what} lacks the id of the schema, by which its descriptors are requested",
                where=self._url(path),
                hint=_DESCRIPTORS_HINT,
            )
        # An id belongs to one context, which is part of the name of its subjects: `:.CONTEXT:NAME`.
        context = {"subject": subject} if subject.startswith(":.") else {}
        return self._by_id(answer["id"], kind, what, **context)

    def _by_id(self, identifier: int, kind: SchemaType, what: str, **context: str) -> dict[str, Any]:
        """Return the answer of the registry for an id.

        Apicurio 3.3 answers 500 to every request for the descriptors of some files, which then is no outage. If a
        producer has registered descriptors, the answer without `format=serialized` has them, and is returned. Raises
        ConfigError if this repeats while the registry returns the schema without its descriptors, and InvalidSchema if
        the schema has another type.
        """
        url = self._url(_path_of(identifier, {**_QUERIES[kind], **context}))
        for failures in range(1, self._patience.failures + 1):
            answer = self._answer(url)
            if answer[0] != HTTPStatus.INTERNAL_SERVER_ERROR or not _QUERIES[kind]:
                return self._schema_in(answer, url, what)
            registered = self._get(_path_of(identifier, context), what)
            _require_type(registered, kind, what)
            if _is_base64(registered["schema"]):
                return registered
            if failures < self._patience.failures:
                pause(self._patience.failure_seconds)
        raise ConfigError(
            f"the schema registry returns {what}, but not its descriptors: it answers 500 to each request for them",
            where=url,
            hint=_DESCRIPTORS_HINT,
        )

    def _url(self, path: str) -> str:
        return self._options.url.rstrip("/") + path

    def _get(self, path: str, what: str) -> dict[str, Any]:
        """Return the JSON object at a path, which describes a schema; `what` is what it describes."""
        url = self._url(path)
        return self._schema_in(self._answer(url), url, what)

    def _schema_in(self, received: tuple[int, str, bytes], url: str, what: str) -> dict[str, Any]:
        """Return the JSON object of an answer, which describes a schema.

        Errors name the URL of the request, not one to which it was redirected, which may contain a secret.
        """
        status, reason, body = received
        answer = _parsed(body)
        if status >= HTTPStatus.BAD_REQUEST:
            raise self._error(status, reason, answer, url, what)
        if answer is None:
            raise self._not_reached(url, "the answer is not JSON, or not complete")
        if not _is_schema(answer):
            raise self._not_a_registry(url)
        return answer

    def _answer(self, url: str) -> tuple[int, str, bytes]:
        """Return the HTTP status, the name of the status and the body of an answer, within the time limit."""
        headers = {"Accept": "application/vnd.schemaregistry.v1+json"}
        login = {}
        if self._options.username is not None:
            pair = f"{self._options.username}:{self._options.password}".encode()
            login["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        limit = Deadline.after(self._options.timeout)
        try:
            with self._connecting:
                answer = self._connections.get(url, limit, _MAX_BYTES, headers, login)
        except ssl.SSLCertVerificationError as error:
            raise LoginFailed(
                f"the certificate of the schema registry is not trusted: {error}",
                where=_WHERE,
                hint="set registry.ca_file to the CA certificates of the registry",
            ) from None
        except urllib.error.URLError as error:
            raise self._silent(url, limit, error.reason) from None
        except (ValueError, http.client.InvalidURL):  # of a redirect
            raise self._not_a_registry(url) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._silent(url, limit, error) from None
        if limit.passed:  # the end of the connection may look like that of the headers
            raise self._silent(url, limit, None)
        return answer

    def _error(self, status: int, reason: str, answer: object, url: str, what: str) -> Exception:
        """Return the error that an answer with an HTTP status of 400 or more stands for."""
        code = answer.get("error_code") if isinstance(answer, dict) else None
        if status == HTTPStatus.NOT_FOUND and code in _NOT_FOUND:
            return SchemaMissing(_MISSING.format(what))
        if status in _LOGIN_STATUS:
            return LoginFailed(
                f"the schema registry answers {status} {reason}",
                where=url,
                hint="set registry.username and registry.password to a user who may read schemas",
            )
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _BUSY_STATUS:
            return RegistryUnavailable(f"the schema registry answers {status} {reason}", where=url)
        if status == HTTPStatus.NOT_FOUND and code is None:
            return self._not_reached(
                url, f"{status} {reason} is not an answer of a registry, but of a proxy or another server"
            )
        return self._not_a_registry(url)

    def _silent(self, url: str, limit: Deadline, reason: object) -> RegistryUnavailable:
        late = f"there is no complete answer after {self._options.timeout:g} s (registry.timeout)"
        return RegistryUnavailable(
            f"the schema registry does not answer: {late if limit.passed else reason}", where=url
        )

    def _not_reached(self, url: str, reason: str) -> RegistryUnavailable:
        return RegistryUnavailable(
            f"the schema registry is not reached: {reason}", where=url, hint=f"if this lasts, {_URL_HINT}"
        )

    def _not_a_registry(self, url: str) -> ConfigError:
        return ConfigError(
            "the answer is not that of a schema registry",
            where=url,
            hint=_URL_HINT,
        )


def _path_of(identifier: int, parameters: Mapping[str, str]) -> str:
    return f"/schemas/ids/{identifier}{_query(parameters)}"


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="", errors="replace")


def _query(parameters: Mapping[str, str]) -> str:
    """Return parameters as the end of a URL."""
    return "".join(f"{'&' if n else '?'}{name}={_quoted(text)}" for n, (name, text) in enumerate(parameters.items()))


def _require_type(answer: dict[str, Any], kind: SchemaType, what: str) -> None:
    """Raise InvalidSchema unless the schema of an answer is of this type."""
    actual = answer.get("schemaType", "AVRO")
    if actual != kind:
        raise InvalidSchema(f"{what} of the registry has the type {actual}, not {kind}")


def _is_base64(text: str) -> bool:
    """Return whether a text is Base64, as descriptors are, and not the source of a .proto file that has a message."""
    try:
        return bool(base64.b64decode("".join(text.split()), validate=True))
    except ValueError:
        return False


def _tls(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # including ssl.SSLError
        raise ConfigError(f"cannot be used: {error}", where="registry.ca_file") from None


def _parsed(body: bytes) -> object:
    """Return the JSON value of an answer, None if it is not JSON."""
    try:
        return json.loads(body)
    except ValueError:
        return None
    except RecursionError:  # JSON, but no schema
        return []


def _is_schema(answer: object) -> TypeGuard[dict[str, Any]]:
    """Return whether an answer describes a schema: whether all that is read of it has the right type."""
    if not isinstance(answer, dict) or not isinstance(answer.get("schema"), str):
        return False
    references = answer.get("references") or []
    return isinstance(references, list) and all(
        isinstance(reference, dict)
        and {"name", "subject"} <= {*reference}
        and str(reference.get("version")).isdecimal()
        for reference in references
    )
