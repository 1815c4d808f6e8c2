"""The arithmetic of the benchmarks."""

from __future__ import annotations

from typing import Any

import pytest

from bench.ingest import rate, warm_rate


def _commits(*commits: tuple[int, int]) -> list[dict[str, Any]]:
    """Return events of commits from their seconds and rows."""
    return [{"timestamp": f"2026-01-01T00:00:{second:02}Z", "rows": rows} for second, rows in commits]


@pytest.mark.parametrize(
    ("commits", "expected"),
    [
        (_commits((0, 100), (2, 100)), (50.0, 50.0)),
        (_commits((0, 10), (2, 100)), (50.0, 50.0)),  # the last commit completes the first half
        (_commits((0, 10), (5, 10), (7, 100)), (110 / 7, 50.0)),
        (_commits((0, 100), (4, 100), (6, 100), (7, 100)), (300 / 7, 200 / 3)),
    ],
)
def test_rates_when_there_are_few_commits_then_none_is_zero(
    commits: list[dict[str, Any]], expected: tuple[float, float]
) -> None:
    assert (rate(commits), warm_rate(commits)) == pytest.approx(expected)


def test_rates_when_there_is_one_commit_then_the_error_says_what_to_change() -> None:
    for measured in (rate, warm_rate):
        with pytest.raises(ValueError, match="raise --records"):
            measured(_commits((0, 100)))
