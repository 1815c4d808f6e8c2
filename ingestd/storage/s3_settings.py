"""Decides how to access a bucket: the configuration overrides `fs.s3a` properties, which override the environment.

Invariant: no secret appears in the `repr` of a value or in an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ingestd.errors import ConfigError, InvalidTable
from ingestd.storage import hadoop
from ingestd.storage.options import Encryption, StorageOptions, check_endpoint

_DEFAULT_REGION = "us-east-1"
_BUCKET = re.compile(r"[a-zA-Z0-9._-]{1,255}")
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn", ".amazonaws.eu")
# The region in a host name such as s3.dualstack.eu-west-1 or bucket.vpce-1a.s3.eu-west-1.vpce, without its end above.
_REGION = re.compile(r"(?:.*\.)?s3(?:-fips)?(?:\.dualstack)?[.-]([a-z]+(?:-[a-z]+)+-[0-9]+)(?:\.vpce)?")
# Classes in fs.s3a.aws.credentials.provider by their last name. The others are those that botocore tries as well.
_ANONYMOUS = {"AnonymousAWSCredentialsProvider"}
_KEYS = {"SimpleAWSCredentialsProvider", "TemporaryAWSCredentialsProvider"}
_CHAIN = {
    *("EnvironmentVariableCredentialsProvider", "WebIdentityTokenCredentialsProvider", "ProfileCredentialsProvider"),
    *("InstanceProfileCredentialsProvider", "IAMInstanceCredentialsProvider", "EC2ContainerCredentialsProviderWrapper"),
    *("ContainerCredentialsProvider", "DefaultAWSCredentialsProviderChain", "DefaultCredentialsProvider"),
    *("WebIdentityTokenFileCredentialsProvider",),
}
_ENCRYPTIONS: dict[str, Encryption] = {
    "AES256": "AES256",
    "SSE-S3": "AES256",
    "SSE-KMS": "aws:kms",
    "DSSE-KMS": "aws:kms:dsse",
}


@dataclass(frozen=True, slots=True)
class Keys:
    """An access key, and the token of temporary credentials."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str | None = field(repr=False, default=None)


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Everything that determines how requests to a bucket are sent.

    `credentials` None means botocore's chain: environment, web identity, profile, container and instance role. The
    other values that are None are left to botocore, too. `timeout_seconds` limits how long the server may be silent
    during a request and its repetitions; they end after ten times as long in any case.
    """

    endpoint: str | None
    region: str | None
    is_path_style: bool
    ca_file: Path | None
    credentials: Keys | Literal["anonymous"] | None
    encryption: Encryption | None
    encryption_key: str | None
    connections: int
    timeout_seconds: float


def resolve(bucket: str, options: StorageOptions) -> S3Settings:
    """Combine the options with the Hadoop configuration.

    Raises ConfigError for what ingestd does not support, and InvalidTable if the name of the bucket is not valid.
    """
    if "@" in bucket or ":" in bucket:  # without `@` if the secret key contains a slash
        raise ConfigError(
            "credentials in locations are not supported",
            where=f"s3a://***@{bucket.rpartition('@')[2]}" if "@" in bucket else "s3a://***",
            hint="use storage.s3.access_key and storage.s3.secret_key",
        )
    if not _BUCKET.fullmatch(bucket):
        raise InvalidTable(
            "the location has no valid name of a bucket",
            where=f"s3a://{bucket}",
            hint="use a table whose location is s3a://BUCKET/PATH",
        )
    given, s3a = options.s3, _S3aProperties(bucket, hadoop.properties(options))
    endpoint = _with_scheme(given.endpoint) if given.endpoint else s3a.endpoint()
    path_style = s3a.flag("path.style.access") if given.path_style is None else given.path_style
    credentials: Keys | Literal["anonymous"] | None = None
    if given.anonymous:
        credentials = "anonymous"
    elif given.access_key and given.secret_key:
        credentials = Keys(given.access_key, given.secret_key, given.session_token)
    else:
        credentials = s3a.credentials()
    encryption, key = (given.encryption, given.encryption_key) if given.encryption else s3a.encryption()
    return S3Settings(
        endpoint=endpoint,
        region=given.region or s3a.text("endpoint.region") or (_region(endpoint) if endpoint else None),
        is_path_style=bool(endpoint and not _amazon_host(endpoint)) if path_style is None else path_style,
        ca_file=given.ca_file,
        credentials=credentials,
        encryption=encryption,
        encryption_key=key,
        connections=given.connections,
        timeout_seconds=options.timeout,
    )


class _S3aProperties:
    """The properties `fs.s3a.NAME` for a bucket; `fs.s3a.bucket.BUCKET.NAME` overrides them."""

    def __init__(self, bucket: str, properties: Mapping[str, str]) -> None:
        self._bucket = bucket
        self._properties = properties

    def text(self, name: str) -> str | None:
        for key in (f"fs.s3a.bucket.{self._bucket}.{name}", f"fs.s3a.{name}"):
            if self._properties.get(key):
                return self._properties[key]
        return None

    def flag(self, name: str) -> bool | None:
        text = self.text(name)
        return None if text is None else text.lower() == "true"

    def endpoint(self) -> str | None:
        text = self.text("endpoint")
        if not text:
            return None
        check_endpoint(text, "fs.s3a.endpoint")
        return _with_scheme(text, "http" if self.flag("connection.ssl.enabled") is False else "https")

    def credentials(self) -> Keys | Literal["anonymous"] | None:
        """Return the credentials of the properties, or None if botocore should look for them."""
        listed = (self.text("aws.credentials.provider") or "").replace("\n", ",").split(",")
        names = {name.strip().rpartition(".")[2] for name in listed if name.strip()}
        access_key, secret_key = self.text("access.key"), self.text("secret.key")
        if access_key and secret_key and (not names or names & _KEYS):
            return Keys(access_key, secret_key, self.text("session.token"))
        if names & _ANONYMOUS:
            return "anonymous"
        unknown = sorted(names - _KEYS - _CHAIN)
        if unknown:
            raise ConfigError(
                f"the credentials provider {unknown[0]} is not supported",
                where="fs.s3a.aws.credentials.provider",
                hint="set storage.s3.access_key and storage.s3.secret_key, or use a role that the environment provides",
            )
        return None

    def encryption(self) -> tuple[Encryption | None, str | None]:
        name = "encryption" if self.text("encryption.algorithm") else "server-side-encryption"
        algorithm = self.text("encryption.algorithm") or self.text("server-side-encryption-algorithm")
        if not algorithm:
            return None, None
        if algorithm.upper() not in _ENCRYPTIONS:
            raise ConfigError(
                f"the encryption {algorithm} is not supported",
                where="fs.s3a.encryption.algorithm",
                hint=f"use one of {', '.join(_ENCRYPTIONS)}",
            )
        return _ENCRYPTIONS[algorithm.upper()], self.text(f"{name}.key")


def _with_scheme(endpoint: str, scheme: str = "https") -> str:
    return endpoint if "://" in endpoint else f"{scheme}://{endpoint}"


def _amazon_host(endpoint: str) -> str | None:
    """Return the beginning of the host name of an endpoint of Amazon; None for other endpoints."""
    host = endpoint.partition("://")[2].partition("/")[0].partition(":")[0].lower()
    return next((host.removesuffix(end) for end in _AMAZON if host.endswith(end)), None)


def _region(endpoint: str) -> str:
    match = _REGION.fullmatch(_amazon_host(endpoint) or "")
    return match[1] if match else _DEFAULT_REGION
