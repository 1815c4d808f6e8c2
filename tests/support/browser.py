"""A headless Chromium that records what a page loads and what it writes to its console."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import pytest
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from ingestd.clock import Deadline, pause
from tests.support.patience import LIMIT

T = TypeVar("T")
_ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1440,1000")
# Returns each text whose contrast is less than 4.5 (WCAG AA), with the contrast.
_LOW_CONTRAST = """
const parse = (color) => color.match(/[\\d.]+/g).map(Number);
const luminance = ([r, g, b]) => [r, g, b].map((v) => v / 255)
  .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const opaque = (color) => color.length < 4 || color[3] === 1;
const background = (node) => {
  for (; node; node = node.parentElement) {
    const color = parse(getComputedStyle(node).backgroundColor);
    if (opaque(color)) return color;
  }
  return [255, 255, 255];
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const found = [];
while (walker.nextNode()) {
  const node = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || !node.checkVisibility() || node.closest(".hidden, noscript")) continue;
  const style = getComputedStyle(node);
  const [a, b] = [luminance(parse(node.closest("svg") ? style.fill : style.color)), luminance(background(node))];
  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (contrast < 4.5) found.push(`${walker.currentNode.data.trim()}: ${contrast.toFixed(2)}`);
}
return found;
"""


class Browser:
    """One window. Elements are named by CSS selectors."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Load a page from scratch, even if it differs from the current one only after `#`."""
        self.driver.get("about:blank")
        self._log("browser")
        self._log("performance")
        self.driver.get(url)

    def show(self, width: int, height: int, scheme: Literal["light", "dark"] = "light") -> None:
        """Change the size of the window and the preferred colours."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        preferred = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", preferred)

    def all(self, selector: str) -> list[WebElement]:
        """Return the elements that a selector names now."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """Return the visible texts of elements, in the order of the page."""
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText.trim())"
        found: list[str] = self.driver.execute_script(script, selector)
        return found

    def text(self, selector: str) -> str:
        """Return the visible text of the first element, or an empty text."""
        return next(iter(self.texts(selector)), "")

    def wait(self, what: str, check: Callable[[], Any], seconds: float = LIMIT) -> Any:
        """Call `check` until its result is true, and return it. Fails after `seconds` with the text of the page."""
        limit = Deadline.after(seconds)
        while not (answer := check()):
            assert not limit.passed, f"timed out waiting for {what}; the page shows:\n{self.text('body')}"
            pause(0.05)
        return answer

    def read(self, look: Callable[[], T]) -> T:
        """Return the result of `look`, which is called again if the page replaces an element meanwhile."""
        while True:
            try:
                return look()
            except StaleElementReferenceException:  # noqa: PERF203 - the loop is there to look again
                continue

    def press(self, *keys: str) -> None:
        """Press keys one after another, wherever the focus is."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    @property
    def focused(self) -> WebElement:
        """The element that has the focus."""
        return self.driver.switch_to.active_element

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        script = "return document.scrollingElement.scrollWidth - document.documentElement.clientWidth"
        return int(self.driver.execute_script(script))

    def low_contrast(self) -> Sequence[str]:
        """Return the visible texts with a contrast of less than 4.5."""
        found: list[str] = self.driver.execute_script(_LOW_CONTRAST)
        return found

    def complaints(self) -> list[str]:
        """Return what the console contains since the page was opened."""
        return [entry["message"] for entry in self._log("browser")]

    def requested_hosts(self) -> set[str]:
        """Return the hosts and ports that the page requested since it was opened."""
        events = [json.loads(entry["message"])["message"] for entry in self._log("performance")]
        urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return {urlsplit(url).netloc for url in urls if urlsplit(url).scheme not in ("data", "about")}

    def _log(self, kind: str) -> list[dict[str, Any]]:
        """Return and remove the entries of a log."""
        entries: list[dict[str, Any]] = self.driver.get_log(kind)  # type: ignore[no-untyped-call]
        return entries


@contextmanager
def browser() -> Iterator[Browser]:
    """Start Chromium. The test is skipped if it is not installed, unless INGESTD_TEST_BROWSER is set."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        assert not os.environ.get("INGESTD_TEST_BROWSER"), "chromium or chromedriver is not installed"
        pytest.skip("needs the Debian packages chromium and chromium-driver")
    options = ChromeOptions()
    options.binary_location = program
    for argument in _ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = Chrome(options=options, service=Service(driver))
    try:
        yield Browser(started)
    finally:
        started.quit()
