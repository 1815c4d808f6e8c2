"""The alert rules and the dashboard use metrics that exist, and the chapters explain every alert."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingestd.daemon.metrics import Metrics
from ingestd.daemon.policy_metrics import PolicyMetrics
from ingestd.replication.policies.worker import Totals

DOCS = Path(__file__).parents[2] / "docs"
RULES = DOCS / "monitoring" / "alerts.yaml"
DASHBOARD = DOCS / "monitoring" / "grafana-dashboard.json"
# Prometheus adds these to the name of a histogram.
SUFFIXES = ("_bucket", "_sum", "_count")
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool: apt-get install prometheus"
)


def _alerts() -> dict[str, str]:
    """Return the expression of each alert."""
    [group] = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule["expr"] for rule in group["rules"]}


def _panels() -> list[dict[str, Any]]:
    return list(json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"])


def _dashboard_expressions() -> Iterator[str]:
    """Yield the queries of the dashboard, with values in place of Grafana's variables."""
    for panel in _panels():
        for target in panel.get("targets", []):
            yield re.sub(r"\$(instance|mapping)", ".*", target["expr"]).replace("$__rate_interval", "1m")


def _promtool(*arguments: str | Path) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_alerts_when_their_cases_are_evaluated_then_they_fire_for_the_expected_series(tmp_path: Path) -> None:
    for file in (RULES, Path(__file__).with_name("alerts_test.yaml")):
        shutil.copy(file, tmp_path)
    _promtool("check", "rules", tmp_path / "alerts.yaml")
    _promtool("test", "rules", tmp_path / "alerts_test.yaml")


def test_alerts_then_each_has_cases() -> None:
    cases = Path(__file__).with_name("alerts_test.yaml").read_text(encoding="utf-8")
    assert not [alert for alert in _alerts() if alert not in cases]


@pytest.mark.parametrize("chapter", ["alert.md", "recover.md"])
def test_alerts_then_each_has_a_row_in_the_chapter_and_no_other_has(chapter: str) -> None:
    rows = re.findall(r"^\| `(Ingestd\w+)` \|", (DOCS / chapter).read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == _alerts().keys()


def test_expressions_then_their_metrics_exist() -> None:
    text = Metrics().text([], None, PolicyMetrics((), Totals())).decode()
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    existing = {name for name, kind in types.items() if kind != "histogram"}
    existing |= {name + suffix for name, kind in types.items() if kind == "histogram" for suffix in SUFFIXES}
    dashboard = " ".join([*_dashboard_expressions(), DASHBOARD.read_text(encoding="utf-8")])
    used = [set(re.findall(r"\bingestd_\w+", text)) for text in (" ".join(_alerts().values()), dashboard)]
    assert not (used[0] | used[1]) - existing
    # The dashboard shows everything but the constant ones.
    shown = {name.removesuffix(suffix) for name in used[1] for suffix in ("", *SUFFIXES)}
    assert not types.keys() - shown - {"ingestd_process_virtual_memory_bytes", "ingestd_process_max_fds"}


@needs_promtool
def test_dashboard_then_its_queries_are_valid(tmp_path: Path) -> None:
    rules = [{"record": f"query:{n}", "expr": expr} for n, expr in enumerate(_dashboard_expressions())]
    assert len(rules) > 30
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}), encoding="utf-8")
    _promtool("check", "rules", file)


def test_dashboard_then_its_panels_have_titles_and_do_not_overlap() -> None:
    panels = _panels()
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["title"]
        at = panel["gridPos"]
        covered = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not covered & cells, panel["title"]
        assert max(x for x, _ in covered) < 24
        cells |= covered
