"""Validates configuration values against options dataclasses and writes the error messages.

Each key is defined once, as a field of a plain dataclass in the package that uses it, with a type of `ingestd.keys`.
This module derives pydantic models from those dataclasses, and from them the JSON Schema of a file.

Invariant: no key is ignored. An unknown key is refused, and the error contains its path and the nearest known name. A
value that may be secret never appears in an error: a value of `kafka`, `spark.conf`, `metastore.plain`, `registry`,
`storage.s3` or `storage.hdfs.properties` of any type, a list or section in place of a single value, or a resolved
reference.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import date
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    PlainValidator,
    Tag,
    ValidationError,
    WithJsonSchema,
    create_model,
)
from pydantic import Field as KeyField

from ingestd.config.files import Settings
from ingestd.errors import ConfigError, ConfigFaults
from ingestd.keys import NOT_A_KEY, Check, Doc, Reads, Shorthand, UnshownValueError

T = TypeVar("T")

_SECRET = re.compile(
    r"(mappings\[\d+\]\.)?kafka\b|spark\.conf\b|metastore\.plain\b|registry\b|storage\.s3\b|storage\.hdfs\.properties\b"
)
# What pydantic adds to the location of a fault: [key] if a key of a mapping is invalid, and not its value; the tag of
# the type before the keys of a section that is one of several types.
_TAG = "[type {}]"
_NO_KEY = re.compile(r"\[key\]|\[type .*\]", re.DOTALL)
_EXPECTED_TAG = re.compile(r"\[type (\w+)\]")
_SENTENCES = {
    "missing": "is missing",
    "model_type": "must be a section with keys and values",
    "union_tag_not_found": "must be a section with keys and values",
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
        return _construct(options, model(options).model_validate(settings.values))  # type: ignore[arg-type]
    except ValidationError as error:
        faults = [_fault(fault, options, settings) for fault in error.errors()]
    raise config_faults(faults, settings)


@cache
def model(options: type) -> type[BaseModel]:
    """Return a pydantic model that checks the keys of an options dataclass.

    `validate` constructs the options from the keys that are set. The model contains the defaults for its JSON Schema.
    """
    defaults = {field.name: _default(field) for field in fields(options)}
    keys_of_model = {name: (_pydantic_type(hint), defaults[name]) for name, hint in key_types(options).items()}
    return create_model(options.__name__, __base__=_Keys, **keys_of_model)  # type: ignore[call-overload,no-any-return]


def config_faults(faults: list[ConfigError], settings: Settings) -> ConfigFaults:
    """Return an error that contains each fault once, with its file and line, in the order of the files and lines."""
    located = {str(fault): fault for fault in map(settings.located, faults)}
    return ConfigFaults(sorted(located.values(), key=settings.line_order))


def may_be_secret(path: str) -> bool:
    """Return whether the value of a key, such as `mappings[0].kafka.client.id`, may be a secret."""
    return bool(_SECRET.match(path))


def keys(options: type, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the name of every key, such as `mappings.commit.rows` and `rows`, including sections."""
    for name, hint in key_types(options).items():
        yield f"{path}{name}", name
        for part in sections(hint):
            yield from keys(part, f"{path}{name}.")


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


def key_types(options: type) -> dict[str, Any]:
    """Return the annotated type of each key by name."""
    hints = get_type_hints(options, include_extras=True)
    return {field.name: hints[field.name] for field in fields(options) if field.metadata != NOT_A_KEY}


def _default(field: Field[Any]) -> Any:
    """Return the default for pydantic. Its JSON Schema contains only defaults that a user could write."""
    if field.default_factory is not MISSING:
        return KeyField(default_factory=field.default_factory)
    if field.default is MISSING:
        return ...
    is_writable = isinstance(field.default, (str, int, float)) and field.default != ""
    return field.default if is_writable else KeyField(default_factory=lambda: field.default)


def _construct(options: type[T], model: BaseModel) -> T:
    """Construct the options from the keys that are set. A ConfigError of the dataclass becomes a validation error.

    Its `where` is a path of the configuration, or empty or `.KEY` for the section itself or one of its keys.
    """
    try:
        return options(**{name: getattr(model, name) for name in model.model_fields_set})
    except ConfigError as error:
        raise _Fault(error) from None


class _Fault(ValueError):
    """Carries a ConfigError through pydantic."""

    def __init__(self, fault: ConfigError) -> None:
        super().__init__(fault.what)
        self.fault = fault

    def inside(self, path: str) -> ConfigError:
        """Return the error. A location without a section is inside the section at `path`, which may be in a list."""
        if self.fault.where and not self.fault.where.startswith("."):
            return self.fault
        return ConfigError(self.fault.what, where=f"{path}{self.fault.where}", hint=self.fault.hint)


def _pydantic_type(hint: Any) -> Any:
    """Return the type for pydantic: options become models, and metadata of `ingestd.keys` becomes validators."""
    if _is_options(hint):
        return Annotated[model(hint), AfterValidator(partial(_construct, hint))]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        result = _pydantic_type(arguments[0]) if not _reads(hint) else Any
        for mark in hint.__metadata__:
            for part in _marks_of_pydantic(mark):
                result = Annotated[result, part]
        return result
    if origin in (Union, UnionType):
        if len(sections(hint)) > 1:
            return _tagged_union(sections(hint))
        return Union[tuple(map(_pydantic_type, arguments))]  # noqa: UP007 - the members are computed
    if origin in (tuple, frozenset, Mapping):
        return {Mapping: dict}.get(origin, origin)[tuple(map(_pydantic_type, arguments))]
    return hint


def _tagged_union(members: tuple[type, ...]) -> Any:
    """Return the type for pydantic of a section that is one of several dataclasses, by its key `type`.

    The field `type` of each dataclass is a Literal with one name. Without the key, the section is the first dataclass.
    """
    names = [type_name(member) for member in members]

    def tag(value: Any) -> str | None:
        return _TAG.format(value.get("type", names[0])) if isinstance(value, dict) else None

    tagged = (
        Annotated[_pydantic_type(member), Tag(_TAG.format(name))] for member, name in zip(members, names, strict=True)
    )
    return Annotated[Union[tuple(tagged)], Discriminator(tag), _AnyOf()]  # noqa: UP007 - the members are computed


def type_name(member: type) -> str:
    """Return the value of the key `type` that chooses this dataclass."""
    literal, _doc = get_args(key_types(member)["type"])
    return str(get_args(literal)[0])


@dataclass(frozen=True, slots=True)
class _AnyOf:
    """Makes the JSON Schema of a tagged union exact: only the first alternative may omit the key `type`.

    A reference may be the value of `type`, so several alternatives may be valid. Pydantic calls the method.
    """

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Callable[[Any], Any]) -> Any:
        first, *others = handler(core_schema)["oneOf"]
        return {"anyOf": [first, *({**other, "required": ["type"]} for other in others)]}


def _marks_of_pydantic(mark: Doc | Reads | Check | Shorthand) -> tuple[Any, ...]:
    if isinstance(mark, Doc):
        return (KeyField(description=mark.text),)
    if isinstance(mark, Shorthand):
        return BeforeValidator(lambda given: {} if given is mark.value else given), _OrValue(mark.value)
    if isinstance(mark, Reads):
        return PlainValidator(mark.read), WithJsonSchema(dict(mark.schema))
    return AfterValidator(mark.check), _Keywords(mark.schema)


@dataclass(frozen=True, slots=True, eq=False)
class _Keywords:
    """Adds keywords to the JSON Schema of a value; pydantic calls the method."""

    schema: Mapping[str, object]

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Callable[[Any], Any]) -> Any:
        return {**handler(core_schema), **self.schema}


@dataclass(frozen=True, slots=True)
class _OrValue:
    """Adds an alternative to the JSON Schema of a section; pydantic calls the method."""

    value: bool

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Callable[[Any], Any]) -> Any:
        return {"anyOf": [handler(core_schema), {"const": self.value}]}


def _reads(hint: Any) -> bool:
    return any(isinstance(mark, Reads) for mark in getattr(hint, "__metadata__", ()))


def sections(hint: Any) -> tuple[type, ...]:
    """Return the options dataclasses of a key that is a section or a list of sections; () for other keys.

    There are several if the key `type` of the section determines its other keys.
    """
    if _is_options(hint):
        return (hint,)
    return () if _reads(hint) else tuple(part for argument in get_args(hint) for part in sections(argument))


def _is_options(hint: Any) -> bool:
    return isinstance(hint, type) and is_dataclass(hint)


def _fault(fault: Any, options: type, settings: Settings) -> ConfigError:
    path, given = _path(fault["loc"]), fault["input"]
    if fault["type"] == "extra_forbidden":
        return _unknown(options, fault["loc"], path)
    error = fault.get("ctx", {}).get("error")
    if isinstance(error, _Fault):
        return error.inside(path)
    if fault["type"] == "union_tag_invalid":
        path, given = f"{path}.type", given["type"]
    if given is None:
        return ConfigError("has no value", where=path, hint="set a value or remove the key")
    what = _sentence(fault)
    single = isinstance(given, (str, int, float, date))
    is_shown = not (isinstance(error, UnshownValueError) or may_be_secret(path) or path in settings.references)
    if fault["type"] != "missing" and single and is_shown:
        what = f"{what}, not {given if isinstance(given, date) else repr(given)}"
    return ConfigError(what, where=path)


def _sentence(fault: Any) -> str:
    """Return what a fault's value must be, without the value."""
    context = fault.get("ctx", {})
    if fault["type"] == "union_tag_invalid":
        return f"must be one of {', '.join(_EXPECTED_TAG.findall(context['expected_tags']))}"
    if fault["type"] == "literal_error":
        return f"must be {context['expected']}"
    return str(context.get("error", _SENTENCES.get(fault["type"], "is not valid here")))


def _path(location: tuple[str | int, ...]) -> str:
    """Return the path of a key, such as `mappings[0].commit.rows`."""
    parts = (part for part in location if not _NO_KEY.fullmatch(str(part)))
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")


def _unknown(options: type, location: tuple[str | int, ...], path: str) -> ConfigError:
    """Return the error about an unknown key, with what to use instead, the most similar known key or all known keys."""
    at: tuple[type, ...] = (options,)
    for part in location[:-1]:
        if _NO_KEY.fullmatch(str(part)):
            at = tuple(candidate for candidate in at if _TAG.format(type_name(candidate)) == part)
        elif isinstance(part, str):
            at = sections(key_types(at[0])[part]) or at
    name = str(location[-1])
    if name in (instead := getattr(at[0], "instead_of", {})):
        return ConfigError("unknown key", where=path, hint=instead[name])
    known = list(key_types(at[0]))
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    guess = f"did you mean {close[0]}?" if close else f"the known keys are {', '.join(known)}"
    return ConfigError(f"unknown key, {guess}", where=path)
