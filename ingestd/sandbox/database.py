"""The JDBC settings of the metastore's database: embedded Derby, or PostgreSQL when its address is given."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from ingestd.errors import SandboxError

_SHAPE = "postgresql://USER:PASSWORD@HOST:PORT/DATABASE"


@dataclass(frozen=True, slots=True)
class Database:
    """JDBC settings of the database. HiveServer2 uses the fields `other_process_…`; `script` is Hive's schema file."""

    url: str
    other_process_url: str
    driver: str
    other_process_driver: str
    user: str
    password: str
    script: str

    @property
    def is_derby(self) -> bool:
        """True when the database is embedded Derby."""
        return self.driver.startswith("org.apache.derby")


def derby(data: Path, port: int) -> Database:
    """Return the settings of Derby inside the metastore's process.

    Derby also listens on `port`, because HiveServer2 4.0.1 writes compaction requests over JDBC.
    """
    return Database(
        url=f"jdbc:derby:;databaseName={data}/derby;create=false",
        other_process_url=f"jdbc:derby://127.0.0.1:{port}/{data}/derby",
        driver="org.apache.derby.jdbc.EmbeddedDriver",
        other_process_driver="org.apache.derby.jdbc.ClientDriver",
        user="APP",
        password="mine",  # noqa: S106  # only local processes can reach the database
        script="hive-schema-4.0.0.derby.sql",
    )


def postgres(address: str) -> Database:
    """Return the settings for a PostgreSQL URL, with or without `jdbc:`. Raises SandboxError for any other text."""
    parts = urlsplit(address.removeprefix("jdbc:"))
    if parts.scheme not in ("postgresql", "postgres") or not parts.hostname or not parts.path.strip("/"):
        raise SandboxError(
            "--metastore-db is not a PostgreSQL address", where=_hidden(address), hint=f"write it as {_SHAPE}"
        )
    query = dict(parse_qsl(parts.query))
    user = query.pop("user", None) or unquote(parts.username or "")
    password = query.pop("password", None) or unquote(parts.password or "")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    url = f"jdbc:postgresql://{host}:{parts.port or 5432}{parts.path}"
    if query:
        url += "?" + "&".join(f"{key}={value}" for key, value in query.items())
    driver = "org.postgresql.Driver"
    return Database(url, url, driver, driver, user, password, "hive-schema-4.0.0.postgres.sql")


def _hidden(address: str) -> str:
    """Return the address with its password masked."""
    return re.sub(r"(:[^:@/]+)(?=@)|(?<=password=)[^&]*", "***", address)
