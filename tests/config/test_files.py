"""Configuration files: merging, references, and the errors for malformed files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingestd.config.document import load
from ingestd.config.files import read_document
from ingestd.errors import ConfigError
from ingestd.kafka.settings import REFUSED


def _written(directory: Path, text: str, name: str = "ingestd.yaml") -> Path:
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_two_files_when_both_set_a_key_then_the_later_file_wins(tmp_path: Path) -> None:
    first = _written(tmp_path, "kafka: {a: 1, b: 2}\nspark: {master: one}\nmappings: [{name: x}]", "1.yaml")
    second = _written(tmp_path, "kafka: {b: 3}\nspark: {master: two}\nmappings: [{name: y}]", "2.yaml")
    assert read_document([first, second], None).values == {
        "kafka": {"a": 1, "b": 3},
        "spark": {"master": "two"},
        "mappings": [{"name": "x"}, {"name": "y"}],
    }


def test_config_dir_when_it_contains_yaml_files_then_each_is_a_mapping(tmp_path: Path) -> None:
    base = _written(tmp_path, "kafka: {a: 1}\nmappings: [{name: x}]")
    _written(tmp_path, "name: z", "mappings.d/20.yml")
    _written(tmp_path, "name: y", "mappings.d/10.yaml")
    _written(tmp_path, "name: ignored", "mappings.d/30.yaml.bak")
    document = read_document([base], tmp_path / "mappings.d")
    assert [m["name"] for m in document.values["mappings"]] == ["x", "y", "z"]


def test_config_dir_when_missing_then_error_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a directory"):
        read_document([], tmp_path / "nowhere")


def test_file_when_nested_too_deeply_then_error_names_it(tmp_path: Path) -> None:
    file = _written(tmp_path, f"mappings: {'[' * 3000}{']' * 3000}")
    with pytest.raises(ConfigError, match=f"{file}: is not a configuration"):
        read_document([file], None)


def test_configuration_when_none_is_given_then_error_names_the_option() -> None:
    with pytest.raises(ConfigError, match="--config"):
        read_document([], None)


def test_references_when_valid_then_are_resolved_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = _written(tmp_path, "s3cret\n", "secret")
    monkeypatch.setenv("PLACE", "there")
    monkeypatch.delenv("UNSET", raising=False)
    file = _written(
        tmp_path,
        "a: ${ENV:PLACE}\nb: [{c: 'x-${ENV:UNSET:-y}-${ENV:PLACE}'}]\n" + f"d: ${{FILE:{secret}}}\ne: ${{ENV:UNSET:-}}",
    )
    assert read_document([file], None).values == {"a": "there", "b": [{"c": "x-y-there"}], "d": "s3cret", "e": ""}


def test_reference_when_its_value_is_yaml_then_is_read_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INJECTED", "x\nspark: {master: injected}")
    file = _written(tmp_path, "control: {database: '${ENV:INJECTED}'}")
    assert read_document([file], None).values == {"control": {"database": "x\nspark: {master: injected}"}}


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("kafka: {a: '${ENV:NO_SUCH_VARIABLE}'}", "kafka.a", "NO_SUCH_VARIABLE is not set"),
        ("kafka: {a: ['${FILE:/no/such/file}']}", "kafka.a[0]", "/no/such/file cannot be read: No such file"),
        ("kafka: {a: '${FILE:/dev/zero}'}", "kafka.a", "/dev/zero is longer than 16 MiB"),
    ],
)
def test_reference_when_it_cannot_be_resolved_then_error_names_file_and_key(
    tmp_path: Path, text: str, where: str, what: str
) -> None:
    file = _written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_document([file], None)
    assert str(caught.value).startswith(f"{file}:1: {where}: ")
    assert what in str(caught.value)


def test_file_reference_when_the_file_is_binary_then_raises_config_error(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"\xff\xfe")
    file = _written(tmp_path, f"a: ${{FILE:{tmp_path}/secret}}")
    with pytest.raises(ConfigError, match="secret"):
        read_document([file], None)


@pytest.mark.parametrize(
    ("content", "where", "what"),
    [
        (b"a: 1\nb: [1, 2\nc: 3\n", ":3:2: ", "is not valid YAML: expected ',' or ']'"),
        (b"a: 1\n\tb: 2\n", ":2:1: ", "is not valid YAML"),
        (b"- a\n- b\n", ":1: ", "must contain keys and values"),
        (b"a: 1\nb: \xff\n", ":2: ", "is not UTF-8"),
        (b"a: 1\nb: \x01\n", ":2: ", r"is not valid YAML: the character U\+0001"),
        (b"a: 1\nb: {a: 1,\n a: 2}\n", ":3: b.a: ", "is a duplicate key → remove this one or the one on line 2"),
        (b"a: 1\nb: 2026-13-45\n", ":2: b: ", "is not a valid timestamp → quote the value if it is text"),
        (b"a: &x [*x]\n", ":1: a", "contains itself"),
        (b"a: ${ENV:}\nb: ${FILE}\n", ":1: a: ", "contains a malformed reference"),
        (b"a: 1\n? [b]\n: c\n", ":2: ", "a key must be text"),
    ],
    ids=["bracket", "tab", "list", "latin1", "control", "twice", "date", "itself", "reference", "key"],
)
def test_file_when_malformed_then_error_names_file_and_line(
    tmp_path: Path, content: bytes, where: str, what: str
) -> None:
    file = tmp_path / "malformed.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=what) as caught:
        read_document([file], None)
    assert str(caught.value).startswith(f"{file}{where}")


def test_file_when_missing_or_a_directory_then_error_names_it(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read") as caught:
            read_document([path], None)
        assert str(caught.value).startswith(f"{path}: ")


def test_faults_when_in_several_files_then_each_has_its_file_and_line(tmp_path: Path) -> None:
    base = _written(tmp_path, "# base\nmetastore: {uri: thrift://a}\nkafka:\n  bootstrap.servers: b\n  sasl.foo: 1\n")
    over = _written(tmp_path, "kafka:\n  group.id: x\nspark:\n  masterr: local\n", "over.yaml")
    folder = tmp_path / "mappings.d"
    first = _written(
        tmp_path, "name: a\ntopics: [t]\ntable: d.t\nkafka:\n  fetch.wait.max.ms: long\n", "mappings.d/1.yaml"
    )
    second = _written(tmp_path, "name: a\ntopics:\n  - t\n  - 5\n", "mappings.d/2.yaml")
    with pytest.raises(ConfigError) as caught:
        load([base, over], folder)
    assert str(caught.value).splitlines() == [
        f"{over}:4: spark.masterr: unknown key, did you mean master?",
        f"{second}:1: mappings[1].table: is missing",
        f"{second}:4: mappings[1].topics[1]: must be text, not 5",
    ]
    over.write_text("kafka:\n  group.id: x\n", encoding="utf-8")
    second.write_text("name: a\ntopics: [t]\ntable: d.t\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load([base, over], folder)
    assert [line.split(" → ")[0] for line in str(caught.value).splitlines()] == [
        f"{base}:5: kafka.sasl.foo: librdkafka has no such property",
        f"{over}:2: kafka.group.id: group.id cannot be set: {REFUSED['group.id']}",
        f"{first}:5: mappings[0].kafka.fetch.wait.max.ms: librdkafka does not accept this value",
        f"{second}:1: mappings[1].name: another mapping is named a",
    ]


def test_example_then_is_valid() -> None:
    example = Path(__file__).parents[2] / "config" / "ingestd.example.yaml"
    document = load([example])
    assert [m.name for m in document.mappings] == [
        "orders",
        "clicks",
        "syslog",
        "warehouse",
        "reviews",
        "access",
        "payments",
        "baskets",
        "meters",
        "deliveries",
    ]
