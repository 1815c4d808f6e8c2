"""INSERT OVERWRITE hides no rows of a concurrent transaction that began earlier but commits later."""

from __future__ import annotations

import pytest

from tests.support.daemon import Hold
from tests.support.stack import Stack


@pytest.mark.parametrize("partitioned", [False, True], ids=["table", "partition"])
def test_overwrite_when_between_open_and_lock_then_rows_of_the_mapping_stay_visible(
    stack: Stack, partitioned: bool
) -> None:
    stack.topic(1)
    stack.table("id int, note string", partitioned="dt string" if partitioned else "")
    config = stack.config()
    stack.produce({"id": number, "note": "before", "dt": "a"} for number in range(10))
    stack.drain(config)
    stack.produce({"id": number, "note": "after", "dt": "a"} for number in range(10, 30))
    hold = Hold("staged")
    daemon = stack.start(config, "--until-caught-up", hold=hold)
    hold.wait()

    part = " PARTITION (dt='a')" if partitioned else ""
    stack.sql(f"INSERT OVERWRITE TABLE {stack.name}{part} VALUES (1000, 'theirs')")
    hold.release()

    assert daemon.wait() == 0, daemon.text()[-2000:]
    assert stack.ids() == [*range(10, 30), 1000]
    assert stack.count() == 21
