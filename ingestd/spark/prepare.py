"""Prepares this machine for Spark: writes the archive of Spark's classes, which halves the CPU time of later starts."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ingestd.java import find_java
from ingestd.spark.engine import Engine, JobGroup
from ingestd.spark.launch import DEFAULT_JAVA_OPTIONS, JAVA_OPTIONS, driver_archive
from ingestd.spark.session import Session

_KEPT_OPTIONS = ("--add-", "-XX:")


def prepare() -> Path:
    """Write the class archive unless a usable one exists, and return its path.

    Starts Spark, runs a job to learn which classes are needed, and stops it. Takes about 20 seconds of one core. Raises
    ArchiveFailed, EngineLost, or ConfigError if no Java is found.
    """
    archive = driver_archive(find_java())
    if archive.options:
        return archive.path
    with tempfile.TemporaryDirectory(prefix="ingestd-prepare-") as folder:
        classes = Path(folder) / "classes.lst"
        recording = f'{DEFAULT_JAVA_OPTIONS} "-XX:DumpLoadedClassList={classes}"'
        engine = Engine(Session(f"local[{os.cpu_count()}]", {JAVA_OPTIONS: recording}))
        try:
            engine.run(JobGroup("prepare"), str, range(2))
            class_path, options = engine.java_command()
        finally:
            engine.stop()
        kept = [option for option in options if option.startswith(_KEPT_OPTIONS) and str(classes) not in option]
        archive.write(classes, class_path, kept)
    return archive.path
