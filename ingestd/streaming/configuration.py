"""Hive's configuration as far as a streaming client needs it: a mapping, or a `hive-site.xml`.

Invariant: the settings that streaming forces have their forced values whatever was given, and a change is logged.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from ingestd.streaming.arguments import check_text
from ingestd.streaming.errors import InvalidConnection

_log = logging.getLogger(__name__)
# HiveStreamingConnection.overrideConfSettings
FORCED = {
    "hive.txn.manager": "org.apache.hadoop.hive.ql.lockmgr.DbTxnManager",
    "hive.support.concurrency": "true",
    "hive.metastore.execute.setugi": "true",
    "hive.exec.dynamic.partition.mode": "nonstrict",
    "hive.metastore.client.cache.enabled": "false",
}
# The sixth that it forces: to what `streaming_optimizations` says, whatever a hive-site.xml has.
OPTIMIZATIONS = "hive.exec.orc.delta.streaming.optimizations.enabled"
_URIS = ("metastore.thrift.uris", "hive.metastore.uris")
_TIMEOUTS = ("metastore.client.socket.timeout", "hive.metastore.client.socket.timeout")
_TIMEOUT_SECONDS = 60.0
_TIME = re.compile(r"([0-9]+)\s*([a-z]*)")
# HiveConf.unitFor
_UNIT_SECONDS = {
    **dict.fromkeys(("ns", "nsec"), 1e-9),
    **dict.fromkeys(("us", "usec"), 1e-6),
    **dict.fromkeys(("ms", "msec"), 1e-3),
    **dict.fromkeys(("", "s", "sec"), 1.0),
    **dict.fromkeys(("m", "min"), 60.0),
    **dict.fromkeys(("h", "hour"), 3600.0),
    **dict.fromkeys(("d", "day"), 86_400.0),
}


class Configuration(dict[str, str]):
    """Settings by their Hive names."""

    @classmethod
    def of(
        cls, given: Mapping[str, str] | str | Path | None, *, streaming_optimizations: bool | None = None
    ) -> Configuration:
        """Take a mapping or read a `hive-site.xml` (None: no file is looked for), then force what streaming forces.

        Raises InvalidConnection for anything else, and naming the file when it cannot be read.
        """
        settings = cls(_read(Path(given)) if isinstance(given, (str, Path)) else _checked(given))
        forced = dict(FORCED)
        if streaming_optimizations is not None:
            forced[OPTIMIZATIONS] = str(streaming_optimizations).lower()
        for name, value in forced.items():
            if settings.get(name, value) != value:
                why = "the option streaming_optimizations says so" if name == OPTIMIZATIONS else "streaming needs it"
                _log.warning("%s is set to %s: %s (was %s)", name, value, why, settings[name])
            settings[name] = value
        return settings

    def metastore_uri(self) -> str:
        """Addresses of the metastore, comma-separated. Raises InvalidConnection when there are none."""
        found = next((self[name] for name in _URIS if self.get(name, "").strip()), "")
        if not found:
            raise InvalidConnection(
                "no metastore is named",
                where="metastore_uri",
                hint=f"give it, such as thrift://localhost:9083, or a configuration with {_URIS[1]}",
            )
        return found

    def flag(self, name: str, *, default: bool) -> bool:
        """A setting that is `true` or `false`."""
        return self.get(name, str(default)).strip().lower() == "true"

    def number(self, name: str, default: float) -> float:
        """A setting that is a number. Raises InvalidConnection naming it."""
        text = self.get(name, "").strip()
        try:
            return float(text) if text else default
        except ValueError as error:
            raise InvalidConnection(f"{text!r} is not a number", where=name) from error

    def timeout_seconds(self) -> float:
        """How long an answer of the metastore is waited for. Raises InvalidConnection naming the setting."""
        for name in _TIMEOUTS:
            if text := self.get(name, "").strip():
                seconds = seconds_of(text)
                if not seconds:
                    raise InvalidConnection(f"{text!r} is not a time above 0, such as 30s", where=name)
                return seconds
        return _TIMEOUT_SECONDS


def seconds_of(text: str) -> float | None:
    """A time as Hive writes it: a number, and ns, us, ms, s (the default), m, h or d; None for anything else."""
    match = _TIME.fullmatch(text.strip().lower())
    return int(match[1]) * _UNIT_SECONDS[match[2]] if match and match[2] in _UNIT_SECONDS else None


def _checked(given: object) -> Mapping[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidConnection(
            f"the configuration must be a mapping or the path of a hive-site.xml, not {type(given).__name__}",
            where="configuration",
        )
    for name, value in given.items():
        check_text("configuration, a setting's name", name)
        check_text(f"configuration, {name}", value)
    return given


def _read(path: Path) -> dict[str, str]:
    try:
        root = ElementTree.parse(path).getroot()  # noqa: S314 - the operator's own file
    except (OSError, ElementTree.ParseError, ValueError, LookupError) as error:
        raise InvalidConnection(f"cannot read the configuration: {error}", where=str(path)) from error
    pairs = ((p.findtext("name", "").strip(), p.findtext("value", "").strip()) for p in root.iter("property"))
    return {name: value for name, value in pairs if name}
