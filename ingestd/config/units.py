"""Durations and sizes as people write them."""

from __future__ import annotations

import re

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def seconds(value: object) -> float:
    """`500ms`, `30s`, `5m`, `1h`; a bare number is seconds. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?", str(value).strip())
    if not match:
        raise ValueError("must be a duration such as 500ms, 30s or 5m")
    return float(match[1]) * _SECONDS[match[2] or "s"]


def size(value: object) -> int:
    """`64KiB`, `256MiB`, `1GB`; a bare number is bytes. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", str(value).strip())
    if not match or match[2].upper() not in _BYTES:
        raise ValueError("must be a size such as 64KiB, 256MiB or 1GB")
    return int(float(match[1]) * _BYTES[match[2].upper()])
