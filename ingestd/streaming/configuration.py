"""Hive's configuration as far as a streaming client needs it: a mapping, or a `hive-site.xml`.

Invariant: the settings that streaming forces have their forced values whatever was given, and a change is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from ingestd.streaming.errors import StreamingException

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
_DEFAULT_URI = "thrift://localhost:9083"


class Configuration(dict[str, str]):
    """Settings by their Hive names."""

    @classmethod
    def of(
        cls, given: Mapping[str, str] | str | Path | None, *, streaming_optimizations: bool | None = None
    ) -> Configuration:
        """Take a mapping or read a `hive-site.xml` (None: no file is looked for), then force what streaming forces.

        Raises StreamingException naming the file when it cannot be read.
        """
        settings = cls(_read(Path(given)) if isinstance(given, (str, Path)) else given or {})
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
        """Addresses of the metastore, comma-separated."""
        return next((self[name] for name in _URIS if self.get(name)), _DEFAULT_URI)

    def flag(self, name: str, *, default: bool) -> bool:
        """A setting that is `true` or `false`."""
        return self.get(name, str(default)).strip().lower() == "true"

    def number(self, name: str, default: float) -> float:
        """A setting that is a number. Raises StreamingException naming it."""
        text = self.get(name, "").strip()
        try:
            return float(text) if text else default
        except ValueError as error:
            raise StreamingException(f"{text!r} is not a number", where=name) from error


def _read(path: Path) -> dict[str, str]:
    try:
        root = ElementTree.parse(path).getroot()  # noqa: S314 - the operator's own file
    except (OSError, ElementTree.ParseError) as error:
        raise StreamingException(f"cannot read the configuration: {error}", where=str(path)) from error
    pairs = ((p.findtext("name", "").strip(), p.findtext("value", "").strip()) for p in root.iter("property"))
    return {name: value for name, value in pairs if name}
