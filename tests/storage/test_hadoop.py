"""Configuration files of Hadoop clients."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from ingestd.errors import ConfigError
from ingestd.storage.hadoop import properties, read_properties
from ingestd.storage.storages import Storages


def _site(folder: Path, name: str, **values: str) -> None:
    lines = (f"<property><name>{k}</name><value>{v}</value></property>" for k, v in values.items())
    (folder / name).write_text(f"<?xml version='1.0'?><configuration>{''.join(lines)}</configuration>")


def test_properties_when_both_files_exist_then_they_are_combined(tmp_path: Path) -> None:
    _site(tmp_path, "core-site.xml", a="1", b=" 2 ")
    _site(tmp_path, "hdfs-site.xml", b="3")
    assert read_properties(tmp_path) == {"a": "1", "b": "3"}


def test_properties_when_values_contain_variables_then_they_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_HOST", "h")
    monkeypatch.delenv("NO_HOST", raising=False)
    _site(tmp_path, "core-site.xml", host="${env.SOME_HOST}", url="x://${host}:${port}/${none}", port="1")
    assert read_properties(tmp_path)["url"] == "x://h:1/${none}"
    _site(tmp_path, "core-site.xml", a="${env.NO_HOST:-d}", b="${env.NO_HOST}", c="${c}")
    assert read_properties(tmp_path) == {"a": "d", "b": "${env.NO_HOST}", "c": "${c}"}


def test_properties_when_no_directory_is_given_then_the_environment_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    assert read_properties(None) == {}
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert read_properties(None) == {}
    _site(tmp_path, "core-site.xml", a="1")
    assert read_properties(None) == {"a": "1"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "neither core-site.xml nor hdfs-site.xml"),
        ("<configuration>", "cannot read"),
        (
            '<configuration xmlns:xi="http://www.w3.org/2001/XInclude"><xi:include href="x.xml"/></configuration>',
            "includes are not supported",
        ),
    ],
)
def test_properties_when_a_directory_is_unusable_then_the_error_names_it(
    tmp_path: Path, content: str, message: str
) -> None:
    if content:
        (tmp_path / "core-site.xml").write_text(content)
    with pytest.raises(ConfigError, match=message) as raised:
        read_properties(tmp_path)
    assert raised.value.where.startswith(str(tmp_path))


def test_properties_when_the_directory_cannot_be_accessed_then_the_error_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inaccessible = tmp_path / ("x" * 300)  # as for a directory that this user may not search, also if it is root
    monkeypatch.setenv("HADOOP_CONF_DIR", str(inaccessible))
    with pytest.raises(ConfigError, match="cannot read the configuration") as raised:
        read_properties(None)
    assert raised.value.where == str(inaccessible / "core-site.xml")


def test_storages_when_sent_to_another_machine_then_contain_the_properties(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _site(tmp_path, "core-site.xml", **{"fs.s3a.endpoint": "minio:9000"})
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    sent = pickle.dumps(Storages())
    monkeypatch.delenv("HADOOP_CONF_DIR")
    received = pickle.loads(sent)
    assert properties(received.options) == {"fs.s3a.endpoint": "minio:9000"}
    assert "minio" not in repr(received.options)
