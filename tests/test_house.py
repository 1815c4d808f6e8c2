"""Rules of this repository that no linter checks: sizes, names, documentation and wording."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ingestd import __version__, errors
from ingestd.errors import IngestdError

ROOT = Path(__file__).parents[1]
OURS = sorted(ROOT.joinpath("ingestd").rglob("*.py"))
TESTS = sorted(ROOT.joinpath("tests").rglob("*.py"))
MODULES = OURS + TESTS
TOP = {"pyproject.toml", "ingestd", "tests", "config", "systemd", "Dockerfile", "README.md", "CHANGELOG.md", "LICENSE"}
TOP |= {"bench", "docs", "k8s"}
# Files that tools create; git ignores them.
GENERATED = re.compile(r"build|dist|metastore_db|derby\.log|spark-warehouse|.*\.egg-info|__pycache__")

each_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@each_module
def test_module_then_is_short_and_has_a_docstring(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    if text.strip():
        assert ast.get_docstring(_tree(path)), "no docstring"


@each_module
def test_function_then_is_short(path: Path) -> None:
    for node in ast.walk(_tree(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert (node.end_lineno or 0) - node.lineno < 50, f"{node.name} at line {node.lineno}"


@each_module
def test_module_name_then_says_what_it_contains(path: Path) -> None:
    words = {word for part in path.relative_to(ROOT).with_suffix("").parts for word in part.split("_")}
    assert not words & {"util", "utils", "helper", "helpers", "common", "misc", "lib"}


def test_top_level_then_contains_only_known_files() -> None:
    names = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    assert not {name for name in names - TOP if not GENERATED.fullmatch(name)}


def test_version_then_is_the_same_everywhere() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    match = re.search(r'^version = "(.+)"', project, re.MULTILINE)
    assert match
    assert match[1] == __version__
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {__version__}" in changes or "## Unreleased" in changes


def test_error_then_is_in_the_tree_of_its_module() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, IngestdError)]
    assert len(classes) > 10
    missing = [c.__name__ for c in classes if not re.search(rf"\b{c.__name__}\b", errors.__doc__ or "")]
    assert not missing
