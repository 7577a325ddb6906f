"""What handlers are given besides their row: where they run, with whom, and the state of the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from meshwright.executor.rank.process_group import ProcessGroups
from meshwright.executor.team.slowed_link import SlowedLinks


@dataclass(eq=False)
class Context:
    """One rank of a job. ``options`` come from the caller; ``state`` is for handlers to keep things in.

    ``links`` are those that are slowed on purpose; by default none. ``report_failure``: told what a stream has failed with
    while the host stands in an exchange, where nothing wakes it to raise that.
    """

    rank: int
    num_ranks: int
    coordinates: Mapping[str, int]
    groups: ProcessGroups
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    options: Mapping[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    iteration: int = 0
    training: Any = None  # TrainingState, in training jobs
    links: SlowedLinks = field(default_factory=SlowedLinks)
    report_failure: Callable[[BaseException], None] = lambda error: None
