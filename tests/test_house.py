"""Enforces rules of this repository that no linter checks: sizes, names, documentation and wording."""

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


# Words to avoid, and what to write instead. The names of functions are checked as well.
WORDING = {
    r"anew": "again; re-read, recreate, restart",
    r"who(so)?ever": "the process, client or user that",
    r"mend(s|ed|ing)?": "fix, repair",
    r"in vain": "without effect",
    r"in silence": "silently",
    r"as told": "as configured",
    r"(is|are|was|were) told": "receives, is called with",
    r"(is|was|are|were|be) away": "unavailable",
    r"for ever": "forever; without a limit",
    r"dial(s|led|ling)?": "connect",
    r"cures?": "fixes",
    r"bears?": "supports, tolerates",
    r"stood by|take-over": "was standby; takeover",
    r"(sees|saw|see) to": "ensures",
    r"two ways to log in": "mutually exclusive",
    r"of (ours|theirs)": "name the owner",
    r"anymore|likewise|thereby|hence|merely|all the while": "a plain word",
}
PROSE = [*MODULES, ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(ROOT.joinpath("docs").glob("*.md"))]
PROSE += sorted(ROOT.joinpath("config").glob("*.yaml"))


def test_prose_then_contains_no_word_to_avoid() -> None:
    words = re.compile("|".join(rf"(?<![A-Za-z])(?:{word})(?![A-Za-z])" for word in WORDING), re.IGNORECASE)
    hits = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}: {line.strip()}"
        for path in PROSE
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (match := words.search(line))
    ]
    assert not hits, "\n".join(hits)


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


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_tests_then_do_not_patch_our_modules(path: Path) -> None:
    assert path == Path(__file__) or "unittest.mock" not in path.read_text(encoding="utf-8")
    assert not [
        f"line {getattr(node, 'lineno', 0)}: {ast.unparse(node)}" for node in ast.walk(_tree(path)) if _is_patch(node)
    ]
