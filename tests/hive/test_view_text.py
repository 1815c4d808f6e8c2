"""The query of a view is moved to another database, and nothing else in it is changed."""

from __future__ import annotations

import pytest

from ingestd.hive.view_text import moved_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT `t`.`id` FROM `src`.`t` WHERE `t`.`n` > 1", "SELECT `t`.`id` FROM `to`.`t` WHERE `t`.`n` > 1"),
        ("select * from SRC . t, Src.`u`", "select * from `to` . t, `to`.`u`"),
        ("SELECT 1 FROM (SELECT 1 FROM `src`.`v`) `a`", "SELECT 1 FROM (SELECT 1 FROM `to`.`v`) `a`"),
        ("SELECT 1 FROM `other`.`src` JOIN `src`.`src`", "SELECT 1 FROM `other`.`src` JOIN `to`.`src`"),
        ("SELECT `src`.f(x), `src`.`g`(`src`.`y`)", "SELECT `to`.f(x), `to`.`g`(`src`.`y`)"),
        ("WITH q AS (SELECT 1 FROM `src`.`a`) SELECT 1 FROM q", "WITH q AS (SELECT 1 FROM `to`.`a`) SELECT 1 FROM q"),
        # An alias that is named like the database.
        (
            "SELECT `src`.`a` FROM `src`.`t` `src` JOIN `src`.`u` ON `src`.`a` = `u`.`a`, `src`.`v`",
            "SELECT `src`.`a` FROM `to`.`t` `src` JOIN `to`.`u` ON `src`.`a` = `u`.`a`, `to`.`v`",
        ),
        # A FROM that is not the clause, in a table that is named like the database.
        (
            "SELECT extract(year FROM `src`.`ts`), trim(BOTH 'x' FROM `src`.`y`), trim('' FROM src.z) FROM src.`src`",
            "SELECT extract(year FROM `src`.`ts`), trim(BOTH 'x' FROM `src`.`y`), trim('' FROM src.z) FROM `to`.`src`",
        ),
        (
            "SELECT x is not distinct from `src`.`y` FROM `src`.`a`, `src`.`src` WHERE x IS DISTINCT FROM src.z",
            "SELECT x is not distinct from `src`.`y` FROM `to`.`a`, `to`.`src` WHERE x IS DISTINCT FROM src.z",
        ),
        (
            "SELECT 1 FROM ((SELECT 1 FROM src.a) UNION (FROM src.b SELECT src.f(1, src.c))) q JOIN src.d ON (1)",
            "SELECT 1 FROM ((SELECT 1 FROM `to`.a) UNION (FROM `to`.b SELECT `to`.f(1, src.c))) q JOIN `to`.d ON (1)",
        ),
        # Commas in a condition of a join, whose columns are of a table that is named like the database.
        (
            "SELECT 1 FROM src.`src` JOIN src.a ON f(1, `src`.`y`) AND (1, src.z) IN (SELECT 1 FROM src.b), src.c",
            "SELECT 1 FROM `to`.`src` JOIN `to`.a ON f(1, `src`.`y`) AND (1, src.z) IN (SELECT 1 FROM `to`.b), `to`.c",
        ),
        (
            "SELECT 1 FROM noop(ON noop(ON src.t PARTITION BY src.a) ORDER BY src.b, src.c) JOIN src.d USING (a, b)",
            "SELECT 1 FROM noop(ON noop(ON `to`.t PARTITION BY src.a) ORDER BY src.b, src.c) JOIN `to`.d USING (a, b)",
        ),
        ("SELECT 'it\\'s from src.t', \"from src.t\"", "SELECT 'it\\'s from src.t', \"from src.t\""),
        ("SELECT 1 -- from src.t\nFROM /* from src.t */ src.t", "SELECT 1 -- from src.t\nFROM /* from src.t */ `to`.t"),
        ("SELECT 1 FROM `asrc`.`t`, `src2`.`t`, `a``src`.`t`", "SELECT 1 FROM `asrc`.`t`, `src2`.`t`, `a``src`.`t`"),
    ],
)
def test_view_when_its_database_is_copied_then_reads_the_tables_of_the_copy(text: str, expected: str) -> None:
    assert moved_text(text, "src", "to") == expected
    assert moved_text(text, "src", "src") == text
