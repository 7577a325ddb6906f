"""What tensor parallelism has to divide: one rule, asked by every door, in the same words."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from meshwright.executor.layout.tensor_shard import TensorShard
from meshwright.planner.search.search import search
from meshwright.planner.space.space import space_of
from meshwright.specs import Cluster, ModelSpec, Plan, Workload
from meshwright.specs.error import PlanError
from meshwright.specs.model.division import check_division, divides
from meshwright.stage.operator.layer import local_sizes

# phi-4's shape: 40 heads share 10 key-value heads
MODEL = ModelSpec.decoder(
    4, 5120, 40, num_kv_heads=10, intermediate_size=17920, vocabulary_size=102400, name="forty-ten"
)
CLUSTER, WORKLOAD = Cluster("8xH100"), Workload(8, 2048)
MEGATRON = (
    "--num-layers 4 --hidden-size 5120 --num-attention-heads 40 --group-query-attention --num-query-groups 10 "
    "--ffn-hidden-size 17920 --swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope "
    "--untie-embeddings-and-output-weights --vocab-size 102400 --seq-length 2048 --max-position-embeddings 2048 "
    "--micro-batch-size 1 --global-batch-size 8 --bf16 --tensor-model-parallel-size 4"
)
SAID = "tp=4 does not divide the 10 key-value heads"


def imported(folder: Path) -> None:
    path = folder / "job.sh"
    path.write_text(f"torchrun --nproc-per-node 8 pretrain_gpt.py {MEGATRON}\n")
    mw.import_plan(path, "megatron", cluster="8xH100")


def loaded(folder: Path) -> None:
    path = folder / "plan.toml"
    Plan.of(MODEL, CLUSTER, WORKLOAD, tp=2, dp=4).save(path)
    text = path.read_text()
    assert "\ntp = 2" in text and "\ndp = 4" in text
    path.write_text(text.replace("\ntp = 2", "\ntp = 4").replace("\ndp = 4", "\ndp = 2"))
    Plan.load(path)


DOORS: dict[str, Callable[[Path], object]] = {
    "a plan": lambda _: Plan.of(MODEL, CLUSTER, WORKLOAD, tp=4),
    "a plan that is changed": lambda _: Plan.of(MODEL, CLUSTER, WORKLOAD).changed(tp=4, dp=2),
    "a plan file": loaded,
    "the space": lambda _: space_of(MODEL, CLUSTER, WORKLOAD, fix={"tp": 4}),
    "plan": lambda _: search(MODEL, CLUSTER, WORKLOAD, fix={"tp": 4}),
    "operators": lambda _: local_sizes(MODEL, 4),
    "executor": lambda _: TensorShard(MODEL, 4).check(),
    "import": imported,
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses_it_in_the_same_words(door: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=SAID) as caught:
        DOORS[door](tmp_path)
    assert "1, 2, 5, 10" in str(caught.value) and caught.value.exit_code == 2


def test_the_space_has_only_degrees_that_divide() -> None:
    assert set(space_of(MODEL, CLUSTER, WORKLOAD).tp) == {1, 2}
    assert set(space_of(MODEL, Cluster("1x10xH100"), Workload(10, 2048)).tp) == {1, 2, 5, 10}


@given(heads=st.integers(1, 12), shared=st.integers(1, 6), tp=st.integers(1, 24), inner=st.integers(1, 64))
def test_what_is_allowed_gives_every_device_whole_ones(heads: int, shared: int, tp: int, inner: int) -> None:
    model = ModelSpec.decoder(
        2, 16 * heads * shared, heads * shared, num_kv_heads=heads, intermediate_size=inner
    )
    assert divides(model, tp) == (gcd(heads, inner) % tp == 0)


def test_experts_are_divided_by_their_own_degree() -> None:
    model = mw.Model("mixtral-8x7b")
    check_division(model, 8, 1)
    with pytest.raises(PlanError, match="3 devices do not divide the 14336 inner units of an expert"):
        check_division(model, 1, 3)
