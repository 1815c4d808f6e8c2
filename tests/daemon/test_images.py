"""The images of the README: the status page of a daemon that moves records, in light and dark colours."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hive_metastore import ttypes

from ingestd.clock import Deadline, now, pause
from ingestd.sandbox import Addresses, SandboxOptions
from tests.support.browser import Browser, browser
from tests.support.http import Client
from tests.support.sandbox import running
from tests.support.stack import Stack, eventually

pytestmark = pytest.mark.soak

# The rates of the page are means of the last minute.
_SECONDS = 70.0
_WIDTH = 1080
_SCALE = 1.5
_MOST_BYTES = 200_000
# Records per second of each topic.
_RATES = {"clicks": 2000, "orders": 300, "sessions": 900, "payments": 100, "refunds": 50}
_COLUMNS = {"id": "bigint", "amount": "decimal(10,2)"}


@pytest.fixture(scope="module")
def addresses(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """Yield the addresses of services of its own, in which the names of the images are free."""
    with running(SandboxOptions(tmp_path_factory.mktemp("images"))) as box:
        yield box.addresses()


def _mapping(name: str) -> dict[str, Any]:
    table = {"columns": _COLUMNS, "partitioned_by": {"dt": "string"}}
    return {"name": name, "topics": [name], "table": f"web.{name}", "create_table": table}


def _produce(stack: Stack, topic: str, first: int, count: int) -> None:
    records = (
        {"id": n, "amount": n % 9000 / 100, "dt": f"2026-11-{n % 3 + 1:02}"} for n in range(first, first + count)
    )
    stack.produce(records, topic)


def run_mappings(stack: Stack) -> tuple[Path, Client]:
    """Run a daemon with five mappings for more than a minute: one is paused, and one has stopped before a record."""
    stack.metastore.call("create_database", ttypes.Database(name="web"))
    for name in _RATES:
        stack.topic(4, name)
    listen = {"listen": "127.0.0.1:0"}
    config = stack.config(*map(_mapping, _RATES), http=listen, defaults={"commit": {"interval": "2s"}})
    client = Client.of(stack.start_process(config))
    eventually("all mappings", lambda: client.get("/status").json["states"].get("running") == len(_RATES))
    limit, second = Deadline.after(_SECONDS), 0
    while not limit.passed:
        began = now()
        for name, rate in _RATES.items():
            _produce(stack, name, second * rate, rate)
        if second == int(_SECONDS / 2):
            client.post("/mappings/refunds/pause", {"by": "ann", "wait_seconds": 30})
            stack.produce([{"id": 104223, "amount": "12,50", "dt": "2026-11-01"}], "payments", 3)
        second += 1
        pause(max(0.0, 1.0 - (now() - began)))
    eventually("the stopped mapping", lambda: client.get("/status").json["states"].get("failed") == 1)
    return config, client


def _take(page: Browser, path: Path) -> None:
    """Write the whole page as a PNG file of at most 200 kB."""
    taken = page.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": False})
    image = base64.b64decode(taken["data"])
    assert len(image) <= _MOST_BYTES
    path.write_bytes(image)


def test_status_page_then_its_images_show_a_daemon_that_moves_records(stack: Stack, tmp_path: Path) -> None:
    """Write the images to the directory in INGESTD_TEST_IMAGES, if it is set."""
    directory = Path(os.environ.get("INGESTD_TEST_IMAGES") or tmp_path)
    _, client = run_mappings(stack)
    with browser() as page:
        page.driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        for scheme in ("light", "dark"):
            page.show(_WIDTH, 600, scheme)
            page.open(f"http://{client.address}/")
            page.wait("all mappings", lambda: len(page.all("table.mappings tbody tr")) == len(_RATES))
            page.wait("the rates", lambda: page.text("[data-figure=rate]").split("\n")[1] != "0/s")
            height = int(
                page.driver.execute_script("return document.querySelector('main').getBoundingClientRect().bottom")
            )
            size = {"width": _WIDTH, "height": height, "deviceScaleFactor": _SCALE, "mobile": False}
            page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            _take(page, directory / f"status-{scheme}.png")
        assert page.complaints() == []
