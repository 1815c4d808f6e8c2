"""How to access a bucket: the configuration, fs.s3a properties and the environment."""

from __future__ import annotations

import traceback
from dataclasses import replace

import pytest

from ingestd.errors import ConfigError, InvalidTable
from ingestd.storage.options import S3Options, StorageOptions
from ingestd.storage.s3_settings import Keys, S3Settings, resolve
from ingestd.storage.storages import Storages

AWS = "org.apache.hadoop.fs.s3a"


def _resolved(s3: S3Options | None = None, bucket: str = "b", **s3a: str) -> S3Settings:
    properties = {f"fs.s3a.{name.replace('_', '.')}": value for name, value in s3a.items()}
    return resolve(bucket, StorageOptions(s3=s3 or S3Options(), properties=properties))


def test_settings_when_nothing_is_set_then_botocore_decides() -> None:
    settings = _resolved()
    assert (settings.endpoint, settings.region, settings.credentials, settings.encryption) == (None, None, None, None)
    assert not settings.is_path_style
    assert settings.connections == 32


def test_settings_when_hadoop_sets_properties_then_they_apply_and_those_of_the_bucket_first() -> None:
    s3a = {"endpoint": "minio:9000", "connection_ssl_enabled": "false", "access_key": "a", "secret_key": "s"}
    settings = _resolved(None, "b", **s3a, bucket_b_access_key="mine", bucket_other_secret_key="x")
    assert settings.endpoint == "http://minio:9000"
    assert settings.region == "us-east-1"
    assert settings.is_path_style
    assert settings.credentials == Keys("mine", "s")
    assert _resolved(None, "b", **s3a, path_style_access="false").is_path_style is False
    assert _resolved(endpoint="s3.eu-west-1.amazonaws.com").endpoint == "https://s3.eu-west-1.amazonaws.com"
    assert not _resolved(endpoint="s3.eu-west-1.amazonaws.com").is_path_style
    assert _resolved(endpoint_region="eu-west-1").region == "eu-west-1"


def test_settings_when_the_configuration_sets_options_then_they_precede_hadoop() -> None:
    given = S3Options(endpoint="http://own:1", access_key="k", secret_key="p", session_token="t", path_style=False)
    settings = _resolved(given, endpoint="other:2", access_key="a", secret_key="s", endpoint_region="r")
    assert settings.endpoint == "http://own:1"
    assert settings.credentials == Keys("k", "p", "t")
    assert not settings.is_path_style
    assert settings.region == "r"
    assert _resolved(S3Options(anonymous=True), access_key="a", secret_key="s").credentials == "anonymous"


@pytest.mark.parametrize(
    ("endpoint", "region"),
    [
        ("s3.eu-west-1.amazonaws.com", "eu-west-1"),
        ("https://s3-us-west-2.amazonaws.com/", "us-west-2"),
        ("s3.dualstack.ap-southeast-1.amazonaws.com:443", "ap-southeast-1"),
        ("s3-fips.dualstack.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("https://bucket.vpce-1a2b-3c4d.s3.us-east-2.vpce.amazonaws.com", "us-east-2"),
        ("s3.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("s3.amazonaws.com", "us-east-1"),
        ("s3.eu-west-1.example.com", "us-east-1"),
    ],
)
def test_settings_when_the_endpoint_names_a_region_of_amazon_then_it_is_used_unless_another_is_set(
    endpoint: str, region: str
) -> None:
    assert _resolved(S3Options(endpoint=endpoint)).region == _resolved(endpoint=endpoint).region == region
    assert _resolved(S3Options(endpoint=endpoint, region="eu-central-1")).region == "eu-central-1"
    assert _resolved(endpoint=endpoint, endpoint_region="eu-central-1").region == "eu-central-1"


@pytest.mark.parametrize(
    ("providers", "expected"),
    [
        (f"{AWS}.AnonymousAWSCredentialsProvider", "anonymous"),
        (f"{AWS}.TemporaryAWSCredentialsProvider, {AWS}.SimpleAWSCredentialsProvider", Keys("a", "s", "t")),
        (f"{AWS}.auth.IAMInstanceCredentialsProvider", None),
        (
            "com.amazonaws.auth.EnvironmentVariableCredentialsProvider,\n" + f"{AWS}.SimpleAWSCredentialsProvider",
            Keys("a", "s", "t"),
        ),
    ],
)
def test_settings_when_hadoop_lists_credentials_providers_then_they_decide(providers: str, expected: object) -> None:
    keys = {"access_key": "a", "secret_key": "s", "session_token": "t"}
    assert _resolved(None, **keys, aws_credentials_provider=providers).credentials == expected


def test_settings_when_hadoop_asks_for_encryption_then_requests_do() -> None:
    kms = _resolved(encryption_algorithm="SSE-KMS", encryption_key="id")
    assert (kms.encryption, kms.encryption_key) == ("aws:kms", "id")
    old = _resolved(None, **{"server-side-encryption-algorithm": "AES256"})
    assert (old.encryption, old.encryption_key) == ("AES256", None)
    own = _resolved(S3Options(encryption="AES256"), encryption_algorithm="SSE-KMS", encryption_key="id")
    assert (own.encryption, own.encryption_key) == ("AES256", None)


@pytest.mark.parametrize(
    ("s3a", "message"),
    [
        ({"encryption_algorithm": "SSE-C"}, "SSE-C is not supported"),
        ({"aws_credentials_provider": f"{AWS}.auth.AssumedRoleCredentialProvider"}, "AssumedRoleCredentialProvider"),
    ],
)
def test_settings_when_hadoop_needs_what_is_not_supported_then_the_error_names_the_property(
    s3a: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        _resolved(None, "b", **s3a)
    assert raised.value.where.startswith("fs.s3a.")


@pytest.mark.parametrize("uri", ["s3a://key:secret@b/t", "s3a://key:secret/2@b/t", "s3a://key:secret%2F2@b/t"])
def test_settings_when_a_location_contains_credentials_then_they_are_refused_and_not_shown(uri: str) -> None:
    with pytest.raises(ConfigError, match="credentials in locations") as raised:
        Storages(StorageOptions(properties={})).at(uri)
    assert "secret" not in str(raised.value).replace("secret_key", "")


@pytest.mark.parametrize("port", [0, 65536])
def test_settings_when_an_endpoint_has_no_valid_port_then_it_is_refused(port: int) -> None:
    with pytest.raises(ConfigError, match="a port up to 65535"):
        S3Options(endpoint=f"http://a:{port}")
    with pytest.raises(ConfigError, match="a port up to 65535"):
        _resolved(endpoint=f"a:{port}")


@pytest.mark.parametrize("password", ["canary", "ca/canary"])
def test_settings_when_an_endpoint_contains_a_password_then_it_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    endpoint = f"http://ann:{password}@127.0.0.1:1"
    with pytest.raises(ConfigError, match="without user and password") as raised:
        _resolved(endpoint=endpoint)
    assert raised.value.where == "fs.s3a.endpoint"
    assert "canary" not in str(raised.value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(ConfigError, match="without user and password") as raised:
        Storages(StorageOptions(properties={})).at("s3a://b/t").entries("s3a://b/t")
    assert "canary" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("uri", ["s3a:///t", "s3a://my+bucket/t"])
def test_settings_when_a_location_has_no_valid_bucket_then_the_table_is_refused(uri: str) -> None:
    with pytest.raises(InvalidTable, match="name of a bucket"):
        Storages(StorageOptions(properties={})).at(uri)


@pytest.mark.parametrize(
    "options",
    [
        {"access_key": "a"},
        {"secret_key": "s"},
        {"session_token": "t"},
        {"access_key": "a", "secret_key": "s", "anonymous": True},
        {"encryption_key": "alias/warehouse"},
        {"encryption_key": "alias/warehouse", "encryption": "AES256"},
        {"endpoint": "https://ann:pass@minio:9000"},
        {"endpoint": "https://ann@minio"},
        {"endpoint": "my server"},
        {"endpoint": "minio:port"},
        {"endpoint": ""},
        {"region": "eu west 1"},
        {"region": "eu-west-1."},
    ],
)
def test_options_when_they_contradict_each_other_then_the_error_names_the_section(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as raised:
        S3Options(**options)  # type: ignore[arg-type]
    assert raised.value.where.startswith("storage.s3")
    assert "pass@" not in str(raised.value)


@pytest.mark.parametrize(
    "endpoint",
    ["minio", "minio:9000", "http://10.0.0.1:80/", "https://[::1]:9000", "HTTPS://s3.example.com/storage/v1/s3"],
)
def test_options_when_an_endpoint_is_a_url_or_a_host_then_it_is_accepted(endpoint: str) -> None:
    assert S3Options(endpoint=endpoint, region="us-gov-west-1").endpoint == endpoint


def test_settings_when_they_are_shown_then_no_secret_appears() -> None:
    options = S3Options(access_key="my-key", secret_key="my-secret", session_token="my-token")
    with_properties = StorageOptions(s3=options, properties={"fs.s3a.secret.key": "my-secret"})
    shown = repr(with_properties) + repr(resolve("b", with_properties)) + repr(replace(options, region="r"))
    assert "my-" not in shown
