"""What changes from one plan to another in a program's own words: options that go, change and come.

Both plans are exported and compared option by option. What the user's file writes in another way, or leaves to a default,
is told as it stands in that file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from meshwright.interop.exported import Exported
from meshwright.interop.imported import Imported, Option
from meshwright.interop.launch.shell_script import ShellScript
from meshwright.interop.option_set import flat, launch_words
from meshwright.interop.torchtitan.option import RENAMED
from meshwright.specs.data_text import json_of, toml_of
from meshwright.specs.plan.file import plan_table
from meshwright.specs.plan.plan import Plan

Options = dict[str, str]  # name -> value; empty for a flag
# Older or shorter options -> the one that an export writes, and others that decide what they mean.
REPLACED_BY: Mapping[str, tuple[str, ...]] = {
    "--recompute-activations": ("--recompute-granularity",),
    "--checkpoint-activations": ("--recompute-granularity",),
    "--num-layers-per-virtual-pipeline-stage": (
        "--num-virtual-stages-per-pipeline-rank", "--pipeline-model-parallel-size",
    ),
    "--use-torch-fsdp2": ("--use-megatron-fsdp", "--use-distributed-optimizer", "--data-parallel-sharding-strategy"),
    "--use-custom-fsdp": ("--use-megatron-fsdp",),
    "--num-nodes": ("--nnodes",),
    "--num-gpus": ("--nproc-per-node",),
    "parallelism.pipeline_parallel_microbatches": (
        "parallelism.pipeline_parallel_microbatch_size", "training.local_batch_size",
    ),
}  # fmt: skip
QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"  # the one environment variable that a script of ours sets
# -1 here is what the other degrees leave, so that it still says the same where copies stay as many.
REST, REST_BESIDE = "parallelism.data_parallel_shard_degree", "parallelism.data_parallel_replicate_degree"
PROVENANCE = ("tensorboard.",)  # names the plan and changes nothing


@dataclass(frozen=True)
class OptionChange:
    """One option: `before` is None where it comes, `after` is None where it goes; a flag's value is empty."""

    name: str
    before: str | None
    after: str | None

    @property
    def kind(self) -> Literal["added", "removed", "changed"]:
        """What happens to it."""
        return "added" if self.before is None else "removed" if self.after is None else "changed"

    def __str__(self) -> str:
        if self.kind == "changed":
            return f"  {self.name} {self.before} -> {self.after}"
        sign, value = ("+", self.after) if self.kind == "added" else ("-", self.before)
        return f"{sign} {self.name} {value}".rstrip()

    def to_dict(self) -> dict[str, str | None]:
        """Plain data."""
        return {"option": self.name, "change": self.kind, "before": self.before, "after": self.after}


def difference(before: Options, after: Options, written: Iterable[Option] = ()) -> tuple[OptionChange, ...]:
    """Options that go first, then those that change, then those that come.

    Args:
        before, after: of the two plans, as `exported_options` gives them.
        written: what the user's file says, where there is one. Its names and values stand for those of `before`.
    """
    stated = {option.name: option.value for option in written}
    names = {RENAMED.get(name, name): name for name in stated}
    found = []
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) == after.get(name):
            continue
        if (
            name == REST
            and stated.get(names.get(name, "")) == "-1"
            and before.get(REST_BESIDE) == after.get(REST_BESIDE)
        ):
            continue
        # of a table that goes, a file may say no key
        place = name if name in names or name in after else name.partition(".")[0]
        value = _as_written(stated[names[place]], before.get(name)) if place in names else None
        value = value if stated else before.get(name)
        if value is not None or name in after:
            found.append(OptionChange(names.get(place, name), value, after.get(name)))
    found = [change for change in dict.fromkeys(found) if change.before != change.after]
    found += _replaced(before, after, stated, {change.name for change in found})
    order = ("removed", "changed", "added")
    return tuple(sorted(found, key=lambda change: order.index(change.kind)))


def _as_written(written: str, exported: str | None) -> str:
    """The file's value; where it is the exported one but for capitals, that one (true and false of a TOML file)."""
    return exported if exported is not None and written.casefold() == exported.casefold() else written


def _replaced(
    before: Options, after: Options, stated: Mapping[str, str], said: set[str]
) -> Iterator[OptionChange]:
    """Other spellings in the user's file of what changes: they go, and the usual one comes where it is needed."""
    for name, value in stated.items():
        for place, usual in enumerate(REPLACED_BY.get(RENAMED.get(name, name), ())):
            if before.get(usual) != after.get(usual):
                yield OptionChange(name, value, None)
                main = REPLACED_BY[RENAMED.get(name, name)][0]
                if place and main in after and main not in said and main not in stated:
                    yield OptionChange(main, None, after[main])
                break


def written_options(imported: Imported, text: str) -> tuple[Option, ...]:
    """What a user's file says that matters: options that were understood, and the queues of its environment."""
    queues = [Option(QUEUES, "1")] if imported.origin == "megatron" and QUEUES in text else []
    return (*imported.understood, *queues)


def exported_options(exported: Exported) -> Options:
    """The options of an exported file by name, in their order; what only names the plan is left out."""
    options = _READERS[exported.format](exported.text)
    return {name: value for name, value in options.items() if not name.startswith(PROVENANCE)}


def plan_options(plan: Plan) -> Options:
    """The keys of a plan's own file, without those of the model and the cluster."""
    tables = plan_table(plan, complete=True)
    for name in ("model", "cluster", "schema"):
        tables.pop(name)
    return _texts(tables)


def _script_options(text: str) -> Options:
    script = ShellScript.read(text)
    found: Options = {QUEUES: script.variables[QUEUES][0]} if QUEUES in script.variables else {}
    name = ""
    for word in launch_words(script.commands):
        if word.startswith("--"):
            name = word
            found[name] = ""
        elif name and not word.endswith(".py"):
            found[name] = f"{found[name]} {word}".strip()
        else:
            name = ""
    return found


def _texts(tables: Mapping[str, Any]) -> Options:
    """The keys of a file with tables; what is no text as JSON has it."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in flat(tables)}


_READERS: Mapping[str, Callable[[str], Options]] = {
    "megatron": _script_options,
    "torchtitan": lambda text: _texts(toml_of(text)),
    "deepspeed": lambda text: _texts(json_of(text)),
}
