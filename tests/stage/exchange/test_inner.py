"""Exchanges inside a stage: how often and how many bytes, by the formulas of the papers that invented them."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from tests.lowering.plans import DENSE, EXPERTS, SEQUENCE, inner_of, lowered, plan, work_of
from tests.specs.configs import DEEPSEEK_V2

from meshwright.lowering.segment.segmented import inner_degrees
from meshwright.specs import ModelSpec, model_from_config
from meshwright.stage.chain.segment_work import between_bytes
from meshwright.stage.exchange.inner import LOSS_ELEMENT_BYTES, LOSS_EXCHANGES
from meshwright.stage.operator.expert import INDEX_BYTES

B = 3  # sequences of a microbatch
TENSOR, CONTEXT, EXPERT, VOCABULARY = (
    f"{kind} parallel" for kind in ("tensor", "context", "expert", "vocabulary")
)
HIDDEN_BYTES = B * SEQUENCE * DENSE.hidden_size * 2.0  # [tokens, hidden] in bfloat16


def program_of(model: ModelSpec = DENSE, **choices):
    """Unrefined, one block a stage where pp is 4."""
    return lowered(plan(model, microbatch_size=B, **choices), None)


@pytest.mark.parametrize("sharding", ["zero1", "zero2", "zero3"])
def test_nothing_is_sent_inside_without_a_degree(sharding):
    program = program_of(pp=2, dp=2, sharding=sharding)
    assert not any(work.inner for work in program.tables.works)


@pytest.mark.parametrize("tp", [2, 4])
def test_tensor_parallel_adds_two_sums_a_block_and_pass(tp):
    """Shoeybi et al. 2019, section 3: two all-reduces of [tokens, hidden] forward, two backward."""
    program = program_of(pp=4, tp=tp)
    received = ("all_gather", HIDDEN_BYTES)  # from the next stage, a share from every device of its group
    for stage in (1, 2):
        for name in ("F", "B"):
            assert inner_of(work_of(program, name, stage), TENSOR) == {
                ("all_reduce", HIDDEN_BYTES): 2,
                received: 1,
            }
    embedding, head = work_of(program, "F", 0), work_of(program, "F", 3)
    assert inner_of(embedding, TENSOR) == {("all_reduce", HIDDEN_BYTES): 3}
    loss = ("all_reduce", float(B * SEQUENCE * LOSS_ELEMENT_BYTES))
    assert inner_of(head, TENSOR) == {("all_reduce", HIDDEN_BYTES): 2, loss: LOSS_EXCHANGES, received: 1}
    assert inner_of(work_of(program, "B", 0), TENSOR) == {("all_reduce", HIDDEN_BYTES): 2, received: 1}
    assert inner_of(work_of(program, "B", 3), TENSOR) == {("all_reduce", HIDDEN_BYTES): 3}


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved_1f1b"])
def test_what_another_stage_sends_is_gathered_once_however_many_pieces(schedule):
    """Narayanan et al. 2021, section 4.1; with sequence parallelism a share is all that is wanted."""
    chosen = plan(ModelSpec.decoder(8, 64, 8), pp=2, tp=2, schedule=schedule)
    for pieces in (1, 2):
        program = lowered(chosen, (pieces,) * chosen.num_stages)
        for name in ("F", "B"):
            total = sum(
                inner_of(work_of(program, name, stage), TENSOR).get(("all_gather", HIDDEN_BYTES / B), 0)
                for stage in range(program.tables.num_stages)
            )
            assert total == chosen.num_stages - 1


def test_sequence_parallel_gathers_and_scatters_the_same_and_gathers_again_backward():
    """Korthikanti et al. 2022, section 4.2.2: as many bytes as tensor parallelism alone, and the gather again."""
    program = program_of(pp=4, tp=2, sequence_parallel=True)
    forward, backward = (inner_of(work_of(program, name, 1), TENSOR) for name in ("F", "B"))
    assert forward == {("reduce_scatter", HIDDEN_BYTES): 2, ("all_gather", HIDDEN_BYTES): 2}
    assert backward == {("reduce_scatter", HIDDEN_BYTES): 2, ("all_gather", HIDDEN_BYTES): 4}
    hidden = [inner for inner in work_of(program, "B", 1).inner if inner.beside]
    assert [(inner.exchange.algorithm, inner.count, inner.beside) for inner in hidden] == [
        ("all_gather", 2, "matmul")
    ]
    first, last = work_of(program, "F", 0), work_of(program, "B", 3)
    assert inner_of(first, TENSOR) == {("reduce_scatter", HIDDEN_BYTES): 3, ("all_gather", HIDDEN_BYTES): 2}
    assert inner_of(work_of(program, "F", 3), TENSOR)["all_gather", HIDDEN_BYTES] == 3
    assert inner_of(work_of(program, "B", 0), TENSOR)["all_gather", HIDDEN_BYTES] == 5
    assert inner_of(last, TENSOR) == {("reduce_scatter", HIDDEN_BYTES): 3, ("all_gather", HIDDEN_BYTES): 5}


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_tensor_exchanges_run_beside_products_only_where_the_plan_says(sequence_parallel):
    choices = {"pp": 4, "tp": 2, "sequence_parallel": sequence_parallel}
    waiting = work_of(program_of(**choices), "F", 1).inner
    hidden = work_of(program_of(overlap=("tp",), **choices), "F", 1).inner
    assert {inner.beside for inner in waiting} == {""}
    assert [each.exchange.algorithm.endswith(".in_parts") for each in hidden] == [
        bool(each.beside) for each in hidden
    ]
    whole = (each.exchange._replace(algorithm=each.exchange.algorithm.partition(".")[0]) for each in hidden)
    plain = [each._replace(beside="", exchange=one) for each, one in zip(hidden, whole, strict=True)]
    assert plain == list(waiting)
    sums = [inner for inner in hidden if sequence_parallel or "all_reduce" in inner.exchange.algorithm]
    assert sums and {inner.beside for inner in sums} == {"matmul"}


@pytest.mark.parametrize(("tp", "kv_heads"), [(1, 4), (2, 2), (4, 1)])
def test_context_parallel_moves_keys_and_values_of_the_whole_sequence(tp, kv_heads):
    """Liu et al. 2023: every device sees all keys and values of its heads. Backward their gradients, sums in float32, take
    as many hops as there are devices, where a scatter is one less."""
    program = program_of(pp=4, cp=2, tp=tp)
    num_bytes = B * SEQUENCE * 2 * kv_heads * DENSE.head_dim * 2.0
    gradient_bytes = num_bytes / 2.0 * 4 * 2 / (2 - 1)
    assert inner_of(work_of(program, "F", 1), CONTEXT) == {("all_gather", num_bytes): 1}
    both = {("all_gather", num_bytes): 1, ("reduce_scatter", gradient_bytes): 1}
    assert inner_of(work_of(program, "B", 1), CONTEXT) == both
    assert {inner.beside for inner in work_of(program, "B", 1).inner if inner.label == CONTEXT} == {
        "attention"
    }


def test_gathered_keys_and_values_are_waited_for():
    """Llama 3, section 3.3.2: forward the bytes of a ring, before attention and not beside it; gradients are scattered as
    they are."""
    ring, gathered = (
        program_of(pp=4, cp=2, context=context, token_layout="contiguous")
        for context in ("ring", "all_gather")
    )
    forward = inner_of(work_of(ring, "F", 1), CONTEXT)
    assert inner_of(work_of(gathered, "F", 1), CONTEXT) == forward
    ((_, num_bytes),) = forward
    assert inner_of(work_of(gathered, "B", 1), CONTEXT) == {**forward, ("reduce_scatter", num_bytes): 1}
    for name in ("F", "B"):
        assert not any(each.beside for each in work_of(gathered, name, 1).inner if each.label == CONTEXT)


@pytest.mark.parametrize(
    ("kv_heads", "cp", "repeats"), [(4, 2, 1), (2, 2, 1), (1, 2, 2), (1, 4, 4), (2, 4, 2)]
)
def test_heads_are_exchanged_for_tokens_and_back(kv_heads, cp, repeats):
    """Jacobs et al. 2023: (2 + 2 rho) (P - 1) / P q a pass, q the queries of a device's tokens; an all-to-all keeps its own
    P-th part. Fewer key-value heads than devices are sent to each that needs them."""
    model = ModelSpec.decoder(4, 64, 4, num_kv_heads=kv_heads)
    program = program_of(model, pp=4, cp=cp, context="ulysses")
    q = B * SEQUENCE / cp * 64 * 2.0
    rho = kv_heads * repeats / 4
    for name in ("F", "B"):
        sent = inner_of(work_of(program, name, 1), CONTEXT)
        assert sum(size * count for (kind, size), count in sent.items()) == (2 + 2 * rho) * q
        assert {kind for kind, _ in sent} == {"all_to_all"}


@pytest.mark.parametrize(
    ("degrees", "share"),
    [
        ({"dp": 2, "ep": 2}, 1),
        ({"dp": 4, "ep": 2}, 1),
        ({"dp": 2, "cp": 2, "ep": 4}, 2),  # half of the tokens are here
        ({"dp": 2, "tp": 2, "ep": 2}, 1),  # every device of a tensor-parallel group has all tokens
        ({"dp": 2, "tp": 2, "ep": 4}, 2),  # each of them sends its own
    ],
)
def test_tokens_go_to_their_experts_and_back(degrees, share):
    program = program_of(EXPERTS, pp=2, recompute="full", **degrees)
    num_bytes = B * SEQUENCE * EXPERTS.experts.num_experts_per_token * EXPERTS.hidden_size * 2.0 / share
    for name in ("F", "B", "R"):
        sent = inner_of(work_of(program, name, 0), EXPERT)
        assert sent == {("all_to_all.top2", num_bytes): 4}  # there and back, two blocks


def test_blocks_without_experts_send_no_tokens():
    model = model_from_config(DEEPSEEK_V2)  # the first of four blocks is dense
    program = program_of(model, dp=2, ep=2)
    assert sum(inner_of(work_of(program, "F", 0), EXPERT).values()) == 2 * 3


def test_what_experts_add_is_summed_over_tp_where_the_stream_is_whole_there():
    """Whole experts, too: a device has looked for those of its part of the tokens only. With sequence parallelism its part is
    all it has, and one sum a block is left, of attention."""
    divided, whole = (program_of(EXPERTS, pp=4, dp=2, tp=2, ep=ep) for ep in (2, 4))
    for program in (divided, whole):
        assert inner_of(work_of(program, "B", 1), TENSOR)["all_reduce", HIDDEN_BYTES] == 2
    own = program_of(EXPERTS, pp=4, dp=2, tp=2, ep=4, sequence_parallel=True)
    assert inner_of(work_of(own, "F", 1), TENSOR)["reduce_scatter", HIDDEN_BYTES] == 1


def test_experts_that_are_whole_get_the_tokens_of_a_part_of_the_sequence_and_gather_nothing():
    """Where tp devices divide each expert, all routed tokens are gathered along tp and their results scattered again; by
    hand: [T k, h] twice a block, as many bytes as the all-to-alls of all tp devices together."""
    choices = {"pp": 4, "dp": 2, "tp": 2, "ep": 2, "sequence_parallel": True}
    divided, whole = (work_of(program_of(EXPERTS, **choices, **more), "F", 1) for more in ({}, {"etp": 1}))
    routed = EXPERTS.experts.num_experts_per_token * HIDDEN_BYTES
    assert inner_of(divided, EXPERT) == inner_of(whole, EXPERT) == {("all_to_all.top2", routed / 2): 2}
    sent = {kind: inner_of(divided, TENSOR)[kind, routed] for kind in ("all_gather", "reduce_scatter")}
    assert sent == {"all_gather": 1, "reduce_scatter": 1}
    assert {size for _, size in inner_of(whole, TENSOR)} == {HIDDEN_BYTES}


def test_whole_experts_on_a_part_of_cp_send_as_on_all_of_it_to_fewer():
    """Keys and values still go around all of cp."""
    choices = {"pp": 2, "cp": 4, "tp": 2, "sequence_parallel": True, "etp": 1}
    few, all_of_it = (program_of(EXPERTS, ep=ep, **choices) for ep in (4, 8))
    found = [inner_of(work_of(program, "F", 1), EXPERT) for program in (few, all_of_it)]
    assert found[0] == found[1] and found[0]
    axes = [
        {each.exchange.axes for each in work_of(program, "F", 1).inner if each.label == "context parallel"}
        for program in (few, all_of_it)
    ]
    assert axes == [{("cp", "cp2")}, {("cp",)}]


def test_tokens_sent_once_a_device_say_so_in_their_exchange():
    choices = {"pp": 4, "dp": 2, "ep": 2}
    each, once = (program_of(EXPERTS, **choices, dispatch=how) for how in ("copies", "once"))
    sizes = {size for _, size in inner_of(work_of(each, "F", 1), EXPERT)}
    assert inner_of(work_of(once, "F", 1), EXPERT) == {("all_to_all.once2", size): 2 for size in sizes}


def test_a_node_forwards_a_token_to_each_of_its_devices_that_has_any_expert():
    """Across nodes as many rows as nodes have any expert of a token; within them as many as devices have: in the mean
    4 (1 - (3 / 4)^2) of four devices, where an exchange between two alone says 2 (1 - (1 / 2)^2) = 1.5 of two copies."""
    choices = {"pp": 2, "dp": 4, "ep": 4}
    flat, levels = (program_of(EXPERTS, **choices, dispatch="once", ep_near=near) for near in (1, 2))
    (size,) = {size for _, size in inner_of(work_of(flat, "F", 1), EXPERT)}
    near, far = sorted((size for _, size in inner_of(work_of(levels, "F", 1), EXPERT)), reverse=True)
    assert far == size
    assert near == pytest.approx(size * 4 * (1 - 0.75**2) / 1.5)


@pytest.mark.parametrize(("near", "num_first"), [(1, 4), (2, 2)])
def test_rows_sent_once_are_as_large_as_what_is_sent(near, num_first):
    """Of two copies a token: rows of each level in the mean over all pairs of experts, gates behind the hidden units of
    those that go, none of those that come back, and two numbers of experts beside them."""
    chosen = plan(EXPERTS, pp=2, dp=4, ep=4, dispatch="once", ep_near=near)
    num_experts = EXPERTS.experts.num_experts
    pairs = list(itertools.combinations(range(num_experts), 2))
    first, last = (
        sum(len({each * n // num_experts for each in pair}) for pair in pairs) / len(pairs)
        for n in (num_first, 4)
    )
    found, bf16, hidden = between_bytes(chosen, inner_degrees(chosen)), 2, EXPERTS.hidden_size
    assert found["dispatched"] == pytest.approx(first * (hidden + 2) * bf16)
    assert found["received"] == pytest.approx(last * (hidden + 2) * bf16)
    assert found["results"] == pytest.approx(last * hidden * bf16)
    assert found["returned"] == pytest.approx(first * hidden * bf16)
    assert found["choices"] == pytest.approx(first * 2 * INDEX_BYTES)


def test_tokens_may_travel_beside_products_of_experts():
    beside = {
        each.beside for each in work_of(program_of(EXPERTS, pp=4, dp=2, ep=2, overlap=("ep",)), "F", 1).inner
    }
    assert beside == {"grouped_matmul"}


def test_the_weight_half_of_a_split_backward_sends_nothing():
    program = program_of(EXPERTS, pp=2, dp=2, cp=2, tp=2, ep=4, schedule="zb_h1")
    assert work_of(program, "I", 0).inner and not work_of(program, "W", 0).inner


@pytest.mark.parametrize("refine", [False, True])
def test_an_interlaced_vocabulary_sends_hidden_states_once_a_device_and_pass(refine):
    """Where the order is another than that of 1F1B; there, and with barriers, they are instructions of their own."""
    chosen = plan(
        pp=2, dp=2, schedule="interleaved_1f1b", vocabulary="interlaced", sharding="zero1", microbatch_size=B,
        layers_per_stage=(1, 1, 1, 1),
    )  # fmt: skip
    chosen = chosen if not refine else chosen.changed(schedule="gpipe", num_chunks=1, layers_per_stage=(2, 2))
    program = lowered(chosen)
    for device in range(2):
        for name in ("F", "B"):
            stages = {
                view.stage
                for view in program.instructions(device)
                if view.name == name and inner_of(view.work, VOCABULARY)
            }
            assert len(stages) == 1
            inner = work_of(program, name, stages.pop()).inner
            assert [(each.bytes, each.count, each.beside) for each in inner] == [(HIDDEN_BYTES, 1, "")]


@pytest.mark.parametrize("vocabulary", ["one_barrier", "two_barriers", "interlaced"])
def test_passes_of_the_vocabulary_leave_stages_what_they_receive(vocabulary):
    """Along tp the first stage gathers its input and the last one its output's gradient, as if another stage had sent them;
    within the passes hidden states are gathered, and sums of them scattered, twice each a microbatch."""
    ends, split = (program_of(DENSE, pp=2, tp=2, vocabulary=each) for each in ("ends", vocabulary))
    for name, stage in (("F", 0), ("B", 1)):
        before, after = (inner_of(work_of(each, name, stage), TENSOR) for each in (ends, split))
        assert after["all_gather", HIDDEN_BYTES] - before.get(("all_gather", HIDDEN_BYTES), 0) == 1
        assert not inner_of(work_of(split, name, stage), VOCABULARY)
    found = Counter()
    for name in ("LOOKUP", "S", "T", "SCATTER"):
        found.update(inner_of(work_of(split, name, 1), VOCABULARY))
    assert found["all_gather", HIDDEN_BYTES] == found["reduce_scatter", HIDDEN_BYTES] == 2


def test_gathered_inputs_that_are_kept_are_not_gathered_again():
    """Of a backward only the gathers are left that are transposes of scattered sums."""
    gathers = {
        gathered: inner_of(
            work_of(program_of(pp=4, tp=2, sequence_parallel=True, gathered=gathered), "B", 1), TENSOR
        )
        for gathered in ("again", "kept")
    }
    moved = ("all_gather", HIDDEN_BYTES)
    assert {name: found[moved] for name, found in gathers.items()} == {"again": 4, "kept": 2}
