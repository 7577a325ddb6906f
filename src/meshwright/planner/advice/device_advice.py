"""Rules of advice about devices and links: sizes that waste tiles and waves, idle links, messages that are too small.

The numbers that a rule needs belong to the device: `num_units` and `multiple` of DeviceSpec, `wiring` and
`least_message` of its usual node. Where a device does not have them, the rule is silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from meshwright.costs.kernel.gemm import TILES
from meshwright.costs.pricing import pricing_of
from meshwright.ir.table import Exchange
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.device import NodeSpec, usual_node
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.error import SpecError, UnknownNameError
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.operator import Operator, total_flops
from meshwright.specs.plan.plan import Plan
from meshwright.specs.units import format_bytes
from meshwright.stage.group.value_size import num_local_block_parameters
from meshwright.stage.operator.stage import block_operators, head_operators
from meshwright.stage.work import microbatch_shape

# Smaller tiles always fill waves, but load too much for each FLOP to reach the peak.
LARGE_TILES = tuple((tm, tn) for tm, tn in TILES if tm * tn >= 128 * 128)
GOOD_WAVES = 0.80  # below it, a fifth of the units idles: more than most other choices cost
LEAST_SHARE = 0.01  # of the forward pass's FLOPs; what is below, such as a router, may be of any size
VOCABULARY_MULTIPLE = 128  # to which Megatron-LM pads each device's part (--make-vocab-size-divisible-by)
GOOD_SHARE = 0.80  # of the rate of large messages; a bucket below it waits for latency
LARGE_MESSAGE_BYTES = 1e9  # in which latency is lost
SMALLEST_MESSAGE_BYTES, SIZE_STEP = 2**12, 2**0.25  # the first size that is tried, and the factor to the next


@dataclass(frozen=True)
class Advice:
    """One thing to know of a plan: the rule's `kind`, a `sentence` for people, and its `numbers` (SI units) for scripts.

    `is_waste`: something is lost; False where it only informs.
    """

    kind: str
    sentence: str
    numbers: Mapping[str, float] = field(default_factory=dict, hash=False)
    is_waste: bool = True


def device_advice(plan: Plan, cluster: ClusterSpec) -> tuple[Advice, ...]:
    """What of a plan wastes units, links or messages; nothing where it suits the devices.

    Raises PlanError and SpecError as the pricing of the plan's exchanges does.
    """
    rules = (odd_sizes, odd_vocabulary, idle_units, starved_experts, idle_links, small_messages)
    return tuple(found for rule in rules for found in rule(plan, cluster))


def wave_efficiency(num_tiles: int, num_units: int) -> float:
    """Share of the units that work while tiles run in whole waves. Raises SpecError."""
    if num_tiles < 1 or num_units < 1:
        raise SpecError(f"{num_tiles} tiles on {num_units} units", allowed="one or more of each")
    return num_tiles / (-(-num_tiles // num_units) * num_units)


def best_waves(m: int, n: int, num_units: int) -> float:
    """Wave efficiency of a product with m x n results, by the large tile that suits it best; padding is no work."""
    return max(
        wave_efficiency(-(-m // tm) * -(-n // tn), num_units) * _filled(m, tm) * _filled(n, tn)
        for tm, tn in LARGE_TILES
    )


def odd_sizes(plan: Plan, cluster: ClusterSpec) -> Iterable[Advice]:
    """Local dimensions of products that are no multiple of what the device likes; the vocabulary has its own rule."""
    multiple = cluster.devices[0].multiple
    for each in _products(plan) if multiple else ():
        odd = [size for size in each.shape[-2:] if multiple and size % multiple]
        if odd and multiple and not each.label.startswith("vocabulary"):
            sizes = " and ".join(map(str, odd))
            sentence = f"{each.label}: {sizes} on one device is no multiple of {multiple}; pad it"
            yield Advice("multiple", sentence, {"size": odd[0], "multiple": multiple})


def odd_vocabulary(plan: Plan, cluster: ClusterSpec) -> Iterable[Advice]:
    """A part of the vocabulary that fills no tiles."""
    size, tp = plan.model.vocabulary_size, plan.tp
    if cluster.devices[0].multiple is None or size % (VOCABULARY_MULTIPLE * tp) == 0:
        return
    padded = -(-size // (VOCABULARY_MULTIPLE * tp)) * VOCABULARY_MULTIPLE * tp
    own = f"{size / tp:g} on one device is no multiple of {VOCABULARY_MULTIPLE}"
    sentence = f"vocabulary of {size}: {own}; pad it to {padded}"
    yield Advice("vocabulary", sentence, {"size": size / tp, "padded": padded})


def idle_units(plan: Plan, cluster: ClusterSpec) -> Iterable[Advice]:
    """Products whose results leave units idle in the last wave of tiles."""
    units = cluster.devices[0].num_units
    for each in _products(plan) if units else ():
        if each.kind != "matmul" or units is None:
            continue
        m, n = each.shape[:2]
        share = best_waves(m, n, units)
        if share < GOOD_WAVES:
            sentence = (
                f"{each.label}: {m} x {n} results keep {share:.0%} of {units} compute units busy; "
                "change the microbatch or the width"
            )
            yield Advice("waves", sentence, {"m": m, "n": n, "share": share, "num_units": units})


def starved_experts(plan: Plan, cluster: ClusterSpec) -> Iterable[Advice]:
    """Products of experts that wait for memory: fewer FLOPs a byte than the device has."""
    device = cluster.devices[0]
    peak = device.flops_per_s.get(plan.dtype)
    if peak is None or not cluster.machine.has_data_sheet:
        return
    balance = peak / device.memory_bandwidth_bytes_per_s
    for each in _products(plan):
        if each.kind == "grouped_matmul" and each.flops / each.bytes < balance:
            own = each.flops / each.bytes
            sentence = (
                f"{each.label}: {each.shape[1]} tokens an expert give {own:.0f} FLOPs a byte, "
                f"the device has {balance:.0f}; more tokens or wider experts"
            )
            yield Advice("experts", sentence, {"flops_per_byte": own, "device_flops_per_byte": balance})


def idle_links(plan: Plan, cluster: ClusterSpec) -> Iterable[Advice]:
    """Tensor parallelism over a part of a node of paired links, or over more than a node."""
    tp, per_node = plan.tp, cluster.levels[0].num_devices
    numbers = {"tp": tp, "devices_per_node": per_node}
    if tp > per_node:
        sentence = f"tp={tp} leaves the node of {per_node}; its all-reduces run over NICs"
        yield Advice("links", sentence, numbers)
    elif 1 < tp < per_node and cluster.levels[0].is_paired:
        also = "" if plan.model.num_heads % per_node else f" or tp={per_node}"
        sentence = f"tp={tp} uses {tp - 1} of {per_node - 1} links of each GPU; tp=1{also} leaves none idle"
        yield Advice("links", sentence, {**numbers, "idle_share": (per_node - tp) / (per_node - 1)})


def small_messages(plan: Plan, cluster: ClusterSpec) -> Iterable[Advice]:
    """Gradients of a block, and what tensor parallelism exchanges, where latency takes a fifth of the link's rate."""
    if not cluster.machine.has_data_sheet:
        return
    middle = StageLayers(first_block=0, num_blocks=1, has_embedding=False, has_head=False)
    if plan.dp * plan.cp > 1:
        size = float(num_local_block_parameters(plan, middle).dense * dtype_bytes(plan.gradient_dtype))
        members = tuple(plan.device_at(dp=dp, cp=cp) for dp in range(plan.dp) for cp in range(plan.cp))
        algorithm = "reduce_scatter" if plan.shared.divides_state else "all_reduce"
        sentence = "gradients of a block are {size} on one device{share}; reduce several blocks in one bucket, {least}"
        yield from _small(plan, cluster, "buckets", size, members, algorithm, sentence)
    if plan.tp > 1:
        tokens = plan.tokens_per_microbatch / plan.cp
        size = tokens * plan.model.hidden_size * dtype_bytes(plan.dtype)
        members = tuple(plan.device_at(tp=tp) for tp in range(plan.tp))
        algorithm = "all_gather" if plan.sequence_parallel else "all_reduce"
        sentence = (
            "messages of tp are {size}{share}; a larger microbatch or a smaller tp makes them larger, {least}"
        )
        yield from _small(plan, cluster, "messages", size, members, algorithm, sentence)


def _small(
    plan: Plan, cluster: ClusterSpec, kind: str, size: float, members: tuple[int, ...], algorithm: str, sentence: str
) -> Iterable[Advice]:  # fmt: skip
    """The advice where a message is below the size that its link is worth: measured of the node, else by its curve."""
    costs = pricing_of(plan, cluster, extrapolate=True).costs
    exchange = Exchange(("dp",), algorithm=algorithm, dtype=plan.gradient_dtype)

    def rate(num_bytes: float) -> float:
        return num_bytes / costs.exchange_cost(exchange, num_bytes, members).seconds

    node, per_node = _node(cluster), cluster.levels[0].num_devices
    is_inside = len({member // per_node for member in members}) == 1
    known = node.least_message_bytes if node is not None and is_inside else None
    if known is not None and size >= known:
        return
    reached = rate(size) / rate(max(LARGE_MESSAGE_BYTES, size))
    if known is None and reached >= GOOD_SHARE:
        return
    least = least_message_bytes(GOOD_SHARE, rate) if known is None else known
    told = f" and reach {reached:.0%} of the rate of large messages" if known is None else ""
    enough = f"from {format_bytes(least)} on" + (
        f" they reach {GOOD_SHARE:.0%}" if known is None else " latency is lost"
    )
    said = sentence.format(size=format_bytes(size), share=told, least=enough)
    yield Advice(
        kind, said, {"bytes": size, "least_bytes": least, "share": reached, "num_members": len(members)}
    )


def least_message_bytes(share: float, rate: Callable[[float], float]) -> float:
    """The smallest size of a message, in steps of `SIZE_STEP`, that reaches a share of the rate of a large one.

    Args:
        rate: bytes/s of a message by its bytes.

    Raises SpecError where the share is none.
    """
    if not 0 <= share <= 1:
        raise SpecError(f"a share of {share}", allowed="from 0 to 1")
    wanted, size = share * rate(LARGE_MESSAGE_BYTES), float(SMALLEST_MESSAGE_BYTES)
    while size < LARGE_MESSAGE_BYTES and rate(size) < wanted:
        size *= SIZE_STEP
    return min(size, LARGE_MESSAGE_BYTES)


def _products(plan: Plan) -> list[Operator]:
    """Matrix products of the forward pass on one device that matter, equal ones once."""
    model, shape = plan.model, microbatch_shape(plan)
    blocks = [block for block, _ in model.block_kinds(0, model.num_layers)]
    operators = [each for block in blocks for each in block_operators(model, "F", shape, block)]
    operators += head_operators(model, "F", shape)
    products = [each for each in dict.fromkeys(operators) if each.kind in ("matmul", "grouped_matmul")]
    least_flops = LEAST_SHARE * total_flops(products)
    return [each for each in products if each.total_flops >= least_flops]


def _node(cluster: ClusterSpec) -> NodeSpec | None:
    """How devices of this name are usually wired; None for a device of the user's own."""
    try:
        return usual_node(cluster.devices[0].name)
    except UnknownNameError:
        return None


def _filled(size: int, tile: int) -> float:
    """Share of the tiles along one dimension that is not padding."""
    return size / (-(-size // tile) * tile)
