"""How the processes of a standalone Spark cluster start: from the jars of PySpark, without Spark's shell scripts.

Invariant: PySpark is not imported. Executors, which workers start, use the same Java, and the Python that the driver
names.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from ingestd.errors import SandboxError

_OPENS = ("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util")
_OPENS_OF_CONCURRENT = ("java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch")
JVM_OPTIONS = (
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in (*_OPENS, *_OPENS_OF_CONCURRENT)),
    "-Dio.netty.tryReflectionSetAccessible=true",
)


def home() -> Path:
    """Return Spark's folder. Raises SandboxError if PySpark is not installed."""
    package = importlib.util.find_spec("pyspark")
    if package is None or package.origin is None:
        raise SandboxError("PySpark is not installed", hint="run: pip install 'ingestd[sandbox]'")
    return Path(package.origin).parent


def jars() -> str:
    """Return the class path with all jars of Spark."""
    return f"{home() / 'jars'}/*"


def environment(java: Path) -> dict[str, str]:
    """Return the variables that a worker needs to start executors with the Java home `java`."""
    folder = home()
    return {
        "SPARK_HOME": str(folder),
        # Spark's scripts set it. A worker that does not know it looks for a source tree of Spark.
        "SPARK_SCALA_VERSION": _scala_version(folder),
        "JAVA_HOME": str(java),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _scala_version(folder: Path) -> str:
    """Return the version of Scala with two numbers, such as `2.13`."""
    [jar] = (folder / "jars").glob("scala-library-*.jar")
    return ".".join(jar.stem.removeprefix("scala-library-").split(".")[:2])
