"""Configuration files: merging, references, and what is said about a broken one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingestd.config.files import read_document
from ingestd.config.shape import validated
from ingestd.errors import ConfigError


def _written(directory: Path, text: str, name: str = "ingestd.yaml") -> Path:
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_two_files_when_both_say_something_then_the_later_wins_key_by_key(tmp_path: Path) -> None:
    first = _written(tmp_path, "kafka: {a: 1, b: 2}\nspark: {master: one}\nmappings: [{name: x}]", "1.yaml")
    second = _written(tmp_path, "kafka: {b: 3}\nspark: {master: two}\nmappings: [{name: y}]", "2.yaml")
    assert read_document([first, second], None) == {
        "kafka": {"a": 1, "b": 3},
        "spark": {"master": "two"},
        "mappings": [{"name": "x"}, {"name": "y"}],
    }


def test_config_dir_when_it_holds_yaml_files_then_each_is_a_mapping(tmp_path: Path) -> None:
    base = _written(tmp_path, "kafka: {a: 1}\nmappings: [{name: x}]")
    _written(tmp_path, "name: z", "mappings.d/20.yml")
    _written(tmp_path, "name: y", "mappings.d/10.yaml")
    _written(tmp_path, "name: ignored", "mappings.d/30.yaml.bak")
    document = read_document([base], tmp_path / "mappings.d")
    assert [m["name"] for m in document["mappings"]] == ["x", "y", "z"]


def test_config_dir_when_it_is_missing_then_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a directory"):
        read_document([], tmp_path / "nowhere")


def test_no_configuration_then_says_how_to_give_one() -> None:
    with pytest.raises(ConfigError, match="--config"):
        read_document([], None)


def test_references_when_set_then_are_filled_in_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = _written(tmp_path, "s3cret\n", "secret")
    monkeypatch.setenv("PLACE", "there")
    monkeypatch.delenv("UNSET", raising=False)
    file = _written(
        tmp_path,
        "a: ${ENV:PLACE}\nb: [{c: 'x-${ENV:UNSET:-y}-${ENV:PLACE}'}]\n" + f"d: ${{FILE:{secret}}}\ne: ${{ENV:UNSET:-}}",
    )
    assert read_document([file], None) == {"a": "there", "b": [{"c": "x-y-there"}], "d": "s3cret", "e": ""}


def test_reference_when_its_value_looks_like_yaml_then_stays_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVIL", "x\nspark: {master: evil}")
    file = _written(tmp_path, "control: {database: '${ENV:EVIL}'}")
    assert read_document([file], None) == {"control": {"database": "x\nspark: {master: evil}"}}


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("kafka: {a: '${ENV:NO_SUCH_VARIABLE}'}", "kafka.a", "NO_SUCH_VARIABLE is not set"),
        ("kafka: {a: ['${FILE:/no/such/file}']}", "kafka.a[0]", "/no/such/file cannot be read: No such file"),
    ],
)
def test_reference_when_it_cannot_be_filled_then_names_file_and_key(
    tmp_path: Path, text: str, where: str, what: str
) -> None:
    file = _written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_document([file], None)
    assert str(file) in caught.value.where
    assert where in caught.value.where
    assert what in caught.value.what


def test_file_reference_when_the_file_is_not_text_then_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"\xff\xfe")
    file = _written(tmp_path, f"a: ${{FILE:{tmp_path}/secret}}")
    with pytest.raises(ConfigError, match="secret"):
        read_document([file], None)


@pytest.mark.parametrize(
    ("content", "where", "what"),
    [
        (b"a: 1\nb: [1, 2\nc: 3\n", "line 3", "is not valid YAML"),
        (b"a: 1\n\tb: 2\n", "line 2", "is not valid YAML"),
        (b"- a\n- b\n", "", "must hold keys and values"),
        (b"a: \xff\n", "", "is not UTF-8"),
        (b"a: \x01\n", "", "is not valid YAML"),
    ],
    ids=["bracket", "tab", "list", "latin1", "control"],
)
def test_file_when_it_is_broken_then_names_file_and_line(tmp_path: Path, content: bytes, where: str, what: str) -> None:
    file = tmp_path / "broken.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=what) as caught:
        read_document([file], None)
    assert str(file) in caught.value.where
    assert where in caught.value.where


def test_file_when_missing_or_a_directory_then_names_it(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read") as caught:
            read_document([path], None)
        assert caught.value.where == str(path)


def test_the_example_then_is_valid() -> None:
    example = Path(__file__).parents[2] / "config" / "ingestd.example.yaml"
    document = validated(read_document([example], None))
    assert [m.name for m in document.options()] == ["orders", "clicks"]
