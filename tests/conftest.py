"""The real stack, started once per run, and what every test of it needs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingestd.sandbox import Addresses, Sandbox, SandboxOptions
from tests.support.postgres import postgres
from tests.support.stack import Stack


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox with HiveServer2; a stack that cannot start fails the run, it never skips a test."""
    state_dir = tmp_path_factory.mktemp("sandbox")
    box = Sandbox(SandboxOptions(state_dir=state_dir, hiveserver2=True, hiveserver2_heap_mb=1536))
    try:
        yield box
    finally:
        box.down()


@pytest.fixture(scope="session")
def addresses(sandbox: Sandbox) -> Addresses:
    """Where the services listen. INGESTD_TEST_STACK names a file with the JSON of a running sandbox, to save time."""
    running = os.environ.get("INGESTD_TEST_STACK")
    if running:
        return Addresses(**json.loads(Path(running).read_text(encoding="utf-8")))
    return sandbox.up()


@pytest.fixture
def stack(addresses: Addresses, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    """Topics, tables and daemons of one test, under names of its own; daemons that it started are ended."""
    made = Stack(addresses, request.node.name, tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def postgres_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox whose metastore is on PostgreSQL."""
    state_dir = tmp_path_factory.mktemp("postgres-sandbox")
    with postgres() as url:
        made = Sandbox(SandboxOptions(state_dir=state_dir, hiveserver2=True, metastore_db=url))
        try:
            made.up()
            yield made
        finally:
            made.down()


@pytest.fixture
def on_postgres(postgres_box: Sandbox, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    """As `stack`, with the metastore on PostgreSQL."""
    made = Stack(postgres_box.addresses(), request.node.name, tmp_path)
    try:
        yield made
    finally:
        made.close()
