"""The process from which Spark forks its Python workers. It imports once what every worker of a stage needs.

Invariant: it has one thread, because a fork does not copy threads (`launch.py` sets what numpy and pyarrow need for
that). The environment variable `WORKER_IMPORTS` names the modules, because this package does not know the tasks.
"""

from __future__ import annotations

import importlib
import os
from contextlib import suppress

from pyspark import worker  # noqa: F401 - each worker would import it
from pyspark.daemon import manager

from ingestd.spark.launch import WORKER_IMPORTS


def main() -> None:
    """Import the modules, then fork workers until Spark closes the standard input."""
    for module in os.environ.get(WORKER_IMPORTS, "").split():
        with suppress(ImportError):  # the task that needs the module imports it again, and its error says why it fails
            importlib.import_module(module)
    manager()


if __name__ == "__main__":
    main()
