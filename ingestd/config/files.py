"""Configuration files into one document, references filled in.

Invariant: references are filled in after parsing, so a value can never inject structure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from ingestd.errors import ConfigError

_REFERENCE = re.compile(r"\$\{(ENV|FILE):([^}:]+)(?::-([^}]*))?\}")


def read_document(files: Sequence[Path], directory: Path | None) -> dict[str, Any]:
    """All files as one document: later files win key by key, lists of mappings are joined.

    `directory` holds one mapping per `*.yaml` file. Raises ConfigError with file and line.
    """
    document: dict[str, Any] = {}
    for file in files:
        document = _merged(document, _parse(file))
    for file in _mapping_files(directory):
        document = _merged(document, {"mappings": [_parse(file)]})
    if not files and directory is None:
        raise ConfigError("no configuration was given", hint="ingestd run --config FILE")
    return document


def _mapping_files(directory: Path | None) -> list[Path]:
    if directory is None:
        return []
    if not directory.is_dir():
        raise ConfigError("is not a directory", where=str(directory), hint="--config-dir takes a directory")
    return sorted([*directory.glob("*.yaml"), *directory.glob("*.yml")])


def _parse(file: Path) -> dict[str, Any]:
    try:
        parsed = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(file)) from error
    except UnicodeDecodeError as error:
        raise ConfigError("is not UTF-8 text", where=str(file)) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(
            f"is not valid YAML: {getattr(error, 'problem', None) or error}", where=f"{file}{line}"
        ) from error
    if parsed is None:
        return {}
    if not isinstance(parsed, dict):
        raise ConfigError("must hold keys and values at the top", where=str(file))
    return {str(key): _filled(value, f"{file}: {key}") for key, value in parsed.items()}


def _filled(value: Any, where: str) -> Any:
    if isinstance(value, dict):
        return {str(k): _filled(v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(value, list):
        return [_filled(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, str):
        return _REFERENCE.sub(lambda match: _looked_up(match, where), value)
    return value


def _looked_up(match: re.Match[str], where: str) -> str:
    kind, name, default = match.groups()
    if kind == "ENV":
        found = os.environ.get(name, default)
        if found is None:
            raise ConfigError(f"the environment variable {name} is not set", where=where, hint="${ENV:NAME:-default}")
        return found
    try:
        return Path(name).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}", where=where) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not UTF-8 text", where=where) from error


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    merged = dict(first)
    for key, value in second.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key] = _merged(old, value)
        elif key == "mappings" and isinstance(old, list) and isinstance(value, list):
            merged[key] = old + value
        else:
            merged[key] = value
    return merged
