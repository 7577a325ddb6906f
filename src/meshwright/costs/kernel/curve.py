"""GpuKernels: prices the operators of GPUs by their local shapes, from curves fitted on measured kernels.

gpu_costs(cluster) -> the cost model of a cluster: GpuKernels where its devices have curves, else the roofline
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log
from typing import Any, Literal, NamedTuple

import numpy as np

from meshwright.costs.collective.nccl import NcclCollectives, has_measured_links
from meshwright.costs.cost import CommunicationModel, Cost, Flow
from meshwright.costs.kernel.attention import MOST_SHARING, UNSHARED
from meshwright.costs.kernel.chip import Chip, Columns
from meshwright.costs.kernel.gemm import RESULT_BYTES
from meshwright.costs.kernel.moe import Loads
from meshwright.costs.kernel.packaged import FITTED, load_kernel_profile
from meshwright.costs.kernel.profile import KernelCurve, KernelProfile, Shape
from meshwright.costs.roofline import HOST_LINK_BYTES_PER_S, MATMUL_EFFICIENCY, UNCERTAINTY, Roofline
from meshwright.ir.table import Exchange, Work
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.device import DeviceSpec
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.error import SpecError
from meshwright.specs.operator import Operator
from meshwright.specs.plan.prediction import Basis, weakest

# Device (the start of its name, lower case) -> the profile its kernels are priced with, longest name first.
FAMILIES: Mapping[str, str] = {
    "gb200": "b200", "gb300": "b200", "b200": "b200", "b300": "b200",
    "gh200": "h100", "h200": "h100", "h100": "h100", "h800": "h100", "a100": "a100", "a800": "a100",
    "mi300x": "mi300x", "mi325x": "mi300x", "mi350x": "mi355x", "mi355x": "mi355x",
}  # fmt: skip
Casts = Literal["timed", "apart", "fused"]
PLAIN = "bfloat16"  # the tables' format of products that nothing is cast for
SAME_SPEC = 0.02  # a device whose peaks are this near to the profile's is the one that was measured
ATTENTION_PROFILE = "h100"  # whose attention constants stand in where a chip's own were not measured

# Backward against forward attention: 5 products instead of 2 (Dao 2023, arXiv 2307.08691), at 0.78 to 0.9 of the
# forward rate (figures of arXiv 2307.08691 and 2407.08608); no table here has backward kernels.
BACKWARD_PRODUCTS, BACKWARD_RATE, BACKWARD_ERROR = 2.5, 0.85, 0.10
# Experts priced as one product: the p80 error of the MoE tables' own curves (docs/accuracy-kernels.md), rounded up.
GROUPED_ERROR = 0.25
# Where a chip has no table of memory-bound operators (BabelStream on A100 and H100: 0.8 to 0.93).
STREAM_EFFICIENCY, STREAM_OVERHEAD_S, STREAM_ERROR = 0.85, 3e-6, 0.15
GATHER_EFFICIENCY = 0.6  # embedding rows and sparse gradients: assumed, between random and streaming access
FAR_ERROR = 2.0  # an extrapolated operator's interval is this much wider
LEAST_ERROR = 0.03  # kernels repeat to about this
# Format of a work -> the formats of the tables that price it, the first that exists; float16 runs as bfloat16.
TABLE_DTYPES: Mapping[str, tuple[str, ...]] = {
    "bfloat16": ("bfloat16",), "float16": ("bfloat16",), "float8": ("fp8", "bfloat16"), "float32": ("bfloat16",),
}  # fmt: skip


class KernelEstimate(NamedTuple):
    """Seconds of one occurrence, their relative error (80th percentile), and the basis."""

    seconds: float
    error: float
    basis: Basis


def family_of(device: DeviceSpec) -> str | None:
    """The profile that prices this device; None where there is no relative of it."""
    name = device.name.lower()
    return next((profile for start, profile in FAMILIES.items() if name.startswith(start)), None)


def chip_of(device: DeviceSpec, profile: KernelProfile) -> tuple[Chip, bool]:
    """The profile's chip with the peaks of `device`, and whether it is the chip that was measured."""
    peaks, known = device.flops_per_s, profile.chip
    pairs = [(peaks[dtype], rate) for dtype, rate in known.flops_per_s.items() if dtype in peaks]
    pairs.append((device.memory_bandwidth_bytes_per_s, known.memory_bytes_per_s))
    is_same = all(abs(given / rate - 1) <= SAME_SPEC for given, rate in pairs)
    rates = {**known.flops_per_s, **peaks}
    chip = replace(known, flops_per_s=rates, memory_bytes_per_s=device.memory_bandwidth_bytes_per_s)
    return chip, is_same


@dataclass(frozen=True, eq=False)
class GpuKernels:
    """A cost model of one kind of GPU; messages are priced by `links`.

    Attributes:
        device: its peaks scale what was measured on its family's chip.
        links: prices exchanges.
        float8_recipe: which of the profile's float8 curves prices products: "fp8" (cast per tensor inside),
            "fp8_static" (no cast) or "fp8_block" (blockwise scales).
        casts: of the left matrix of float8 products, which the tables have in them: "timed", as there; "apart", their bytes
            are counted by somebody else (training); "fused" into the kernel before, so that nothing is left of them, neither
            bytes nor launches: such a product is launched as one in 16 bits.
        family: whose curves; empty: those of the device's own family.
    """

    device: DeviceSpec
    links: CommunicationModel
    float8_recipe: str = "fp8"
    casts: Casts = "timed"
    family: str = ""
    _estimates: dict[tuple[Operator, str], KernelEstimate] = field(
        default_factory=dict, init=False, repr=False
    )
    _on_curves: dict[tuple[object, ...], KernelEstimate] = field(default_factory=dict, init=False, repr=False)
    _others: dict[str, GpuKernels] = field(default_factory=dict, init=False, repr=False)
    _profile: KernelProfile = field(init=False, repr=False)
    _chip: Chip = field(init=False, repr=False)
    _is_same: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        family = self.family or family_of(self.device)
        if family is None:
            raise SpecError(
                f"no kernels were measured on a relative of {self.device.name}",
                allowed=", ".join(FAMILIES),
                next="use costs.roofline.Roofline, or gpu_costs(cluster), which chooses",
            )
        profile = load_kernel_profile(family)
        chip, is_same = chip_of(self.device, profile)
        is_same = is_same and not profile.lender
        for name, value in {"_profile": profile, "_chip": chip, "_is_same": is_same}.items():
            object.__setattr__(self, name, value)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the times rest on, for people."""
        own = self._profile.chip.name.upper()
        how = f", scaled to {self.device.name} by the ratio of their data sheets"
        said = f"curves fitted on measured {own} kernels{'' if self._is_same else how}"
        if self._profile.lender:
            said = (
                f"curves of {self._profile.lender.upper()}, moved to what few published kernels of {own} took"
            )
            said += "" if self.device.name.upper() == own else how
        known = "assumed, not" if self._profile.attention_backward is None else "as"
        return (
            f"kernels are priced by {said}",
            f"attention backward takes {self._backward:.2f} times its forward: {known} measured",
        )

    @property
    def is_borrowed(self) -> bool:
        """Are the curves another chip's, moved to few kernels of this one?"""
        return bool(self._profile.lender)

    @property
    def _backward(self) -> float:
        """Seconds of attention's backward over those of its forward."""
        return self._profile.attention_backward or BACKWARD_PRODUCTS / BACKWARD_RATE

    def cost(self, work: Work, device: Any = None) -> Cost:
        """The sum over the work's operators; its interval is the time-weighted error of its operators."""
        if isinstance(device, DeviceSpec) and device is not self.device and device != self.device:
            if device.name not in self._others:
                self._others[device.name] = replace(self, device=device)
            return self._others[device.name].cost(work)
        if not work.operators:
            return self._without_operators(work)
        parts = [(self.operator(operator, work.dtype), operator.count) for operator in work.operators]
        seconds = sum(part.seconds * count for part, count in parts)
        error = sum(part.seconds * part.error * count for part, count in parts) / max(seconds, 1e-30)
        return Cost(
            seconds, uncertainty=max(error, LEAST_ERROR), basis=weakest(*(part.basis for part, _ in parts))
        )

    def _without_operators(self, work: Work) -> Cost:
        """From totals only: the slower of arithmetic at a usual efficiency and traffic; zero work takes none."""
        if not work.flops and not work.bytes:
            return Cost(0.0, basis="never seen")
        compute = work.flops / (self._peak(work.dtype) * MATMUL_EFFICIENCY)
        memory = work.bytes / (self.device.memory_bandwidth_bytes_per_s * STREAM_EFFICIENCY)
        return Cost(max(compute, memory), uncertainty=UNCERTAINTY, basis="never seen")

    def operator(self, operator: Operator, dtype: str) -> KernelEstimate:
        """One occurrence of `operator` in number format `dtype`."""
        key = (operator, dtype)
        if key not in self._estimates:
            ways = {
                "matmul": self._matmul, "grouped_matmul": self._grouped, "attention": self._attention,
                "cached_attention": self._of_cache,
            }  # fmt: skip
            self._estimates[key] = ways.get(operator.kind, self._streamed)(operator, dtype)
        return self._estimates[key]

    def prepare(self, asked: Iterable[tuple[Operator, str]]) -> None:
        """Evaluate products and attention of these operators and formats on their curves at once: a thousand shapes take
        little longer than one, and are known when `operator` is asked for each."""
        curves: dict[tuple[str, str, str], dict[tuple[object, ...], Shape]] = {}
        shape_of = {"matmul": self._product, "attention": self._context, "cached_attention": self._cached}
        for operator, dtype in asked:
            if operator.kind in shape_of:
                shape = shape_of[operator.kind](operator, dtype)
                name = shape.profile.chip.name + shape.suffix
                own = curves.setdefault((shape.formula, shape.dtype, name), {})
                if shape.key not in self._on_curves:
                    own[shape.key] = shape
        for shapes in curves.values():
            if shapes:
                self._on_curves.update(zip(shapes, self._evaluated(list(shapes.values())), strict=True))

    def _product(self, operator: Operator, dtype: str) -> Shape:
        """A product by (m, n, k), the same kernel in all phases; traffic beyond the three matrices is added to memory's."""
        m, n, k = operator.shape
        size = dtype_bytes(dtype)
        extra = max(0.0, operator.bytes - (m * k + k * n + m * n) * size)
        return Shape("gemm", dtype, {"m": m, "n": n, "k": k, "extra_bytes": extra}, self._profile)

    def _matmul(self, operator: Operator, dtype: str) -> KernelEstimate:
        return self._on_curve(self._product(operator, dtype))

    def _grouped(self, operator: Operator, dtype: str) -> KernelEstimate:
        """Experts, or heads, of (groups, m, n, k): as one product of all rows that moves the operator's own bytes: every
        group's matrices, and not what stays in the cache between two kernels."""
        groups, m, n, k = operator.shape
        rows, size = groups * m, dtype_bytes(dtype)
        counted = (rows * k + k * n) * size + rows * n * RESULT_BYTES
        sizes = {"m": rows, "n": n, "k": k, "extra_bytes": max(operator.bytes, 1.0) - counted}
        priced = self._on_curve(Shape("gemm", dtype, sizes, self._profile))
        return KernelEstimate(priced.seconds, max(priced.error, GROUPED_ERROR), "extrapolated")

    def _context(self, operator: Operator, dtype: str) -> Shape:
        """Attention of whole sequences, forward."""
        names = ("batch", "heads", "kv_heads", "sequence", "head_dim", "is_causal")
        sizes = dict(zip(names, map(float, operator.shape), strict=True)) | {"window": 0.0}
        if sizes["is_causal"] > 1:  # the last entry of a shape is a window where it is above one
            sizes |= {"window": sizes["is_causal"], "is_causal": 1.0}
        profile = self._with_curve("context_attention")
        # Attention runs in 16 bits unless its own table says otherwise: float8 recipes cast linear layers only.
        return Shape("context_attention", "bfloat16" if dtype == "float8" else dtype, sizes, profile)

    def _with_curve(self, formula: str) -> KernelProfile:
        """The profile that has curves of a formula: the family's own, or the one that stands in."""
        if any(curve.formula == formula for curve in self._profile.curves):
            return self._profile
        return load_kernel_profile(ATTENTION_PROFILE)

    def _attention(self, operator: Operator, dtype: str) -> KernelEstimate:
        """Forward from its curve; backward a multiple of it."""
        priced = self._on_curve(self._context(operator, dtype))
        if operator.phase == "forward":
            return priced
        basis = weakest(priced.basis, "extrapolated")
        return KernelEstimate(priced.seconds * self._backward, priced.error + BACKWARD_ERROR, basis)

    def experts(
        self, loads: Loads, hidden: int, inner: int, dtype: str, is_gated: bool = True
    ) -> KernelEstimate:
        """Forward of one device's experts (routing, permutation, both products) under `loads` (see kernel_moe).

        `hidden` and `inner` are the local sizes of an expert. Raises SpecError where no chip of the family has a table.
        """
        sizes = {"hidden": float(hidden), "inner": float(inner), "matrices": 3.0 if is_gated else 2.0}
        return self._on_curve(Shape("moe", dtype, {**loads._asdict(), **sizes}, self._profile))

    def generation(
        self, batch: int, heads: int, kv_heads: int, keys: int, head_dim: int, dtype: str = "bfloat16"
    ) -> KernelEstimate:
        """Attention of one new token of each of `batch` sequences to `keys` cached ones, the cache in 16 bits."""
        return self._on_curve(self._generation((batch, heads, kv_heads, keys, head_dim, 0, 2), dtype))

    def _generation(self, dims: tuple[int, ...], dtype: str) -> Shape:
        """Attention of one new token of each sequence, through a window where that of `dims` is above 0; their last are the
        bytes of a cached number."""
        names = ("batch", "heads", "kv_heads", "keys", "head_dim", "window", "cache_bytes")
        sizes = dict(zip(names, map(float, dims), strict=True))
        group = sizes["heads"] / sizes["kv_heads"]
        suffix = UNSHARED if group == 1 or group > MOST_SHARING else ""
        return Shape("generation_attention", dtype, sizes, self._with_curve("generation_attention"), suffix)

    def _of_cache(self, operator: Operator, dtype: str) -> KernelEstimate:
        return self._on_curve(self._cached(operator, dtype))

    def _cached(self, operator: Operator, dtype: str) -> Shape:
        """As `_generation`. Attention runs in 16 bits, whatever linear layers do."""
        return self._generation(operator.shape, "bfloat16" if dtype == "float8" else dtype)

    def _on_curve(self, shape: Shape) -> KernelEstimate:
        """One shape on its curve, at the peak rate of the format that was asked for; operators that differ in their phase or
        name only have one."""
        if shape.key not in self._on_curves:
            (self._on_curves[shape.key],) = self._evaluated([shape])
        return self._on_curves[shape.key]

    def _evaluated(self, shapes: Sequence[Shape]) -> list[KernelEstimate]:
        """Shapes of one curve, all at once."""
        first = shapes[0]
        profile, dtype = first.profile, first.dtype
        curve, is_own = self._curve(first.formula, dtype, profile, first.suffix)
        if self.casts != "timed" and "cast_bytes" in curve.constants:
            curve = self._without_casts(curve, profile)
        columns: Columns = {
            **{name: np.array([float(each.sizes[name]) for each in shapes]) for name in first.sizes},
            "element_bytes": np.full(len(shapes), float(dtype_bytes(dtype))),
            "peak": np.full(len(shapes), self._peak(dtype)),
        }
        seconds = curve.seconds(self._chip, columns).tolist()
        is_measured = is_own and self._is_same and profile is self._profile
        return [
            KernelEstimate(
                each,
                max(curve.p80_error * (1.0 if is_known else FAR_ERROR), LEAST_ERROR),
                "interpolated" if is_known else "extrapolated",
            )
            for each, is_known in zip(
                seconds, (curve.are_inside(columns) & is_measured).tolist(), strict=True
            )
        ]

    def _without_casts(self, curve: KernelCurve, profile: KernelProfile) -> KernelCurve:
        """The same where somebody else casts."""
        constants = {**curve.constants, "cast_bytes": 0.0}
        plain = profile.curve(curve.formula, PLAIN)
        if self.casts == "fused" and plain is not None:
            constants["launch_s"] = min(constants["launch_s"], plain.constants["launch_s"])
        return replace(curve, constants=constants)

    def _curve(
        self, formula: str, dtype: str, profile: KernelProfile, suffix: str
    ) -> tuple[KernelCurve, bool]:
        """The curve that prices a format (and kernel class), and whether it was measured in that format."""
        names = TABLE_DTYPES.get(dtype, ())
        if dtype == "float8":
            names = (self.float8_recipe, *names)
        for name in names:
            curve = profile.curve(formula, name + suffix)
            if curve is not None:
                return curve, name != "bfloat16" if dtype == "float8" else dtype != "float32"
        raise SpecError(
            f"no {formula} curve prices {dtype} on {self.device.name}", allowed=", ".join(TABLE_DTYPES)
        )

    def _peak(self, dtype: str) -> float:
        """Peak rate of a format on this device. Raises SpecError where its data sheet has none."""
        return self.device.peak_flops_per_s(dtype)

    def _streamed(self, operator: Operator, dtype: str) -> KernelEstimate:
        """By bytes at the rate of streaming kernels on this chip; a fused norm streams like an addition."""
        if operator.kind == "host_copy":
            return KernelEstimate(operator.bytes / HOST_LINK_BYTES_PER_S, STREAM_ERROR, "never seen")
        table = self._profile.streaming
        known = table.get("activation" if operator.kind == "activation" else "add")
        efficiency = known.efficiency if known else STREAM_EFFICIENCY
        overhead = known.overhead_s if known else STREAM_OVERHEAD_S
        if operator.kind == "embedding":
            efficiency = min(efficiency, GATHER_EFFICIENCY)
        seconds = overhead + operator.bytes / (efficiency * self.device.memory_bandwidth_bytes_per_s)
        is_known = (
            known is not None and self._is_same and operator.kind in ("activation", "elementwise", "norm")
        )
        error = max(known.error if known else 0.0, STREAM_ERROR)
        return KernelEstimate(seconds, error, "interpolated" if is_known else "extrapolated")

    def exchange_cost(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> Cost:
        """As `links` prices it."""
        return self.links.exchange_cost(exchange, num_bytes, devices)

    def flows(self, exchange: Exchange, num_bytes: float, devices: tuple[int, ...]) -> tuple[Flow, ...]:
        """As `links` says."""
        return self.links.flows(exchange, num_bytes, devices)


def roofline_of(cluster: ClusterSpec) -> tuple[Roofline, tuple[str, ...]]:
    """The data sheet's roofline, with messages by their curves where those were measured, and what that assumes."""
    if not has_measured_links(cluster.devices[0]):
        return Roofline(cluster), ()
    message = f"messages are priced by curves fitted on collectives measured on {cluster.devices[0].name}"
    return Roofline(cluster, links=NcclCollectives(cluster)), (message,)


def nearest_family(device: DeviceSpec) -> str:
    """The measured chip with the most similar balance: 16-bit FLOP/s over bytes/s of memory."""

    def balance(flops_per_s: float, bytes_per_s: float) -> float:
        return log(flops_per_s / bytes_per_s)

    own = balance(device.peak_flops_per_s("bfloat16"), device.memory_bandwidth_bytes_per_s)
    chips = {name: load_kernel_profile(name).chip for name in FITTED}
    return min(
        chips,
        key=lambda name: abs(
            own - balance(chips[name].flops_per_s["bfloat16"], chips[name].memory_bytes_per_s)
        ),
    )


def nearest_kernels(cluster: ClusterSpec) -> GpuKernels:
    """Of GPUs that have no measured relative: the curves of the nearest chip, scaled by the data sheets' peaks and
    bandwidths; messages by their curves where those were measured."""
    device = cluster.devices[0]
    links = NcclCollectives(cluster) if has_measured_links(device) else Roofline(cluster)
    return GpuKernels(device, links, family=family_of(device) or nearest_family(device))


def gpu_costs(cluster: ClusterSpec) -> tuple[GpuKernels | Roofline, tuple[str, ...]]:
    """The cost and communication model of a cluster of GPUs, and what it assumes.

    GpuKernels where the devices' family was measured; the roofline of the data sheet elsewhere.
    """
    if family_of(cluster.devices[0]) is None:
        basis = "times are a roofline of the data sheet, nothing was measured: plus or minus 30 %"
        roofline, assumptions = roofline_of(cluster)
        return roofline, (*cluster.assumptions, basis, *assumptions)
    kernels = GpuKernels(cluster.devices[0], NcclCollectives(cluster))
    message = "messages are priced by curves fitted on measured NCCL collectives"
    return kernels, (*cluster.assumptions, *kernels.assumptions, message)
