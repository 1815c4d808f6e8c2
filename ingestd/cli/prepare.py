"""`ingestd prepare`: one-time work that makes later starts faster."""

from __future__ import annotations

import click

from ingestd.spark.prepare import prepare as write_class_archive


@click.command()
def prepare() -> None:
    """Prepare this machine, so that daemons start faster.

    Writes an archive of Spark's classes (80 MB) into the cache directory and prints its path. Run it once after an
    installation or an upgrade, as the user that runs the daemon. Without it everything works, but starts more slowly.
    """
    click.echo(write_class_archive())
