"""What the address of a workbench says, in the words of the command line, as a plan; and a plan in these words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlencode

from meshwright import catalog
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.error import PlanError, SpecError, UnknownNameError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import RECOMPUTES, PassOption, Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.sequence.context_parallel import CONTEXTS, TOKEN_LAYOUTS, Context, TokenLayout
from meshwright.specs.units import parse_sequence, parse_whole
from meshwright.workbench.server.session import PREFIX, Script, Session

MOST_DEVICES = 65_536  # that the server looks at
MOST_CELLS = 65_536  # stages x microbatches: a second or two of one core
MOST_LETTERS = 200  # of a word's value
# Where a state says nothing.
DEFAULTS: Mapping[str, str] = {
    "model": "llama-3.1-70b", "cluster": "8x8xH100", "global-batch": "128", "seq": "8192", "tp": "8", "pp": "4", "cp": "1",
    "ep": "1", "zero": "1", "schedule": "1f1b", "micro": "1", "recompute": "none", "offload": "none", "precision": "bf16",
}  # fmt: skip
DEGREES = ("dp", "tp", "pp", "cp", "ep")
TRAIN, SERVE = WORKLOADS = ("train", "serve")  # what the model is for; the first where a state says nothing
# Words of a load that is served; the others are those of training, too.
OF_LOADS = (
    "attention_dp", "replicas", "num_prefill", "max_batch_tokens", "max_sequences", "prompt", "output", "variation",
    "rate_per_s", "ttft", "tpot",
)  # fmt: skip
OF_CONTEXT = ("context", "token_layout", "ulysses")  # how devices of cp attend: of no meaning where cp is 1
WORDS = (*DEFAULTS, "dp", "chunks", *OF_CONTEXT, "base", "like", "workload", *OF_LOADS)
# Of the plan that `base` names, what holds although the state says other degrees.
CARRIED = ("overlap", "gathered", "dispatch", "software", "attention")
LOOKS = ("view", "t0", "t1", "zoom", "stage", "theme")  # what the page alone understands
SHARDINGS = {"0": "none", "1": "zero1", "2": "zero2", "3": "zero3"}
MASTERS = {"master_dtype": "float32", "reduction_dtype": "float32"}
PRECISIONS: Mapping[str, Mapping[str, str]] = {
    "bf16": {"dtype": "bfloat16", **MASTERS},
    "fp16": {"dtype": "float16", **MASTERS},
    "fp8": {"dtype": "bfloat16", "float8": "tensorwise", **MASTERS},
    "fp32": {"dtype": "float32"},
}
OFFLOADS: Mapping[str, tuple[PassOption, ...]] = {"none": (), "optimizer": (PassOption("offload_optimizer"),)}
LAYOUTS: Mapping[str, TokenLayout] = {each or "usual": each for each in TOKEN_LAYOUTS}
T = TypeVar("T")
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+x* .-]*( nic=[0-9.]+[A-Za-z]+/s)?")


@dataclass(frozen=True)
class AskedView:
    """What a state says: the job, the plan's own choices, and what of the state nobody understood; `like`: the script of
    another program that says this job, where one was pasted."""

    words: Mapping[str, str]
    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    notes: tuple[str, ...]
    base: Plan | None = None
    like: Script | None = None

    def plan(self) -> Plan:
        """The plan: the one of `base` where the words say the same; else what they say, with what they cannot say as there.
        Raises PlanError and UnknownNameError for what cannot be, and PlanError for what is too much work."""
        made = self._said()
        if self.base is None:
            return made
        if _words(self.base) == _words(made) and self.base.workload == made.workload:
            return self.base
        return _carried(made, self.base)

    def _said(self) -> Plan:
        """What the words alone say."""
        words = self.words
        degrees = {name: count_of(name, words[name]) for name in DEGREES if words.get(name)}
        choices = {
            "sharding": chosen_of("zero", words["zero"], SHARDINGS),
            "recompute": chosen_of("recompute", words["recompute"], {name: name for name in RECOMPUTES}),
            "passes": chosen_of("offload", words["offload"], OFFLOADS),
            "microbatch_size": count_of("micro", words["micro"]),
            "sequence_parallel": degrees.get("tp", 1) > 1,
            **chosen_of("precision", words["precision"], PRECISIONS),
            **degrees,
            **(self._context() if degrees.get("cp", 1) > 1 else {}),
        }
        if words.get("chunks"):
            choices["num_chunks"] = count_of("chunks", words["chunks"])
        _check_experts(self.model, degrees.get("ep", 1))
        if words["schedule"] not in catalog.names("schedules"):
            raise UnknownNameError("schedule", words["schedule"], catalog.names("schedules"))
        catalog.find_schedule(words["schedule"])
        plan = Plan.of(self.model, self.cluster, self.workload, schedule=words["schedule"], **choices)
        _check_work(plan)
        return plan

    def _context(self) -> dict[str, str | int]:
        """How devices of cp attend: as the words say, else as the base does, else as is usual."""
        words = {**({} if self.base is None else _context_words(self.base)), **self.words}
        kinds: Mapping[str, Context] = {each: each for each in CONTEXTS}
        return {
            "context": chosen_of("context", words.get("context", CONTEXTS[0]), kinds),
            "token_layout": chosen_of("token_layout", words.get("token_layout", "usual"), LAYOUTS),
            "ulysses": count_of("ulysses", words.get("ulysses", "1")),
        }


def workload_of(state: object) -> str:
    """What a state is about. Raises UnknownNameError."""
    said = state.get("workload") if isinstance(state, Mapping) else None
    return chosen_of("workload", str(said), {each: each for each in WORKLOADS}) if said else TRAIN


def said_words(state: object, usual: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The words of a state, with the usual ones where it says nothing, and what of it nobody understands. Raises SpecError
    for what is no state."""
    if not isinstance(state, Mapping) or not all(
        isinstance(each, str) for pair in state.items() for each in pair
    ):
        raise SpecError("the state is no object of texts", allowed=", ".join(WORDS))
    if long := [name for name, value in state.items() if len(name) + len(value) > MOST_LETTERS]:
        raise SpecError(f"{long[0][:20]!r} is too long", allowed=f"{MOST_LETTERS} letters")
    said = {name: value.strip() for name, value in state.items() if name in WORDS and value.strip()}
    unknown = [name for name in state if name not in WORDS and name not in LOOKS]
    notes = (f"{name}={state[name]} in the address means nothing here, and was left out" for name in unknown)
    return {**usual, **said}, tuple(notes)


def asked_of(state: object, session: Session) -> AskedView:
    """Read a state. Raises SpecError for what is none, UnknownNameError for names that nobody knows."""
    words, notes = said_words(state, DEFAULTS)
    work = Workload(parsed_of("global-batch", words, parse_whole), parsed_of("seq", words, parse_sequence))
    model, cluster = model_named(words["model"], session), cluster_named(words["cluster"], session)
    base = session.plans.get(words.get("base", ""))
    if words.get("base") and base is None:
        notes += ("what words cannot say of the plan was known to another session of the workbench only",)
    # by its digest: a script that is read again says the same model with other notes
    is_of_job = base is not None and (base.model.digest, base.cluster) == (model.digest, cluster.name)
    script = session.scripts.get(words.get("like", ""))
    said = (
        None if script is None else (script.plan.model.digest, script.plan.workload, script.plan.num_devices)
    )
    like = script if said == (model.digest, work, cluster.num_devices) else None
    return AskedView(words, model, cluster, work, notes, base if is_of_job else None, like)


def _check_experts(model: ModelSpec, ep: int) -> None:
    """A plan for a dense model may say any `ep`, which does nothing; where it is chosen, that is told."""
    if ep > 1 and not any(block.experts for block in model.kinds):
        raise PlanError(
            f"ep is {ep}, and {model.name} has no experts", allowed="ep=1, or a model with experts"
        )


def _carried(made: Plan, base: Plan) -> Plan:
    """A plan with the choices of another that go with it."""
    try:
        return made.changed(**{name: getattr(base, name) for name in CARRIED})
    except PlanError:
        return made


def words_of(plan: Plan, said: Mapping[str, str], session: Session) -> str:
    """A plan in the words of the state, with the names of model, cluster and script that were said: the address behind #.
    The plan is kept for its `base`."""
    names = {name: said[name] for name in ("model", "cluster", "like") if said.get(name)}
    return urlencode({**names, **_words(plan), "base": session.keep_plan(plan)})


def _words(plan: Plan) -> dict[str, str]:
    """What words say of a plan's own choices; the data-parallel degree follows from the others."""
    sharding, names = {name: word for word, name in SHARDINGS.items()}, {each.name for each in plan.passes}
    found = {"global-batch": str(plan.workload.global_batch), "seq": str(plan.workload.sequence_length)}
    found |= {name: str(getattr(plan, name)) for name in DEGREES if name != "dp"}
    found |= {
        "zero": sharding.get(plan.sharding, "0"),
        "schedule": plan.schedule,
        "chunks": str(plan.num_chunks),
    }
    offloads = [word for word, passes in OFFLOADS.items() if {each.name for each in passes} & names]
    found |= {"precision": _precision(plan), "offload": next(iter(offloads), DEFAULTS["offload"])}
    return found | {"micro": str(plan.microbatch_size), "recompute": plan.recompute, **_context_words(plan)}


def _context_words(plan: Plan) -> dict[str, str]:
    """How its devices of cp attend; nothing where there is one."""
    if plan.cp == 1:
        return {}
    return {
        "context": plan.context,
        "token_layout": plan.token_layout or "usual",
        "ulysses": str(plan.ulysses),
    }


def _precision(plan: Plan) -> str:
    """The word whose formats a plan computes in; of a plan that computes in none of them the usual one."""
    for word, fields in PRECISIONS.items():
        if plan.dtype == fields["dtype"] and bool(plan.float8) == ("float8" in fields):
            return word
    return DEFAULTS["precision"]


def parsed_of(name: str, words: Mapping[str, str], parse: Callable[[str], int]) -> int:
    """A whole number as people write it. Raises SpecError."""
    try:
        return parse(words[name])
    except (SpecError, ValueError, OverflowError):
        raise SpecError(f"{name} is {words[name]!r}", allowed="a whole number such as 512, 8k") from None


def count_of(name: str, text: str) -> int:
    """A whole number from 1. Raises SpecError."""
    if not (text.isascii() and text.isdigit()) or len(text) > 7 or int(text) < 1:
        raise SpecError(f"{name} is {text!r}", allowed="a whole number from 1")
    return int(text)


def chosen_of(name: str, text: str, known: Mapping[str, T]) -> T:
    """What a word stands for. Raises UnknownNameError."""
    if text not in known:
        raise UnknownNameError(name, text, known)
    return known[text]


def model_named(name: str, session: Session) -> ModelSpec:
    """A preset, or what was pasted; never a file of this computer."""
    if name in session.models:
        return session.models[name]
    if name not in catalog.names("models"):
        raise _gone(name) or UnknownNameError(
            "model", name, catalog.names("models"), next="or paste its config.json"
        )
    return load_model(name)


def cluster_named(name: str, session: Session) -> ClusterSpec:
    """A short name, or what was pasted; never a file of this computer, and not this computer itself."""
    if name in session.clusters:
        return session.clusters[name]
    if gone := _gone(name):
        raise gone
    if not _CLUSTER.fullmatch(name) or name.endswith(".toml"):
        raise SpecError(
            f"{name!r} names no cluster", allowed="32x8xH100, 16384xH100", next="or paste its TOML"
        )
    found = Cluster(name)
    if found.num_devices > MOST_DEVICES:
        raise SpecError(
            f"{name} has {found.num_devices:,} devices", allowed=f"at most {MOST_DEVICES:,} in the workbench"
        )
    return found


def _gone(name: str) -> SpecError | None:
    if not name.startswith(PREFIX):
        return None
    return SpecError(f"{name} was pasted into another session of the workbench", next="paste it again")


def _check_work(plan: Plan) -> None:
    """Raise PlanError for a plan that would be looked at for longer than anybody waits."""
    cells = plan.num_stages * plan.num_microbatches
    if cells > MOST_CELLS:
        raise PlanError(
            f"{plan.num_stages:,} stages x {plan.num_microbatches:,} microbatches are {cells:,}",
            allowed=f"at most {MOST_CELLS:,} in the workbench",
            next="fewer microbatches, or meshwright simulate",
        )
