"""`docs/events.md` documents every log event of the code with its level and fields."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from ingestd.ingest.monitoring import events
from ingestd.replication.policies import policy_events

ROOT = Path(__file__).parents[1]
SOURCES = [Path(events.__file__), Path(policy_events.__file__)]
SOURCES += [*sorted((ROOT / "ingestd" / "daemon").glob("*.py"))]
# (level, required fields, optional fields)
Event = tuple[str, frozenset[str], frozenset[str]]
LEVELS = {"debug", "info", "warning", "error"}
OF_THE_MESSAGE = "the level of the message"


def _documented() -> dict[str, Event]:
    text = (ROOT / "docs" / "events.md").read_text(encoding="utf-8")
    section = text.partition("# Log events")[2].partition("\n## ")[0]
    table: dict[str, Event] = {}
    for name, level, fields in re.findall(r"^\| `(\w+)` \| ([^|]+) \| [^|]+ \| (.+) \|$", section, re.MULTILINE):
        assert name not in table, f"{name} is documented twice"
        optional = frozenset(re.findall(r"\(`(\w+)`\)", fields))
        table[name] = (level, frozenset(re.findall(r"`(\w+)`", fields)) - optional, optional)
    return table


def _is_log_call(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in {"_log", "log"}
    )


def _logged() -> Iterator[tuple[str, str, Event]]:
    """Yield for every logger call the name of the function that contains it, the name of the event, and the event."""
    for path in SOURCES:
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            for call in filter(_is_log_call, ast.walk(function)):
                assert isinstance(call, ast.Call)
                yield function.name, *_event(call, function)


def _event(call: ast.Call, function: ast.FunctionDef) -> tuple[str, Event]:
    assert isinstance(call.func, ast.Attribute)
    [name] = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    level = call.func.attr if call.func.attr in LEVELS else OF_THE_MESSAGE
    required = frozenset(keyword.arg for keyword in call.keywords if keyword.arg)
    # The keys of `**values` are those that the function assigns.
    spread = {k.value.id for k in call.keywords if k.arg is None and isinstance(k.value, ast.Name)}
    optional = frozenset(
        str(node.slice.value)
        for node in ast.walk(function)
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id in spread
        and isinstance(node.slice, ast.Constant)
    )
    return name, (level, required, optional)


def test_log_events_then_match_the_documentation() -> None:
    logged = {name: event for _, name, event in _logged()}
    assert len(logged) > 20
    assert _documented() == logged


def test_log_events_then_each_has_one_function_with_its_name() -> None:
    functions = [(function, name) for function, name, _ in _logged() if name != "note"]
    assert [function for function, _ in functions] == [name for _, name in functions]
    assert all(callable(getattr(events, name, None) or getattr(policy_events, name)) for _, name in functions)
