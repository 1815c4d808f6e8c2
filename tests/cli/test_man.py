"""The man page and shell completion come from the definitions of the commands and contain all of them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import click
import pytest

from ingestd.cli.main import cli
from ingestd.cli.man import commands, man_page
from tests.support.command import Run

COMMANDS = list(commands(cli, "ingestd"))


def _rendered(page: str) -> str:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed (Debian: groff)")
    command = ["groff", "-man", "-ww", "-Tascii", "-P-c", "-P-b", "-P-u", "-rLL=200n"]
    result = subprocess.run(command, input=page, capture_output=True, text=True, check=True)
    assert result.stderr == ""
    return result.stdout


def test_man_page_then_renders_without_warnings_and_contains_every_command_and_option(run: Run) -> None:
    result = run("man")
    assert (result.code, result.out.strip()) == (0, man_page(cli))
    text = _rendered(result.out)
    assert len(COMMANDS) > 8
    for path, command in COMMANDS:
        section = text.partition(f"\n   {path}\n")[2].partition("\n   ingestd")[0]
        assert section, path
        first = (command.help or "").strip().split("\n")[0]
        assert first[:60] in " ".join(section.split()), path
        for parameter in command.params:
            for name in parameter.opts if isinstance(parameter, click.Option) else ():
                assert re.search(rf"(^|[\s,]){name}\b", section), (path, name)


def test_man_page_then_lines_that_begin_with_a_period_are_macros() -> None:
    macros = {line.split()[0] for line in man_page(cli).splitlines() if line.startswith(".")}
    assert macros <= {".TH", ".SH", ".SS", ".B", ".PP", ".TP", ".nf", ".fi"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_then_prints_a_script_that_the_shell_accepts(run: Run, shell: str) -> None:
    result = run("completion", shell)
    assert result.code == 0
    assert f"_INGESTD_COMPLETE={shell}_complete" in result.out
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=result.out, text=True, check=True)


def test_completion_when_the_shell_asks_then_offers_commands_and_options() -> None:
    def offered(*words: str) -> set[str]:
        line = " ".join(words)
        environment = {"_INGESTD_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        code = "from ingestd.__main__ import main; main()"
        result = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        return {line.partition(",")[2] for line in result.stdout.splitlines()}

    assert {"run", "check", "config", "completion", "man"} <= offered("ingestd", "")
    assert {"--config", "--output"} <= offered("ingestd", "config", "show", "--")
