"""The statements of the source documents are understood as they stand, and mistakes are named with their position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.errors import ConfigError
from ingestd.hive.snapshot import WriterRule
from ingestd.replication.statements.grammar import (
    AlterPolicy,
    CreatePolicy,
    DropPolicy,
    ExecutePolicy,
    PolicyChange,
    ReplDump,
    ReplLoad,
    ReplStatus,
    Statement,
    parse,
    parse_schedule,
)
from ingestd.replication.statements.schedule import Cron, Every, Unit
from ingestd.replication.statements.scope import Scope
from ingestd.replication.statements.settings import DumpSettings, LoadSettings

URI = "hdfs://nn:8020/user/hive/repl"
WITH = f"WITH ('hive.repl.rootdir'='{URI}')"
GIVEN = {"hive.repl.rootdir": URI}
DUMP, LOAD = ReplDump(Scope("db1"), GIVEN), ReplLoad("db1", "db1", GIVEN)
DAILY = Every(1, Unit.DAY, 41730)

# As in the document about policies, with its typographic quotation marks.
DOCUMENTED = [
    (f"CREATE SCHEDULED QUERY repl_policy1 EVERY DAY AT ‘11:35:30’ AS REPL DUMP db1 WITH(‘hive.repl.rootdir’=’{URI}’);",
     CreatePolicy("repl_policy1", DAILY, DUMP)),
    (f"CREATE SCHEDULED QUERY p EVERY DAY AT ‘11:45:30’ AS REPL LOAD db1 INTO db1 with(‘hive.repl.rootdir’= ‘{URI}’);",
     CreatePolicy("p", Every(1, Unit.DAY, 42330), LOAD)),
    (f"CREATE SCHEDULED QUERY p EVERY 30 minutes AS REPL DUMP db1 with ('hive.repl.rootdir'='{URI}') EXECUTED AS hive;",
     CreatePolicy("p", Every(30, Unit.MINUTE), DUMP, "hive")),
    ("ALTER SCHEDULED QUERY repl_policy1 EXECUTE;", ExecutePolicy("repl_policy1")),
    ("DROP SCHEDULED QUERY p;", DropPolicy("p")),
    ("ALTER SCHEDULED QUERY p enabled;", AlterPolicy("p", PolicyChange(is_enabled=True))),
    ("ALTER SCHEDULED QUERY p disabled;", AlterPolicy("p", PolicyChange(is_enabled=False))),
]  # fmt: skip
# As in the grammar of Hive.
OTHERS = [
    (f"create scheduled query p cron '0 */10 * * * ? *' executed as 'joe' disable defined as repl dump DB1 {WITH}",
     CreatePolicy("p", Cron("0 */10 * * * ? *"), DUMP, "joe", is_enabled=False)),
    (f"CREATE SCHEDULED QUERY `p` DISABLED EVERY 4 HOURS OFFSET BY '2:30' AS REPL LOAD db1 {WITH}",
     CreatePolicy("p", Every(4, Unit.HOUR, 9000), LOAD, is_enabled=False)),
    ("ALTER SCHEDULED QUERY p EVERY SECOND", AlterPolicy("p", PolicyChange(schedule=Every(1, Unit.SECOND)))),
    ("ALTER SCHEDULED QUERY p EXECUTED AS \"joe\"", AlterPolicy("p", PolicyChange(user="joe"))),
    (f"ALTER SCHEDULED QUERY p DEFINED AS REPL LOAD a INTO b {WITH}",
     AlterPolicy("p", PolicyChange(statement=ReplLoad("a", "b", GIVEN)))),
    ("REPL STATUS Db1 ;", ReplStatus("db1")),
    (f"REPL DUMP db1.'t[0-9]+|x'.'t\\\\d' -- a comment\n/* another */ {WITH}",
     ReplDump(Scope("db1", "t[0-9]+|x", "t\\d"), GIVEN)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "statement"), DOCUMENTED + OTHERS, ids=range(len(DOCUMENTED + OTHERS)))
def test_statement_when_documented_then_is_understood(text: str, statement: Statement) -> None:
    assert parse(text) == statement


CREATE = f"CREATE SCHEDULED QUERY p EVERY MINUTE AS REPL DUMP db1 {WITH}"
FAULTS = [
    ("", 1, 1, "the end where REPL or CREATE or ALTER or DROP is expected"),
    ("CREATE SCHEDULED QERY p", 1, 18, "'QERY' where QUERY is expected → did you mean QUERY?"),
    ("SELECT 1", 1, 1, "'SELECT' where REPL or"),
    ("REPL DUMP db1\nWITH ('hive.repl.rotdir'='x')", 2, 7, "hive.repl.rotdir: REPL DUMP has no setting of this name"),
    ("REPL DUMP a WITH ('fs.s3a.secret.key'='x')", 1, 19, "fs.s3a.secret.key: REPL DUMP has no setting of this name"),
    (f"REPL DUMP a.'('.'' {WITH}", 1, 11, "is not a regular expression"),
    ("REPL LOAD a WITH ('hive.repl.rootdir'='/x')", 1, 19, "rootdir: must be a fully qualified URI"),
    ("REPL DUMP a", 1, 11, "hive.repl.rootdir: is missing → write WITH"),
    (f"REPL DUMP a {WITH} WITH", 1, 72, "'WITH' where the end of the statement is expected"),
    (f"REPL DUMP a.'('  {WITH}", 1, 11, "is not a regular expression"),
    (f"REPL DUMP a.'t\\d' {WITH}", 1, 13, "the text contains \\d, which has no meaning"),
    (f"REPL DUMP a.'x'.'y'.'z' {WITH}", 1, 21, "more than two patterns"),
    (f"REPL DUMP a REPLACE a.'x' {WITH}", 1, 13, "REPLACE is not necessary"),
    (f"REPL DUMP a FROM 100 {WITH}", 1, 13, "FROM is not necessary → remove it; a dump begins after the last event"),
    (f"REPL DUMP a WIHT {WITH}", 1, 13, "'WIHT' where WITH is expected → did you mean WITH?"),
    (f"REPL LOAD a INTO b c {WITH}", 1, 20, "'c' where WITH is expected"),
    (f"REPL LOAD a.'x' INTO b {WITH}", 1, 12, "the tables of a load are those of its dump"),
    (f"REPL DUMP a WITH ('hive.repl.rootdir'='{URI}', 'hive.repl.rootdir'='{URI}')", 1, 72, "is set twice"),
    ("REPL DUMP a WITH ('x' 'y')", 1, 23, "'y' where = is expected"),
    ("REPL DUMP a WITH ('x'='y'", 1, 26, "the end where ) or , is expected"),
    ("REPL DUMP a WITH ('x'='y", 1, 23, "no closing quotation mark"),
    ("REPL DUMP a WITH ['x'='y']", 1, 18, "the character '[' is not allowed here"),
    (f"CREATE SCHEDULED QUERY p AS REPL DUMP a {WITH}", 1, 26, "the policy has no schedule"),
    (CREATE.replace("MINUTE", "FORTNIGHT"), 1, 32, "'FORTNIGHT' where SECOND or MINUTE or HOUR or DAY is expected"),
    (CREATE.replace("MINUTE", "0 MINUTES"), 1, 26, "is not between 1 s and 366 d"),
    (CREATE.replace("MINUTE", "DAY AT '25:00'"), 1, 39, "'25:00' is not a time of day"),
    (CREATE.replace("EVERY MINUTE", "CRON '* * *'"), 1, 26, "is not a cron expression"),
    (CREATE.replace(" AS", " ENABLE ENABLED AS"), 1, 46, "the clause is repeated"),
    ("CREATE SCHEDULED QUERY p EVERY MINUTE AS REPL STATUS db1", 1, 42, "not REPL STATUS"),
    ("ALTER SCHEDULED QUERY p", 1, 24, "the end where EVERY or CRON or EXECUTED"),
]


@pytest.mark.parametrize(("text", "line", "column", "message"), FAULTS, ids=range(len(FAULTS)))
def test_statement_when_wrong_then_error_has_the_position(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert str(caught.value).startswith(f"line {line}, column {column} of the statement: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("uri", ["s3a://key:hidden@bucket/x", "hdfs://user:hidden@host:1/x"])
@pytest.mark.parametrize("key", ["hive.repl.rootdir", "hive.repl.replica.external.table.base.dir"])
def test_setting_when_it_contains_a_password_then_is_refused_without_it(key: str, uri: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"REPL LOAD a WITH ('{key}'='{uri}')")
    assert f"{key}: credentials in locations are not supported" in str(caught.value)
    assert "hidden" not in str(caught.value)


_NAMES = st.from_regex(r"[a-z0-9_]{1,10}", fullmatch=True)
_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="()[]{}*+?\\|^$."), min_size=1, max_size=20)
_PATTERNS = st.one_of(st.none(), _TEXTS)


@given(_NAMES, _PATTERNS, _TEXTS)
def test_dump_then_its_text_means_the_same(database: str, include: str | None, path: str) -> None:
    statement = ReplDump(Scope(database, include), {"hive.repl.rootdir": f"hdfs://n/{path}"})
    assert parse(str(statement)) == statement


@given(_NAMES, _NAMES, _TEXTS)
def test_load_then_its_text_means_the_same(source: str, target: str, path: str) -> None:
    statement = ReplLoad(source, target, {"hive.repl.rootdir": f"hdfs://n/{path}"})
    assert parse(str(statement)) == statement
    assert parse(str(ReplStatus(target))) == ReplStatus(target)


@given(st.integers(1, 366), st.sampled_from(Unit), st.integers(0, 86399))
def test_schedule_then_its_text_means_the_same(number: int, unit: Unit, offset: int) -> None:
    every = Every(number, unit, offset)
    assert parse_schedule(str(every)) == every
    assert parse_schedule("cron '0 0 12 * * ?'") == Cron("0 0 12 * * ?")


def test_settings_when_given_then_have_an_effect() -> None:
    dump = parse(
        f"REPL DUMP a WITH ('hive.repl.rootdir'='{URI}', 'hive.repl.bootstrap.dump.open.txn.timeout'='5m', "
        "'hive.repl.bootstrap.dump.abort.write.txn.after.timeout'='false', 'hive.repl.retain.prev.dump.dir'='true', "
        "'hive.repl.retain.prev.dump.dir.count'='5', 'ingestd.repl.events'='200', "
        "'ingestd.repl.hold'='30m', 'hive.repl.dump.metadata.only.for.external.table'='false')"
    )
    assert isinstance(dump, ReplDump)
    assert dump.settings == DumpSettings(URI, WriterRule(300.0, aborts=False), events=200, keep=5, hold_seconds=1800.0)
    base = "'hive.repl.replica.external.table.base.dir'='s3a://b/x'"
    load = parse(f"REPL LOAD a WITH ('hive.repl.rootdir'='{URI}', {base}, 'ingestd.repl.bandwidth'='10MiB')")
    assert isinstance(load, ReplLoad)
    assert load.settings == LoadSettings(URI, "s3a://b/x", 10 << 20)
    assert DUMP.settings == DumpSettings(URI)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("hive.repl.dump.metadata.only.for.external.table", "true", "ingestd supports 'false' only"),
        ("hive.repl.retain.prev.dump.dir.count", "3", "has an effect only with hive.repl.retain.prev.dump.dir='true'"),
        ("ingestd.repl.events", "0", "must be greater than 0"),
        ("hive.repl.bootstrap.dump.open.txn.timeout", "soon", "must be a duration"),
        ("ingestd.repl.hold", "true", "must be a duration"),
        ("hive.repl.retain.prev.dump.dir", "maybe", "must be true or false"),
        ("hive.exec.parallel.thread.number", "8", "remove it; all files of a cycle are copied together"),
        ("hive.repl.replica.external.table.base.dir", "file:/x", "REPL DUMP has no setting of this name"),
    ],
)
def test_setting_when_it_would_have_no_effect_then_is_refused(key: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ReplDump(Scope("a"), {**GIVEN, key: value})
    assert caught.value.where == key
    assert message in str(caught.value)
