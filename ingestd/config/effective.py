"""The effective value of every key, and where it comes from: a file and line, a variable, or a default.

Invariant: no secret is shown. Text from a reference is masked, as is any value of a section that may contain secrets
(`validation.may_be_secret`) unless the name or the form of the value shows that it is no secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ingestd.config.document import DefaultOptions, validate
from ingestd.config.files import Settings, read_document
from ingestd.config.http import HttpOptions
from ingestd.config.validation import key_types, may_be_secret, sections
from ingestd.hive.security import Protection
from ingestd.ingest.options import MappingOptions, StartOptions

MASK = "***"
DEFAULT = "default"
# In sections that may contain secrets: names of secrets, names of other texts, and texts that are sizes or durations.
_SECRET_NAME = re.compile(r"pass|pwd|secret|token|credential|jaas|oauth|pem|key", re.IGNORECASE)
_HARMLESS_NAME = re.compile(
    r"(.+\.)?(endpoint|region|encryption|ca_file|bootstrap\.servers|client\.(id|rack)|security\.protocol|sasl\.mechanisms?|sasl\.kerberos\.(keytab|principal|service\.name)"
    r"|ssl\.(ca|certificate|crl)\.location|spark\.(app\.name|driver\.(host|bindAddress)|serializer))"
    r"|registry\.(url|username)"
    r"|storage\.hdfs\.properties\.((dfs|fs\.viewfs)\..+|fs\.(defaultFS|permissions\.umask-mode)|hadoop\.security\.authentication)"
)
_HARMLESS_TEXT = re.compile(r"true|false|\d+(\.\d+)?\s?[a-z]{0,3}", re.IGNORECASE)
# The keys from which a mapping inherits values that it does not set itself.
_DEFAULTS = "|".join(field.name for field in fields(DefaultOptions))
_INHERITED = {
    re.compile(rf"^mappings\[\d+\]\.({_DEFAULTS})\."): r"defaults.\1.",
    re.compile(r"^mappings\[\d+\]\.kafka\."): "kafka.",
}

Value = str | int | float | bool | list[str] | None


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """The value of one key, or MASK, and its source: `FILE:LINE`, a variable or file that it refers to, or `default`.

    `key` is a path such as `mappings[0].commit.rows`.
    """

    key: str
    value: Value
    source: str


def effective_values(files: Sequence[Path], directory: Path | None) -> list[EffectiveValue]:
    """Return every key of the configuration in the order of its definition. Raises ConfigFaults."""
    settings = read_document(files, directory)
    return [_effective(path, value, settings) for path, value in _leaves(validate(settings), "")]


def _leaves(options: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of every key of an options dataclass that is not a section."""
    for name, hint in key_types(type(options)).items():
        own, value = f"{path}{name}", getattr(options, name)
        if isinstance(options, MappingOptions) and name == "group":
            value = options.consumer_group
        if isinstance(options, HttpOptions) and name == "listen":
            value = str(options.address or "off")
        if not sections(hint):
            if isinstance(value, Mapping):
                yield from ((f"{own}.{key}", inner) for key, inner in value.items())
            else:
                yield own, value
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                yield from _leaves(item, f"{own}[{index}].")
        elif value is not None:
            yield from _leaves(value, f"{own}.")


def _effective(path: str, value: Any, settings: Settings) -> EffectiveValue:
    given = path
    for pattern, common in _INHERITED.items():
        given = given if given in settings.places else pattern.sub(common, given)
    place = settings.places.get(given, "")
    references = ", ".join(names for key, names in settings.references.items() if _is_part(key, given))
    source = ", ".join(part for part in (place, references) if part) or DEFAULT
    plain = _plain(value)
    return EffectiveValue(path, plain if _is_harmless(path, plain, references) else MASK, source)


def _is_part(key: str, path: str) -> bool:
    return key == path or key.startswith((f"{path}[", f"{path}."))


def _is_harmless(path: str, value: Value, references: str) -> bool:
    if not isinstance(value, (str, list)) or (isinstance(value, str) and _HARMLESS_TEXT.fullmatch(value)):
        return not (may_be_secret(path) and _SECRET_NAME.search(path))
    if may_be_secret(path):
        return bool(_HARMLESS_NAME.fullmatch(path)) and not references
    return not references


def _plain(value: Any) -> Value:
    """Return the value as JSON can represent it, in a form that the configuration accepts."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, StartOptions):
        moment = datetime.fromtimestamp(value.timestamp_ms / 1000, timezone.utc)
        return value.at if value.at != "timestamp" else f"{{timestamp: {moment.isoformat()}}}"
    if isinstance(value, frozenset):
        return sorted(element.label if isinstance(element, Protection) else str(element) for element in value)
    if type(value) is tuple:
        return [str(element) for element in value]
    return str(value)
