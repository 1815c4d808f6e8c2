"""Keys, values and units of the configuration: the accepted forms, and the errors for all others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ingestd.config.document import complete, validate
from ingestd.config.files import Settings
from ingestd.errors import ConfigError
from ingestd.formats.avro.options import AvroOptions
from ingestd.formats.delimited import DelimitedOptions
from ingestd.formats.json.options import JsonOptions
from ingestd.formats.regex import RegexOptions
from ingestd.formats.whole_value import BinaryOptions, TextOptions
from ingestd.hive.security import Kerberos, Plain, Protection, Security, Tls
from ingestd.ingest.options import MappingOptions
from ingestd.kafka.settings import REFUSED
from ingestd.keys import seconds, size


def _document(mapping: dict[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    return {
        "metastore": {"uri": "thrift://localhost:9083"},
        "kafka": {"bootstrap.servers": "localhost:9092"},
        "mappings": [{"name": "orders", "topics": ["orders"], "table": "shop.orders"} | (mapping or {})],
    } | sections


def _options(mapping: dict[str, Any] | None = None, **sections: Any) -> MappingOptions:
    return validate(Settings(_document(mapping, **sections))).mappings[0]


def _fault(mapping: dict[str, Any] | None = None, **sections: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        validate(Settings(_document(mapping, **sections)))
    return str(caught.value)


@pytest.mark.parametrize(
    ("mapping", "sections", "expected"),
    [
        ({"commmit": {"rows": 1}}, {}, "mappings[0].commmit: unknown key, did you mean commit?"),
        ({"commit": {"row": 1}}, {}, "mappings[0].commit.row: unknown key, did you mean rows?"),
        ({"format": {"tombstone": "skip"}}, {}, "mappings[0].format.tombstone: unknown key, did you mean tombstones?"),
        ({"format": {"colum": "a", "type": "text"}}, {}, "mappings[0].format.colum: unknown key, did you mean column?"),
        (
            {"format": {"column": "a"}},
            {},
            "mappings[0].format.column: unknown key, the known keys are type, tombstones, fields, envelope",
        ),
        ({}, {"metastore": {"uris": "x"}}, "metastore.uris: unknown key, did you mean uri?"),
        ({}, {"defaults": {"comit": {}}}, "defaults.comit: unknown key, did you mean commit?"),
        (
            {},
            {"defaults": {"commit": {"intervall": 1}}},
            "defaults.commit.intervall: unknown key, did you mean interval",
        ),
        ({}, {"sparkk": {}}, "sparkk: unknown key, did you mean spark?"),
        (
            {},
            {"spark": {"zzz": 1}},
            "spark.zzz: unknown key, the known keys are master, stage_timeout, executor_timeout, answer_timeout, conf",
        ),
        ({"start": {"timestmp": "2026-11-01"}}, {}, "mappings[0].start"),
        ({"mode": "upsert"}, {}, "mappings[0].mode: unknown key → mappings add rows and never replace them: store all"),
        ({"keys": ["id"]}, {}, "mappings[0].keys: unknown key → mappings add rows and never replace them: store all"),
    ],
)
def test_key_when_unknown_then_error_has_its_path_and_the_nearest_name(
    mapping: dict[str, Any], sections: dict[str, Any], expected: str
) -> None:
    assert expected in _fault(mapping, **sections)


@pytest.mark.parametrize(
    "master", ["local", "local[2]", "local[*,3]", "spark://a:7077,b:7077", "yarn", "k8s://https://a"]
)
def test_spark_master_when_valid_then_is_accepted(master: str) -> None:
    assert _options(spark={"master": master})


@pytest.mark.parametrize("master", ["lokal", "spark://a:99999", "spark://a:7077,b:0"])
def test_spark_master_when_invalid_then_error_names_it(master: str) -> None:
    assert "spark.master: must be a Spark master URL" in _fault(spark={"master": master})


def test_spark_properties_when_they_would_have_no_effect_then_each_is_refused_and_no_value_is_shown() -> None:
    text = _fault(spark={"conf": {"driver.memory": "1g", "spark.driver.memory": "2g", "spark.master": "yarn"}})
    assert sorted(text.splitlines()) == [
        "spark.conf.driver.memory: must begin with spark., because Spark ignores other properties",
        "spark.conf.spark.master: must be set with the key spark.master, not in spark.conf",
    ]


@pytest.mark.parametrize("content", [None, "", "<configuration><property>"])
def test_hadoop_configuration_when_unusable_then_error_names_the_key_and_the_directory(
    tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "hdfs-site.xml").write_text(content)
    document = Settings(_document(storage={"hadoop_conf_dir": str(tmp_path)}))
    with pytest.raises(ConfigError) as caught:
        complete(document)
    assert str(caught.value).startswith(f"storage.hadoop_conf_dir: {tmp_path}")
    (tmp_path / "hdfs-site.xml").write_text("<configuration/>")
    assert complete(document)


def test_faults_when_several_then_each_has_one_line() -> None:
    text = _fault({"commit": {"rows": 0}, "table": "a.b.c", "start": []}, shutdown={"timeout": "soon"}, spark=None)
    assert sorted(text.splitlines()) == [
        "mappings[0].commit.rows: must be greater than 0, not 0",
        "mappings[0].start: must be earliest, latest or {timestamp: 2026-11-01T00:00:00Z}; the default zone is UTC",
        "mappings[0].table: must be database.table, not 'a.b.c'",
        "shutdown.timeout: must be a duration such as 500ms, 30s or 5m, not 'soon'",
        "spark: has no value → set a value or remove the key",
    ]


@pytest.mark.parametrize("key", ["name", "topics", "table"])
def test_mapping_when_a_key_is_missing_then_error_names_it(key: str) -> None:
    document = _document()
    del document["mappings"][0][key]
    with pytest.raises(ConfigError, match=rf"mappings\[0\]\.{key}: is missing"):
        validate(Settings(document))


def test_document_when_empty_then_error_names_the_required_sections() -> None:
    with pytest.raises(ConfigError) as caught:
        validate(Settings({}))
    for key in ("metastore", "kafka", "mappings"):
        assert f"{key}: is missing" in str(caught.value)


@pytest.mark.parametrize(
    ("mapping", "path"),
    [
        ({"name": "Orders"}, "mappings[0].name"),
        ({"name": "a" * 41}, "mappings[0].name"),
        ({"name": "a-b"}, "mappings[0].name"),
        ({"topics": []}, "mappings[0].topics"),
        ({"topics": "orders"}, "mappings[0].topics"),
        ({"table": ""}, "mappings[0].table"),
        ({"table": "a.b.c"}, "mappings[0].table"),
        ({"commit": {"interval": "0s"}}, "mappings[0].commit.interval"),
        ({"commit": {"interval": "5 weeks"}}, "mappings[0].commit.interval"),
        ({"commit": {"interval": "-5s"}}, "mappings[0].commit.interval"),
        ({"commit": {"bytes": "1 parsec"}}, "mappings[0].commit.bytes"),
        ({"commit": {"bytes": 0}}, "mappings[0].commit.bytes"),
        ({"commit": {"rows": "many"}}, "mappings[0].commit.rows"),
        ({"commit": {"rows": -1}}, "mappings[0].commit.rows"),
        ({"commit": {"rows": True}}, "mappings[0].commit.rows"),
        ({"topics": ["a b"]}, "mappings[0].topics[0]"),
        ({"group": ""}, "mappings[0].group"),
        ({"where": " "}, "mappings[0].where: must not be empty"),
        ({"commit": []}, "mappings[0].commit"),
        ({"start": "yesterday"}, "mappings[0].start"),
        ({"start": {"timestamp": "soon"}}, "mappings[0].start"),
        ({"on_offset_loss": "ignore"}, "mappings[0].on_offset_loss"),
        (
            {"format": {"type": "xml"}},
            "mappings[0].format.type: must be one of json, text, ",
        ),
        (
            {"format": {"type": ["json"]}},
            "mappings[0].format.type: must be one of json, text, ",
        ),
        ({"format": {"type": None}}, "mappings[0].format.type: has no value"),
        ({"format": {"type": "regex", "pattern": "(a"}}, "mappings[0].format.pattern: must be a regular expression"),
        (
            {"format": {"type": "regex", "pattern": "a", "fields": ["a"]}},
            "mappings[0].format.fields: the number of entries is 1",
        ),
        ({"format": {"type": "delimited"}}, "mappings[0].format.fields: is missing"),
        ({"format": {"type": "delimited", "fields": ["a", "A"]}}, "mappings[0].format.fields: must name each column"),
        ({"format": {"type": "delimited", "fields": ["a"], "escape": "ab"}}, "mappings[0].format.escape: must be one"),
        (
            {"format": {"type": "delimited", "fields": ["a"], "field_delimiter": ",", "escape": "44"}},
            "mappings[0].format: escape and field_delimiter are both ','",
        ),
        ({"format": {"type": "delimited", "fields": ["a"], "bad_values": "drop"}}, "format.bad_values: must be reject"),
        (
            {"format": {"type": "avro", "schemas": ["int"]}},
            "mappings[0].format.schemas[0]: must be the text of an Avro schema, but it is not JSON: ",
        ),
        (
            {"format": {"type": "avro", "framing": "none"}},
            "mappings[0].format.schemas: must contain exactly one schema with framing: none, not 0",
        ),
        ({"format": {"type": "avro", "reader_schema": "int"}}, "mappings[0].format.reader_schema: must be the text of"),
        (
            {"format": {"type": "avro", "schemas": ['{"type": "record", "name": "r", "fields": []}']}},
            "mappings[0].format.schemas: has no effect with framing: confluent",
        ),
        (
            {"format": {"type": "avro"}},
            "registry: is missing, but the records of the mapping orders refer to its schemas",
        ),
        (
            {"format": {"type": "avro", "framing": "single_object"}},
            "mappings[0].format.schemas: is missing",
        ),
        (
            {
                "format": {
                    "type": "avro",
                    "framing": "single_object",
                    "schemas": [
                        '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}',
                        '{"type": "record", "name": "r", "fields": [{"name": "b", "type": "long"}]}',
                        """{"type": "record", "name": "r", "fields": [
                            {"name": "a", "type": {"type": "long", "logicalType": "timestamp-millis"}}
                        ]}""",
                    ],
                }
            },
            "mappings[0].format.schemas[2]: has the fingerprint of schemas[0]",
        ),
        ({"format": "json"}, "mappings[0].format: must be a section with keys and values"),
        (
            {"format": {"type": "text", "tombstones": "drop"}},
            "mappings[0].format.tombstones: must be 'stop', 'skip', 'dead_letter' or 'null_row'",
        ),
        ({"format": {"fields": {"a": "$."}}}, "mappings[0].format.fields.a: must be a path of names and indexes"),
        ({"format": {"fields": {"a": 5}}}, "mappings[0].format.fields.a: must be text"),
        ({"format": {"fields": {"a": "$.b", "A": "$.c"}}}, "mappings[0].format.fields: must name each column once"),
        ({"format": {"envelope": "avro"}}, "mappings[0].format.envelope: must be 'none', 'connect' or 'debezium'"),
        ({"format": {"timestamp_formats": []}}, "mappings[0].format.timestamp_formats"),
        ({"format": {"timestamp_formats": ["unix"]}}, "mappings[0].format.timestamp_formats[0]: must be iso, epoch_s"),
        (
            {"format": {"timestamp_formats": ["epoch_s", "epoch_ms"]}},
            "mappings[0].format.timestamp_formats: must have only one of epoch_s, epoch_ms and epoch_us",
        ),
        ({"partition": {"dt": []}}, "mappings[0].partition.dt"),
        ({"partition": {"dt": "days(ts)"}}, "mappings[0].partition.dt: must be a value or a call of year, month"),
        ({"distribution": "round_robin"}, "mappings[0].distribution: must be 'auto', 'none' or 'hash'"),
        ({"control_database": "other"}, "mappings[0].control_database: unknown key"),
        ({"commit": {"rows": None}}, "mappings[0].commit.rows: has no value"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_value_when_invalid_then_error_has_its_path(mapping: dict[str, Any], path: str) -> None:
    text = _fault(mapping)
    assert path in text
    assert "pydantic" not in text.lower()


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "localhost:9083",
        "http://localhost",
        "thrift://",
        "thrift://host:port",
        "thrift://host:0",
        "thrift://host:65536",
    ],
)
def test_metastore_uri_when_invalid_then_raises_config_error(uri: str) -> None:
    assert "metastore.uri" in _fault(metastore={"uri": uri})


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"kerberos": {"principal": "hive"}}, "metastore.kerberos.principal"),
        ({"kerberos": {"principal": "hive/_HOST@A", "keytab": "/x"}}, "metastore.kerberos.user"),
        ({"kerberos": {"principal": "hive/_HOST@A", "protection": []}}, "metastore.kerberos.protection"),
        ({"plain": {"username": "a", "password": ""}}, "metastore.plain.password"),
        (
            {"plain": {"username": "a", "password": "b"}, "kerberos": {"principal": "hive/_HOST@A"}},
            "kerberos and plain are mutually exclusive",
        ),
    ],
)
def test_metastore_login_when_invalid_then_raises_config_error(section: dict[str, Any], expected: str) -> None:
    assert expected in _fault(metastore={"uri": "thrift://localhost:9083"} | section)


def test_metastore_login_when_valid_then_is_in_the_options_and_the_password_is_hidden() -> None:
    plain = {"username": "ann", "password": "secret-word"}
    section = {
        "uri": "thrift://localhost:9083",
        "plain": plain,
        "tls": {"ca_file": "/ca.pem", "verify_hostname": False},
    }
    document = validate(Settings(_document(metastore=section)))

    assert document.metastore.security == Security(
        Plain("ann", "secret-word"), Tls(Path("/ca.pem"), verify_hostname=False)
    )
    assert "secret-word" not in f"{document!r} {document.metastore.security!r}"
    kerberos = {"principal": "hive/_HOST@A", "user": "me@A", "keytab": "/k", "protection": ["auth-conf"]}
    document = validate(Settings(_document(metastore={"uri": "thrift://localhost:9083", "kerberos": kerberos})))
    login = Kerberos("hive/_HOST@A", "me@A", Path("/k"), frozenset({Protection.CONFIDENTIALITY}))
    assert document.metastore.security == Security(login)


@pytest.mark.parametrize("key", sorted(REFUSED))
def test_kafka_key_when_it_would_break_exactly_once_then_is_refused(key: str) -> None:
    servers = {"bootstrap.servers": "localhost:9092"}
    assert f"kafka.{key}: {key} cannot be set" in _fault(kafka=servers | {key: "x"})
    assert f"mappings[0].kafka.{key}" in _fault({"kafka": {key: "x"}})


def test_kafka_when_no_broker_is_named_then_error_says_so() -> None:
    assert "bootstrap.servers is missing" in _fault(kafka={})


def test_mappings_when_two_have_the_same_name_then_the_second_is_refused() -> None:
    document = _document()
    document["mappings"] *= 2
    with pytest.raises(ConfigError, match=r"mappings\[1\].name: another mapping is named orders"):
        validate(Settings(document))


def test_mapping_when_optional_keys_are_missing_then_defaults_apply() -> None:
    options = _options()
    assert str(options.table) == "shop.orders"
    assert (options.commit.rows, options.commit.bytes, options.commit.interval) == (1_000_000, 256 << 20, 30.0)
    assert (options.start.at, options.on_offset_loss, options.format.tombstones) == ("earliest", "stop", "stop")
    assert options.consumer_group == "ingestd-orders"
    assert str(options.control) == "ingestd.mapping_orders"


def test_format_when_its_type_is_set_then_options_are_those_of_the_type() -> None:
    assert _options({"format": {"tombstones": "skip"}}).format == JsonOptions(tombstones="skip")
    assert _options({"format": {"fields": {"a": "$.User['first name'][0]"}, "envelope": "debezium"}}).format == (
        JsonOptions(fields={"a": "$.User['first name'][0]"}, envelope="debezium")
    )
    assert _options({"format": {"type": "text", "column": "Line"}}).format == TextOptions(column="line")
    schema = '{"type": "record", "name": "r", "fields": []}'
    avro = {"type": "avro", "framing": "none", "schemas": [schema]}
    assert _options({"format": avro}).format == AvroOptions(framing="none", schemas=(schema,))
    assert _options({"format": {"type": "binary", "tombstones": "skip"}}).format == BinaryOptions(tombstones="skip")
    regex = {"type": "regex", "pattern": "(.)(.)", "fields": ["A", ""], "bad_values": None}
    assert _options({"format": regex}).format == RegexOptions(pattern="(.)(.)", fields=("a", ""), bad_values="null")
    delimited = {"type": "delimited", "fields": ["a"], "field_delimiter": "44", "surplus": "reject"}
    expected = DelimitedOptions(fields=("a",), field_delimiter="44", surplus="reject")
    assert _options({"format": delimited}).format == expected


def test_format_when_its_type_is_a_reference_then_error_does_not_show_its_value() -> None:
    settings = Settings(
        _document({"format": {"type": "a secret"}}),
        {"mappings[0].format.type": "a.yaml:7"},
        {"mappings[0].format.type": "FILE:/run/secrets/a"},
    )
    with pytest.raises(ConfigError) as caught:
        validate(settings)
    assert str(caught.value).startswith("a.yaml:7: mappings[0].format.type: must be one of json, text, ")
    assert "secret" not in str(caught.value)


def test_commit_when_defaults_and_mapping_set_keys_then_merges_key_by_key() -> None:
    options = _options({"commit": {"rows": 5}}, defaults={"commit": {"rows": 7, "bytes": "1MiB", "interval": "500ms"}})
    assert (options.commit.rows, options.commit.bytes, options.commit.interval) == (5, 1 << 20, 0.5)


def test_kafka_when_the_mapping_sets_keys_then_merges_key_by_key() -> None:
    options = _options({"kafka": {"client.id": "mine"}})
    assert dict(options.kafka) == {"bootstrap.servers": "localhost:9092", "client.id": "mine"}


def test_start_when_a_time_has_no_zone_then_is_utc() -> None:
    wanted = 1793491200000  # 2026-11-01T00:00:00Z
    for text in ("2026-11-01T00:00:00Z", "2026-11-01T00:00:00", "2026-11-01T01:00:00+01:00"):
        start = _options({"start": {"timestamp": text}}).start
        assert (start.at, start.timestamp_ms) == ("timestamp", wanted)


def test_start_when_a_time_has_microseconds_then_is_the_next_millisecond() -> None:
    # The second time is not exact as a floating-point number.
    for text, wanted in (("2026-11-01T00:00:00.0001Z", 1793491200001), ("2038-10-13T03:09:12.023Z", 2170552152023)):
        assert _options({"start": {"timestamp": text}}).start.timestamp_ms == wanted


def test_topic_when_repeated_then_counts_once() -> None:
    assert _options({"topics": ["a", "b", "a"]}).topics == ("a", "b")


def test_partition_value_when_yaml_parses_another_type_then_becomes_hives_text() -> None:
    given = yaml.safe_load("{n: 5, dt: 2026-11-21, at: 2026-11-21 10:00:00, b: true, nothing: ''}")
    assert _options({"partition": given}).partition == {
        "n": "5",
        "dt": "2026-11-21",
        "at": "2026-11-21 10:00:00",
        "b": "true",
        "nothing": "",
    }


@pytest.mark.parametrize("rows", [5, "5", 5.0])
def test_count_when_it_is_a_whole_number_of_any_type_then_is_accepted(rows: object) -> None:
    assert _options({"commit": {"rows": rows}}).commit.rows == 5


@pytest.mark.parametrize(
    ("text", "expected"), [("500ms", 0.5), ("30s", 30), ("5m", 300), ("1h", 3600), (7, 7), ("1.5 s", 1.5)]
)
def test_seconds_then_units_are_read(text: object, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "s", "5 weeks", "-1s", "1e3", "5M", True, None, "1s 2s"])
def test_seconds_when_malformed_then_raises(text: object) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        seconds(text)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        *(("rows", value, "must be a whole number") for value in (float("inf"), float("nan"), "9" * 5000)),
        *(("rows", value, "must be at most 2^63-1") for value in (1e300, 2**63, str(2**63))),
        ("bytes", "9" * 400, "must be at most 2^63-1 bytes"),
        *(("interval", value, "must be at most 576h") for value in ("576.1h", "9" * 400)),
    ],
)
def test_number_when_larger_than_files_or_sockets_allow_then_error_says_so(
    key: str, value: object, problem: str
) -> None:
    assert f"commit.{key}: {problem}, not" in _fault({"commit": {key: value}})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("64KiB", 65536),
        ("64 kib", 65536),
        ("1GB", 10**9),
        (5, 5),
        ("1.5MB", 1_500_000),
        ("3B", 3),
        (2**63 - 1, 2**63 - 1),
    ],
)
def test_size_then_units_are_read(text: object, expected: int) -> None:
    assert size(text) == expected


@pytest.mark.parametrize("text", ["", "KiB", "1 parsec", "-1", "1TiBB", False, "9" * 1_000_001])
def test_size_when_malformed_then_raises(text: object) -> None:
    with pytest.raises(ValueError, match="must be a size"):
        size(text)
