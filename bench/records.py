"""Creates the records of the benchmarks: about 142 bytes of JSON with six columns."""

from __future__ import annotations

from collections.abc import Iterator

COLUMNS = "id bigint, ts timestamp, user_name string, amount double, flag boolean, note string"
_NOTES = tuple(f"{'the quick brown fox jumps over it'[: 24 + n % 10]}{n:03d}" for n in range(997))


def records(count: int) -> Iterator[bytes]:
    """Yield `count` records with the ids 0, 1, 2 …"""
    for number in range(count):
        seconds, millis = divmod(number, 1000)
        minutes, second = divmod(seconds % 86_400, 60)
        hour, minute = divmod(minutes, 60)
        yield (
            b'{"id":%d,"ts":"2026-11-%02d %02d:%02d:%02d.%03d","user_name":"user-%05d","amount":%d.%02d,'
            b'"flag":%s,"note":"%s"}'
            % (
                number,
                1 + seconds // 86_400 % 28,
                hour,
                minute,
                second,
                millis,
                number * 7919 % 50_000,
                number % 9973,
                number % 100,
                b"true" if number % 3 else b"false",
                _NOTES[number % 997].encode(),
            )
        )
