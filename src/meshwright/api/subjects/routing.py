"""Routing traces: a training that records which experts its tokens go to, and the file that is written behind it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.specs.error import SpecError
from meshwright.specs.routing.routing_file import FORMS, save_routing

if TYPE_CHECKING:
    from meshwright.executor.job.gather import JobResult

PathLike = str | os.PathLike[str]
logger = logging.getLogger(__name__)


def recording(job: Any, path: PathLike | None, num_steps: int) -> Any:
    """The job, told to record its last steps where `path` says where to. Raises SpecError where no trace can be written
    there, and ExecutionError where nothing is routed, or too much."""
    if path is None:
        return job
    file = Path(path)
    if file.suffix not in FORMS:
        raise SpecError(f"--record-routing {file}", allowed=f"a file that ends in {', '.join(FORMS)}")
    if not file.absolute().parent.is_dir():
        raise SpecError(f"there is no folder {file.absolute().parent}", next="make it, or name another file")
    return replace(job, routing_steps=num_steps)


def keep_routing(result: JobResult, path: PathLike | None, said: Callable[[str], None]) -> None:
    """Write what was recorded; a job that was ended by force has nothing, and of a launched one rank 0 has it."""
    if path is not None and result.was_killed:
        logger.warning("no routing was recorded: the training ended before its ranks could write it")
    if path is None or result.routing is None:
        return
    save_routing(result.routing, path)
    said(f"routing of {result.routing.num_tokens:,} tokens is in {path}")
