"""The configuration section `spark`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from ingestd.keys import PORT, Check, Doc, Seconds, Setting, matching

_MASTER = matching(
    r"local(\[(\d+|\*)(,\d+)?\]|-cluster\[[\d, ]+\])?|yarn|(k8s|mesos)://\S+"
    rf"|spark://[^\s,]+:{PORT}(,[^\s,]+:{PORT})*",
    "must be a Spark master URL: local[*], local[4], spark://HOST:7077, yarn or k8s://HOST:PORT",
)

_MASTER_PROPERTY = "spark.master"
_PREFIX = "spark."


def _property(name: str) -> str:
    """Check the name of a Spark property. Raises ValueError."""
    if not name.startswith(_PREFIX):
        raise ValueError(f"must begin with {_PREFIX}, because Spark ignores other properties")
    if name == _MASTER_PROPERTY:
        raise ValueError("must be set with the key spark.master, not in spark.conf")
    return name


_Property = Annotated[str, Check(_property, {"pattern": rf"^{re.escape(_PREFIX)}"})]
# Executors of a cluster may come and go.
_CLUSTER_CORES = 16


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """`master` is a Spark master URL, and `conf` contains Spark properties.

    `stage_timeout` limits a job, `executor_timeout` the time that it waits while there is no executor, and
    `answer_timeout` an answer of the driver's JVM, in seconds.
    """

    master: Annotated[
        str, _MASTER, Doc("The Spark master URL: local[*], local[4], spark://HOST:7077, yarn or k8s://HOST:PORT.")
    ] = "local[*]"
    stage_timeout: Annotated[Seconds, Doc("A Spark job that takes longer is cancelled.")] = 900.0
    executor_timeout: Annotated[
        Seconds, Doc("A Spark job fails, and is retried, if there is no executor for longer.")
    ] = 60.0
    answer_timeout: Annotated[Seconds, Doc("Spark's driver JVM is killed if it does not answer for longer.")] = 30.0
    conf: Annotated[Mapping[_Property, Setting], Doc("Spark properties.")] = field(default_factory=dict, repr=False)

    @property
    def has_executors(self) -> bool:
        """Whether tasks run in the executors of a cluster. With a local master, they run on this machine."""
        return not self.master.startswith("local")

    @property
    def cores(self) -> int:
        """How many tasks run at the same time, as far as it is known before Spark has started."""
        local = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", self.master)
        if local is None:
            return _CLUSTER_CORES
        return os.cpu_count() or 1 if local[1] == "*" else int(local[1] or 1)

    @property
    def properties(self) -> dict[str, str]:
        """The properties of `conf` as text, with `true` and `false` in lower case."""
        return {key: str(v).lower() if isinstance(v, bool) else str(v) for key, v in self.conf.items()}
