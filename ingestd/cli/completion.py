"""`ingestd completion`: prints the script with which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_PROGRAM = "ingestd"
_VARIABLE = "_INGESTD_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script for bash, zsh or fish.

    \b
    bash:  ingestd completion bash > ~/.local/share/bash-completion/completions/ingestd
    zsh:   ingestd completion zsh > ~/.zfunc/_ingestd       (with fpath+=~/.zfunc before compinit)
    fish:  ingestd completion fish > ~/.config/fish/completions/ingestd.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"click has no completion for {shell}")
    click.echo(kind(click.get_current_context().find_root().command, {}, _PROGRAM, _VARIABLE).source())
