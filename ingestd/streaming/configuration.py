"""The Hive configuration of a streaming client: a mapping, or a `hive-site.xml`.

Invariant: settings that streaming requires have the required values; an overridden value is logged.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from ingestd.storage import hadoop
from ingestd.storage.options import StorageOptions
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
# The sixth forced setting. Its value is that of the option `streaming_optimizations`.
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
    """Hive settings by name."""

    @classmethod
    def of(
        cls, given: Mapping[str, str] | str | Path | None, *, streaming_optimizations: bool | None = None
    ) -> Configuration:
        """Return the settings of a mapping or a `hive-site.xml` path (None: no settings), plus the forced ones.

        Raises InvalidConnection for any other type, and if the file cannot be read.
        """
        settings = cls(_read(Path(given)) if isinstance(given, (str, Path)) else _checked(given))
        forced = dict(FORCED)
        if streaming_optimizations is not None:
            forced[OPTIMIZATIONS] = str(streaming_optimizations).lower()
        for name, value in forced.items():
            if settings.get(name, value) != value:
                why = "the option streaming_optimizations" if name == OPTIMIZATIONS else "streaming"
                _log.warning("%s is set to %s instead of %s, as %s requires", name, value, settings[name], why)
            settings[name] = value
        return settings

    def metastore_uri(self) -> str:
        """Return the metastore addresses, comma-separated. Raises InvalidConnection if no address is configured."""
        addresses = next((self[name] for name in _URIS if self.get(name, "").strip()), "")
        if not addresses:
            raise InvalidConnection(
                "no metastore address is configured",
                where="metastore_uri",
                hint=f"pass metastore_uri, such as thrift://localhost:9083, or a configuration with {_URIS[1]}",
            )
        return addresses

    def storage_options(self, given: StorageOptions | None) -> StorageOptions:
        """Return `given` with the properties of the Hadoop configuration, which these settings override.

        Raises ConfigError if the files of the Hadoop configuration cannot be read.
        """
        options = given or StorageOptions()
        if options.properties is not None:
            return options
        return replace(options, properties=hadoop.read_properties(options.hadoop_conf_dir, self))

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a boolean setting, or `default` if it is not set."""
        return self.get(name, str(default)).strip().lower() == "true"

    def number(self, name: str, default: float) -> float:
        """Return a numeric setting, or `default` if it is not set. Raises InvalidConnection if it is not a number."""
        text = self.get(name, "").strip()
        try:
            return float(text) if text else default
        except ValueError as error:
            raise InvalidConnection(f"{text!r} is not a number", where=name) from error

    def timeout_seconds(self) -> float:
        """Return the time limit for an answer of the metastore. Raises InvalidConnection if it is not a duration."""
        for name in _TIMEOUTS:
            if text := self.get(name, "").strip():
                seconds = seconds_of(text)
                if not seconds:
                    raise InvalidConnection(f"{text!r} is not a positive duration, such as 30s", where=name)
                return seconds
        return _TIMEOUT_SECONDS


def seconds_of(text: str) -> float | None:
    """Convert a Hive duration to seconds. Units are ns, us, ms, s (the default), m, h and d. None for other text."""
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
        check_text("configuration, name of a setting", name)
        check_text(f"configuration, {name}", value)
    return given


def _read(path: Path) -> dict[str, str]:
    try:
        root = ElementTree.parse(path).getroot()  # noqa: S314 - the operator's own file
    except (OSError, ElementTree.ParseError, ValueError, LookupError) as error:
        raise InvalidConnection(f"cannot read the configuration: {error}", where=str(path)) from error
    pairs = ((p.findtext("name", "").strip(), p.findtext("value", "").strip()) for p in root.iter("property"))
    return {name: value for name, value in pairs if name}
