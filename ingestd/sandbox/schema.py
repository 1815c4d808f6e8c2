"""Creates Hive's schema in the metastore's database with `ij`, Derby's SQL tool, which works with any JDBC driver.

Invariant: the schema is created completely or not at all. Derby's folder is renamed into place when it is complete.
In PostgreSQL, one transaction creates the whole schema.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ingestd.errors import SandboxError
from ingestd.sandbox import templates
from ingestd.sandbox.database import Database
from ingestd.sandbox.guard import Guard
from ingestd.sandbox.jars import SCHEMA
from ingestd.sandbox.state import Layout

_VERSION = "4.0.0"  # of the schema, which Hive 4.0.1 did not change
_ASK = 'select "SCHEMA_VERSION" from "VERSION";\n'  # the script inserts this row last
_FOUND = re.compile(rf"^{re.escape(_VERSION)}\s*$", re.MULTILINE)
_SECONDS = 120.0
_TEMPLATE = "derby"


@dataclass(frozen=True, slots=True)
class SchemaTool:
    """Runs SQL scripts against one database."""

    java: Path
    jars: Path
    layout: Layout
    guard: Guard

    def prepare(self, database: Database) -> None:
        """Create the schema unless it exists. Raises SandboxError when the database fails or has another version."""
        if database.is_derby:
            self._prepare_derby(database)
        elif not self._is_there(database):
            self._run(database, database.url, f"autocommit off;\nrun '{self._script(database)}';\ncommit;\n")
            if not self._is_there(database):
                raise SandboxError("the metastore's schema could not be created", where=str(self._log))

    @property
    def _log(self) -> Path:
        return self.layout.log("schema")

    def _script(self, database: Database) -> Path:
        return self.jars / SCHEMA / database.script

    def _prepare_derby(self, database: Database) -> None:
        final = self.layout.data / "derby"
        if final.exists():
            return
        fresh = self.layout.data / "derby.new"
        shutil.rmtree(fresh, ignore_errors=True)
        template = templates.find(self.jars, _TEMPLATE)
        if template:
            shutil.copytree(template, fresh)
            fresh.rename(final)
            return
        output = self._run(database, f"jdbc:derby:{fresh};create=true", f"run '{self._script(database)}';\n{_ASK}")
        if re.search(r"^ERROR", output, re.MULTILINE) or not _FOUND.search(output):
            raise SandboxError("the metastore's schema could not be created", where=str(self._log))
        fresh.rename(final)
        templates.keep(self.jars, _TEMPLATE, final)

    def _is_there(self, database: Database) -> bool:
        """Return True for the expected version and False when there is no schema. Raises SandboxError otherwise."""
        output = self._run(database, database.url, _ASK)
        if _FOUND.search(output):
            return True
        if 'relation "VERSION" does not exist' in output:
            return False
        errors = re.findall(r"^ERROR[^:]*: (.*)", output, re.MULTILINE)
        problem = errors[0] if errors else f"its schema does not have version {_VERSION}"
        raise SandboxError(f"the metastore's database cannot be used: {problem}", where=database.url)

    def _run(self, database: Database, url: str, sql: str) -> str:
        """Run `sql` and return the output of ij, whose exit status is 0 even after errors."""
        work = self.layout.work("schema")
        work.mkdir(parents=True, exist_ok=True)
        script, access = work / "run.sql", work / "access.properties"
        script.write_text(sql)
        with os.fdopen(os.open(access, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
            # The password is in a file, because every user of the machine can read a command line.
            out.write(f"ij.driver={database.driver}\nij.database={url}\n")
            out.write(f"ij.user={database.user}\nij.password={database.password}\n")
        command = [
            *(str(self.java / "bin" / "java"), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"),
            f"-Dderby.stream.error.file={work / 'derby.log'}",
            *("-cp", f"{self.jars}/metastore/*", "org.apache.derby.tools.ij", "-p", str(access), str(script)),
        ]
        run = self.guard.start(command, log=self._log, cwd=work)
        try:
            run.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            raise SandboxError(
                f"the metastore's schema was not ready after {_SECONDS:.0f} s", where=str(self._log)
            ) from None
        finally:
            access.unlink(missing_ok=True)
        return self._log.read_text(errors="replace")
