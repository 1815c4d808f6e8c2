"""The configuration section `storage`, which Spark's tasks and the streaming API use as well.

Invariant: no secret appears in the `repr` of an option.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from ingestd.errors import ConfigError
from ingestd.keys import NOT_A_KEY, PORT, Count, Doc, Seconds, Setting

Encryption = Literal["AES256", "aws:kms", "aws:kms:dsse"]
_ENDPOINT = re.compile(rf"(https?://)?([\w.-]+|\[[\da-fA-F:.]+\])(:{PORT})?(/[^\s?#@]*)?", re.ASCII | re.IGNORECASE)
# What botocore accepts as a part of a host name.
_REGION = re.compile(r"(?!\d+$)[a-zA-Z\d]([a-zA-Z\d-]{0,61}[a-zA-Z\d])?", re.ASCII)


def check_endpoint(endpoint: str, where: str) -> None:
    """Raise ConfigError, which does not contain the endpoint, unless it is a URL without user and password."""
    if not _ENDPOINT.fullmatch(endpoint):
        raise ConfigError(
            "must be a URL with a port up to 65535, and without user and password",
            where=where,
            hint="write for example https://minio.example.com:9000; access_key and secret_key contain the keys",
        )


@dataclass(frozen=True, slots=True)
class S3Options:
    """How to access buckets; what is not set comes from `fs.s3a` properties, and then from botocore's environment.

    Raises ConfigError for an invalid endpoint or region, and for options that contradict each other.
    """

    endpoint: Annotated[str | None, Doc("The URL of an S3-compatible server; `https://` unless it has a scheme.")] = (
        None
    )
    region: Annotated[
        str | None,
        Doc("The region; with an endpoint, by default the one in its name or us-east-1, else that of the environment."),
    ] = None
    access_key: Annotated[str | None, Doc("The access key; needs `secret_key`.")] = field(default=None, repr=False)
    secret_key: Annotated[str | None, Doc("The secret key; write a reference such as ${FILE:/path}.")] = field(
        default=None, repr=False
    )
    session_token: Annotated[str | None, Doc("The token of temporary keys.")] = field(default=None, repr=False)
    anonymous: Annotated[bool, Doc("Send requests without a signature.")] = False
    path_style: Annotated[
        bool | None, Doc("Put the bucket in the path of URLs; by default only for servers other than Amazon's.")
    ] = None
    ca_file: Annotated[Path | None, Doc("PEM file with the CA certificates of the endpoint.")] = None
    encryption: Annotated[Encryption | None, Doc("Encryption that requests ask for; by default the bucket's.")] = None
    encryption_key: Annotated[
        str | None, Doc("The id of the KMS key, with `encryption: aws:kms` or `aws:kms:dsse`; by default the bucket's.")
    ] = None
    connections: Annotated[Count, Doc("Parallel requests of a process, such as copies while publishing.")] = 32

    def __post_init__(self) -> None:
        if bool(self.access_key) != bool(self.secret_key) or (self.session_token and not self.access_key):
            raise ConfigError(
                "access_key and secret_key are needed together, and session_token only with them",
                where="storage.s3",
                hint="set both keys, or none of them to use a role, a profile or the environment",
            )
        if self.endpoint is not None:
            check_endpoint(self.endpoint, "storage.s3.endpoint")
        if self.region is not None and not _REGION.fullmatch(self.region):
            raise ConfigError(
                "must be the name of a region", where="storage.s3.region", hint="write for example eu-west-1"
            )
        if self.encryption_key and self.encryption not in ("aws:kms", "aws:kms:dsse"):
            raise ConfigError(
                "encryption_key needs encryption with a KMS key",
                where="storage.s3.encryption_key",
                hint="set storage.s3.encryption to aws:kms or aws:kms:dsse, or remove the key",
            )
        if self.anonymous and self.access_key:
            raise ConfigError("anonymous access needs no key", where="storage.s3.anonymous", hint="remove one of them")


@dataclass(frozen=True, slots=True)
class HdfsOptions:
    """How to access HDFS; what is not set comes from the Hadoop configuration.

    Raises ConfigError if only one of `principal` and `keytab` is set, and for properties of S3.
    """

    principal: Annotated[
        str | None, Doc("The Kerberos principal that logs in with `keytab`; by default, the ticket cache is used.")
    ] = None
    keytab: Annotated[Path | None, Doc("The keytab of `principal`, which tasks of Spark read as well.")] = None
    properties: Annotated[
        Mapping[str, Setting], Doc("Hadoop properties that override those of `storage.hadoop_conf_dir`.")
    ] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if bool(self.principal) != bool(self.keytab):
            raise ConfigError(
                "principal and keytab are needed together",
                where="storage.hdfs",
                hint="set both, or none of them to use the Kerberos ticket cache",
            )
        for key in self.properties:
            if key.startswith("fs.s3a."):
                raise ConfigError(
                    "this property does not apply to HDFS",
                    where=f"storage.hdfs.properties.{key}",
                    hint="use the keys of storage.s3, or the core-site.xml in storage.hadoop_conf_dir",
                )


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """How to access storages other than the local file system; `timeout` limits each request, in seconds.

    `hdfs` and `s3` contain options that override those of the Hadoop configuration. `properties` are the properties of
    the Hadoop configuration, as read by `hadoop.with_properties`; None means that its files are read when they are
    needed.
    """

    timeout: Annotated[Seconds, Doc("The time limit of a request to HDFS or S3.")] = 60.0
    hadoop_conf_dir: Annotated[
        Path | None, Doc("Directory with core-site.xml and hdfs-site.xml; by default that of HADOOP_CONF_DIR, if set.")
    ] = None
    hdfs: Annotated[HdfsOptions, Doc("Access to HDFS.")] = field(default_factory=HdfsOptions)
    s3: Annotated[S3Options, Doc("Access to S3 and compatible servers.")] = field(default_factory=S3Options)
    properties: Mapping[str, str] | None = field(default=None, repr=False, metadata=NOT_A_KEY)
