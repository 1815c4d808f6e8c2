"""The text of a first configuration, with comments that say how a sample of the topic fits the table.

Invariant: the text is valid YAML whatever names the fields have, and contains no value of a record and no secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ingestd.errors import ConfigError
from ingestd.hive.tables import TableName
from ingestd.ingest.inspection.sample import Match

_SECTIONS = ("metastore", "kafka", "registry")
_SECRET = re.compile(r"password|secret|token|credential|key\.pem|jaas|\.pem$", re.IGNORECASE)
# A default, as in ${ENV:NAME:-secret}, would be the secret itself.
_REFERENCE = re.compile(r"\$\{(ENV|FILE):[^}:]+\}")
_WIDTH, _SHOWN = 110, 100


@dataclass(frozen=True, slots=True)
class Draft:
    """The parts of a first configuration with one mapping.

    `settings` maps the path of a key, such as `kafka.sasl.password` or `metastore.kerberos.principal`, to its text.
    `format` is the key of the mapping. `statement` creates the table if it does not exist.
    """

    settings: Mapping[str, str]
    name: str
    topic: str
    table: TableName
    format: Mapping[str, object] = field(default_factory=dict)
    match: Match | None = None
    statement: str = ""
    notes: Sequence[str] = field(default_factory=tuple)

    def text(self) -> str:
        """Return the YAML document."""
        lines = [
            "# The first configuration, written by `ingestd init`. docs/configuration.md lists all keys.",
            "metastore:",
        ]
        lines += _nested(_section(self.settings, "metastore"), "  ")
        lines += ["", "kafka:  # librdkafka properties"]
        lines += [f"  {_text(key)}: {_text(value)}" for key, value in _section(self.settings, "kafka").items()]
        if registry := _section(self.settings, "registry"):
            lines += ["", "registry:", *_nested(registry, "  ")]
        lines += ["", "mappings:", f"  - name: {_text(self.name)}  # never rename it: the state is stored under it"]
        lines += [f"    topics: [{_text(self.topic)}]", f"    table: {_text(str(self.table))}"]
        if self.format:
            lines.append(f"    format: {json.dumps(self.format)}")
        lines += [f"    {line}" for line in self._comments()]
        return "\n".join(lines) + "\n"

    @property
    def remarks(self) -> list[str]:
        """Sentences about the records, without values."""
        return [*self.notes, *(_describe(self.match) if self.match else ())]

    def _comments(self) -> list[str]:
        lines = [f"# {line}" for remark in self.remarks for line in _printable_lines(remark)]
        if self.statement:
            lines += ["# The table does not exist. Create it in Hive, for example with types taken from the sample:"]
            lines += [f"#   {line}" for line in _printable_lines(f"{self.statement};")]
        return lines


def _printable_lines(text: str) -> list[str]:
    """Return the lines of a text, with other characters that are not printable escaped: YAML allows no control ones."""
    return [
        "".join(character if character.isprintable() else ascii(character)[1:-1] for character in line)
        for line in text.splitlines()
    ]


def _describe(match: Match) -> list[str]:
    """Return sentences that say how a sample fits the table, without values of records."""
    if not match.records:
        return ["The topic has no records, so its fields were not compared with the columns."]
    lines = [f"Compared with the last {match.records} records:"]
    for title, names in (
        ("fields that are stored", match.stored),
        ("columns without a field, which become NULL", match.empty),
        ("fields without a column, which are ignored", match.ignored),
    ):
        if names:
            lines += _wrapped(f"{title}: ", names)
    if match.misfits:
        lines.append(f"Records that do not fit the table: {match.misfits}. The mapping stops before such a record.")
    return lines


def checked_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings. Raises ConfigError for a key of another section, and for a secret that is not a reference.

    A secret on a command line is visible to other users of the machine.
    """
    for path, value in settings.items():
        if not path.startswith(tuple(f"{section}." for section in _SECTIONS)):
            raise ConfigError(
                f"{path} is not a key of metastore, kafka or registry", where="--set", hint="write kafka.NAME=VALUE"
            )
        if _SECRET.search(path) and not _REFERENCE.fullmatch(value):
            hint = (
                f"store it in a variable or a file, and write --set '{path}=${{ENV:NAME}}' or '{path}=${{FILE:/path}}'"
            )
            raise ConfigError("a secret must not be written into the configuration", where=path, hint=hint)
    return dict(settings)


def mapping_name(topic: str) -> str:
    """Return a valid name of a mapping that is similar to the topic's."""
    return re.sub(r"[^a-z0-9_]+", "_", topic.lower()).strip("_")[:40] or "first"


def _section(settings: Mapping[str, str], name: str) -> dict[str, str]:
    return {path.removeprefix(f"{name}."): value for path, value in settings.items() if path.startswith(f"{name}.")}


def _nested(settings: Mapping[str, str], indent: str) -> list[str]:
    """Return the lines of keys, of which those with a dot belong to a section, such as `kerberos.principal`."""
    lines = [f"{indent}{_text(key)}: {_text(value)}" for key, value in settings.items() if "." not in key]
    for name in dict.fromkeys(key.partition(".")[0] for key in settings if "." in key):
        lines += [f"{indent}{_text(name)}:", *_nested(_section(settings, name), f"{indent}  ")]
    return lines


def _text(value: str) -> str:
    """Return a YAML scalar: plain if that is certain to be text, otherwise in double quotes, as in JSON."""
    return (
        value if re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)*", value) and value not in _WORDS else json.dumps(value)
    )


_WORDS = {"y", "n", "yes", "no", "true", "false", "on", "off", "null"}


def _wrapped(title: str, names: Sequence[str]) -> list[str]:
    """Return a list of names in lines of limited width. A name with unusual characters is quoted."""
    shown = [name if re.fullmatch(r"[\w.-]{1,60}", name) else json.dumps(name[:60]) for name in names[:_SHOWN]]
    if len(names) > _SHOWN:
        shown.append(f"and {len(names) - _SHOWN} more")
    lines = [f"- {title}"]
    for name in shown:
        if len(lines[-1]) + len(name) > _WIDTH:
            lines.append("    ")
        lines[-1] += f"{name}, "
    return [line.rstrip(", ") if line is lines[-1] else line.rstrip() for line in lines]
