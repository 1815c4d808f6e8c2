"""A draft of a configuration is the YAML of its parts, whatever texts of a schema are in its remarks."""

from __future__ import annotations

import pytest
import yaml

from ingestd.config.draft import Draft
from ingestd.hive.tables import TableName


@pytest.mark.parametrize("line_break", ["\n", "\r", "\r\n", "\x85", "\u2028", "\u2029", "\x0b", "\x0c", "\x1d"])
def test_text_when_a_remark_has_line_breaks_and_control_characters_then_they_add_nothing(line_break: str) -> None:
    text = line_break.join(("x", "mappings: []", "kafka: {bootstrap.servers: evil}", "\x1b[2J\x00\ud800é"))
    settings = {"metastore.uri": "thrift://a:1", "kafka.bootstrap.servers": "b:2"}
    plain = Draft(settings, "t", "t", TableName("default", "t"))
    draft = Draft(settings, "t", "t", TableName("default", "t"), statement=text, notes=[text])
    written = draft.text()
    assert yaml.safe_load(written) == yaml.safe_load(plain.text())
    assert r"# \x1b[2J\x00\ud800é" in written
    assert all(line.strip().startswith("#") for line in written[len(plain.text()) :].splitlines())
