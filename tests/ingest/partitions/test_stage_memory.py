"""The memory that a process of Spark keeps between its tasks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TASKS = """
import re, sys
from pathlib import Path
from ingestd.acid.writer_pool import PoolLimits
from ingestd.ingest.stage.memory import memory_of_task
from tests.acid.test_writer_pool import batch, staging_pool

def memory():
    return int(re.search(r"VmRSS:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) >> 10

kept = []
for number in range(6):
    folder = Path(sys.argv[1]) / str(number)
    folder.mkdir()
    with memory_of_task():
        files, pool = staging_pool(folder, PoolLimits(write_bytes=1))
        for partition in range(16):
            pool.add((str(partition),), 0, batch(0, 100))
        assert not files.closed
        used = memory()
        pool.close()
        assert len(files.closed) == 16
    kept.append(memory())
print(kept[-1] - kept[0], used - kept[-1])
"""


def test_task_when_it_has_ended_then_the_memory_of_its_files_is_returned_to_the_system(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    ended = subprocess.run(
        [sys.executable, "-c", TASKS, str(tmp_path)], capture_output=True, text=True, check=True, cwd=root
    )
    more, freed = map(int, ended.stdout.split())
    assert more < 8
    assert freed > 16
