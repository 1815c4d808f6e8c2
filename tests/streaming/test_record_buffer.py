"""Streams are split as one regular expression would split them whole; work in the background keeps its order."""

from __future__ import annotations

import io
import random
import re
import subprocess
import sys
import threading

import pytest

from ingestd.background import Background
from ingestd.streaming import StreamingException
from ingestd.streaming.record_stream import LINES, split


@pytest.mark.parametrize(
    ("pattern", "pieces"),
    [
        (LINES, [b"\r", b"\n", b"a", b"b"]),
        (re.compile(rb"END(?:ING)?"), [b"END", b"ENDING", b"I", b"x", b"N"]),
        (re.compile(rb";+"), [b";", b"a"]),
    ],
    ids=["lines", "words", "semicolons"],
)
def test_stream_when_split_by_chunks_of_any_size_then_as_if_it_were_read_whole(
    pattern: re.Pattern[bytes], pieces: list[bytes]
) -> None:
    choose = random.Random(1)
    for _ in range(3000):
        text = b"".join(choose.choices(pieces, k=choose.randrange(14)))
        blocks = split(io.BytesIO(text), pattern, chunk_bytes=choose.randrange(1, 7))
        expected = pattern.split(text)
        if not expected[-1]:
            expected.pop()
        assert [record for block in blocks for record in block] == expected


def test_background_when_calls_come_then_one_at_a_time_in_order_and_errors_come_out_once() -> None:
    work = Background("test")
    done: list[int] = []
    running = threading.Event()
    go_on = threading.Event()

    def slow() -> None:
        running.set()
        assert go_on.wait(10)
        done.append(1)

    work.run(slow)
    assert running.wait(10)
    assert done == []
    go_on.set()
    work.run(lambda: done.append(2))
    work.wait()
    assert done == [1, 2]

    work.run(lambda: done.append(1 // 0))
    with pytest.raises(ZeroDivisionError):
        work.run(lambda: done.append(3))
    work.wait()
    assert done == [1, 2]
    work.run(lambda: done.append(1 // 0))
    work.close()
    work.run(lambda: done.append(4))
    work.close()
    assert done == [1, 2, 4]
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("test")] == []


LAST_WORDS = """
import threading, time, atexit
from ingestd.background import Background

def wait():
    threading.main_thread().join()
    time.sleep(0.2)
    work()

def work():
    background = Background("late")
    for number in range(3):
        background.run(lambda: print(number, flush=True))
        background.wait()

threading.Thread(target=wait).start()
atexit.register(work)
"""


def test_background_when_the_interpreter_ends_then_calls_are_made_all_the_same() -> None:
    ended = subprocess.run([sys.executable, "-c", LAST_WORDS], capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.split() == ["0", "1", "2"] * 2


def test_stream_when_it_gives_text_then_refused() -> None:
    with pytest.raises(StreamingException, match="a stream must return bytes, not str"):
        list(split(io.StringIO("a\nb"), LINES))  # type: ignore[arg-type]
