"""Which dimension of every parameter is cut over devices, from names and shapes alone; and a training step made of three
functions of a user.

torch keeps the weight of a linear layer as [outputs, inputs]; GPT-2's own layers keep [inputs, outputs].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import (
    Effect,
    Exchange,
    Hop,
    Kind,
    Microbatch,
    ParameterGroup,
    Pattern,
    ValueKind,
)
from meshwright.ir.vocabulary import Name, Vocabulary
from meshwright.specs.option import option
from meshwright.specs.training.tensor_rule import Cut, TensorRule, Tree, TreeParameter

LEAST_BYTES = (
    1 << 20
)  # tables, heads and lonely layers up to here are whole: to cut them is not worth an exchange
# Layers that close a module: they take what the others made, and give what goes back into the stream.
ROW_NAMES = ("c_proj", "o_proj", "out_proj", "down_proj", "fc2", "wo", "w2", "dense_4h_to_h", "o")
HEAD_NAMES = ("lm_head", "head", "embed_out")
QUERY_NAMES = ("q_proj", "q", "query", "wq")
KEY_VALUE_NAMES = ("k_proj", "v_proj", "k", "v", "key", "value", "wk", "wv")
# Layers that make several outputs at once, one behind the other. query_key_value has them head by head: one section.
FUSED_NAMES: Mapping[str, int] = {
    "c_attn": 3,
    "qkv_proj": 3,
    "qkv": 3,
    "Wqkv": 3,
    "in_proj": 3,
    "query_key_value": 1,
    "gate_up_proj": 2,
}
ATTENTION_NAMES = (*QUERY_NAMES, *KEY_VALUE_NAMES, *(n for n in FUSED_NAMES if n != "gate_up_proj"))


@dataclass(frozen=True)
class NamedRules:
    """Tensor rules from names and shapes: outputs and inputs of a network's layers in turn, heads of attention."""

    least_bytes: int = option(
        LEAST_BYTES, "Tables, heads, lonely and unknown layers up to here stay whole.", least=0
    )

    def __call__(self, tree: Tree, num_shards: int) -> dict[str, TensorRule]:
        """As `tensor_rules`."""
        return tensor_rules(tree, num_shards, least_bytes=self.least_bytes)


def tensor_rules(
    tree: Tree, num_shards: int, head_dim: int = 0, least_bytes: int = LEAST_BYTES
) -> dict[str, TensorRule]:
    """A rule for every parameter, by name.

    Linear layers are read in the order of their modules and make units: some that read the stream, cut by column, and one
    that closes the unit, cut by row. A layer closes where its name says so, where it follows those of attention, where its
    shape leads back to the stream's width, or where it is the last of its module. Heads and what nothing closes are gathered.

    Args:
        head_dim: numbers of an attention head; 0: not known, and where the tree does not say it either, keys and values are
            taken to have enough heads.
        least_bytes: tables, heads, lonely layers and what is not known stay whole up to here; above that it is unknown.
    """
    rules: dict[str, TensorRule] = {}
    for unit in units_of(tree):
        alone: Cut = "gathered" if unit[0].num_bytes > least_bytes else "whole"
        places: list[Cut] = [alone] if len(unit) == 1 else [*["column"] * (len(unit) - 1), "row"]  # type: ignore[list-item]
        for one, place in zip(unit, places, strict=True):
            rules[one.name] = _linear_rule(one, place, num_shards, head_dim)
        _keep_whole_together(unit, rules)
    weights = {one.module: rules[one.name] for one in tree if one.name in rules}
    for one in tree:
        if one.role == "table" and one.num_bytes > least_bytes:
            padded = -(-one.shape[0] // num_shards) * num_shards
            rules[one.name] = TensorRule(one.name, "table", 0, rows=padded)
        elif one.role == "other" and len(one.shape) > 1 and one.num_bytes > least_bytes:
            rules[one.name] = TensorRule(one.name, "unknown", reason=f"{one.num_bytes} bytes of no known use")
        elif one.name not in rules:
            rules[one.name] = _vector_rule(one, weights.get(one.module))
    return rules


def units_of(tree: Tree) -> list[list[TreeParameter]]:
    """Linear layers that belong together, the one that closes them last; a head, or what nothing closes, is alone."""
    units: list[list[TreeParameter]] = []
    current: list[TreeParameter] = []
    layers = _closing_last(tree)
    for place, one in enumerate(layers):
        follower = layers[place + 1] if place + 1 < len(layers) else None
        if one.layer in HEAD_NAMES:
            units += [*([single] for single in current), [one]]
            current = []
        elif current and _closes(one, current, follower):
            units.append([*current, one])
            current = []
        else:
            if current and one.parent != current[0].parent:
                units += [[single] for single in current]
                current = []
            current.append(one)
    return units + [[single] for single in current]


def _closing_last(tree: Tree) -> list[TreeParameter]:
    """The linear layers in order; within a module those that close by name stand last."""
    layers = [one for one in tree if one.role in ("linear", "linear_in_out", "convolution")]
    first = {one.parent: place for place, one in reversed(list(enumerate(layers)))}
    places = {one.name: place for place, one in enumerate(layers)}
    return sorted(layers, key=lambda one: (first[one.parent], one.layer in ROW_NAMES, places[one.name]))


def _closes(one: TreeParameter, current: Sequence[TreeParameter], follower: TreeParameter | None) -> bool:
    """Does a layer close the unit in front of it?"""
    first, last = current[0], current[-1]
    if one.num_outputs != first.num_inputs or one.layer in ATTENTION_NAMES:
        return False
    if one.layer in ROW_NAMES or last.layer in ATTENTION_NAMES:
        return True
    if one.num_inputs != first.num_inputs:
        return one.num_inputs == last.num_outputs  # back from the width in between
    return one.parent == first.parent and (follower is None or follower.parent != one.parent)


def _linear_rule(one: TreeParameter, place: Cut, num_shards: int, head_dim: int) -> TensorRule:
    is_reversed = one.role == "linear_in_out"
    if place == "whole":
        return TensorRule(one.name, "whole", reason=f"alone, and {one.num_bytes} bytes small")
    if place == "row":
        if one.num_inputs % num_shards:
            return TensorRule(one.name, "whole", reason=f"{one.num_inputs} inputs, {num_shards} devices")
        return TensorRule(one.name, "row", 0 if is_reversed else 1)
    if place == "gathered":
        padded = -(-one.num_outputs // num_shards) * num_shards
        return TensorRule(one.name, "gathered", 1 if is_reversed else 0, rows=padded)
    num_heads = one.num_heads or (head_dim and one.num_outputs // head_dim)
    if one.layer in KEY_VALUE_NAMES and num_heads % num_shards:
        reason = f"{num_heads} key-value heads, {num_shards} devices"
        return TensorRule(one.name, "whole", is_shared=True, reason=reason)
    if one.layer in ATTENTION_NAMES and one.num_heads % num_shards:
        return TensorRule(one.name, "whole", reason=f"{one.num_heads} heads, {num_shards} devices")
    sections = sections_of(one)
    if any(size % num_shards for size in sections):
        return TensorRule(one.name, "whole", reason=f"outputs {sections}, {num_shards} devices")
    return TensorRule(one.name, "column", 1 if is_reversed else 0, sections)


def sections_of(one: TreeParameter) -> tuple[int, ...]:
    """Sizes of the outputs of a layer that stand one behind the other: three of attention, queries as many as inputs."""
    num = FUSED_NAMES.get(one.layer, 1)
    if num == 3 and one.num_outputs != 3 * one.num_inputs:
        rest = (one.num_outputs - one.num_inputs) // 2
        return one.num_inputs, rest, rest
    return (one.num_outputs // num,) * num


def _keep_whole_together(layers: Sequence[TreeParameter], rules: dict[str, TensorRule]) -> None:
    """Where a layer of a module cannot be cut, the others may not be either; shared keys and values may."""
    stuck = [r for one in layers if (r := rules[one.name]).cut == "whole" and not r.is_shared]
    if not stuck:
        return
    for one in layers:
        if rules[one.name].cut != "whole" or rules[one.name].is_shared:
            rules[one.name] = TensorRule(one.name, "whole", reason=f"{stuck[0].name} is whole")


def _vector_rule(one: TreeParameter, weight: TensorRule | None) -> TensorRule:
    """Biases go with the outputs of their layer; norms and what is not known stay whole."""
    if one.role == "vector" and weight is not None:
        if weight.cut in ("column", "gathered"):
            return TensorRule(one.name, weight.cut, 0, weight.sections, weight.rows)
        if weight.is_shared:
            return TensorRule(one.name, "whole", is_shared=True, reason=weight.reason)
    return TensorRule(one.name, "whole", reason="no matrix that is cut")


def published_rules(tree: Tree) -> dict[str, TensorRule]:
    """Rule 1 of the public code for names that it does not know, read from tanyuqian/redco: layers of one name share a rule;
    in the order of the alphabet, outputs are cut, or inputs where the layer before had its outputs cut."""
    layers = [one for one in tree if one.role in ("linear", "linear_in_out")]
    cuts: dict[str, Cut] = {}
    before: Cut = "row"
    for layer in sorted({one.layer for one in layers}):
        before = cuts[layer] = "row" if before == "column" else "column"
    dims: Mapping[Cut, int] = {"column": 0, "row": 1}
    return {
        one.name: TensorRule(
            one.name,
            cuts[one.layer],
            1 - dims[cuts[one.layer]] if one.role == "linear_in_out" else dims[cuts[one.layer]],
        )
        for one in layers
    }


def num_block_exchanges(tree: Tree, rules: Mapping[str, TensorRule], block: str) -> int:
    """Exchanges in the forward of a block: what is a part of a sum is summed at once, what is cut is gathered where a layer
    needs it whole, and the stream behind every unit is whole."""
    units = [unit for unit in units_of(tree) if unit[0].name.startswith(f"{block}.")]
    return sum(_module_exchanges(unit, rules) for unit in units)


def _module_exchanges(layers: Sequence[TreeParameter], rules: Mapping[str, TensorRule]) -> int:
    """Layers that read the stream, then one that closes the unit and reads what these made."""
    *opening, closing = layers
    cuts = [rules[one.name].cut for one in opening]
    found = sum(cut == "row" for cut in cuts)  # a part of a sum, because the stream is whole and cut here
    is_cut = "column" in cuts
    last = rules[closing.name].cut
    found += is_cut and last != "row"  # gathered for a layer that takes all inputs
    return found + (last in ("row", "column"))


def whole_bytes(tree: Tree, rules: Mapping[str, TensorRule], least_bytes: int) -> list[str]:
    """Two-dimensional parameters above a size that every device has whole."""
    return [
        one.name
        for one in tree
        if len(one.shape) == 2 and one.num_bytes > least_bytes and rules[one.name].cut in ("whole", "unknown")
    ]


DATA_AXIS, TENSOR_AXIS = "dp", "tp"
BATCH = ValueKind("user_batch", index="none")
USER_LOSS = ValueKind("user_loss", index="none", microbatch=False, accumulates=True)
PREDICTION = ValueKind("prediction", index="none", microbatch=False)
CALL_DATA, CALL_LOSS, CALL_PREDICT = "CALL_DATA", "CALL_LOSS", "CALL_PREDICT"
REDUCE_USER, USER_STEP = "REDUCE_USER_GRADIENT", "USER_STEP"
_PARAMETERS, _GRADIENTS = Pattern("parameter", index="groups"), Pattern("weight_gradient", index="groups")
_REDUCED, _STATE = Pattern("reduced_gradient", index="groups"), Pattern("optimizer_state", index="groups")
_BATCH = Pattern(BATCH.name, index="none")
EFFECTS = {
    effect.name: effect
    for effect in (
        Effect(Kind.CALL, CALL_DATA, (_PARAMETERS,), (_BATCH,)),
        Effect(
            Kind.CALL,
            CALL_LOSS,
            (_BATCH, _PARAMETERS),
            (_GRADIENTS, Pattern(USER_LOSS.name, index="none")),
        ),
        Effect(Kind.CALL, CALL_PREDICT, (_PARAMETERS,), (Pattern(PREDICTION.name, index="none"),)),
        Effect(
            Kind.COLLECTIVE,
            REDUCE_USER,
            (Pattern("weight_gradient", index="group"),),
            (Pattern("reduced_gradient", index="group"),),
        ),
        Effect(Kind.COMPUTE, USER_STEP, (_REDUCED, _PARAMETERS, _STATE), (_PARAMETERS, _STATE)),
    )
}
_PER = {CALL_DATA: "path", CALL_LOSS: "path", CALL_PREDICT: "stage", USER_STEP: "stage"}
VOCABULARY = Vocabulary.of(
    *(BATCH, USER_LOSS, PREDICTION),
    *(Name(effect, _PER.get(name, "")) for name, effect in EFFECTS.items()),
    owner="redco",
)


def three_functions(num_devices: int, num_microbatches: int = 1, tp: int = 1) -> Program:
    """A step of data parallelism: one list, the same for all devices, each a part of `tp` of a model.

    `data` may look at the parameters, as an agent does that acts to gather its data; the gradients of microbatches and
    devices are averaged; `predict` runs with the stepped parameters.
    """
    builder = ProgramBuilder(
        (Axis("pp", 1), Axis(DATA_AXIS, num_devices, False), Axis(TENSOR_AXIS, tp, False)),
        microbatches=(Microbatch(1, 1.0 / num_microbatches),) * num_microbatches,
        paths=((Hop(0, 0),),),
        groups=(ParameterGroup("all", (0,), 0, (DATA_AXIS,)),),
        vocabulary=VOCABULARY,
    )
    for microbatch in range(num_microbatches):
        for name in (CALL_DATA, CALL_LOSS):
            builder.add(0, EFFECTS[name], microbatch=microbatch, stream="host")
    exchange = Exchange((DATA_AXIS,), algorithm="all_reduce")
    builder.add(0, EFFECTS[REDUCE_USER], stream="reduce", exchange=exchange)
    builder.add(0, EFFECTS[USER_STEP])
    builder.add(0, EFFECTS[CALL_PREDICT], stream="host")
    return builder.build()
