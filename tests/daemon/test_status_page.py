"""The status page in a real browser: every state, live changes, keyboard, narrow screens, and a daemon that is gone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Literal

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from ingestd.clock import now
from ingestd.config.http import Address
from ingestd.daemon.http.history import History
from ingestd.daemon.http.live import MAX_STREAMS
from ingestd.errors import MetastoreUnavailable, RecordError
from ingestd.kafka.hidden import Hidden
from ingestd.kafka.ranges import TopicPartition
from ingestd.replication.policies.policy_status import State
from tests.support.browser import Browser, browser
from tests.support.http import StaticFleet, commit, serving
from tests.support.metastore import free_port
from tests.support.policies import status as policy_status

_REJECT = RecordError(
    "'12,50' is not a decimal(10,2)", where="topic payments, partition 3, offset 104223", hint="correct the producer"
)
_ROW = "table.mappings tbody tr"


@pytest.fixture(scope="module")
def window(processes: None) -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.fixture
def page(window: Browser) -> Iterator[Browser]:
    """Yield the browser; afterwards, check what the page wrote to the console and loaded."""
    window.show(1440, 1000)
    yield window
    assert window.complaints() == []
    hosts = window.requested_hosts()
    assert len(hosts) == 1, hosts


@pytest.fixture
def fleet() -> StaticFleet:
    """Return a mapping in each state that an operator must be able to tell apart."""
    made = StaticFleet()
    made.run("clicks", rows=500, lag=250)
    commit(made.monitors["clicks"], "clicks", 40, end=750, txn=8, at=now() - 2)
    made.run("payments").failed(_REJECT)
    waits = MetastoreUnavailable("no answer within 60 s", where="thrift://hms-1:9083", hint="check that it runs")
    made.run("sessions").failed(waits, again_in=8.0)
    made.add("inventory").entered("standby", owner="ingestd@worker-7/90312")
    made.run("refunds").entered("paused")
    return made


@pytest.fixture
def history(fleet: StaticFleet) -> History:
    """Return the charts of one minute."""
    made = History()
    for _ in range(6):
        commit(fleet.monitors["clicks"], "clicks", 10, end=900, txn=9, at=now())
        made.add(fleet.monitors, 10)
    return made


@pytest.fixture
def url(fleet: StaticFleet, history: History) -> Iterator[str]:
    with serving(fleet, history=history) as client:
        yield f"http://{client.address}/"


def _row(page: Browser, name: str) -> str:
    return next((text for text in page.texts(_ROW) if text.startswith(f"{name}\n")), "")


def _states(page: Browser) -> dict[str, str]:
    texts = page.texts(f"{_ROW} .name, {_ROW} .badge")  # read at once, because rows come and go
    return dict(zip(texts[::2], texts[1::2], strict=True))


def test_overview_then_shows_every_state_with_its_problem_and_the_most_urgent_first(page: Browser, url: str) -> None:
    page.open(url)
    page.wait("five rows", lambda: len(page.all(_ROW)) == 5)
    assert list(_states(page).items()) == [
        ("payments", "failed"), ("sessions", "waiting"), ("refunds", "paused"), ("clicks", "running"),
        ("inventory", "standby"),
    ]  # fmt: skip
    assert "offset 104223: '12,50' is not a decimal(10,2)\ncorrect the producer" in _row(page, "payments")
    assert "thrift://hms-1:9083: no answer within 60 s\ncheck that it runs" in _row(page, "sessions")
    assert "clicks → default.clicks" in _row(page, "clicks")
    assert "\n300\n" in _row(page, "clicks").replace("\t", "\n")
    assert page.text("[data-figure=mappings]") == "Mappings\n5\n1 failed, 1 waiting"
    assert page.text("#link") == "Live"
    # The lag of a standby is not known, and not 0.
    assert _row(page, "inventory").replace("\t", "\n").split("\n")[-4:] == ["–", "–", "–", "–"]
    assert page.text("[data-figure=lag]").split("\n")[1] == "300"
    page.open(f"{url}#/mappings/%E0%A4%A")
    page.wait("the overview", lambda: len(page.all(_ROW)) == 5)


def test_overview_when_too_many_pages_are_open_then_still_shows_the_present_state(
    window: Browser, fleet: StaticFleet
) -> None:
    with serving(fleet) as client, ExitStack() as streams:
        for _ in range(MAX_STREAMS):
            stream = streams.enter_context(closing(client.open()))
            stream.request("GET", "/events")
            assert stream.getresponse().readline()
        window.open(f"http://{client.address}/")
        window.wait("five rows", lambda: len(window.all(_ROW)) == 5)
        assert window.text("#link") == "Live"
        fleet.monitors["clicks"].entered("paused")
        window.wait("the change", lambda: _states(window)["clicks"] == "paused")


def test_overview_when_policies_run_then_shows_them(page: Browser, url: str, fleet: StaticFleet) -> None:
    page.open(url)
    page.wait("the mappings", lambda: len(page.all(_ROW)) == 5)
    assert page.all(".policies:not([hidden])") == []
    fleet.policies = [policy_status(state=State.NEEDS_BOOTSTRAP), policy_status("repl2", State.IDLE)]
    page.wait("two policies", lambda: len(page.all(".policies tbody tr")) == 2)
    row = [line for line in page.texts(".policies tbody tr")[0].replace("\t", "\n").split("\n") if line]
    assert row[:3] == ["repl1", "REPL DUMP db1 · EVERY 30 MINUTES", "metastore: no answer → wait"]
    assert row[3:6] == ["needs bootstrap", "12 events", "35 s"]
    assert re.match(r"in \d+ min", row[6])
    assert row[7].startswith("failed, 1 of 2 tables, ")
    fleet.policies = [policy_status("repl2", State.IDLE)]
    for name in list(fleet.monitors):
        fleet.remove(name)
    page.wait("one policy", lambda: len(page.all(".policies tbody tr")) == 1)
    page.wait("no mappings", lambda: not page.all(".ingest:not([hidden])"))


def test_overview_when_mappings_change_then_shows_it_without_a_reload(
    page: Browser, url: str, fleet: StaticFleet
) -> None:
    page.open(url)
    page.wait("the rows", lambda: len(page.all(_ROW)) == 5)
    fleet.monitors["sessions"].entered("running")
    commit(fleet.monitors["sessions"], "sessions", 77, end=4321 + 1077)
    fleet.run("arrived")
    fleet.remove("refunds")
    page.wait("the new state", lambda: _states(page).get("sessions") == "running")
    # Changes are sent once a second, so that these may follow.
    page.wait("the lag", lambda: "4,321" in _row(page, "sessions"))
    shown = {"payments", "sessions", "clicks", "inventory", "arrived"}
    page.wait("the other mappings", lambda: set(_states(page)) == shown)
    assert page.text("#news") == "sessions is running"  # for screen readers


def test_overview_when_it_has_300_mappings_then_they_can_be_filtered_and_sorted(
    page: Browser, url: str, fleet: StaticFleet
) -> None:
    for number in range(300):
        fleet.run(f"tenant_{number:03}", lag=number)
    page.open(url)
    page.wait("all rows", lambda: len(page.all(_ROW)) == 305)
    [lag] = [button for button in page.all("thead button") if button.text.startswith("Lag")]
    lag.click()
    assert page.texts(f"{_ROW} .name")[:3] == ["clicks", "tenant_299", "tenant_298"]
    assert page.all("th[aria-sort=descending]")[0].text.startswith("Lag")
    page.all("#filter")[0].send_keys("tenant_29")
    assert len(page.all(_ROW)) == 10
    page.all("#filter")[0].clear()
    page.all("#filter")[0].send_keys("decimal")
    assert page.texts(f"{_ROW} .name") == ["payments"]
    page.all("#filter")[0].clear()
    page.all("#filter")[0].send_keys(" ", Keys.BACKSPACE)
    page.all(".chip[data-state=waiting]")[0].click()
    assert page.texts(f"{_ROW} .name") == ["sessions"]
    page.all(".chip[data-state=all]")[0].click()
    assert len(page.all(_ROW)) == 305


def test_mapping_then_shows_charts_commits_and_partitions(
    page: Browser, url: str, fleet: StaticFleet, history: History
) -> None:
    page.open(f"{url}#/mappings/clicks")
    page.wait("the charts", lambda: len(page.all(".chart path.line")) >= 3)
    page.wait("the commits", lambda: len(page.all("table.commits tbody tr")) == 8)
    assert page.text("h1") == "clicks"
    assert page.text(".page-head .state").startswith("running")
    assert page.texts(".legend li") == ["opened", "staged", "locked", "placed", "committed"]
    first = page.text("table.commits tbody tr")
    assert "clicks[0] 590..600" in first
    assert "396 ms" in first
    assert len(page.all("table.commits tbody tr:first-child rect")) == 5
    assert "staged 340 ms" in page.read(lambda: str(page.all("table.commits .bar")[0].accessible_name))
    kafka, hive = page.texts(".two section")
    assert kafka.replace("\t", " ").splitlines()[-1] == "clicks [0] 600 900 300"
    assert "dt=2026-11-22" in hive
    commit(fleet.monitors["clicks"], "clicks", 123, end=900, txn=10)
    page.wait("the new commit", lambda: "clicks[0] 600..723" in page.text("table.commits tbody tr"))
    # The current lag is not known once another daemon is owner.
    assert page.texts(".chart .readout")[1] == "300"
    fleet.monitors["clicks"].entered("standby", owner="there:1")
    history.add(fleet.monitors, 10)
    page.open(f"{url}#/")
    page.open(f"{url}#/mappings/clicks")
    page.wait("the charts", lambda: len(page.all(".chart path.line")) >= 3)
    assert page.texts(".chart .readout")[1] == "–"


def _axis(page: Browser) -> list[str]:
    """Return the labels of the axis of time of the first chart."""
    script = "return [...document.querySelectorAll('.chart:first-child .tick')].map((tick) => tick.textContent)"
    return [text for text in page.driver.execute_script(script) if text == "now" or text.startswith("−")]


def test_charts_when_a_span_is_chosen_then_show_it_or_as_much_of_it_as_there_is(
    page: Browser, url: str, fleet: StaticFleet, history: History
) -> None:
    page.open(f"{url}#/mappings/clicks")
    page.wait("the charts", lambda: page.all(".chart path.line"))
    assert not _axis(page)[0].endswith("h")  # but as long as the daemon has run
    for _ in range(7 * 360):
        history.add(fleet.monitors, 10)
    for span, axis, points in (
        ("6h", ["−6 h", "−5 h", "−4 h", "−3 h", "−2 h", "−1 h", "now"], 360),
        ("15m", ["−15 min", "−10 min", "−5 min", "now"], 90),
        ("1h", ["−1 h", "−45 min", "−30 min", "−15 min", "now"], 360),
    ):
        page.all(f".chip[data-span='{span}']")[0].click()
        page.wait("the axis", lambda axis=axis: _axis(page) == axis)  # type: ignore[misc]
        [line] = page.driver.execute_script(
            "return [...document.querySelectorAll('.chart:first-child path.line')].map((e) => e.getAttribute('d'))"
        )
        assert line.count("L") + 1 == points, span
        assert page.texts(".spans [aria-pressed=true]") == page.texts(f"[data-span='{span}']")
    page.open(f"{url}#/mappings/sessions")
    page.wait("the charts", lambda: page.all(".chart path.line"))
    page.show(360, 800)
    page.wait("an axis that fits", lambda: _axis(page) in (["−1 h", "−30 min", "now"], ["−1 h", "now"]))


def test_pages_when_an_open_transaction_hides_records_then_show_how_many_and_for_how_long(
    page: Browser, url: str, fleet: StaticFleet
) -> None:
    partition = TopicPartition("clicks", 0)
    fleet.monitors["clicks"].measured({partition: Hidden(790, 797)}, now() - 1)
    page.open(url)
    page.wait("five rows", lambda: len(page.all(_ROW)) == 5)
    assert "Kafka transaction" not in _row(page, "clicks")  # a transaction of a second is nothing special
    fleet.monitors["clicks"].measured({partition: Hidden(791, 1198)}, now() - 125)
    page.wait("the row", lambda: "407 offsets, not part of the lag, behind a Kafka transaction" in _row(page, "clicks"))
    page.open(f"{url}#/mappings/clicks")
    page.wait("the partitions", lambda: any("Hidden" in text for text in page.texts(".two section")))
    assert page.texts(".two section")[0].replace("\t", " ").splitlines()[-1].endswith(" 407")
    assert "has been open for 2 min" in page.text(".pace")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("payments", ["failed", "'12,50' is not a decimal", "How to fix it: correct the producer", "does not retry"]),
        ("sessions", ["waiting", "no answer within 60 s", "How to fix it: check that it runs", "MetastoreUnavailable"]),
        ("inventory", ["standby", "Owner: ingestd@worker-7/90312"]),
        ("nothing", ["The daemon has no mapping with this name."]),
    ],
)
def test_mapping_when_it_does_not_run_then_says_why(page: Browser, url: str, name: str, words: list[str]) -> None:
    page.open(f"{url}#/mappings/{name}")
    page.wait(words[0], lambda: words[0] in page.text("main"))
    assert not [word for word in words if word not in page.text("main")]


def test_page_when_only_the_keyboard_is_used_then_everything_can_be_reached(page: Browser, url: str) -> None:
    page.open(url)
    page.wait("the rows", lambda: len(page.all(_ROW)) == 5)
    page.press(Keys.TAB)
    assert page.focused.text == "Skip to content"
    page.press(Keys.ENTER)
    assert page.focused.get_attribute("id") == "main"
    page.press("/")
    assert page.focused.get_attribute("id") == "filter"
    page.press(*"click")
    assert page.texts(f"{_ROW} .name") == ["clicks"]
    for _ in range(20):
        page.press(Keys.TAB)
        if page.focused.text == "clicks":
            break
    page.press(Keys.ENTER)
    page.wait("the page of the mapping", lambda: page.text("h1") == "clicks")
    assert page.focused.get_attribute("id") == "main"
    page.wait("the charts", lambda: page.all(".chart path.line"))
    page.wait("the commits", lambda: page.all("table.commits tbody tr"))
    page.press(Keys.TAB, Keys.TAB)
    assert page.focused.text == "15 min"
    page.press(Keys.TAB, Keys.TAB, Keys.TAB)
    assert re.match(r"Records per second, last [12] min: now ", str(page.focused.accessible_name))
    page.press(Keys.ARROW_LEFT)
    assert page.text(".chart .readout").count(":") == 2  # the time of the value
    page.press(Keys.TAB, Keys.TAB, Keys.TAB, Keys.TAB)
    assert page.focused.get_attribute("aria-expanded") == "false"
    page.press(Keys.ENTER)
    assert "Write id" in page.text("tr.details")
    assert page.focused.get_attribute("aria-expanded") == "true"
    assert page.read(lambda: _unnamed(page)) == []


def _unnamed(page: Browser) -> list[WebElement]:
    """Return the visible elements that can be used, but have no name for screen readers."""
    return [e for e in page.all("button, a, input, select") if e.is_displayed() and not e.accessible_name]


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (360, "dark"), (820, "light"), (1440, "dark")])
def test_page_when_the_screen_is_narrow_or_dark_then_it_fits_and_can_be_read(
    page: Browser, url: str, width: int, scheme: Literal["light", "dark"]
) -> None:
    page.show(width, 800, scheme)
    for path, shown in (
        ("", _ROW),
        ("#/mappings/clicks", "table.commits tbody tr"),
        ("#/mappings/payments", ".problem"),
    ):
        page.open(url + path)
        page.wait(shown, lambda shown=shown: page.all(shown))  # type: ignore[misc]
        assert page.overflow() == 0, path
        assert page.low_contrast() == [], path


def test_page_when_the_daemon_is_gone_then_says_so_and_reconnects(
    window: Browser, fleet: StaticFleet, history: History
) -> None:
    address = Address("127.0.0.1", free_port())
    with serving(fleet, address, history=history):
        window.open(f"http://{address}/")
        window.wait("the rows", lambda: len(window.all(_ROW)) == 5)
    window.wait("the banner", lambda: window.text("#gone").startswith("The daemon does not answer"))
    assert "This is its last known state." in window.text("#gone")
    assert window.text("#link") == "No connection"
    assert len(window.all(_ROW)) == 5
    fleet.monitors["payments"].entered("running")
    with serving(fleet, address, history=history):
        window.wait("the connection", lambda: window.text("#link") == "Live")
        assert not window.all("#gone")[0].is_displayed()
        assert _states(window)["payments"] == "running"
