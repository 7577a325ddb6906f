"""`compare` and `calibrate`: where a prediction was wrong, and what the next one rests on."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.api.subjects.diagnosing import require_torch
from meshwright.ir.trace import Trace
from meshwright.specs.cluster.profile import Profile, keep
from meshwright.specs.cluster.slowing import Slowing
from meshwright.specs.error import SpecError

if TYPE_CHECKING:
    from meshwright.evidence.compare import Comparison

logger = logging.getLogger(__name__)
BUSY_LOAD = 0.7  # processes running before we begin; half a core taken is already seen in every number


def compare(predicted: Any, measured: Any, *, allow_different: bool = False) -> Comparison:
    """Predicted beside measured: step, bubble, peaks, and every instruction name. Takes traces, or paths of their files.

    Raises ProgramError where the traces are of different programs, unless `allow_different`.
    """
    from meshwright.evidence.compare import compare as compare_traces

    traces = [Trace.load(one) if isinstance(one, str | Path) else one for one in (predicted, measured)]
    return compare_traces(traces[0], traces[1], allow_different=allow_different)


def calibrate(
    num_processes: int = 2,
    *,
    effort: Any = "full",
    keeps: bool = True,
    progress: Callable[[str, float], None] | None = None,
    slowing: Slowing | None = None,
) -> Profile:
    """Measure this machine with all processes busy, and keep the profile in the user's cache.

    Args:
        num_processes: as many as will train side by side.
        effort: "full" (about 20 s) or "quick".
        keeps: write it to the cache; where that cannot be written, one warning.
        slowing: links and processes slowed on purpose while it is measured. Such a profile is not of this machine: it is
            never kept.
        progress: called with what is being measured and the share that is done.

    Raises ExecutionError.
    """
    require_torch()
    from meshwright.executor.measure.measure import measure

    if num_processes < 1:
        raise SpecError(f"{num_processes} processes", allowed="1 or more")
    _warn_if_busy()
    profile = measure(num_processes, effort=effort, progress=progress, slowing=slowing)
    if keeps and slowing is None:
        keep(profile)
    return profile


def _warn_if_busy() -> None:
    """Other work on the machine is measured as if it were the machine."""
    if not hasattr(os, "getloadavg"):
        return
    load = os.getloadavg()[0]
    if load > BUSY_LOAD:
        logger.warning(
            "%.1f processes were running on this machine in the last minute; what is measured beside them, and predicted "
            "from it, is too slow. Measure again when it is idle: meshwright calibrate",
            load,
        )
