"""A Hive warehouse: the metastore that describes its tables, and the storages that contain their files."""

from __future__ import annotations

from dataclasses import dataclass

from ingestd.hive.client import Metastore
from ingestd.storage.storages import Storages


@dataclass(frozen=True, slots=True)
class Warehouse:
    """The clients of one warehouse, which many threads share."""

    metastore: Metastore
    storages: Storages
