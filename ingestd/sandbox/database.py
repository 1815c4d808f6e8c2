"""The metastore's database: embedded Derby, or PostgreSQL when its address is given; and its schema.

Invariant: a schema is either complete, with Hive's version row as the last statement, or `prepare` raises.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from ingestd.errors import SandboxError

_SHAPE = "postgresql://USER:PASSWORD@HOST:PORT/DATABASE"


@dataclass(frozen=True, slots=True)
class Database:
    """JDBC coordinates, as the metastore and as another process (HiveServer2) use them."""

    url: str
    other_process_url: str
    driver: str
    other_process_driver: str
    user: str
    password: str
    script: str

    @property
    def is_derby(self) -> bool:
        """True for the embedded database."""
        return self.driver.startswith("org.apache.derby")


def derby(data: Path, port: int) -> Database:
    """Embedded in the metastore, which also serves it on `port` (HiveServer2 4.0.1 writes compactions by JDBC)."""
    return Database(
        url=f"jdbc:derby:;databaseName={data}/derby;create=false",
        other_process_url=f"jdbc:derby://127.0.0.1:{port}/{data}/derby",
        driver="org.apache.derby.jdbc.EmbeddedDriver",
        other_process_driver="org.apache.derby.jdbc.ClientDriver",
        user="APP",
        password="mine",  # noqa: S106  # of a database that only this user's files and the loopback address reach
        script="hive-schema-4.0.0.derby.sql",
    )


def postgres(address: str) -> Database:
    """PostgreSQL at a `postgresql://` or `jdbc:postgresql://` address; raises SandboxError when it is neither."""
    parts = urlsplit(address.removeprefix("jdbc:"))
    if parts.scheme not in ("postgresql", "postgres") or not parts.hostname or not parts.path.strip("/"):
        raise SandboxError("--metastore-db is no PostgreSQL address", where=_hidden(address), hint=f"write {_SHAPE}")
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
    """The address without its password."""
    return re.sub(r"(:[^:@/]+)(?=@)|(?<=password=)[^&]*", "***", address)
