"""Plan: the decision how a model is trained on a cluster; frozen, checked when made, kept as a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.dtype import DTYPE_BYTES
from meshwright.specs.error import PlanError, SpecError
from meshwright.specs.model.division import check_division, shared_by_expert
from meshwright.specs.model.layers import StageLayers, split_layers, stage_layers
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.file import plan_text, read_plan, save_plan
from meshwright.specs.plan.halves import check_halves
from meshwright.specs.plan.optimizer import UpdateRule, update_rule
from meshwright.specs.plan.sharding import ZERO, Sharding
from meshwright.specs.plan.software import SoftwareClass, software_class
from meshwright.specs.plan.token_part import PARTS_OF, PartsOf, TokenPart, TokenParts, parts_of_microbatch
from meshwright.specs.plan.workload import Workload
from meshwright.specs.printable import BREAKS, printable
from meshwright.specs.sequence.context_parallel import Context, ContextParallel, TokenLayout
from meshwright.specs.slot import TRUST, Reference, reference_text, resolve

Recompute = Literal["none", "selective", "selective_op", "full"]
Vocabulary = Literal["ends", "one_barrier", "two_barriers", "interlaced"]
Attention = Literal["flash", "unfused", "unfused_dropout"]
Gathered = Literal["again", "kept"]
Dispatch = Literal["copies", "once"]
SharedChoices = Literal[
    "none", "experts", "gates"
]  # nothing, numbers of tokens' experts, or their gates, too
# selective: the attention core (Korthikanti et al., arXiv 2205.05198); selective_op: everything but every second
# matrix product (torchtitan's per-operation policy); full: all but the input of each block.
RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "selective_op", "full")
SHARDINGS: tuple[str, ...] = tuple(ZERO)
# Where the vocabulary's two layers are: on the first and last stage, or split over all of them with one or two
# barriers, or as one tensor-parallel layer between the passes (Yeung et al., arXiv 2411.05288).
VOCABULARIES: tuple[Vocabulary, ...] = ("ends", "one_barrier", "two_barriers", "interlaced")
# unfused: the score matrix is written and read, before FlashAttention also by a dropout of its own
ATTENTIONS: tuple[Attention, ...] = ("flash", "unfused", "unfused_dropout")
# of what sequence parallelism gathers for a product: gathered again for its backward (Korthikanti et al.), or kept for it
GATHERED: tuple[Gathered, ...] = ("again", "kept")
DISPATCHES: tuple[Dispatch, ...] = ("copies", "once")
FLOAT8_RECIPES = ("", "tensorwise", "rowwise", "blockwise", "mxfp8")
CONNECT_STAGES = "connect_stages"  # the pass by which stages have edges beside the path
SHARE_CHOICES = "share_choices"  # the pass by which devices that share sequences tell where tokens go
OVERLAPS = ("reduce", "gather", "tp", "ep")  # what may run beside computes
AXES = ("pp", "dp", "cp", "tp")  # default order of the mesh, outermost first: tp is next to itself


class PlanVerbs(Protocol):
    """What a plan does with rooms above this one: api gives it (`Plan.verbs`)."""

    def export(self, plan: Plan, format: str, **given: Any) -> str:
        """The plan as another program's file."""

    def load(self, path: str | os.PathLike[str], format: str, **given: Any) -> Plan:
        """The plan that another program's file says."""

    def num_chunks(self, schedule: str) -> int:
        """Stages on a device that a schedule needs where nothing is said."""


@dataclass(frozen=True)
class PassOption:
    """A lowering pass that the plan asks for, with its options by name (text, numbers, true or false)."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, text: str) -> PassOption:
        """Read ``NAME`` or ``NAME(option=value, ...)``. Raises PlanError."""
        named = Reference.of(text)
        return cls(named.name, dict(named.options))

    @property
    def reference(self) -> str:
        """Its name with the options, as a text."""
        return reference_text(self.name, self.options)


@dataclass(frozen=True)
class Plan:
    """One decision.

    `pp`, `dp`, `cp`, `tp` are degrees of the mesh, laid out over the devices in `mesh_order` (outermost
    first). The devices of a stage fold a second time for experts: `etp` devices share every expert's matrices (0: tp where ep
    divides dp x cp, else 1), `ep` share a layer's experts, and the rest, `edp`, are replicas of these; etp is
    innermost, whatever tp, cp and dp are. `sequence_parallel` divides norms and residuals along tp. `sharding_degree`
    devices of dp x cp share one copy of what is sharded (0: all of them).
    `layers_per_stage` has pp * num_chunks counts of blocks, stage s on pipeline rank s modulo pp unless the
    schedule places it otherwise. `recompute_blocks` says for every stage how many of its blocks, its first ones,
    follow `recompute`; the others keep everything (empty: all blocks follow it; Megatron-LM's method "block", with a
    number for each stage as in AdaPipe). `microbatch_size` counts sequences. `token_parts` cuts those of a microbatch into
    so many equal parts, or by shares such as "3:1": what is sent inside a stage for one runs beside the computes of
    another; with `parts_of` "sequence" it cuts the tokens of every sequence instead. `dtype` is the format of parameters and
    activations, `float8` the recipe of linear layers that compute in float8 (empty: none), `reduction_dtype` the
    format in which gradients are summed and reduced, `master_dtype` that of the optimizer's own copy of the
    parameters and of its moments (empty: `dtype`, and no copy). `overlap` names the communication that runs
    beside computes: "reduce" (gradients), "gather" (parameters), "tp" (tensor parallelism), "ep" (tokens to experts and back,
    beside computes of another microbatch: on one stage, and with schedules made of pairs). `context` says how the devices
    of cp that share sequences attend: "ring" (keys and values travel), "all_gather" (of keys and values), "ulysses" (heads
    are divided instead), "token_ring" (queries travel, and results return), "ring_self_attention" (keys travel, then values,
    and whole rows of scores are kept); `token_layout` where their tokens are: "contiguous", "zigzag" or "stripe" (empty: as
    the kind has them, zigzag, by Ulysses and ring self-attention contiguous). With `ulysses` above 1 so many neighbours in
    a ring exchange heads, and cp / `ulysses` groups of them exchange keys and values. `gathered` says what becomes of the
    inputs that sequence parallelism gathers for products: "again" (they are gathered once more for the backward) or "kept".
    `dispatch` says how a token goes to its experts: "copies" (once for each of them) or "once" (to each device that has any
    of them, which copies it there: DeepEP, HybridEP). With `ep_near` above 1 rows go in two levels (Tutel's 2DH): first
    among so many neighbours of ep, each of which collects what goes to its place in all other groups of them, then among
    these. `software` names an efficiency class (`specs.software`; empty: the default). `device_order` lists the cluster's
    device numbers in mesh order (empty: as they are numbered).
    `sharding`, `schedule`, `passes`, `variant` (what made the model another one), `placement` (what finds `device_order` on
    a cluster) and `optimizer` (what STEP does) are slots: names of the core's, of systems' or of the user's, with options.

    Raises PlanError when the parts contradict each other.
    """

    model: ModelSpec
    cluster: str
    num_devices: int
    workload: Workload
    layers_per_stage: tuple[int, ...]
    schedule: str = "1f1b"
    pp: int = 1
    dp: int = 1
    tp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 0
    mesh_order: tuple[str, ...] = AXES
    num_chunks: int = 1
    microbatch_size: int = 1
    recompute: Recompute = "none"
    recompute_blocks: tuple[int, ...] = ()
    split_backward: bool = False
    sharding: str = "none"
    dtype: str = "float32"
    sequence_parallel: bool = False
    sharding_degree: int = 0
    float8: str = ""
    reduction_dtype: str = ""
    master_dtype: str = ""
    overlap: tuple[str, ...] = ("reduce",)
    vocabulary: Vocabulary = "ends"
    attention: Attention = "flash"
    context: Context = "ring"
    gathered: Gathered = "again"
    dispatch: Dispatch = "copies"
    software: str = ""
    device_order: tuple[int, ...] = ()
    passes: tuple[PassOption, ...] = ()
    variant: str = ""
    placement: str = ""
    optimizer: str = "adamw"
    token_parts: TokenParts = 1
    parts_of: PartsOf = "samples"
    token_layout: TokenLayout = ""
    ulysses: int = 1
    ep_near: int = 1

    verbs: ClassVar[PlanVerbs | None] = None

    def __post_init__(self) -> None:
        self._check_counts()
        self._check_world()
        check_division(self.model, self.tp, self.expert_tp)
        self._check_layers()
        self._check_halves()
        self._check_recompute_blocks()
        self._check_batch()
        self._check_choices()
        self._check_device_order()
        self._check_expert_load()

    @classmethod
    def of(
        cls,
        model: ModelSpec,
        cluster: ClusterSpec,
        workload: Workload,
        *,
        schedule: str = "1f1b",
        **choices: Any,
    ) -> Plan:
        """A plan with what is left open filled in: `dp` takes the devices that are left, layers split evenly.

        `choices` are fields of Plan; a pass may be its name with options, as a text. A schedule that needs several chunks a
        device gets as many as it says. Raises PlanError, and UnknownNameError or SpecError where they depend on a schedule
        that is not found.
        """
        unknown = [name for name in choices if name not in cls.__dataclass_fields__]
        if unknown:
            raise PlanError(
                f"a plan has no field {unknown[0]!r}", allowed=", ".join(cls.__dataclass_fields__)
            )
        filled: dict[str, Any] = dict(choices)
        passes = filled.get("passes", ())
        named = (passes,) if isinstance(passes, str) else passes
        filled["passes"] = tuple(PassOption.of(each) if isinstance(each, str) else each for each in named)
        model = cls.varied(model, filled.get("variant", ""))
        if "num_chunks" not in filled:
            filled["num_chunks"] = (
                1 if schedule == cls.schedule else cls._verbs("num_chunks").num_chunks(schedule)
            )
        others = filled.get("pp", 1) * filled.get("tp", 1) * filled.get("cp", 1)
        filled.setdefault("dp", max(1, cluster.num_devices // max(1, others)))
        num_stages = max(1, filled.get("pp", 1) * filled["num_chunks"])
        filled.setdefault("layers_per_stage", split_layers(model.num_layers, num_stages))
        filled.setdefault("num_devices", cluster.num_devices)
        return cls(model=model, cluster=cluster.name, workload=workload, schedule=schedule, **filled)

    def _check_expert_load(self) -> None:
        """The busiest of ep devices has at most all rows."""
        if self.workload.expert_load > self.ep:
            raise PlanError(
                f"expert_load is {self.workload.expert_load:g}, and experts are on {self.ep} devices",
                allowed=f"up to {self.ep}: all rows on one device",
                next="simulate the plan with a routing trace again: simulate PLAN --routing FILE",
            )

    @classmethod
    def varied(cls, model: ModelSpec, variant: str) -> ModelSpec:
        """The model that a variant makes of one; itself without a name. Raises PlanError where it makes no model."""
        if not variant:
            return model
        made = resolve("variant", variant)(model)
        if not isinstance(made, ModelSpec):
            raise PlanError(f"variant {variant} made a {type(made).__name__}", allowed="a ModelSpec")
        return made

    def _check_variant(self, where: str) -> None:
        """Raise PlanError where the variant did not make the model.

        It is told of those that make of what they made the same; what changes a model every time, and code of a user's own,
        is taken as it is said.
        """
        if not self.variant or Reference.of(self.variant).names_code:
            return
        try:
            made = self.varied(self.model, self.variant)
            is_another = made != self.model and self.varied(made, self.variant) == made
        except SpecError:
            is_another = True  # it makes nothing of this model at all
        if is_another:
            raise PlanError(
                f"{where}: the model is not what variant {self.variant} makes",
                allowed="the variant that the plan was made for",
                next="make the plan again: meshwright plan MODEL CLUSTER --variant NAME -o plan.toml",
            )

    def as_variant(self, variant: str) -> Plan:
        """The same plan for the model that a variant makes of its own. Raises PlanError where it is another's already."""
        if self.variant == variant:
            return self
        if self.variant:
            raise PlanError(
                f"the plan is of variant {self.variant}, and {variant} was asked for",
                allowed=f"variant {self.variant}, or a plan of the model itself",
            )
        return self.changed(model=self.varied(self.model, variant), variant=variant)

    @property
    def model_digest(self) -> str:
        """Hash of the model's dimensions; a plan file keeps it to know the model again."""
        return self.model.digest

    @property
    def num_stages(self) -> int:
        """Stages of the pipeline: pp * num_chunks."""
        return self.pp * self.num_chunks

    @property
    def world_size(self) -> int:
        """Devices the mesh covers: pp * dp * cp * tp."""
        return self.pp * self.dp * self.cp * self.tp

    @property
    def num_microbatches(self) -> int:
        """Microbatches that one pipeline runs in a step: global_batch / (dp * microbatch_size)."""
        return self.workload.global_batch // (self.dp * self.microbatch_size)

    @property
    def tokens_per_microbatch(self) -> int:
        """Tokens of a full microbatch, padding included."""
        return self.microbatch_size * self.workload.sequence_length

    @property
    def parts(self) -> tuple[TokenPart, ...]:
        """What every part of a microbatch is; one that is all of it where it is not cut."""
        size, length = self.microbatch_size, self.workload.sequence_length
        return parts_of_microbatch(self.token_parts, self.parts_of, size, length)

    @property
    def has_parts(self) -> bool:
        """Are microbatches cut into parts?"""
        return len(self.parts) > 1

    @property
    def has_chunks(self) -> bool:
        """Are they chunks of sequences, which read keys and values of those before them?"""
        return self.has_parts and self.parts_of == "sequence"

    @property
    def context_parallel(self) -> ContextParallel:
        """How devices of cp attend. Raises PlanError for what there is no such thing of."""
        return ContextParallel(self.cp, self.context, self.token_layout, self.ulysses)

    @property
    def core_attention(self) -> Attention:
        """How attention computes: by whole rows of scores also where devices of cp share these."""
        is_whole = self.attention == "flash" and self.context_parallel.has_full_scores
        return "unfused" if is_whole else self.attention

    @property
    def connects_stages(self) -> bool:
        """Do stages give something to others beside the path?"""
        return any(each.name == CONNECT_STAGES for each in self.passes)

    @property
    def divides_routed_sequences(self) -> bool:
        """Do routers see parts of sequences, or may they: along cp, or where ranks along tp look after a part of the tokens
        each, as experts fold apart from attention?"""
        folds = self.ep > 1 or self.expert_tp != self.tp
        is_divided = self.sequence_parallel or self.tp > self.expert_tp
        return bool(self.model.num_experts) and (self.cp > 1 or (self.tp > 1 and folds and is_divided))

    @property
    def shared_choices(self) -> SharedChoices:
        """What devices that share sequences tell each other of the experts of their tokens."""
        given = self.options_of(SHARE_CHOICES) if self.divides_routed_sequences else None
        return "none" if given is None else "gates" if given.get("gates") else "experts"

    @property
    def num_shared_numbers(self) -> int:
        """Numbers of a token that they tell: of each of its experts, and of its gate."""
        per_token = max(
            (each.experts.num_experts_per_token for each in self.model.kinds if each.experts), default=0
        )
        return per_token * {"none": 0, "experts": 1, "gates": 2}[self.shared_choices]

    @property
    def num_recomputed_blocks(self) -> tuple[int, ...]:
        """Blocks of every stage that follow `recompute`, its first ones; none where nothing is recomputed."""
        if self.recompute == "none":
            return (0,) * len(self.layers_per_stage)
        return self.recompute_blocks or self.layers_per_stage

    @property
    def shared(self) -> Sharding:
        """Among how many devices values, gradients and state are divided, as the sharding says it. Raises PlanError."""
        if self.sharding in ZERO:
            return ZERO[self.sharding]
        made: Sharding = resolve("sharding", self.sharding)
        return made

    @property
    def update_rule(self) -> UpdateRule:
        """What its optimizer does. Raises PlanError where it must see whole parameters, and the plan cuts them."""
        rule = update_rule(self.optimizer)
        if rule.is_elementwise:
            return rule
        cuts = {
            "sharding": self.shared.divides_state,
            "tp": self.tp > 1,
            "vocabulary": self.vocabulary != "ends",
        }
        for name in (name for name, is_cut in cuts.items() if is_cut):
            raise PlanError(
                f"optimizer {self.optimizer} is not elementwise, and {name} = {getattr(self, name)} cuts parameters",
                allowed='whole parameters: sharding "none", tp 1, vocabulary "ends"',
            )
        return rule

    @property
    def sharing_degree(self) -> int:
        """Devices that share one copy of the optimizer's state: 1 without sharding."""
        return self.sharing_degrees[2]

    @property
    def sharing_degrees(self) -> tuple[int, int, int]:
        """Devices that share one copy of values, of gradients and of the optimizer's state. Raises PlanError."""
        return self.shared.degrees(self.sharding_degree or self.dp * self.cp)

    @property
    def expert_tp(self) -> int:
        """Devices that share one expert's matrices."""
        return self.etp or shared_by_expert(self.tp, self.dp * self.cp, self.ep)

    @property
    def has_own_expert_tp(self) -> bool:
        """Do others share an expert's matrices than tp and ep say by themselves?"""
        return self.expert_tp != shared_by_expert(self.tp, self.dp * self.cp, self.ep)

    @property
    def expert_dp(self) -> int:
        """Devices that hold the same part of the same experts."""
        return self.dp * self.cp * self.tp // (self.expert_tp * self.ep)

    @property
    def software_class(self) -> SoftwareClass:
        """What is known of the software that runs the plan."""
        return software_class(self.software, gathers_values=self.shared.divides_values)

    @property
    def gradient_dtype(self) -> str:
        """Format in which gradients are summed and reduced."""
        return self.reduction_dtype or self.dtype

    @property
    def mesh(self) -> tuple[tuple[str, int], ...]:
        """Axes with their degrees, outermost first."""
        degrees = {"pp": self.pp, "dp": self.dp, "cp": self.cp, "tp": self.tp}
        return tuple((axis, degrees[axis]) for axis in self.mesh_order)

    def placed(self, cluster: ClusterSpec) -> Plan:
        """With the device order that its placement finds on the cluster. Raises PlanError where it is no order."""
        if not self.placement:
            return self
        return self.changed(device_order=tuple(resolve("placement", self.placement)(self, cluster)))

    def options_of(self, name: str) -> dict[str, Any] | None:
        """Options of a pass; None where the plan does not name it."""
        return next((dict(each.options) for each in self.passes if each.name == name), None)

    def stages(self) -> tuple[StageLayers, ...]:
        """The layers of every stage."""
        return stage_layers(self.layers_per_stage)

    def device_at(self, **coordinates: int) -> int:
        """The cluster's device number at coordinates of the mesh, such as pp=1, dp=0; left out means 0."""
        index = 0
        for axis, degree in self.mesh:
            coordinate = coordinates.get(axis, 0)
            if not 0 <= coordinate < degree:
                raise PlanError(f"{axis}={coordinate} is not on the mesh", allowed=f"0 to {degree - 1}")
            index = index * degree + coordinate
        return self.device_order[index] if self.device_order else index

    def changed(self, **choices: Any) -> Plan:
        """The same plan with some fields replaced, and checked again."""
        return replace(self, **choices)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as TOML. Raises PlanError where the file cannot be written."""
        save_plan(self, path)

    def export(self, format: str, path: str | os.PathLike[str] | None = None, **given: Any) -> str:
        """The plan as another program's file, also written to `path` where one is given.

        `given` is as of `meshwright.export_plan`, which says the formats. Raises PlanError where the program cannot say
        the plan or the file cannot be written.
        """
        text = self._verbs("export").export(self, format, **given)
        if path is not None:
            try:
                Path(path).write_text(text, encoding="utf-8")
            except OSError as error:
                raise PlanError(
                    f"{path} cannot be written: {error.strerror}", next="choose another path"
                ) from None
        return text

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], format: str = "", *, trust: bool = False, **given: Any
    ) -> Plan:
        """Read a plan from TOML, or from another program's file: `format` and `given` are as of `meshwright.import_plan`.

        `trust`: code that the file names (``./mine.py:wave``) may run; otherwise what needs it raises PlanError.

        Raises PlanError with one clear message.
        """
        if format:
            return cls._verbs("load(format=...)").load(path, format, **given)
        plan = read_plan(cls, path)
        plan._check_variant(os.fspath(path))
        if not trust:
            for reference in plan.references:
                TRUST.doubt(reference)
        return plan

    @property
    def references(self) -> tuple[str, ...]:
        """What its slots name."""
        named = (
            *(self.schedule, self.sharding, self.variant, self.placement, self.optimizer),
            *(each.name for each in self.passes),
        )
        return tuple(each for each in named if each)

    @classmethod
    def _verbs(cls, what: str) -> PlanVerbs:
        if cls.verbs is None:
            raise PlanError(
                f"Plan: {what} needs rooms above specs, and none was imported",
                allowed="a Plan of `import meshwright`, or one that says all its fields",
                next="import meshwright.api",
            )
        return cls.verbs

    def __repr__(self) -> str:
        words = f"{self.product_text()}, {self.schedule}, microbatch {self.microbatch_size}"
        return f"<Plan of {self.model.name} on {self.cluster}: {words}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(printable(plan_text(self), BREAKS))}</pre>"

    def product_text(self) -> str:
        """The whole product of degrees, for messages: "pp(4) x dp(2) x cp(1) x tp(1) = 8"."""
        return " x ".join(f"{axis}({degree})" for axis, degree in self.mesh) + f" = {self.world_size}"

    def _check_counts(self) -> None:
        for name in ("pp", "dp", "tp", "cp", "ep", "num_chunks", "microbatch_size", "num_devices"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise PlanError(f"{name} is {value!r}", allowed="a whole number from 1")
        if sorted(self.mesh_order) != sorted(AXES):
            raise PlanError(f"mesh_order is {self.mesh_order}", allowed=f"each of {', '.join(AXES)} once")

    def _check_world(self) -> None:
        if self.world_size != self.num_devices:
            raise PlanError(
                f"{self.product_text()}, but the cluster {self.cluster} has {self.num_devices} devices",
                allowed=f"degrees whose product is {self.num_devices}",
            )
        self._check_folding()

    def _check_folding(self) -> None:
        """The devices of a stage fold into etp x ep x edp as they do into tp x cp x dp."""
        if not isinstance(self.etp, int) or isinstance(self.etp, bool) or self.etp < 0:
            raise PlanError(
                f"etp is {self.etp!r}", allowed="a whole number from 1, or 0: as tp and ep have it"
            )
        if (
            not isinstance(self.ep_near, int)
            or isinstance(self.ep_near, bool)
            or self.ep_near < 1
            or self.ep % self.ep_near
        ):
            raise PlanError(
                f"ep_near is {self.ep_near!r} of ep = {self.ep}", allowed="a whole number that divides ep"
            )
        attended, degree = self.dp * self.cp * self.tp, self.expert_tp * self.ep
        if attended % degree:
            raise PlanError(
                f"etp({self.expert_tp}) x ep({self.ep}) = {degree} does not divide dp({self.dp}) x cp({self.cp}) x "
                f"tp({self.tp}) = {attended}",
                allowed=f"expert degrees whose product divides {attended}; what is left are the experts' replicas",
            )

    def _check_halves(self) -> None:
        beside = {
            f"cp = {self.cp}": self.cp > 1,
            f"ep = {self.ep}": self.ep > 1,
            f"vocabulary = {self.vocabulary}": self.vocabulary != "ends",
            f"overlap {','.join(self.overlap)}": "tp" in self.overlap,
            "recompute_blocks": self.recompute_blocks not in ((), self.layers_per_stage),
            CONNECT_STAGES: self.connects_stages,
            f"parts_of {self.parts_of}": self.has_chunks,
        }
        tokens_by = self.tp if self.sequence_parallel else 1
        check_halves(self.model, self.workload.sequence_length, tokens_by, beside)

    def _check_layers(self) -> None:
        counts = self.layers_per_stage
        if len(counts) != self.num_stages or any(count < 0 for count in counts):
            raise PlanError(
                f"layers_per_stage is {counts}",
                allowed=f"pp({self.pp}) x num_chunks({self.num_chunks}) = {self.num_stages} counts from 0",
            )
        if sum(counts) != self.model.num_layers:
            raise PlanError(
                f"layers_per_stage {' + '.join(map(str, counts))} = {sum(counts)}, "
                f"but {self.model.name} has {self.model.num_layers} layers",
                allowed="counts that sum to the model's layers; no layer is dropped",
            )

    def _check_recompute_blocks(self) -> None:
        counts = self.recompute_blocks
        if not counts:
            return
        if len(counts) != self.num_stages or not all(
            type(count) is int and 0 <= count <= most
            for count, most in zip(counts, self.layers_per_stage, strict=True)
        ):
            raise PlanError(
                f"recompute_blocks is {counts}, layers_per_stage {self.layers_per_stage}",
                allowed=f"{self.num_stages} counts from 0 to the blocks of each stage, or nothing for all of them",
            )
        if self.recompute == "none" or not any(counts):
            raise PlanError(
                f'recompute_blocks is {counts} with recompute = "{self.recompute}"',
                allowed="a kind of recompute, and a block that follows it",
                next='say what the blocks recompute, or leave recompute_blocks out with recompute = "none"',
            )

    def _check_batch(self) -> None:
        batch, share = self.workload.global_batch, self.dp * self.microbatch_size
        if batch % share:
            raise PlanError(
                f"global_batch {batch} is not a multiple of dp({self.dp}) x "
                f"microbatch_size({self.microbatch_size}) = {share}",
                allowed="a batch that divides into whole microbatches for every pipeline",
            )

    def _check_choices(self) -> None:
        formats = tuple(DTYPE_BYTES)
        known: dict[str, tuple[str, ...]] = {
            "recompute": RECOMPUTES, "dtype": formats, "float8": FLOAT8_RECIPES,
            "reduction_dtype": ("", *formats), "master_dtype": ("", *formats), "vocabulary": VOCABULARIES,
            "attention": ATTENTIONS, "gathered": GATHERED, "dispatch": DISPATCHES,
            "parts_of": PARTS_OF,
        }  # fmt: skip
        for name, values in known.items():
            if getattr(self, name) not in values:
                allowed = " or ".join(repr(value) if not value else value for value in values)
                raise PlanError(f"{name} is {getattr(self, name)!r}", allowed=allowed)
        _ = self.parts  # raises where they would have no whole samples, or tokens
        if not set(self.overlap) <= set(OVERLAPS) or len(set(self.overlap)) < len(self.overlap):
            raise PlanError(
                f"overlap is {self.overlap}", allowed=f"each of {', '.join(OVERLAPS)} at most once"
            )
        # raises where a sequence is no whole runs of every rank, or heads cannot be divided
        self.context_parallel.check(self.model, self.tp, self.workload.sequence_length)
        if self.context_parallel.has_full_scores and self.recompute not in ("none", "full"):
            raise PlanError(
                f"recompute is {self.recompute} with context {self.context}",
                allowed="none or full: the probabilities are what its backward reads",
                next="take context ring, which keeps no scores",
            )
        software_class(self.software)  # raises where nobody knows it
        if not Reference.of(self.optimizer).names_code:
            _ = self.update_rule  # raises where nobody knows it
        if self.variant and not Reference.of(self.variant).names_code:
            resolve("variant", self.variant)  # likewise: what a file says is not passed over
        self._check_sharding()

    def _check_sharding(self) -> None:
        if self.sharding not in ZERO and not Reference.of(self.sharding).names_code:
            try:
                self.shared.degrees(self.sharding_degree or self.dp * self.cp)
            except PlanError as error:
                allowed = (
                    error.allowed
                    or f"{' or '.join(ZERO)}, or a sharding that `meshwright list shardings` shows"
                )
                raise PlanError(f"sharding is {self.sharding!r}: {error.given}", allowed=allowed) from None
        shared = self.sharding_degree
        if not isinstance(shared, int) or shared < 0 or (shared and self.dp * self.cp % shared):
            raise PlanError(
                f"sharding_degree is {shared!r}, dp x cp is {self.dp * self.cp}",
                allowed="0 (all devices of dp x cp), or a number that divides them",
            )
        if self.sequence_parallel and self.tp == 1:
            raise PlanError(
                "sequence_parallel is on with tp=1",
                allowed="a tensor-parallel degree above 1",
                next="turn it off; cp divides sequences without tensor parallelism",
            )

    def _check_device_order(self) -> None:
        if self.device_order and sorted(self.device_order) != list(range(self.num_devices)):
            raise PlanError(
                f"device_order has {len(self.device_order)} entries that are not a permutation",
                allowed=f"each device from 0 to {self.num_devices - 1} once, or nothing",
            )
