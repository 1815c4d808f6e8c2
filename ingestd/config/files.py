"""Reads configuration files into one document and resolves references to the environment and to files.

Invariant: references are resolved after parsing, so that a value cannot inject YAML. The file and line of every key are
known. No error contains a value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import yaml

from ingestd.errors import ConfigError, ConfigFaults

_REFERENCE = re.compile(r"\$\{(ENV|FILE):([^}:]+)(?::-([^}]*))?\}")
_BROKEN_REFERENCE = re.compile(r"\$\{(?:ENV|FILE)\b")
_REFERENCE_HINT = "write ${ENV:NAME}, ${ENV:NAME:-default} or ${FILE:/path}"
_LARGEST_VALUE = 16 << 20  # of a file that a reference names, in bytes; some files, such as /dev/zero, never end
# The parser's messages quote the file, which may contain secrets. The names of YAML tokens are safe to show.
_QUOTED = re.compile(r"""'[^']*'|"[^"]*\"""")
_TOKEN = re.compile(r"'(<[a-z ,-]+>|[\[\]{}:,?-])'")
_KEYS = re.compile(r"[\w.\[\]-]*")
# Raised by PyYAML's constructors for text that does not fit its tag.
_NOT_CONSTRUCTIBLE = (ValueError, AttributeError, KeyError, IndexError, yaml.constructor.ConstructorError)
_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


@dataclass(frozen=True, slots=True)
class Settings:
    """The merged content of the files. The path of a key has the form `mappings[0].commit.rows`.

    `places` maps each path to "FILE:LINE". `references` maps the path of each value that contained references to them,
    such as "ENV:NAME" or "FILE:/path".
    """

    values: Mapping[str, Any] = field(repr=False)
    places: Mapping[str, str] = field(default_factory=dict)
    references: Mapping[str, str] = field(default_factory=dict)

    def located(self, fault: ConfigError) -> ConfigError:
        """Return the fault with the file and line of its key, or of the nearest enclosing key."""
        path = fault.where
        while path and path not in self.places:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        place = self.places.get(path, "")
        return _placed(fault, place)

    def line_order(self, fault: ConfigError) -> int:
        """Return a sort key that orders located faults by file and line."""
        order = {place: number for number, place in enumerate(self.places.values())}
        return order.get(fault.where.partition(": ")[0], -1)


def read_document(files: Sequence[Path], directory: Path | None) -> Settings:
    """Read and merge all files. Later files override earlier ones key by key; lists of mappings are concatenated.

    `directory` contains one mapping per `*.yaml` or `*.yml` file. Raises ConfigFaults with file and line.
    """
    if not files and directory is None:
        raise ConfigError("no configuration was given", hint="use --config FILE or --config-dir DIRECTORY")
    faults: list[ConfigError] = []
    document = _Section({}, ", ".join(str(file) for file in files) or str(directory))
    for file in files:
        document = _merged(document, _parse(file, faults))
    mapping_files = _mapping_files(directory)
    for file in mapping_files:
        mapping = _parse(file, faults)
        document = _merged(document, _Section({"mappings": _Items([mapping], mapping.place)}, str(file)))
    if directory is not None and not mapping_files and "mappings" not in document.entries:
        faults.append(
            ConfigError(
                "contains no *.yaml or *.yml file", where=str(directory), hint="add a file with one mapping to it"
            )
        )
    if faults:
        raise ConfigFaults(faults)
    parts = list(_walk("", document))
    return Settings(
        values=_plain(document),
        places={path: part.place for path, part in parts},
        references={path: part.references for path, part in parts if isinstance(part, _Scalar) and part.references},
    )


def _placed(fault: ConfigError, place: str) -> ConfigError:
    """Return the fault with its location. Only the first part of a malformed key such as `password:secret` is shown."""
    path = _KEYS.match(fault.where)[0]  # type: ignore[index]
    hint = fault.hint
    if path != fault.where:
        hint = "write KEY: VALUE with a space after the colon" if fault.where[len(path)] in ":=" else hint
        path += "…"
    return ConfigError(fault.what, where=": ".join(part for part in (place, path) if part), hint=hint)


@dataclass(frozen=True, slots=True)
class _Scalar:
    value: Any
    place: str
    references: str = ""


@dataclass(frozen=True, slots=True)
class _Items:
    parts: list[_Part]
    place: str


@dataclass(frozen=True, slots=True)
class _Section:
    entries: dict[str, _Part]
    place: str


_Part = _Scalar | _Items | _Section


def _walk(path: str, part: _Part) -> Iterator[tuple[str, _Part]]:
    yield path, part
    if isinstance(part, _Items):
        for index, item in enumerate(part.parts):
            yield from _walk(f"{path}[{index}]", item)
    elif isinstance(part, _Section):
        for key, entry in part.entries.items():
            yield from _walk(f"{path}.{key}" if path else key, entry)


def _plain(part: _Part) -> Any:
    if isinstance(part, _Section):
        return {key: _plain(entry) for key, entry in part.entries.items()}
    return [_plain(item) for item in part.parts] if isinstance(part, _Items) else part.value


def _merged(first: _Section, second: _Section) -> _Section:
    entries = dict(first.entries)
    for key, new in second.entries.items():
        old = entries.get(key)
        if isinstance(old, _Section) and isinstance(new, _Section):
            entries[key] = _merged(old, new)
        elif key == "mappings" and isinstance(old, _Items) and isinstance(new, _Items):
            entries[key] = _Items(old.parts + new.parts, old.place)
        else:
            entries[key] = new
    return _Section(entries, first.place)


def _mapping_files(directory: Path | None) -> list[Path]:
    if directory is None:
        return []
    if not directory.is_dir():
        raise ConfigError("is not a directory", where=str(directory), hint="--config-dir requires a directory")
    if not os.access(directory, os.R_OK | os.X_OK):
        raise ConfigError("cannot be read: Permission denied", where=str(directory))
    return sorted([*directory.glob("*.yaml"), *directory.glob("*.yml")])


def _parse(file: Path, faults: list[ConfigError]) -> _Section:
    """Return the tree of a file. If it cannot be parsed, add the reason to `faults` and return an empty tree."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        faults.append(ConfigError(f"cannot be read: {error.strerror}", where=str(file)))
        return _Section({}, str(file))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        faults.append(ConfigError("is not UTF-8 text", where=f"{file}:{line}"))
        return _Section({}, str(file))
    try:
        reader = _Reader(file, faults, text)
        root = reader.get_single_node()
        return reader.tree(root) if root is not None else _Section({}, str(file))
    except yaml.YAMLError as error:
        faults.append(_syntax_fault(file, text, error))
        return _Section({}, str(file))
    except RecursionError:
        faults.append(ConfigError("is not a configuration: its values are nested too deeply", where=str(file)))
        return _Section({}, str(file))


def _syntax_fault(file: Path, text: str, error: yaml.YAMLError) -> ConfigError:
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return ConfigError(
            f"is not valid YAML: the character U+{int(error.character):04X} is not allowed", where=f"{file}:{line}"
        )
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    words = getattr(error, "problem", None) or "it cannot be parsed"
    words = _QUOTED.sub(lambda quoted: quoted[0] if _TOKEN.fullmatch(quoted[0]) else "'…'", words)
    place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
    return ConfigError(f"is not valid YAML: {words}", where=place)


def _source(reference: Sequence[str]) -> str:
    """Return where the value of a reference comes from, such as `ENV:NAME`. Its default may be a secret."""
    kind, name, _ = reference
    return f"{kind}:{name}" if kind == "FILE" or name in os.environ else f"the default of {kind}:{name}"


class _Reader(yaml.SafeLoader):
    """Converts the YAML nodes of one file to a tree of parts with file and line. Faults are collected, not raised."""

    def __init__(self, file: Path, faults: list[ConfigError], text: str) -> None:
        super().__init__(text)
        self._file = file
        self._faults = faults
        self._open: set[int] = set()

    def tree(self, root: yaml.Node) -> _Section:
        """Return the tree of the whole file."""
        if isinstance(root, yaml.MappingNode):
            return self._section(root, "", self._place(root))
        if not (isinstance(root, yaml.ScalarNode) and root.tag == "tag:yaml.org,2002:null"):
            self._faults.append(ConfigError("must contain keys and values at the top level", where=self._place(root)))
        return _Section({}, str(self._file))

    def _place(self, node: yaml.Node) -> str:
        return f"{self._file}:{node.start_mark.line + 1}"

    def _fault(self, what: str, node: yaml.Node, path: str, hint: str = "") -> None:
        self._faults.append(_placed(ConfigError(what, where=path, hint=hint), self._place(node)))

    def _part(self, node: yaml.Node, path: str, place: str) -> _Part:
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path, place)
        if node.tag not in _PLAIN_TAGS or id(node) in self._open:
            self._fault("is not plain YAML: it has a custom tag or contains itself", node, path)
            return _Scalar(None, place)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._section(node, path, place)
            items = [self._part(item, f"{path}[{i}]", self._place(item)) for i, item in enumerate(node.value)]
            return _Items(items, place)
        finally:
            self._open.discard(id(node))

    def _section(self, node: yaml.MappingNode, path: str, place: str) -> _Section:
        self._refuse_repeated_keys(node, path)
        self.flatten_mapping(node)
        entries = {}
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                own = f"{path}.{key.value}" if path else key.value
                entries[key.value] = self._part(value, own, self._place(key))
            else:
                self._fault("a key must be text", key, path)
        return _Section(entries, place)

    def _refuse_repeated_keys(self, node: yaml.MappingNode, path: str) -> None:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in lines:
                    own = f"{path}.{key.value}" if path else key.value
                    self._fault(
                        "is a duplicate key", key, own, f"remove this one or the one on line {lines[key.value]}"
                    )
                lines[key.value] = key.start_mark.line + 1

    def _scalar(self, node: yaml.ScalarNode, path: str, place: str) -> _Scalar:
        try:
            value = self.construct_object(node)
        except _NOT_CONSTRUCTIBLE:
            kind = node.tag.removeprefix("tag:yaml.org,2002:")
            what = (
                f"is not a valid {kind}"
                if kind in ("int", "float", "bool", "timestamp", "binary")
                else "has an unknown YAML tag"
            )
            self._fault(what, node, path, "quote the value if it is text")
            return _Scalar(None, place)
        if not isinstance(value, str) or "${" not in value:
            return _Scalar(value, place)
        if _BROKEN_REFERENCE.search(_REFERENCE.sub("", value)):
            self._fault("contains a malformed reference", node, path, _REFERENCE_HINT)
        filled = _REFERENCE.sub(lambda match: self._looked_up(match, node, path), value)
        return _Scalar(filled, place, ", ".join(map(_source, _REFERENCE.findall(value))))

    def _looked_up(self, match: re.Match[str], node: yaml.Node, path: str) -> str:
        kind, name, default = match.groups()
        if kind == "ENV":
            value = os.environ.get(name, default)
            if value is None:
                hint = f"set it, or write a default: ${{ENV:{name}:-default}}"
                self._fault(f"the environment variable {name} is not set", node, path, hint)
            return value or ""
        try:
            with open(name, "rb") as file:
                content = file.read(_LARGEST_VALUE + 1)
            if len(content) <= _LARGEST_VALUE:
                return StringIO(content.decode(), newline=None).read().strip()
            self._fault(f"{name} is longer than {_LARGEST_VALUE >> 20} MiB", node, path)
        except OSError as error:
            self._fault(f"{name} cannot be read: {error.strerror}", node, path)
        except ValueError:  # not UTF-8, or a NUL in the name
            self._fault(f"{name} is not UTF-8 text", node, path)
        return ""
