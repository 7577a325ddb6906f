"""A user's modules on one device of a tensor-parallel group: their rules, the layers that are cut, and the proof.

Whether a module computes the same once its layers are cut depends on its own code: what it does with the outputs of a layer
that are no longer all there. So every module is run once, whole and cut, on drawn inputs, and its output and gradients are
compared; what differs, or fails, is refused by name.

Shapes: B samples, S tokens, E hidden size, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from meshwright.executor.layout.rule_shard import RuleShard, cut
from meshwright.executor.models.cut.cutting import cut_module
from meshwright.executor.models.cut.inner_team import InnerTeam
from meshwright.executor.models.cut.module_tree import module_tree
from meshwright.executor.ops.randomness import keyed_generator, random_key
from meshwright.specs.error import ExecutionError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.slot import resolve
from meshwright.specs.training.tensor_rule import TensorRule, Tree

SAMPLES, TOKENS = 2, 5  # of the inputs on which a cut module is compared: odd, so that nothing fits by chance
# Largest difference over the largest number, in formats of 32 and 64 bits: sums of parts round otherwise.
OUTPUT = "its output"
LEAVE_WHOLE = "let rules of your own leave its layers whole (--tensor-rules ./mine.py:rules)"
TOLERANCES = {torch.float32: 1e-3, torch.float64: 1e-9}


def rules_of(whole: nn.Sequential, reference: str, degree: int) -> dict[str, TensorRule]:
    """Rules for all parameters, by what fills the slot `tensor_rules`; each module is a tree of its own, as between two the
    stream is whole.

    Raises:
        ExecutionError: of some parameter nothing is known, or heads are fewer than devices.
        PlanError: nobody knows the name.
    """
    find, rules, tree = resolve("tensor_rules", reference), dict[str, TensorRule](), list(Tree())
    for name, module in whole.named_children():
        own = module_tree(module, f"{name}.")
        found, tree = find(own, degree), [*tree, *own]
        rules |= {
            one.name: found.get(one.name, TensorRule(one.name, "unknown", reason="no rule")) for one in own
        }
    for one in tree:
        rule = rules[one.name]
        if rule.cut == "unknown" or rule.is_shared:
            owner = type(whole.get_submodule(one.name.rpartition(".")[0])).__name__
            raise ExecutionError(
                f"{reference} cannot cut {one.name} of a {owner} over {degree} devices: {rule.reason}",
                allowed="linear layers, embeddings, convolutions, attention whose heads the devices divide",
                next="write rules of your own (--tensor-rules ./mine.py:rules) that leave it whole, or use a smaller tp",
            )
    return rules


@dataclass(eq=False)
class ModuleCut:
    """All modules of a Sequential, the rules for them, and with whom this device shares them."""

    whole: nn.Sequential
    rules: Mapping[str, TensorRule]
    team: InnerTeam

    @staticmethod
    def of(whole: nn.Sequential, reference: str, team: InnerTeam) -> ModuleCut:
        """By the rules of that name. Raises ExecutionError as `rules_of`."""
        return ModuleCut(whole, rules_of(whole, reference, team.degree), team)

    def shard(self, model: ModelSpec) -> RuleShard:
        """What is here of every tensor; `model` stands for the modules."""
        shapes = {name: tuple(p.shape) for name, p in self.whole.named_parameters()}
        return RuleShard(model, self.team.degree, self.team.number, rules=self.rules, shapes=shapes)

    def module(self, number: int, model: ModelSpec, dtype: torch.dtype) -> nn.Module:
        """This device's part of a module, in a format. Raises ExecutionError where it does not compute the same."""
        wide = torch.promote_types(dtype, torch.float32)
        whole = copy.deepcopy(self.whole[number]).to(wide)
        prefix = f"{number}."
        made = cut_module(copy.deepcopy(whole), self.rules, self.team, prefix)
        if any(self.rules[prefix + name].dim is not None for name, _ in whole.named_parameters()):
            self._prove(number, whole, made, model, wide)
        self.team.sums.clear()
        return made.to(dtype)

    def _prove(
        self, number: int, whole: nn.Module, made: nn.Module, model: ModelSpec, dtype: torch.dtype
    ) -> None:
        generator = keyed_generator(random_key("proof", number))
        if number == 0:
            x = torch.randint(model.vocabulary_size, (SAMPLES, TOKENS), generator=generator)
        else:
            x = torch.randn(SAMPLES, TOKENS, model.hidden_size, generator=generator, dtype=dtype)
        wanted = self._outcome(whole, x)
        name = f"module {number} ({type(whole).__name__})"
        try:
            found = self._outcome(made, x)
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            raise ExecutionError(
                f"{name} fails with its layers cut over {self.team.degree} devices: {error}",
                allowed="modules that ask their inputs for sizes (view(..., -1, head_dim)), or count heads in num_heads",
                next=LEAVE_WHOLE,
            ) from error
        # of a gradient that is zero but for rounding (a bias in front of keys) the others say what is small
        gradients = [one for what, one in wanted.items() if what != OUTPUT and one.numel()]
        for what, one in wanted.items():
            scale = max(float(each.abs().max()) for each in ([one] if what == OUTPUT else gradients))
            rule = self.rules.get(f"{number}.{what}")
            here = one if rule is None else cut(one, rule, self.team.number, self.team.degree)
            is_alike = here.shape == found[what].shape
            if is_alike and (
                not here.numel() or float((here - found[what]).abs().max()) <= TOLERANCES[dtype] * scale
            ):
                continue
            raise ExecutionError(
                f"{name} computes something else with its layers cut over {self.team.degree} devices: {what} differs",
                allowed="between layers cut by outputs and the one that closes them what treats numbers, or heads, alike",
                next=LEAVE_WHOLE,
            )

    @staticmethod
    def _outcome(module: nn.Module, x: Tensor) -> dict[str, Tensor]:
        """Output, and gradients of input and parameters, of a drawn sum of the outputs."""
        x = x.clone().requires_grad_(x.is_floating_point())
        with torch.enable_grad():
            y = module(x)
            weights = torch.randn(y.shape, generator=keyed_generator(random_key("weights")), dtype=y.dtype)
            named = {name: p for name, p in module.named_parameters() if p.requires_grad}
            inputs = [*named.values(), *([x] if x.requires_grad else [])]
            gradients = torch.autograd.grad((y * weights).sum(), inputs, materialize_grads=True)
        found = dict(zip([*named, "its input's gradient"], gradients, strict=False))
        return {OUTPUT: y.detach(), **found}
