"""What the WITH clauses of REPL DUMP and REPL LOAD may contain.

Invariant: a setting takes effect or is refused. A setting of Hive that ingestd always treats in one way is accepted
with that value only. Names that begin with `hive.`, and their defaults, are Hive's (HiveConf).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ingestd.errors import ConfigError
from ingestd.hive.durations import hive_seconds
from ingestd.hive.snapshot import WriterRule
from ingestd.keys import count, size
from ingestd.storage.contract import split

ROOT_KEY = "hive.repl.rootdir"
BASE_KEY = "hive.repl.replica.external.table.base.dir"
_TIMEOUT_KEY = "hive.repl.bootstrap.dump.open.txn.timeout"
_ABORT_KEY = "hive.repl.bootstrap.dump.abort.write.txn.after.timeout"
_RETAIN_KEY = "hive.repl.retain.prev.dump.dir"
_RETAIN_COUNT_KEY = "hive.repl.retain.prev.dump.dir.count"
_EVENTS_KEY = "ingestd.repl.events"
_HOLD_KEY = "ingestd.repl.hold"
_BANDWIDTH_KEY = "ingestd.repl.bandwidth"
HOLD_SECONDS = 6 * 3600.0
"""How long a dump policy keeps files of its source by default: longer than a cycle, and than most loads take."""

Settings = Mapping[str, str]
"""The settings of a WITH clause, by name."""


@dataclass(frozen=True, slots=True)
class DumpSettings:
    """`root` is the root directory of dumps. `events` limits the events of a cycle; None is the default limit.

    `keep` earlier dumps are kept. Files of the source are kept for `hold_seconds` at most (`policies/holds.py`); 0:
    not at all.
    """

    root: str
    writers: WriterRule = field(default_factory=WriterRule)
    events: int | None = None
    keep: int = 0
    hold_seconds: float = HOLD_SECONDS


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """`root` is that of the dump. `external_base` is the directory of external tables; None if there may be none.

    `bytes_per_second` limits the copies of the policy.
    """

    root: str
    external_base: str | None = None
    bytes_per_second: int | None = None


def dump_settings(given: Settings) -> DumpSettings:
    """Return the settings of REPL DUMP. Raises ConfigError, whose `where` is the name of a setting."""
    values = _values(given, _OF_DUMP, _FIXED_IN_DUMP, "REPL DUMP")
    rule = WriterRule()
    writers = WriterRule(values.get(_TIMEOUT_KEY, rule.timeout_seconds), values.get(_ABORT_KEY, rule.aborts))
    if _RETAIN_COUNT_KEY in values and not values.get(_RETAIN_KEY):
        raise ConfigError(f"has an effect only with {_RETAIN_KEY}='true'", where=_RETAIN_COUNT_KEY)
    keep = values.get(_RETAIN_COUNT_KEY, 3) if values.get(_RETAIN_KEY) else 0
    hold = values.get(_HOLD_KEY, HOLD_SECONDS)
    return DumpSettings(values[ROOT_KEY], writers, values.get(_EVENTS_KEY), keep, hold)


def load_settings(given: Settings) -> LoadSettings:
    """Return the settings of REPL LOAD. Raises ConfigError, whose `where` is the name of a setting."""
    values = _values(given, _OF_LOAD, _FIXED_IN_LOAD, "REPL LOAD")
    return LoadSettings(values[ROOT_KEY], values.get(BASE_KEY), values.get(_BANDWIDTH_KEY))


def check_base(base: str) -> None:
    """Raise ConfigError unless a base directory is fully qualified."""
    if not _is_fully_qualified(base):
        raise ConfigError(
            f"the base directory must be a fully qualified URI, not {base!r}",
            where=BASE_KEY,
            hint="set it to a directory of the target, such as hdfs://nameservice/replica; / keeps the paths",
        )


def _uri(text: str) -> str:
    """Return a fully qualified directory, because both sides must read the same one."""
    if not _is_fully_qualified(text):
        raise ValueError("must be a fully qualified URI, such as hdfs://nameservice/user/hive/repl")
    return text


def _base(text: str) -> str:
    check_base(text)
    return text


def _is_fully_qualified(uri: str) -> bool:
    """Return whether a URI has a scheme, a cluster or bucket unless it is local, and an absolute path."""
    parts = split(uri)
    return ":" in uri and parts.path.startswith("/") and (parts.scheme == "file" or bool(parts.authority))


def _has_credentials(uri: str) -> bool:
    """Return whether a URI has a user, and perhaps a password, before its host or bucket."""
    return "@" in split(uri).authority


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


_OF_DUMP: dict[str, Callable[[str], Any]] = {
    ROOT_KEY: _uri,
    _TIMEOUT_KEY: hive_seconds,
    _ABORT_KEY: _boolean,
    _RETAIN_KEY: _boolean,
    _RETAIN_COUNT_KEY: count,
    _EVENTS_KEY: count,
    _HOLD_KEY: hive_seconds,
}
_OF_LOAD: dict[str, Callable[[str], Any]] = {ROOT_KEY: _uri, BASE_KEY: _base, _BANDWIDTH_KEY: size}
_FIXED_IN_DUMP = {
    "hive.repl.dump.metadata.only": "false",
    "hive.repl.dump.metadata.only.for.external.table": "false",
    "hive.repl.include.external.tables": "true",
    "hive.repl.include.materialized.views": "false",
    "hive.repl.run.data.copy.tasks.on.target": "true",
}
# One copy covers all files of a cycle, and is distributed by their number and bytes.
_WITHOUT_EFFECT = ("hive.exec.parallel.thread.number", "hive.repl.approx.max.load.tasks")
_FIXED_IN_LOAD = {"hive.repl.run.data.copy.tasks.on.target": "true"}


def _values(
    given: Settings, known: Mapping[str, Callable[[str], Any]], fixed: Mapping[str, str], statement: str
) -> dict[str, Any]:
    values = {}
    for key, text in given.items():
        if key in fixed:
            if text.lower() != fixed[key]:
                raise ConfigError(f"ingestd supports {fixed[key]!r} only, not {text!r}", where=key)
        elif key in known:
            if _has_credentials(text):  # statements are stored and shown, so the text is not repeated
                hint = "remove them, and use storage.s3.access_key and storage.s3.secret_key in the configuration"
                raise ConfigError("credentials in locations are not supported", where=key, hint=hint)
            try:
                values[key] = known[key](text)
            except ValueError as error:
                raise ConfigError(f"{error}, not {text!r}", where=key) from error
        else:
            hint = _similar(key, (*known, *fixed))
            if key in _WITHOUT_EFFECT:
                hint = f"remove it; all files of a cycle are copied together, and {_BANDWIDTH_KEY} limits that"
            raise ConfigError(f"{statement} has no setting of this name", where=key, hint=hint)
    if ROOT_KEY not in values:
        hint = f"write WITH ('{ROOT_KEY}'='hdfs://nameservice/user/hive/repl'), with the same value on both sides"
        raise ConfigError("is missing", where=ROOT_KEY, hint=hint)
    return values


def _similar(key: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"the settings are {', '.join(names)}"
