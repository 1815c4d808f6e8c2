"""Which worker process runs a test file.

Invariant: a file is run by one worker, in the order of the collection except for the files of replication.
"""

from __future__ import annotations

import re
from pathlib import Path

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

_USES_REPLICA = re.compile(r"^from tests\.support\.replica", re.MULTILINE)


class Distribution(LoadFileScheduling):  # type: ignore[misc]  # xdist has no annotations
    """Lets only half of the workers run the files of replication, as long as there are others.

    Each worker that runs one starts two metastores, and two instances of HiveServer2.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        if self.nodes.index(node) >= len(self.nodes) / 2:
            of_replication = (file for file in self.workqueue if self._uses_replica(file))
            file = next(of_replication, None)
            if file is not None:
                self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)

    def _uses_replica(self, file: str) -> bool:
        return bool(_USES_REPLICA.search(Path(self.config.rootpath, file).read_text(encoding="utf-8")))
