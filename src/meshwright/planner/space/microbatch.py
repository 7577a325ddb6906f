"""Sizes of a microbatch: every divisor of a pipeline's batch, without those that no device has the memory for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.planner.space.axis import SHARDINGS
from meshwright.planner.space.degrees import Degrees, divisors
from meshwright.prediction.memory_buffer import bytes_of_logit
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.sharding import ZERO
from meshwright.specs.plan.software import software_class
from meshwright.specs.plan.token_part import least_samples
from meshwright.specs.plan.workload import Workload
from meshwright.stage.saved.saved import residual_bytes_per_token


class MicrobatchSizes:
    """The sizes to try on a layout.

    Args:
        asked: sizes that are allowed; None: all.
        is_vocabulary_split: along every pipeline, so that no device has all logits.
        formats: other fields of the plans, of which `dtype`, `software`, `token_parts` and `parts_of` are read.
    """

    def __init__(
        self,
        model: ModelSpec,
        cluster: ClusterSpec,
        workload: Workload,
        asked: Sequence[int] | None,
        formats: Mapping[str, Any],
        *,
        is_vocabulary_split: bool = False,
    ) -> None:
        if asked is not None:
            check_sizes(asked)
        self._model, self._batch, self._asked = model, workload.global_batch, asked
        self._memory_bytes, self._length = cluster.memory_bytes, workload.sequence_length
        dtype = str(formats.get("dtype", Plan.__dataclass_fields__["dtype"].default))
        software = {
            software_class(str(formats.get("software", "")), gathers_values=ZERO[each].divides_values)
            for each in SHARDINGS
        }
        self._is_split = is_vocabulary_split
        self._least = least_samples(formats.get("token_parts", 1), formats.get("parts_of", Plan.parts_of))
        self._kept_bytes = residual_bytes_per_token(model, dtype)
        self._logit_bytes = min(bytes_of_logit(each, dtype) for each in software)

    @property
    def is_asked(self) -> bool:
        """Does somebody say which sizes are allowed?"""
        return self._asked is not None

    def on(self, layout: Degrees) -> tuple[list[int], list[int]]:
        """(those that may fit, those that certainly do not), rising; the first always has the least of all, if there is one:
        where nothing fits, it is what misses by least."""
        share = self._batch // layout.dp
        sizes = divisors(share)
        if self._asked is not None:
            sizes = sorted(size for size in set(self._asked) if share % size == 0)
        sizes = [size for size in sizes if size % self._least == 0]
        few = [size for size in sizes if self.least_bytes(layout, size) <= self._memory_bytes] or sizes[:1]
        return few, sizes[len(few) :]

    def least_bytes(self, layout: Degrees, size: int) -> float:
        """What the fullest device has at least, whatever else is chosen: the logits and what its software makes of them, or
        one microbatch's input to every block of a device, divided along tp, which the fullest recompute keeps as well."""
        tokens = size * self._length / (layout.cp * layout.tp)
        blocks = -(-self._model.num_layers // layout.pp)
        logits = self._model.vocabulary_size * self._logit_bytes / (layout.pp if self._is_split else 1)
        return tokens * max(blocks * self._kept_bytes, logits)


def check_sizes(sizes: Sequence[int]) -> None:
    """There are microbatches to try, each of at least a sequence. Raises PlanError."""
    if not sizes or any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes):
        raise PlanError(
            f"microbatch sizes {tuple(sizes)}", allowed="whole numbers from 1, at least one of them"
        )
