"""`ingestd demo --replication`: two daemons keep a copy of a database up to date while its source changes.

Invariant: the daemons end before the sandbox, even after an error.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ingestd.cli.sandbox import progress_display
from ingestd.clock import Deadline, monotonic, pause
from ingestd.errors import IngestdError
from ingestd.hive.client import Metastore
from ingestd.hive.events import EventLog
from ingestd.hive.objects import find_database
from ingestd.replication.marks import LAST_ID
from ingestd.sandbox import Addresses, Sandbox
from ingestd.sandbox.hiveserver2 import Session

_ACID = "STORED AS ORC TBLPROPERTIES ('transactional'='true')"
_BEFORE = (
    "CREATE DATABASE shop",
    f"CREATE TABLE shop.customers (id int, name string) {_ACID}",
    f"CREATE TABLE shop.orders (id int, customer int, amount decimal(10,2)) PARTITIONED BY (day string) {_ACID}",
    "CREATE EXTERNAL TABLE shop.countries (code string, name string) STORED AS ORC",
    "INSERT INTO shop.customers VALUES (1, 'Ada'), (2, 'Grace'), (3, 'Edsger')",
    "INSERT INTO shop.orders VALUES (1, 1, 9.99, 'mon'), (2, 2, 20.00, 'mon'), (3, 3, 5.50, 'tue')",
    "INSERT INTO shop.countries VALUES ('de', 'Germany'), ('nl', 'Netherlands')",
)
_CHANGES = (
    "UPDATE shop.customers SET name = 'Ada Lovelace' WHERE id = 1",
    "DELETE FROM shop.orders WHERE id = 2",
    "INSERT INTO shop.orders VALUES (4, 1, 7.25, 'wed'), (5, 3, 1.00, 'wed')",
    "ALTER TABLE shop.customers ADD COLUMNS (city string)",
    "INSERT OVERWRITE TABLE shop.orders PARTITION (day='tue') SELECT 6, 3, 6.50",
    "INSERT INTO shop.customers VALUES (4, 'Barbara', 'Los Angeles')",
    "INSERT INTO shop.countries VALUES ('fr', 'France')",
)
_QUERIES = (
    "SELECT id, name, city FROM shop.customers ORDER BY id",
    "SELECT id, customer, amount, day FROM shop.orders ORDER BY id",
    "SELECT code, name FROM shop.countries ORDER BY code",
)
_CONFIG = """\
# written by `ingestd demo --replication`
metastore: {{uri: "{metastore}"}}
http: {{listen: off}}
spark: {{master: "local[1]"}}
replication:
  poll: 1s
  policies:
    - name: shop
      schedule: EVERY 3 SECONDS
      statement: "{statement}"
"""
_SHOWN = ("policy_finished", "policy_failed", "policy_retried", "policy_rejected")
_SECONDS = 180.0
_POLL_SECONDS = 0.5


@dataclass
class ReplicationDemo:
    """Runs the steps of the demo and prints a heading before each step."""

    console: Console
    box: Sandbox
    directory: Path
    _lines: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        """Run the demo. Raises IngestdError if a service or a daemon fails."""
        self._say("Starting two Hives on this machine, a source and a target (downloads 410 MiB the first time)")
        with progress_display() as progress:
            addresses = self.box.up(progress)
        source, target = (
            Session(_required(address)) for address in (addresses.hiveserver2, addresses.target_hiveserver2)
        )
        with closing(source), closing(target):
            self._say("Creating a database with two transactional tables and an external table on the source")
            self._execute(source, _BEFORE)
            with self._daemons(addresses):
                self._wait(addresses, "the first copy of the whole database (bootstrap)")
                self._say("Changing the source")
                self._execute(source, _CHANGES)
                self._wait(addresses, "the changes (incremental)")
            self._compare(source, target)
        self._verify()

    def _say(self, text: str) -> None:
        with self._lines:
            self.console.print(f"\n[bold]▸ {text}[/]")

    def _execute(self, session: Session, statements: Sequence[str]) -> None:
        for statement in statements:
            self.console.print(f"  [dim]{statement}[/]")
            session.query(statement)

    # --- the daemons

    @contextmanager
    def _daemons(self, addresses: Addresses) -> Iterator[None]:
        """Run a daemon on each side during the `with` block."""
        root = self.directory / "dumps"
        root.mkdir()
        given = f"'hive.repl.rootdir'='file:{root}'"
        base = f"'hive.repl.replica.external.table.base.dir'='file:{self.directory}/external'"
        statements = {
            "source": (addresses.metastore, f"REPL DUMP shop WITH ({given})"),
            "target": (_required(addresses.target_metastore), f"REPL LOAD shop INTO shop WITH ({given}, {base})"),
        }
        daemons = []
        try:
            for side, (metastore, statement) in statements.items():
                text = _CONFIG.format(metastore=metastore, statement=statement)
                self._say(f"Running a daemon on the {side} with this configuration:")
                self.console.print(text, style="dim", markup=False)
                daemons.append(self._start(side, text))
            yield
        finally:
            for daemon in daemons:
                daemon.terminate()
            for daemon in daemons:
                daemon.wait()

    def _start(self, side: str, text: str) -> subprocess.Popen[str]:
        config = self._config(side)
        config.write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "ingestd", "run", "--config", str(config), "--log-format", "json"]
        daemon = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        threading.Thread(target=self._follow, args=(side, daemon), daemon=True).start()
        return daemon

    def _config(self, side: str) -> Path:
        return self.directory / f"{side}.yaml"

    def _follow(self, side: str, daemon: subprocess.Popen[str]) -> None:
        """Print the executions of a daemon from its log as they end."""
        for line in daemon.stderr or ():
            event: dict[str, Any] = {}
            with suppress(json.JSONDecodeError):
                event = json.loads(line)
            if event.get("event") not in _SHOWN:
                continue
            with self._lines:
                if event["event"] == "policy_finished":
                    did = ", ".join(f"{count:,} {name}" for name, count in event["counts"].items())
                    stage = "REPL DUMP" if side == "source" else "REPL LOAD"
                    self.console.print(f"  {stage} {event['phase'].lower()}: {did}, in {event['seconds']:.1f} s")
                else:
                    self.console.print(f"  {side}: {event['event']}: {event['error']}", markup=False)

    def _wait(self, addresses: Addresses, what: str) -> None:
        """Wait until the target has all events that the source has now, after at least one load of changes."""
        self._say(f"Waiting for {what}")
        began, limit = monotonic(), Deadline.after(_SECONDS)
        with closing(Metastore(addresses.metastore)) as source:
            wanted = EventLog(source).current_id()
        with closing(Metastore(_required(addresses.target_metastore))) as target:
            while _last_event(target) < wanted:
                if limit.passed:
                    hint = "see the messages of the daemons above"
                    raise IngestdError(f"the target was not complete after {_SECONDS:.0f} s", where="demo", hint=hint)
                pause(_POLL_SECONDS)
        self.console.print(f"  The target has all {wanted} events of the source after {monotonic() - began:.1f} s")

    # --- the result

    def _compare(self, source: Session, target: Session) -> None:
        self._say("Querying both sides through HiveServer2")
        for statement in _QUERIES:
            self.console.print(f"  [dim]{statement}[/]")
            columns, rows = source.query(statement)
            copied = target.query(statement)[1]
            shown = Table(*columns, title="the same on both sides" if copied == rows else "different")
            for row in copied:
                shown.add_row(*(str(value) for value in row))
            self.console.print(shown)
            if copied != rows:
                raise IngestdError("the copy differs from its source", where="demo")

    def _verify(self) -> None:
        arguments = ["repl", "verify", "shop", "--columns", "--config", str(self._config("target"))]
        arguments += ["--source-config", str(self._config("source"))]
        self._say(f"ingestd {' '.join(arguments)}")
        done = subprocess.run([sys.executable, "-m", "ingestd", *arguments], check=False)
        if done.returncode:
            raise IngestdError("the copy differs from its source", where="ingestd repl verify")


def _last_event(metastore: Metastore) -> int:
    database = find_database(metastore, "shop")
    return int((database.parameters if database else {}).get(LAST_ID, 0))


def _required(address: str | None) -> str:
    if address is None:
        raise IngestdError("the sandbox was started without a replica", where="demo")
    return address
