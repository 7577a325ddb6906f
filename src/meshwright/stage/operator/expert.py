"""Operators of a block's experts: router, copies of tokens to experts and back, grouped products, shared experts.

Letters: T tokens of the microbatch, k experts a token goes to, R = T k rows, E experts of which E / ep are here.
Every expert gets as many rows: of a balanced routing R / (E / ep), of another what the experts of the busiest device get, for
which the others wait (`Workload.expert_load`); copies of a device's own tokens are R rows whatever the routing, but for those
that a capacity drops (a load below 1). The
all-to-all between the devices of an expert-parallel group is in `lowering.inner_exchange`. A dense MLP comes from
here as well, so that a block asks one place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.error import SpecError
from meshwright.specs.model.block import BlockSpec, Experts
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.operator import Operator, Phase
from meshwright.stage.operator.layer import (
    Linear,
    LocalSizes,
    MicrobatchShape,
    activation_backward,
    activation_forward,
    mlp_linears,
    residual_add,
)

INDEX_BYTES = 8  # numbers of experts are int64
ROUTING_FLOPS, ROUTING_BACKWARD_FLOPS = 6, 4  # softmax or sigmoid 5 a logit, one comparison; its gradient 4
ROUTING_TOUCHES, ROUTING_BACKWARD_TOUCHES = 3, 3  # logits, probabilities written and searched; p, dp, dlogits
COMBINE_FLOPS = 2  # each row times its weight, added to its token's sum
# The gradient of the sum reaches a row times its weight, and the weight as the product with the row.
COMBINE_BACKWARD_FLOPS = 3
COMBINE_BACKWARD_TOUCHES = 3  # the token's gradient, the expert's result; the row's gradient
GATE_TOUCHES, GATE_BACKWARD_TOUCHES = 2, 3  # of the shared expert's result times a number for each token


Parts = dict[str, tuple[Operator, ...]]
MLP_PARTS = (
    "gate_up",
    "down",
    "router",
    "experts",
    "combine",
    "shared_experts",
)  # of a block's second half, dense or of experts


class GroupedLinear(NamedTuple):
    """A projection that every expert here has for itself, of `rows` rows in all, as one kernel."""

    label: str
    num_groups: int
    rows: int
    num_in: int
    num_out: int
    has_bias: bool

    def forward(self, shape: MicrobatchShape) -> Operator:
        """Per expert [m, in] @ [in, out]; the bias rides along."""
        return self._product(self.label, (self._rows_each, self.num_out, self.num_in), shape, "forward")

    def input_gradient(self, shape: MicrobatchShape) -> Operator:
        """Per expert [m, out] @ [out, in]."""
        dims = (self._rows_each, self.num_in, self.num_out)
        return self._product(f"{self.label} dX", dims, shape, "input_gradient")

    def weight_gradient(self, shape: MicrobatchShape) -> tuple[Operator, ...]:
        """Per expert [out, m] @ [m, in] added to the sum over microbatches, and the column sum for a bias."""
        dims = (self.num_out, self.num_in, self._rows_each)
        product = self._product(f"{self.label} dW", dims, shape, "weight_gradient")
        if not self.has_bias:
            return (product,)
        work, dims_bias = self.rows * self.num_out, (self.rows, self.num_out)
        size_bytes = work * shape.element_bytes
        return (product, Operator("elementwise", work, size_bytes, dims_bias, label=f"{self.label} db"))

    @property
    def _rows_each(self) -> int:
        return -(-self.rows // self.num_groups)

    def _product(
        self, label: str, dims: tuple[int, int, int], shape: MicrobatchShape, phase: Phase
    ) -> Operator:
        """Rows in and out once, every expert's matrix once; a sum in place is read as well as written."""
        weights = self.num_groups * self.num_in * self.num_out
        weight_bytes = shape.element_bytes
        if phase == "weight_gradient":
            weight_bytes = 2 * dtype_bytes(shape.gradient_dtype or shape.dtype)
        flops = 2.0 * self.rows * self.num_in * self.num_out
        num_bytes = self.rows * (self.num_in + self.num_out) * shape.element_bytes + weights * weight_bytes
        return Operator(
            "grouped_matmul", flops, num_bytes, (self.num_groups, *dims), phase=phase, label=label
        )


def mlp_forward(model: ModelSpec, block: BlockSpec, local: LocalSizes, shape: MicrobatchShape) -> Parts:
    """The MLP of a block between its norm and its residual: its products, or where it has experts the parts of these."""
    rows, experts = shape.num_routed_tokens, block.experts
    if experts is None:
        first, *rest = _dense_forward(model, block, local.intermediate, "", shape)
        return {"gate_up": (first,), "down": tuple(rest)}
    own = shape.num_own_rows(experts.num_experts_per_token)
    up, down = _grouped_linears(model, experts, local, shape)
    return {
        "router": (
            *(linear.forward(shape) for linear in _router(model, experts)),
            _routing(experts, shape, is_backward=False),
            _permutation("dispatch", own, model.hidden_size, 2 * own, 0, shape),
        ),
        "experts": (
            up.forward(shape),
            activation_forward(model, up.rows, local.expert_intermediate, shape),
            down.forward(shape),
        ),
        "combine": (_permutation("combine", own, model.hidden_size, own + rows, COMBINE_FLOPS, shape),),
        "shared_experts": _shared_forward(model, block, local, shape),
    }


def mlp_input(model: ModelSpec, block: BlockSpec, local: LocalSizes, shape: MicrobatchShape) -> Parts:
    """The part of the MLP's backward that does not end in a parameter, as `mlp_forward`."""
    rows, hidden, experts = shape.num_routed_tokens, model.hidden_size, block.experts
    if experts is None:
        *rest, last = _dense_input(model, block, local.intermediate, "", shape)
        return {"down": tuple(rest), "gate_up": (last,)}
    up, down = _grouped_linears(model, experts, local, shape)
    own = shape.num_own_rows(experts.num_experts_per_token)
    num_touched = COMBINE_BACKWARD_TOUCHES * own
    return {
        "combine": (
            _permutation("combine backward", own, hidden, num_touched, COMBINE_BACKWARD_FLOPS, shape),
        ),
        "experts": (
            down.input_gradient(shape),
            activation_backward(model, up.rows, local.expert_intermediate, shape),
            up.input_gradient(shape),
        ),
        "router": (
            _permutation("dispatch backward", own, hidden, own + rows, 1, shape),
            _routing(experts, shape, is_backward=True),
            *(linear.input_gradient(shape) for linear in reversed(_router(model, experts))),
            residual_add("router gradient", shape, hidden),
        ),
        "shared_experts": _shared_input(model, block, local, shape),
    }


def mlp_weight(model: ModelSpec, block: BlockSpec, local: LocalSizes, shape: MicrobatchShape) -> Parts:
    """Gradients of the MLP's matrices and biases, as `mlp_forward`."""
    experts, inner = block.experts, local.shared_intermediate
    if experts is None:
        first, last = mlp_linears(model, block, local.intermediate)
        return {"gate_up": _weight_gradients((first,), shape), "down": _weight_gradients((last,), shape)}
    shared = mlp_linears(model, block, inner, "shared ") if inner else ()
    gates = (_shared_gate(model),) if model.has_shared_gate else ()
    return {
        "router": _weight_gradients(_router(model, experts), shape),
        "experts": _weight_gradients(_grouped_linears(model, experts, local, shape), shape),
        "shared_experts": _weight_gradients((*shared, *gates), shape),
    }


def _weight_gradients(
    linears: Iterable[Linear | GroupedLinear], shape: MicrobatchShape
) -> tuple[Operator, ...]:
    return tuple(operator for linear in linears for operator in linear.weight_gradient(shape))


def _router(model: ModelSpec, experts: Experts) -> tuple[Linear, ...]:
    """Logits of all experts, on every device whole; where they are cosines of tokens that are narrowed before. What these are
    divided by is not priced."""
    rank, num = experts.routing_in(model.architecture).cosine_rank, experts.num_experts
    if not rank:
        return (Linear("router", model.hidden_size, num, model.has_expert_bias),)
    return (Linear("router projection", model.hidden_size, rank, False), Linear("router", rank, num, False))


def _shared_gate(model: ModelSpec) -> Linear:
    return Linear("shared gate", model.hidden_size, 1, False)


def _grouped_linears(
    model: ModelSpec, experts: Experts, local: LocalSizes, shape: MicrobatchShape
) -> tuple[GroupedLinear, GroupedLinear]:
    """Gate and up in one, and down, of the experts here. Raises SpecError where ep does not divide them."""
    if shape.ep < 1 or experts.num_experts % shape.ep:
        raise SpecError(
            f"{model.name}: expert-parallel degree {shape.ep} does not divide {experts.num_experts} experts",
            allowed="a degree from 1 that divides the number of experts",
        )
    groups, rows = experts.num_experts // shape.ep, shape.num_expert_rows(experts.num_experts_per_token)
    hidden, inner, has_bias = model.hidden_size, local.expert_intermediate, model.has_expert_bias
    return (
        GroupedLinear("experts gate_up", groups, rows, hidden, 2 * inner, has_bias),
        GroupedLinear("experts down", groups, rows, inner, hidden, has_bias),
    )


def _routing(of: Experts, shape: MicrobatchShape, *, is_backward: bool) -> Operator:
    """Probabilities of T x E logits and the k best with their numbers; or the logits' gradient."""
    tokens, experts, chosen = shape.num_routed_tokens, of.num_experts, of.num_experts_per_token
    work, dims = tokens * experts, (tokens, experts, chosen)
    if is_backward:
        num_bytes = ROUTING_BACKWARD_TOUCHES * work * shape.element_bytes
        flops = ROUTING_BACKWARD_FLOPS * work
        return Operator("routing", flops, num_bytes, dims, phase="backward", label="routing backward")
    num_bytes = ROUTING_TOUCHES * work * shape.element_bytes
    num_bytes += tokens * chosen * (shape.element_bytes + INDEX_BYTES)
    return Operator("routing", ROUTING_FLOPS * work, num_bytes, dims, label="routing")


def _permutation(
    label: str, rows: int, columns: int, num_touched: int, flops: int, shape: MicrobatchShape
) -> Operator:
    """`num_touched` rows read or written, `flops` operations for each number of the `rows` routed ones."""
    phase: Phase = "backward" if label.endswith("backward") else "forward"
    num_bytes = num_touched * columns * shape.element_bytes
    return Operator(
        "permutation", flops * rows * columns, num_bytes, (rows, columns), phase=phase, label=label
    )


def _dense_forward(
    model: ModelSpec, block: BlockSpec, inner: int, prefix: str, shape: MicrobatchShape
) -> tuple[Operator, ...]:
    up, down = mlp_linears(model, block, inner, prefix)
    activation = activation_forward(model, shape.num_tokens, inner, shape)
    return (up.forward(shape), activation, down.forward(shape))


def _dense_input(
    model: ModelSpec, block: BlockSpec, inner: int, prefix: str, shape: MicrobatchShape
) -> tuple[Operator, ...]:
    up, down = mlp_linears(model, block, inner, prefix)
    activation = activation_backward(model, shape.num_tokens, inner, shape)
    return (down.input_gradient(shape), activation, up.input_gradient(shape))


def _shared_forward(
    model: ModelSpec, block: BlockSpec, local: LocalSizes, shape: MicrobatchShape
) -> tuple[Operator, ...]:
    """The experts every token goes through, as one MLP, added to the routed ones' sum."""
    if not local.shared_intermediate:
        return ()
    mlp = _dense_forward(model, block, local.shared_intermediate, "shared ", shape)
    add = residual_add("shared experts", shape, model.hidden_size)
    if not model.has_shared_gate:
        return (*mlp, add)
    return (
        *mlp,
        _shared_gate(model).forward(shape),
        _gating("shared gating", GATE_TOUCHES, model, shape),
        add,
    )


def _shared_input(
    model: ModelSpec, block: BlockSpec, local: LocalSizes, shape: MicrobatchShape
) -> tuple[Operator, ...]:
    if not local.shared_intermediate:
        return ()
    mlp = _dense_input(model, block, local.shared_intermediate, "shared ", shape)
    add = residual_add("shared experts' gradient", shape, model.hidden_size)
    if not model.has_shared_gate:
        return (*mlp, add)
    gating = _gating("shared gating backward", GATE_BACKWARD_TOUCHES, model, shape)
    return (*mlp, gating, _shared_gate(model).input_gradient(shape), add, add)


def _gating(label: str, touches: int, model: ModelSpec, shape: MicrobatchShape) -> Operator:
    """Rows times one number each; backward also the product of the gradient and the row."""
    work, dims = shape.num_tokens * model.hidden_size, (shape.num_tokens, model.hidden_size)
    flops = (touches - 1) * work
    return Operator("elementwise", flops, touches * work * shape.element_bytes, dims, label=label)
