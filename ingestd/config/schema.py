"""The JSON Schema of a configuration file, with which editors complete, explain and check keys.

Invariant: every file that `ingestd check` accepts is valid. The schema accepts some files that `check` refuses, because
rules that involve several keys, and the names of librdkafka's properties, are not expressed in it.
"""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from ingestd.config.document import Document
from ingestd.config.validation import model

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE = "Reference"
_REFERENCE_SCHEMA = {
    "type": "string",
    "pattern": r"\$\{(ENV|FILE):[^}]+\}",
    "description": "A reference: ${ENV:NAME}, ${ENV:NAME:-default} or ${FILE:/path}.",
}
# Keywords that describe a key and stay outside the alternative between its value and a reference.
_ANNOTATIONS = ("description", "default")


def json_schema(options: type) -> dict[str, Any]:
    """Return the schema (draft 2020-12) of a file that contains `options`: a Document, or a single MappingOptions.

    No section of a Document is required, because another file may contain it: `--config` can be repeated.
    """
    schema = _accepting_references(model(options).model_json_schema(schema_generator=_Generator))
    if options is Document:
        del schema["required"]
    schema["$defs"][_REFERENCE] = _REFERENCE_SCHEMA
    return {"$schema": _DIALECT, **schema}


class _Generator(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return False, because a title would only repeat the key."""
        return False


def _accepting_references(part: Any) -> Any:
    """Return the schema with a reference as an alternative to each value that is not any text."""
    if isinstance(part, list):
        return [_accepting_references(element) for element in part]
    if not isinstance(part, dict):
        return part
    if not _is_value(part):
        return {key: inner if key in ("default", "required") else _accepting(key, inner) for key, inner in part.items()}
    annotations = {key: part[key] for key in _ANNOTATIONS if key in part}
    value = {key: inner for key, inner in part.items() if key not in _ANNOTATIONS}
    return {"anyOf": [value, {"$ref": f"#/$defs/{_REFERENCE}"}], **annotations}


def _accepting(keyword: str, part: Any) -> Any:
    if keyword in ("properties", "$defs"):  # their keys are names, even if they are those of keywords, such as pattern
        return {name: _accepting_references(inner) for name, inner in part.items()}
    return _accepting_references(part)


def _is_value(part: dict[str, Any]) -> bool:
    """Return whether a schema is that of a single value that not every text satisfies."""
    if "enum" in part or "const" in part:
        return True
    return "pattern" in part or part.get("type") in ("number", "integer", "boolean")
