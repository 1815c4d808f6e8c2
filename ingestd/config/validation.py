"""Validates configuration values against options dataclasses and writes the error messages.

Each key is defined once, as a field of a plain dataclass in the package that uses it, with a type of `ingestd.keys`.
This module derives pydantic models from those dataclasses.

Invariant: no key is ignored. An unknown key is refused, and the error contains its path and the nearest known name. A
value that may be secret never appears in an error: a value of `kafka`, `spark.conf` or `metastore.plain` of any type, a
list or section in place of a single value, or a resolved reference.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import date
from functools import partial
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, PlainValidator, ValidationError, create_model

from ingestd.config.files import Settings
from ingestd.errors import ConfigError, ConfigFaults
from ingestd.keys import NOT_A_KEY, Check, Reads

T = TypeVar("T")

_SECRET = re.compile(r"(mappings\[\d+\]\.)?kafka\b|spark\.conf\b|metastore\.plain\b")
_SENTENCES = {
    "missing": "is missing",
    "model_type": "must be a section with keys and values",
    "dict_type": "must be a section with keys and values",
    "tuple_type": "must be a list",
    "frozen_set_type": "must be a list",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "path_type": "must be a file path",
}


def validate(options: type[T], settings: Settings) -> T:
    """Return the options that the files define. Raises ConfigFaults with the file, line and path of every fault."""
    try:
        return _construct(options, _model(options).model_validate(settings.values))
    except ValidationError as error:
        found = [_fault(fault, options, settings) for fault in error.errors()]
    raise config_faults(found, settings)


def config_faults(found: list[ConfigError], settings: Settings) -> ConfigFaults:
    """Return an error that contains each fault once, with its file and line, in the order of the files and lines."""
    located = {str(fault): fault for fault in map(settings.located, found)}
    return ConfigFaults(sorted(located.values(), key=settings.line_order))


def keys(options: type, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the name of every key, such as `mappings.commit.rows` and `rows`, including sections."""
    for name, hint in _key_types(options).items():
        yield f"{path}{name}", name
        section = _section(hint)
        if section is not None:
            yield from keys(section, f"{path}{name}.")


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


def _model(options: type) -> type[BaseModel]:
    """Return a pydantic model that checks the keys of an options dataclass. `_construct` fills in the defaults."""
    defaults = {field.name: ... if _is_required(field) else None for field in fields(options)}
    keys_of_model = {name: (_pydantic_type(hint), defaults[name]) for name, hint in _key_types(options).items()}
    return create_model(options.__name__, __base__=_Keys, **keys_of_model)  # type: ignore[call-overload,no-any-return]


def _key_types(options: type) -> dict[str, Any]:
    """Return the annotated type of each key by name."""
    hints = get_type_hints(options, include_extras=True)
    return {field.name: hints[field.name] for field in fields(options) if field.metadata != NOT_A_KEY}


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _construct(options: type[T], model: BaseModel) -> T:
    """Construct the options from the keys that are set. A ConfigError of the dataclass becomes a validation error."""
    try:
        return options(**{name: getattr(model, name) for name in model.model_fields_set})
    except ConfigError as error:
        raise _Fault(error) from None


class _Fault(ValueError):
    """Carries a ConfigError through pydantic."""

    def __init__(self, fault: ConfigError) -> None:
        super().__init__(fault.what)
        self.fault = fault


def _pydantic_type(hint: Any) -> Any:
    """Return the type for pydantic: options become models, and metadata of `ingestd.keys` becomes validators."""
    if _is_options(hint):
        return Annotated[_model(hint), AfterValidator(partial(_construct, hint))]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        result = _pydantic_type(arguments[0]) if not _reads(hint) else Any
        for mark in hint.__metadata__:
            result = Annotated[result, _validator(mark)]
        return result
    if origin in (Union, UnionType):
        return Union[tuple(map(_pydantic_type, arguments))]  # noqa: UP007 - the members are computed
    if origin in (tuple, frozenset, Mapping):
        return {Mapping: dict}.get(origin, origin)[tuple(map(_pydantic_type, arguments))]
    return hint


def _validator(mark: Reads | Check) -> PlainValidator | AfterValidator:
    return PlainValidator(mark.read) if isinstance(mark, Reads) else AfterValidator(mark.check)


def _reads(hint: Any) -> bool:
    return any(isinstance(mark, Reads) for mark in getattr(hint, "__metadata__", ()))


def _section(hint: Any) -> type | None:
    """Return the options dataclass of a key that is a section or a list of sections; None for other keys."""
    if _is_options(hint):
        return hint  # type: ignore[no-any-return]
    if _reads(hint):
        return None
    return next(filter(None, map(_section, get_args(hint))), None)


def _is_options(hint: Any) -> bool:
    return isinstance(hint, type) and is_dataclass(hint)


def _fault(fault: Any, options: type, settings: Settings) -> ConfigError:
    path = _path(fault["loc"])
    if fault["type"] == "extra_forbidden":
        return ConfigError(_unknown(options, fault["loc"]), where=path)
    error = fault.get("ctx", {}).get("error")
    if isinstance(error, _Fault):
        return error.fault
    given = fault["input"]
    if given is None:
        return ConfigError("has no value", where=path, hint="set a value or remove the key")
    what = _SENTENCES.get(fault["type"], "is not valid here")
    if fault["type"] == "literal_error":
        what = f"must be {fault['ctx']['expected']}"
    elif error is not None:
        what = str(error)
    single = isinstance(given, (str, int, float, date))
    if fault["type"] != "missing" and single and not _SECRET.match(path) and path not in settings.references:
        what = f"{what}, not {given if isinstance(given, date) else repr(given)}"
    return ConfigError(what, where=path)


def _path(location: tuple[str | int, ...]) -> str:
    """Return the path of a key, such as `mappings[0].commit.rows`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")


def _unknown(options: type, location: tuple[str | int, ...]) -> str:
    """Return the message about an unknown key. It contains the most similar known key, or else all known keys."""
    at = options
    for part in location[:-1]:
        at = (_section(_key_types(at)[part]) if isinstance(part, str) else None) or at
    known = list(_key_types(at))
    close = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
    return "unknown key, " + (f"did you mean {close[0]}?" if close else f"the known keys are {', '.join(known)}")
