"""Reads the configuration files of Hadoop clients, core-site.xml and hdfs-site.xml.

Invariant: properties are read as Hadoop's `Configuration` does; what this module cannot interpret raises ConfigError.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from xml.etree import ElementTree

from ingestd.errors import ConfigError
from ingestd.storage.options import StorageOptions

_FILES = ("core-site.xml", "hdfs-site.xml")
_VARIABLE = re.compile(r"\$\{([^}$\s]+)\}")
_MAX_SUBSTITUTIONS = 20  # Configuration.MAX_SUBST


def with_properties(options: StorageOptions) -> StorageOptions:
    """Return options that contain the properties, for a process on a machine without these files.

    Raises ConfigError as `read_properties` does.
    """
    return replace(options, properties=properties(options))


def properties(options: StorageOptions) -> Mapping[str, str]:
    """Return the Hadoop properties of `options`. Raises ConfigError as `read_properties` does."""
    return read_properties(options.hadoop_conf_dir) if options.properties is None else options.properties


def read_properties(directory: Path | None, overrides: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return the properties in a directory, or in that of HADOOP_CONF_DIR if `directory` is None, and `overrides`.

    Variables in values are replaced. Raises ConfigError if `directory` contains no configuration file, or if a file
    cannot be read.
    """
    named = os.environ.get("HADOOP_CONF_DIR", "") if directory is None else str(directory)
    read = [_read(Path(named) / name) for name in _FILES] if named else []
    documents = [document for document in read if document is not None]
    if not documents and directory is not None:
        raise ConfigError(
            "the directory contains neither core-site.xml nor hdfs-site.xml",
            where=named,
            hint="set storage.hadoop_conf_dir to the configuration directory of a Hadoop client",
        )
    raw: dict[str, str] = {}
    for document in documents:
        raw |= document
    raw |= overrides
    return {name: _substituted(value, raw) for name, value in raw.items()}


def _read(file: Path) -> dict[str, str] | None:
    """Return the properties in a file, or None if it does not exist."""
    try:
        root = ElementTree.parse(file).getroot()  # noqa: S314 - the operator's own file
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ElementTree.ParseError, ValueError, LookupError) as error:
        raise ConfigError(f"cannot read the configuration: {error}", where=str(file)) from error
    if any(element.tag.endswith("}include") for element in root.iter()):
        raise ConfigError("XML includes are not supported", where=str(file), hint="copy the included properties")
    pairs = (
        (element.findtext("name", "").strip(), element.findtext("value", "").strip())
        for element in root.iter("property")
    )
    return {name: value for name, value in pairs if name}


def _substituted(value: str, others: Mapping[str, str]) -> str:
    """Replace `${name}` by a property, and `${env.NAME}` by a variable of the environment; keep unknown names."""

    def replacement(match: re.Match[str]) -> str:
        name = match[1]
        if name.startswith("env."):
            return _environment(name.removeprefix("env."), match[0])
        return others.get(name, match[0])

    for _ in range(_MAX_SUBSTITUTIONS):
        replaced = _VARIABLE.sub(replacement, value)
        if replaced == value:
            break
        value = replaced
    return value


def _environment(name: str, otherwise: str) -> str:
    """Return a variable of the environment; `NAME:-default` and `NAME-default` give a default, as in a shell."""
    match = re.fullmatch(r"([^:-]+)(:?-)?(.*)", name)
    if not match:
        return otherwise
    value = os.environ.get(match[1])
    if match[2] and (value is None or (match[2] == ":-" and not value)):
        return match[3]
    return otherwise if value is None else value
