"""Any nn.Sequential as a pipeline: its modules cut into stages, with torch's own autograd.

Shapes: B samples, S tokens, E hidden size, V vocabulary.

The first module takes tokens_BS (integers) and gives hidden_BSE, every one between takes and gives hidden_BSE, the last
gives logits_BSV. A file of the user's has a function without arguments that makes it, such as

    from torch import nn

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            return x + self.down(self.up(x).relu())

    def model():
        return nn.Sequential(nn.Embedding(256, 64), *(Block(64) for _ in range(4)), nn.Linear(64, 256))

and a job names it as "mine.py:model". The plan's model stands for it: its hidden and vocabulary sizes are those of the
messages, its number of layers is that of the modules between the first and the last, and what the plan predicts is of it.

Over several devices of a tensor-parallel group every module has a part of its layers (`cut.module_cut`); what stages send is
then, as of a decoder, each device's equal part of the stream's width.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from meshwright.executor.models.cut.inner_team import InnerTeam
from meshwright.executor.models.cut.module_cut import ModuleCut
from meshwright.executor.models.decoder import DecoderStage
from meshwright.executor.ops.randomness import SampleKeys
from meshwright.specs.error import ExecutionError
from meshwright.specs.model.model import ModelSpec

NUM_ENDS = 2  # modules besides the blocks: what embeds, what makes logits


class SequentialStage(DecoderStage):
    """Consecutive modules of a Sequential, by their numbers in the whole; names of parameters are those of its state_dict."""

    def __init__(
        self,
        model: ModelSpec,
        modules: dict[int, nn.Module],
        has_embedding: bool,
        has_head: bool,
        team: InnerTeam | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.model, self.has_embedding, self.has_head, self.team = model, has_embedding, has_head, team
        self.chosen = nn.ModuleDict({str(number): module for number, module in modules.items()})

    def forward(
        self, x: Tensor, keys: SampleKeys | None = None, documents_BS: Tensor | None = None
    ) -> Tensor:
        """tokens_BS or hidden_BSE -> hidden_BSE or logits_BSV.

        Raises ExecutionError for documents that should not see each other, and for an output of another shape.
        """
        if documents_BS is not None:
            raise ExecutionError(
                "masked documents in a user's modules, which know no documents", allowed="document_mask=False"
            )
        leading = x.shape[:2]
        if self.team is not None and not self.has_embedding:
            x = self.team.gathered(x)
        for module in self.chosen.values():
            x = module(x)
        width = self.model.vocabulary_size if self.has_head else self.model.hidden_size
        if tuple(x.shape) != (*leading, width):
            raise ExecutionError(
                f"modules {', '.join(self.chosen)} give {tuple(x.shape)}",
                allowed=f"{(*leading, width)}, as the plan's model says",
            )
        return x if self.team is None or self.has_head else self.team.own_part(x)

    def global_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters by their names in the whole Sequential's state_dict."""
        return {name.removeprefix("chosen."): parameter for name, parameter in self.named_parameters()}

    def use_table(self, table: nn.Parameter) -> None:
        """Nothing is tied."""


def build_sequential_stage(
    whole: nn.Sequential,
    model: ModelSpec,
    layers: range,
    has_embedding: bool,
    has_head: bool,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    cut: ModuleCut | None = None,
) -> SequentialStage:
    """The stage with blocks `layers` of a Sequential, or with `cut` this device's part of them; the rest is dropped.

    Raises ExecutionError where a module cannot be cut.
    """
    first, last = layers.start + 1 - has_embedding, layers.stop + 1 + has_head
    modules = {
        number: (whole[number] if cut is None else cut.module(number, model, dtype)).to(
            device=device, dtype=dtype
        )
        for number in range(first, last)
    }
    return SequentialStage(model, modules, has_embedding, has_head, None if cut is None else cut.team)


def load_modules(source: str, model: ModelSpec, seed: int = 0) -> nn.Sequential:
    """What `source` ("FILE.py:FUNCTION", or a dotted name) makes, on CPU with torch's generator at `seed`, so that every
    partition begins alike.

    Raises ExecutionError where it is no Sequential that stands for the plan's model, or cannot be divided.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        whole = load_function(source)()
    _check(whole, source, model)
    found: nn.Sequential = whole
    return found


def load_function(source: str) -> Callable[[], Any]:
    """The function that a text such as "mine.py:model" or "package.module:model" names.

    Raises:
        ExecutionError: there is no such file, module or function.
    """
    place, _, name = source.rpartition(":")
    found = getattr(_module(place, source), name, None) if place else None
    if not callable(found):
        raise ExecutionError(
            f"{source!r} names no function", allowed="FILE.py:FUNCTION, or a dotted name and :FUNCTION"
        )
    function: Callable[[], Any] = found
    return function


def _module(place: str, source: str) -> ModuleType:
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise ExecutionError(f"{source!r}: {error}", allowed="a module that can be imported") from error
    path = Path(place).resolve()
    spec = importlib.util.spec_from_file_location(f"_modules_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ExecutionError(f"{source!r}: there is no file {path}", allowed="FILE.py:FUNCTION")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _check(whole: Any, source: str, model: ModelSpec) -> None:
    """A Sequential of the right length, that can be cut, and whose numbers do not depend on the layout."""
    if not isinstance(whole, nn.Sequential):
        raise ExecutionError(f"{source} gives a {type(whole).__name__}", allowed="a torch.nn.Sequential")
    if len(whole) != model.num_layers + NUM_ENDS:
        raise ExecutionError(
            f"{source} has {len(whole)} modules, the plan's model {model.num_layers} layers",
            allowed=f"{model.num_layers + NUM_ENDS} modules: one that embeds, the blocks, one that makes logits",
        )
    owners: dict[int, int] = {}
    for number, module in enumerate(whole):
        for parameter in module.parameters():
            if owners.setdefault(id(parameter), number) != number:
                raise ExecutionError(
                    f"{source}: modules {owners[id(parameter)]} and {number} share a parameter",
                    allowed="modules of their own",
                )
    drawn = [
        type(x).__name__
        for x in whole.modules()
        if ("Dropout" in type(x).__name__ and getattr(x, "p", None))
        or (isinstance(x, nn.MultiheadAttention) and x.dropout)
    ]
    batched = [type(x).__name__ for x in whole.modules() if isinstance(x, nn.modules.batchnorm._NormBase)]
    for name in (*drawn, *batched):
        raise ExecutionError(
            f"{source} has a {name}, whose result depends on how the batch is divided",
            allowed="modules that treat every sample alike and draw nothing",
        )
