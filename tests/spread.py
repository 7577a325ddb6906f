"""Which testing process tries which file: one begins with those that want the pool of gloo workers, the other with those that
do not, and they meet among files of a few tests.

So most of the time one of them has a pool, not both, and neither begins a long file when nothing is left for the other.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from xdist.scheduler import LoadFileScheduling

WANTS_POOL = re.compile(r"\b(gloo_pool|own_pool|shared_pool)\b")


def wants_pool(file: Path) -> bool:
    """Whether tests of this file ask for a pool of workers."""
    return bool(WANTS_POOL.search(file.read_text(encoding="utf-8")))


def spread(num_tests: Mapping[str, int], wants: Callable[[str], bool]) -> list[str]:
    """Files in the order in which they are taken from both ends: at either the one with most tests of its kind."""
    most_first = sorted(num_tests, key=lambda file: -num_tests[file])
    alone = [file for file in most_first if not wants(file)]
    return [file for file in most_first if wants(file)] + alone[::-1]


class FromBothEnds(LoadFileScheduling):
    """Every second process takes its files from the back of the queue. A file of which all is tried is forgotten: xdist
    counts the tests of all files that a process had, each time that it reports one."""

    _is_spread = False

    def _assign_work_unit(self, node: Any) -> None:
        if not self._is_spread:
            self._spread()
        if self.nodes.index(node) % 2:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def _spread(self) -> None:
        self._is_spread = True
        num_tests = {file: len(tests) for file, tests in self.workqueue.items()}
        order = spread(num_tests, lambda file: wants_pool(self.config.rootpath / file))
        self.workqueue = OrderedDict((file, self.workqueue[file]) for file in order)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0.0) -> None:
        super().mark_test_complete(node, item_index, duration)
        left = self.assigned_work[node]
        for file in [file for file, tests in left.items() if all(tests.values())]:
            del left[file]
