"""What a foreign configuration becomes: a Plan, and every option of the file in one of three lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright.interop.stack_trait import FoundTrait, found_traits, open_question
from meshwright.specs.bound.bound import MOST_DEVICES, check_most
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.device import usual_node
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.error import PlanError
from meshwright.specs.model.layers import split_layers
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.stack.traits import traits_of


@dataclass(frozen=True)
class Option:
    """One option of the file: `name` as it is written there, its value, and what became of it (or why nothing did)."""

    name: str
    value: str
    meaning: str = ""

    def to_dict(self) -> dict[str, str]:
        """Plain data."""
        return {"name": self.name, "value": self.value, "meaning": self.meaning}


@dataclass(frozen=True)
class Given:
    """What the user says beside the file; None where the file is to say it.

    `variables` are values of a script's own variables; `vocabulary_size` counts tokens before padding.
    """

    model: ModelSpec | None = None
    cluster: str | ClusterSpec = ""
    num_devices: int | None = None
    sequence_length: int | None = None
    global_batch: int | None = None
    microbatch_size: int | None = None
    vocabulary_size: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Imported:
    """A plan and the three lists: every option of the file stands in exactly one of them.

    Attributes:
        plan: what the file asks for.
        origin: "megatron", "torchtitan" or "deepspeed".
        understood: options that decided a field of the plan.
        irrelevant: options that change neither the time nor the memory of a step as far as a plan knows.
        unknown: options that are not known, or that ask for what a plan cannot say; the plan is without them.
        assumptions: what the file left open, and how it was filled in.
        replaced: those of them that put what the user gave in the place of what the file says.
        stack: the software, by name. traits: what it does, as the plan keeps it.
    """

    plan: Plan
    origin: str
    understood: tuple[Option, ...]
    irrelevant: tuple[Option, ...]
    unknown: tuple[Option, ...]
    assumptions: tuple[str, ...]
    replaced: tuple[str, ...] = ()
    stack: str = ""
    traits: tuple[FoundTrait, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The lists and the notes as plain data."""
        lists = {"understood": self.understood, "irrelevant": self.irrelevant, "unknown": self.unknown}
        return {
            "origin": self.origin,
            "stack": self.stack,
            "traits": [trait.to_dict() for trait in self.traits],
            **{name: [option.to_dict() for option in options] for name, options in lists.items()},
            "assumptions": list(self.assumptions),
        }


@dataclass
class Draft:
    """A plan in the making: what the file said so far, in a plan's own words.

    `degrees` are tp, pp, cp, ep and, where the file says it, dp; `choices` other fields of Plan.
    `local_batch` counts sequences of one data-parallel rank in a step, where the file counts those.
    """

    origin: str
    where: str
    given: Given
    model: ModelSpec | None = None
    num_devices: int | None = None
    sequence_length: int | None = None
    global_batch: int | None = None
    local_batch: int | None = None
    degrees: dict[str, int] = field(default_factory=dict)
    choices: dict[str, Any] = field(default_factory=dict)
    understood: list[Option] = field(default_factory=list)
    irrelevant: list[Option] = field(default_factory=list)
    unknown: list[Option] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)

    def degree(self, axis: str) -> int:
        """Degree of an axis; 1 where the file does not say. Raises PlanError for one that no cluster has devices for."""
        found = self.degrees.get(axis, 1)
        check_most(f"{self.where}: {axis}", found, MOST_DEVICES, PlanError)
        return found

    def fill(self) -> None:
        """Take what the user gave beside the file, and say so where the file says something else."""
        given = self.given
        for name, flag, value in (
            ("num_devices", "--gpus", given.num_devices), ("sequence_length", "--seq", given.sequence_length),
            ("global_batch", "--global-batch", given.global_batch),
        ):  # fmt: skip
            if value is None:
                continue
            self.compare(flag, value, getattr(self, name))
            setattr(self, name, value)
        if given.microbatch_size is not None:
            self.choices["microbatch_size"] = given.microbatch_size
        if given.model is not None:
            self._take_model(given.model)

    def _take_model(self, model: ModelSpec) -> None:
        if self.model is not None and self.model.digest != model.digest:
            self.note_replaced(
                f"--model {model.name} takes the place of the model in {self.where} ({self.model.name}, "
                f"{self.model.num_layers} layers of {self.model.hidden_size})"
            )
        self.model = model

    def compare(self, flag: str, given: int | None, said: int | None) -> None:
        """Note where a number that the user gave goes before another one of the file."""
        if given is not None and said not in (None, given):
            self.note_replaced(f"{flag} {given} takes the place of {said} in {self.where}")

    def note_replaced(self, line: str) -> None:
        """Note that the user's word goes before the file's."""
        self.assumptions.append(line)
        self.replaced.append(line)

    def cluster(self) -> ClusterSpec:
        """The cluster the user named, as large as the job. Raises PlanError where none was named."""
        if not self.given.cluster:
            raise PlanError(
                f"{self.where} does not say what the job runs on",
                allowed="a cluster such as 8x8xH100, a device such as H100, or a .toml file",
                next="add --cluster",
            )
        if isinstance(self.given.cluster, ClusterSpec):
            return self._sized(self.given.cluster)
        named = Cluster(self.given.cluster)
        if named.num_devices > 1 or self.given.cluster.endswith(".toml"):
            return self._sized(named)
        if self.num_devices is None:
            raise self.missing("how many devices the job has", "--gpus")
        per_node = usual_node(named.devices[0].name).num_devices
        if self.num_devices > per_node and self.num_devices % per_node:
            raise PlanError(
                f"{self.num_devices} devices do not fill nodes of {per_node}",
                next="name the nodes: --cluster NODESxDEVICESxKIND",
            )
        return Cluster(f"{self.num_devices}x{self.given.cluster}")

    def _sized(self, named: ClusterSpec) -> ClusterSpec:
        if self.given.num_devices not in (None, named.num_devices):
            raise PlanError(
                f"--gpus {self.given.num_devices}, but --cluster {named.name} has {named.num_devices} devices",
                next="give one of them",
            )
        if self.num_devices not in (None, named.num_devices):
            self.note_replaced(
                f"{self.where} starts {self.num_devices} processes; planned for the {named.num_devices} devices of "
                f"{named.name}"
            )
        self.num_devices = named.num_devices
        return named

    def missing(self, what: str, flag: str, option: str = "") -> PlanError:
        """The error for a fact that neither the file nor the user gave."""
        allowed = f"{option} in the file" if option else ""
        return PlanError(f"{self.where} does not say {what}", allowed=allowed, next=f"add {flag}")

    def required_model(self) -> ModelSpec:
        """The model, from the file or from --model."""
        if self.model is None:
            raise self.missing("which model is trained", "--model NAME or --model config.json")
        return self.model

    def finish(self, cluster: ClusterSpec) -> Imported:
        """The plan: `dp` takes the devices that are left, what nobody said stays as in `Plan`.

        Raises PlanError where a fact is missing or facts contradict each other.
        """
        model = self.required_model()
        if self.sequence_length is None:
            raise self.missing("the sequence length", "--seq")
        dp = self.data_parallel(cluster.num_devices)
        microbatch = self.choices.setdefault("microbatch_size", 1)
        batch = self.global_batch or (self.local_batch or microbatch) * dp
        if self.global_batch is None and self.local_batch is None:
            self.assumptions.append(
                f"no global batch is given: one microbatch a rank, {batch} sequences a step"
            )
        num_stages = self.degree("pp") * self.choices.get("num_chunks", 1)
        self.choices.setdefault("layers_per_stage", split_layers(model.num_layers, num_stages))
        choices = {**self.choices, **self.degrees, "dp": dp}
        try:
            plan = Plan.of(model, cluster, Workload(batch, self.sequence_length), **choices)
        except PlanError as error:
            raise PlanError(f"{self.where}: {error.given}", allowed=error.allowed, next=error.next) from None
        stack, traits = (
            traits_of([self.origin]),
            found_traits(plan, [option.name for option in self.understood]),
        )
        asked = open_question(traits, stack, self.where)
        return Imported(
            plan, self.origin, tuple(self.understood), tuple(self.irrelevant), tuple(self.unknown),
            (*self.assumptions, asked) if asked else tuple(self.assumptions), tuple(self.replaced), stack.stack, traits,
        )  # fmt: skip

    def data_parallel(self, num_devices: int) -> int:
        """What is left of the devices for data parallelism. Raises PlanError where they do not divide."""
        others = self.degree("tp") * self.degree("pp") * self.degree("cp")
        if num_devices % others:
            raise PlanError(
                f"{self.where}: tp({self.degree('tp')}) x pp({self.degree('pp')}) x cp({self.degree('cp')}) = {others} "
                f"does not divide {num_devices} devices",
                allowed=f"a multiple of {others} devices",
                next="add --gpus or --cluster with the size of the job",
            )
        return self.degrees.get("dp", num_devices // others)
