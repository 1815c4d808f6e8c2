"""The documentation matches the code: links resolve, and named files, functions, layers, keys and commands exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ingestd import errors
from ingestd.cli.main import cli
from ingestd.cli.man import commands
from ingestd.config.document import Document, load
from ingestd.config.validation import keys
from ingestd.errors import IngestdError
from ingestd.storage.options import StorageOptions
from tests.support import certificates

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
CONFIGURATION = ROOT / "docs" / "configuration.md"
COMMANDS = ROOT / "docs" / "commands.md"
PAGES = [README, *sorted(ROOT.joinpath("docs").glob("*.md"))]
GUIDES = [ROOT / "docs" / "architecture.md", ROOT / "docs" / "contributing.md"]
_REST = "metastore: {uri: 'thrift://m:9083'}\nmappings: [{name: a, topics: [a], table: default.a}]\n"
KEYS = sorted(set(keys(Document)))

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
each_guide = pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _examples(page: Path) -> list[str]:
    """Return the YAML examples of a page."""
    return re.findall(r"^```yaml\n(.+?)^```", _text(page), re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub generates for the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", _text(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_page
def test_link_then_resolves(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", _text(page)):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link


@each_guide
def test_guide_then_is_short(page: Path) -> None:
    assert len(_text(page).splitlines()) <= 150


def _definitions(node: ast.AST, prefix: str = "") -> Iterator[str]:
    """Yield the names of classes, methods and functions, such as `Engine.run`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield f"{prefix}{child.name}"
            yield from _definitions(child, f"{prefix}{child.name}.")


@each_guide
def test_file_when_named_in_a_guide_then_exists_and_defines_the_named_function(page: Path) -> None:
    found = re.findall(r"`((?:[\w.]+/)+[\w.]*|\w+\.py)(?:::([\w.]+))?`", _text(page))
    assert found
    for name, definition in found:
        paths = [path for path in (ROOT / "ingestd" / name, ROOT / name) if path.exists()]
        assert paths, name
        assert not definition or definition in set(_definitions(ast.parse(_text(paths[0])))), f"{name}::{definition}"


def test_layers_in_architecture_then_are_those_of_the_import_contract() -> None:
    contract = re.search(r"^layers = \[(.+?)\]", _text(ROOT / "pyproject.toml"), re.MULTILINE | re.DOTALL)
    drawing = re.search(r"^```layers\n(.+?)```", _text(GUIDES[0]), re.MULTILINE | re.DOTALL)
    assert contract
    assert drawing
    layers = [re.findall(r"\w+", line) for line in re.findall(r'"(.+?)"', contract[1])]
    drawn = [re.findall(r"\w+", line.partition("  ")[0]) for line in drawing[1].splitlines()]
    assert drawn == layers


def test_readme_then_is_short() -> None:
    assert len(_text(README).splitlines()) <= 120


def test_readme_then_its_images_exist_and_are_small() -> None:
    images = re.findall(r'(?:src|srcset)="(.+?)"', _text(README))
    assert len(images) == 2
    assert all((ROOT / image).stat().st_size <= 200_000 for image in images)


def test_readme_then_its_configuration_loads(tmp_path: Path) -> None:
    [example] = _examples(README)
    assert len(example.splitlines()) == 6
    file = tmp_path / "ingestd.yaml"
    file.write_text(example, encoding="utf-8")
    [mapping] = load([file]).mappings
    assert (mapping.name, str(mapping.table)) == ("clicks", "web.clicks")


def test_configuration_page_then_names_every_key() -> None:
    assert len(KEYS) > 30
    named = set(re.findall(r"`([\w.]+)`", _text(CONFIGURATION).replace("[]", "")))
    sections = set(re.findall(r"^## (\w+)$", _text(CONFIGURATION), re.MULTILINE))
    # The keys of a mapping are named without `mappings`, and those of its sections stand for those of `defaults`.
    own = [path.removeprefix("mappings.") for path, _ in KEYS if not path.startswith("defaults.")]
    assert not [path for path in own if path not in named | sections and not _has_parts(path, named)]


def _has_parts(path: str, named: set[str]) -> bool:
    """Return whether `path` is a section, of which the page names all keys."""
    return any(name.startswith(f"{path}.") for name in named)


def test_configuration_examples_then_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates.make(tmp_path)
    for name in ("http.crt", "http.key", "ingestd.keytab", "metastore", "registry", "s3", "http-token"):
        (tmp_path / name).write_text("a password of 24 letters", encoding="utf-8")
    (tmp_path / "core-site.xml").write_text("<configuration/>", encoding="utf-8")
    monkeypatch.setenv("S3_ACCESS_KEY", "a key")
    examples = _examples(CONFIGURATION)
    assert len(examples) > 15
    rest = yaml.safe_load(_REST) | {"kafka": {"bootstrap.servers": "b:9092"}, "registry": {"url": "http://r:8081"}}
    for number, example in enumerate(examples):
        text = re.sub("/etc/ingestd|/run/secrets|/etc/hadoop/conf", str(tmp_path), example)
        file = tmp_path / f"{number}.yaml"
        file.write_text(yaml.safe_dump(rest | yaml.safe_load(text)), encoding="utf-8")
        load([file])


def test_commands_page_then_names_every_command() -> None:
    page = _text(COMMANDS)
    assert not [command for command, _ in commands(cli, "ingestd") if command not in page]


def test_commands_page_then_lists_every_exit_code() -> None:
    section = _text(COMMANDS).partition("## Exit codes")[2].partition("\n## ")[0]
    codes = {c.exit_code for c in vars(errors).values() if isinstance(c, type) and issubclass(c, IngestdError)}
    assert codes | {0, 2, 70} <= {int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)}


def test_kafka_examples_then_load_if_their_files_exist(tmp_path: Path) -> None:
    certificates.make(tmp_path)
    certificates.issue(tmp_path, "client", "client")
    (tmp_path / "kafka").write_text("a password", encoding="utf-8")
    examples = _examples(ROOT / "docs" / "kafka.md")
    assert len(examples) == 2
    for number, example in enumerate(examples):
        file = tmp_path / f"{number}.yaml"
        file.write_text(re.sub("/etc/ingestd|/run/secrets", str(tmp_path), example) + _REST, encoding="utf-8")
        load([file])


@pytest.mark.parametrize("page", ["hdfs.md", "s3.md"])
def test_storage_examples_then_load(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("S3_ACCESS_KEY", "S3_SECRET_KEY"):
        monkeypatch.setenv(name, "a key")
    [example] = _examples(ROOT / "docs" / page)
    (tmp_path / "core-site.xml").write_text("<configuration/>", encoding="utf-8")
    example = example.replace("/etc/hadoop/conf", str(tmp_path))
    file = tmp_path / "a.yaml"
    file.write_text(example + _REST + "kafka: {bootstrap.servers: 'b:9092'}\n", encoding="utf-8")
    assert load([file]).storage != StorageOptions()


def test_spark_examples_then_load(tmp_path: Path) -> None:
    examples = _examples(ROOT / "docs" / "spark.md")
    assert len(examples) == 4
    for number, example in enumerate(examples):
        file = tmp_path / f"{number}.yaml"
        file.write_text(example + _REST + "kafka: {bootstrap.servers: 'b:9092'}\n", encoding="utf-8")
        assert load([file]).spark.master != "local[*]"


def test_example_configuration_then_loads_and_names_every_key() -> None:
    example = ROOT / "config" / "ingestd.example.yaml"
    load([example])
    assert not [path for path, name in KEYS if not re.search(rf"\b{name}:", _text(example))]
