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
from ingestd.sandbox.lockfile import data_file
from ingestd.sandbox.release import PLAIN, Release
from ingestd.sandbox.state import Layout

_ASK = 'select "SCHEMA_VERSION" from "VERSION";\n'  # the scripts write this row last
_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class SchemaTool:
    """Runs SQL scripts against one database."""

    java: Path
    jars: Path
    layout: Layout
    guard: Guard
    release: Release = PLAIN

    def prepare(self, database: Database) -> None:
        """Create the schema unless it exists. Raises SandboxError when the database fails or has another version."""
        if database.is_derby:
            self._prepare_derby(database)
        elif not self._is_there(database):
            self._run(database, database.url, f"autocommit off;\n{self._statements(database)}commit;\n")
            if not self._is_there(database):
                raise SandboxError("the metastore's schema could not be created", where=str(self._log))

    @property
    def _log(self) -> Path:
        return self.layout.log("schema")

    @property
    def _template(self) -> str:
        return f"derby-{self.release.schema}"

    def _statements(self, database: Database) -> str:
        """Return statements of ij that run the scripts."""
        scripts = [self.jars / SCHEMA / database.script]
        if self.release.upgrade:
            scripts.append(data_file(self.release.upgrade))
        return "".join(f"run '{script}';\n" for script in scripts)

    def _is_expected(self, output: str) -> bool:
        """Return whether the output of ij contains the version of the release."""
        return bool(re.search(rf"^{re.escape(self.release.schema)}\s*$", output, re.MULTILINE))

    def _prepare_derby(self, database: Database) -> None:
        final = self.layout.data / "derby"
        if final.exists():
            return
        fresh = self.layout.data / "derby.new"
        shutil.rmtree(fresh, ignore_errors=True)
        template = templates.find(self.jars, self._template)
        if template:
            shutil.copytree(template, fresh)
            fresh.rename(final)
            return
        output = self._run(database, f"jdbc:derby:{fresh};create=true", f"{self._statements(database)}{_ASK}")
        if re.search(r"^ERROR", output, re.MULTILINE) or not self._is_expected(output):
            raise SandboxError("the metastore's schema could not be created", where=str(self._log))
        fresh.rename(final)
        templates.keep(self.jars, self._template, final)

    def _is_there(self, database: Database) -> bool:
        """Return True for the expected version and False when there is no schema. Raises SandboxError otherwise."""
        output = self._run(database, database.url, _ASK)
        if self._is_expected(output):
            return True
        if 'relation "VERSION" does not exist' in output:
            return False
        errors = re.findall(r"^ERROR[^:]*: (.*)", output, re.MULTILINE)
        problem = errors[0] if errors else f"its schema does not have version {self.release.schema}"
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
            *(
                "-cp",
                f"{self.jars}/{self.release.group}/*",
                "org.apache.derby.tools.ij",
                "-p",
                str(access),
                str(script),
            ),
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
