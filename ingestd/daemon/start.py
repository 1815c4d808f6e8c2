"""Starts the daemon: Spark's JVM first, which takes longest, and everything else while it starts.

Invariant: importing this module is cheap; modules that take long to import are imported after the JVM was launched. If
a fault of the configuration or a signal ends the start, neither a process nor a file is left. An abort ends the process
within 10 s, whatever hangs.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ingestd.clock import pause
from ingestd.config.files import Settings, read_document
from ingestd.errors import ConfigError, IngestdError, Unavailable
from ingestd.ingest.control import Signals
from ingestd.spark.launch import JAVA_OPTIONS, QUERY_JAVA_OPTIONS
from ingestd.spark.options import SparkOptions
from ingestd.spark.session import Session

if TYPE_CHECKING:
    from ingestd.daemon.log import Form, Level

# Seconds from an abort until the process is ended by force, and how long it may take to remove what Spark leaves.
_FORCE_SECONDS = 9.0
_REMOVE_SECONDS = 0.8


def start_daemon(
    files: Sequence[Path], directory: Path | None, form: Form, level: Level, *, drain: bool
) -> list[IngestdError]:
    """Run the daemon of this process until a signal stops it or, with `drain`, until it has caught up.

    `form` and `level` are those of the log. Returns the errors that ended mappings (see `run_daemon`). Raises
    ConfigError, and EngineLost if the JVM cannot be started.
    """
    signals = install_signals()
    session: Session | None = None
    threading.Thread(target=_end_by_force, args=(signals, lambda: session), name="force", daemon=True).start()
    settings = read_document(files, directory)
    early = _spark_options(settings)
    defaults = {JAVA_OPTIONS: QUERY_JAVA_OPTIONS} if _has_queries(settings) else {}
    session = Session(early.master, defaults | early.properties, signals.stop)
    try:
        from ingestd.config.document import complete, load  # noqa: PLC0415 - see the module
        from ingestd.daemon.log import configure  # noqa: PLC0415
        from ingestd.daemon.run import run_daemon  # noqa: PLC0415

        configure(form, level)
        document = complete(settings)
        if drain and not document.mappings:
            raise ConfigError("--until-caught-up requires mappings", hint="see `ingestd repl` to run one dump or load")
        if document.spark.properties != early.properties or document.spark.master != early.master:
            session.close()
            session = Session(document.spark.master, defaults | document.spark.properties, signals.stop)
        return run_daemon(document, session, signals, lambda: load(files, directory), drain=drain)
    finally:
        session.close()


def install_signals() -> Signals:
    """Install handlers: the first SIGTERM or SIGINT sets `stop`, the second `abort`, and SIGHUP sets `reload`.

    Must be called in the main thread.
    """
    signals = Signals()

    def handle(_number: int, _frame: FrameType | None) -> None:
        (signals.abort if signals.stop.is_set() else signals.stop).set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGHUP, lambda _number, _frame: signals.reload.set())
    return signals


def _end_by_force(signals: Signals, session: Callable[[], Session | None]) -> None:
    """End the process some seconds after an abort. Until then, everything has its own, shorter time limits."""
    signals.abort.wait()
    pause(_FORCE_SECONDS)

    def leave_nothing() -> None:
        started = session()
        if started is not None:
            started.launch.close()
        sys.stderr.write(f"ingestd: the process was ended by force {_FORCE_SECONDS:.0f} s after an abort\n")
        sys.stderr.flush()

    # In a thread, because a file system or the reader of the log may hang, too.
    leaving = threading.Thread(target=leave_nothing, name="leave", daemon=True)
    leaving.start()
    leaving.join(_REMOVE_SECONDS)
    os._exit(Unavailable.exit_code)


def _has_queries(settings: Settings) -> bool:
    """Return whether mappings have SQL, which Spark's JVM then has to evaluate. The files are not validated yet."""
    mappings = settings.values.get("mappings")
    given = [mapping for mapping in mappings if isinstance(mapping, dict)] if isinstance(mappings, list) else []
    return any(mapping.get("where") or mapping.get("transform") for mapping in given)


def _spark_options(settings: Settings) -> SparkOptions:
    """Return the Spark options in the files, not validated: that takes longer, and follows while the JVM starts."""
    given = settings.values.get("spark")
    given = given if isinstance(given, dict) else {}
    master, conf = given.get("master"), given.get("conf")
    return SparkOptions(
        master=master if isinstance(master, str) else SparkOptions().master,
        conf={key: value for key, value in conf.items() if value is not None} if isinstance(conf, dict) else {},
    )
