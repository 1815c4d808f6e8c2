"""Enforces rules of this repository that no linter checks: names, documentation, and tests without mocks."""

from __future__ import annotations

import ast
import re
from pathlib import Path

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


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_modules_then_have_docstrings() -> None:
    assert not [_name(path) for path in MODULES if path.stat().st_size and not ast.get_docstring(_tree(path))]


def test_module_names_then_say_what_they_contain() -> None:
    empty = {"util", "utils", "helper", "helpers", "common", "misc", "lib"}
    assert not [_name(path) for path in MODULES if empty & set(re.split(r"[/_.]", _name(path)))]


def test_top_level_then_contains_only_known_files() -> None:
    names = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    assert not {name for name in names - TOP if not GENERATED.fullmatch(name)}


def test_thrift_values_then_are_used_in_the_package_of_the_metastore_only() -> None:
    others = [path for path in OURS if "hive" not in path.relative_to(ROOT).parts]
    users = {
        f"{_name(path)}:{node.lineno}"
        for path in others
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Attribute) and node.attr == "raw" and ast.unparse(node.value) != "http_response"
    }
    assert not users


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


# A scheme, or a text that begins with one. The sandbox runs servers of each kind, and the demo looks for a library.
SCHEME = re.compile(r"(hdfs|viewfs|s3[an]?)(:.*)?|file:.*", re.DOTALL)
KNOW_SCHEMES = ("ingestd/storage/", "ingestd/sandbox/", "ingestd/cli/demo.py")


def test_schemes_of_locations_then_only_storage_knows_them() -> None:
    """Every other module names a location as the metastore does; import-linter checks who imports implementations."""
    others = [path for path in OURS if not _name(path).startswith(KNOW_SCHEMES)]
    assert not [
        f"{_name(path)}:{node.lineno}: {node.value}"
        for path in others
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SCHEME.fullmatch(node.value)
    ]


# The parts of the standard library that a test may replace, because they represent the environment.
PATCHABLE = {"sys", "os", "sys.modules", "importlib.util"}
PATCHING = {f"monkeypatch.{method}" for method in ("setattr", "delattr", "setitem", "delitem")}


def _is_patch(node: ast.AST) -> bool:
    """Return whether `node` replaces something with `monkeypatch`, or sets a private attribute of another object."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in PATCHING:
        return ast.unparse(node.args[0]) not in PATCHABLE
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.attr.startswith("_") and ast.unparse(node.value) not in {"self", "cls", "SparkContext"}
    return False


def test_tests_then_do_not_patch_our_modules() -> None:
    assert not [
        f"{_name(path)}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)}"
        for path in TESTS
        for node in ast.walk(_tree(path))
        if _is_patch(node)
    ]


def test_tests_then_mock_nothing() -> None:
    assert not [_name(path) for path in TESTS if "unittest" + ".mock" in path.read_text(encoding="utf-8")]
