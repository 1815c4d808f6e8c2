"""The house's rules that no linter knows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ingestd import __version__, errors
from ingestd.cli.main import cli
from ingestd.config.document import Document, load
from ingestd.config.validation import keys
from ingestd.errors import IngestdError

ROOT = Path(__file__).parents[1]
OURS = sorted(ROOT.joinpath("ingestd").rglob("*.py"))
MODULES = OURS + sorted(ROOT.joinpath("tests").rglob("*.py"))
TOP = {"pyproject.toml", "ingestd", "tests", "config", "systemd", "Dockerfile", "README.md", "CHANGELOG.md", "LICENSE"}
TOP |= {"bench", "docs", "k8s"}
# What tools leave behind; git ignores it.
LEFT_BEHIND = re.compile(r"build|dist|metastore_db|derby\.log|spark-warehouse|.*\.egg-info|__pycache__")

each_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@each_module
def test_module_then_is_short_and_says_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    if text.strip():
        assert ast.get_docstring(_tree(path)), "no docstring"


@each_module
def test_functions_then_are_short(path: Path) -> None:
    for node in ast.walk(_tree(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert (node.end_lineno or 0) - node.lineno < 50, f"{node.name} at line {node.lineno}"


@each_module
def test_name_then_says_what_is_inside(path: Path) -> None:
    words = {word for part in path.relative_to(ROOT).with_suffix("").parts for word in part.split("_")}
    assert not words & {"util", "utils", "helper", "helpers", "common", "misc", "lib"}


def test_top_level_then_holds_what_belongs_there() -> None:
    names = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    assert not {name for name in names - TOP if not LEFT_BEHIND.fullmatch(name)}


def test_versions_then_agree() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    match = re.search(r'^version = "(.+)"', project, re.MULTILINE)
    assert match
    assert match[1] == __version__
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {__version__}" in changes or "## Unreleased" in changes


def test_errors_then_stand_in_the_tree_of_their_module() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, IngestdError)]
    assert len(classes) > 10
    missing = [c.__name__ for c in classes if not re.search(rf"\b{c.__name__}\b", errors.__doc__ or "")]
    assert not missing


KEYS = sorted(set(keys(Document)))


def _commands(group: click.Group, path: str = "ingestd") -> Iterator[str]:
    for name, command in group.commands.items():
        yield f"{path} {name}"
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path} {name}")


def _readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_then_names_every_configuration_key() -> None:
    assert len(KEYS) > 30
    readme = _readme()
    missing = [path for path, name in KEYS if not re.search(rf"[`.{{ ]{name}[`:.,}} ]", readme)]
    assert not missing


def test_readme_then_names_every_command() -> None:
    readme = _readme()
    assert not [command for command in _commands(cli) if command not in readme]


def test_readme_then_names_every_exit_code() -> None:
    readme = _readme()
    codes = {c.exit_code for c in vars(errors).values() if isinstance(c, type) and issubclass(c, IngestdError)}
    assert not [code for code in sorted(codes | {0, 2, 70}) if not re.search(rf"\b{code}\b", readme)]


def test_example_configuration_then_loads_and_names_every_key() -> None:
    example = ROOT / "config" / "ingestd.example.yaml"
    load([example])
    text = example.read_text(encoding="utf-8")
    assert not [path for path, name in KEYS if not re.search(rf"\b{name}:", text)]
