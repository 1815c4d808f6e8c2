"""Lists files of directories in which other processes create and remove files at the same time."""

from __future__ import annotations

import os
from pathlib import Path


def files_below(root: Path) -> list[Path]:
    """Return all files below a directory.

    `Path.glob` fails if a directory disappears while it is listed (until Python 3.12).
    """
    return [Path(folder, name) for folder, _, names in os.walk(root) for name in names]


def contains(file: Path, text: str) -> bool:
    """Return whether a file exists, is not a socket, and contains this text."""
    try:
        return file.is_file() and text.encode() in file.read_bytes()
    except FileNotFoundError:
        return False
