"""Operators: totals, merging, repetition."""

from hypothesis import given
from hypothesis import strategies as st

from meshwright.specs.operator import Operator, merged, repeated, total_bytes, total_flops

OPERATORS = st.builds(
    Operator,
    kind=st.sampled_from(["matmul", "norm"]),
    flops=st.integers(0, 5).map(float),
    bytes=st.integers(0, 5).map(float),
    shape=st.tuples(st.integers(1, 3)),
    count=st.integers(1, 4),
    phase=st.sampled_from(["forward", "backward"]),
    label=st.sampled_from(["a", "b"]),
)


def test_variant_names_the_phase():
    assert Operator("matmul", 1, 1, (1, 1, 1)).variant == "matmul"
    assert Operator("matmul", 1, 1, (1, 1, 1), phase="weight_gradient").variant == "matmul_weight_gradient"


@given(st.lists(OPERATORS, max_size=8), st.integers(0, 3))
def test_merging_and_repeating_keep_the_totals(operators, count):
    again = merged(repeated(operators, count))
    assert total_flops(again) == count * total_flops(operators)
    assert total_bytes(again) == count * total_bytes(operators)
    assert len({(o.kind, o.flops, o.bytes, o.shape, o.phase) for o in again}) == len(again)


def test_label_does_not_enter_equality():
    assert Operator("norm", 1, 1, (1, 1), label="a") == Operator("norm", 1, 1, (1, 1), label="b")
