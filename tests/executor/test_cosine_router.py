"""Models whose routers compare by cosines (X-MoE) train in every layout as one process does."""

from __future__ import annotations

import pytest

from meshwright.executor.job.pool import Pool
from tests import planned_case
from tests.covering import always
from tests.planned_case import MODELS, Planned, assert_equal_to_one_process

ITERATIONS, RANK = 3, 3
COSINES = {
    name: MODELS[name].changed(router_scores="softmax", has_unit_gates=False, router_cosine_rank=RANK)
    for name in ("folded mixtral", "folded qwen moe")
}


def planned(model: str = "folded mixtral", clip: float = 0.1, **choices: object) -> Planned:
    return Planned(f"cosine {model}", clip, choices=choices)


@pytest.fixture(autouse=True)
def cosine_models(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, model in COSINES.items():
        monkeypatch.setitem(planned_case.MODELS, f"cosine {name}", model)  # type: ignore[arg-type]


CASES = [
    planned(dp=2, ep=2),
    planned("folded qwen moe", tp=2),
    planned(),
    planned("folded qwen moe", dp=2, ep=2, sharding="zero3", split_backward=True),
    planned(tp=2, ep=2, etp=1, sequence_parallel=True),
    planned("folded qwen moe", tp=2, dp=2, etp=2, ep=2),
    planned(cp=2, ep=2, recompute="full"),
    planned("folded qwen moe", pp=2, dp=2, ep=2, schedule="zb_h1"),
    planned(dp=4, ep=4, ep_near=2, dispatch="once"),
    planned(dp=2, ep=2, microbatch_size=2, token_parts=2, sharding="zero2"),
]


@pytest.mark.parametrize("case", always(CASES, {0}), ids=str)
def test_every_layout_is_one_process(case: Planned, gloo_pool: Pool) -> None:
    assert_equal_to_one_process(case, case.run(gloo_pool, ITERATIONS), ITERATIONS)
