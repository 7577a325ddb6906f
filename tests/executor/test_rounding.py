"""Layouts in float32 and bfloat16: no farther from the truth, which float64 finds, than one process of the same format.

Divided, a sum has terms that are rounded before it: of tp devices each rounds a term about 1 / sqrt(tp) as large, and each of
the tp - 1 additions rounds once, where one process rounds once in all. In quadrature that is at most sqrt(1 + tp) for every
number that is summed so, 1.73 of two devices and 2.24 of four; numbers that are not are as exact as before.
"""

from __future__ import annotations

from functools import lru_cache
from math import sqrt
from typing import Any

import pytest
import torch

from meshwright.executor.job.pool import Pool
from meshwright.specs.sequence.context_parallel import CONTEXTS
from tests.planned_case import BATCH, MODELS, Planned
from tests.training_case import ADAMW, reference

FORMATS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16", "reduction_dtype": "float32", "master_dtype": "float32"},
}
UNIT = {"float32": 2.0**-24, "bfloat16": 2.0**-8}  # half a step behind one
QUICK = [
    ("llama", {"tp": 2, "sequence_parallel": True}),
    ("llama", {"cp": 2}),
]
MORE = [
    ("gpt", {"tp": 2}),
    ("gpt", {"tp": 2, "dp": 2, "sequence_parallel": True, "gathered": "kept"}),
    ("qwen", {"tp": 2, "cp": 2, "context": "all_gather"}),
    *(("llama", {"cp": 2, "context": context}) for context in CONTEXTS[1:]),
    ("latent", {"cp": 2, "optimizer": "sgd"}),
    ("gpt", {"cp": 4}),
    ("mixtral of 4", {"dp": 2, "ep": 2}),
    ("qwen moe", {"tp": 2, "ep": 2, "sequence_parallel": True}),
    ("qwen moe of 4", {"dp": 2, "tp": 2, "ep": 4, "sequence_parallel": True}),
    ("tied", {"tp": 2, "pp": 2, "recompute": "full"}),
]


def error(name: str, form: str, pool: Pool, **choices: Any) -> float:
    """Of all gradients of a step: root of the mean over tensors of the squared error, relative to the tensor's size."""
    given = {**FORMATS[form], **choices}
    result = Planned(name, choices=given).run(pool, 1)
    drawn = getattr(torch, form)
    (truth,) = reference(MODELS[name], ADAMW, BATCH, 1, drawn=drawn).gradients
    (ours,) = result.gradients
    assert set(ours) == set(truth)
    shares = [((ours[n].double() - truth[n]).norm() / truth[n].norm()).item() for n in truth]
    return sqrt(sum(share**2 for share in shares) / len(shares))


@lru_cache(maxsize=16)
def error_of_one(name: str, form: str, pool: Pool) -> float:
    """That of one process."""
    return error(name, form, pool)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("name", "choices"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)], ids=str
)
def test_a_layout_rounds_no_more_than_its_sums_do(
    name: str, choices: dict[str, Any], form: str, gloo_pool: Pool
) -> None:
    alone = error_of_one(name, form, gloo_pool)
    assert UNIT[form] / 4 < alone < 64 * UNIT[form]  # it is rounding that is compared
    num_terms = max(int(choices.get(axis, 1)) for axis in ("tp", "cp", "ep"))
    found = error(name, form, gloo_pool, **choices)
    assert found < sqrt(1 + num_terms) * alone
