"""A runner whose kernels are OpenVINO's: policy, blocks and sampling stay outside, one call computes one step."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray

from meshwright.serving.engine.runner import Pair, StepInputs
from meshwright.serving.openvino.block_memory import BlockLayout, BlockMemory
from meshwright.serving.openvino.core import core
from meshwright.serving.openvino.decoder_graph import DecoderSource, decoder_graph
from meshwright.serving.openvino.decoder_style import decoder_style
from meshwright.serving.openvino.paged_attention import BLOCK_TOKENS
from meshwright.serving.openvino.precision import DEVICE, SAME, compile_properties, with_compressed_weights
from meshwright.serving.openvino.stage_request import StageRequest
from meshwright.serving.openvino.support import LACKING, OTHER_ENGINE, check_model
from meshwright.serving.stored.quantisation import without_quantisation
from meshwright.serving.stored.quantised_folder import open_folder
from meshwright.specs.config.source import CONFIG_FILE, load_model
from meshwright.specs.data_text import json_of
from meshwright.specs.error import SpecError
from meshwright.specs.model.layers import split_layers, stage_layers

NUM_PREPARED = 2  # steps: one that runs, and one whose inputs are written or logits read meanwhile
BLOCK_BYTES = 1 << 30  # of all blocks, where nobody says how many


@dataclass(frozen=True)
class OpenVinoOptions:
    """How a model is compiled.

    Args:
        precision: of the weights, one of PRECISIONS.
        block_format: one of BLOCK_FORMATS; with "uint8" logits depend on the size of chunks.
        num_blocks: of keys and values; 0: as many as fit into `block_bytes`.
        block_bytes: where `num_blocks` is 0.
        num_host_blocks: to which others are swapped out.
        num_threads: 0: one for every core.
        num_stages: the graph is cut between layers into so many, computed one behind the other.
    """

    precision: str = "bfloat16"
    block_format: str = SAME
    num_blocks: int = 0
    block_bytes: int = BLOCK_BYTES
    num_host_blocks: int = 0
    num_threads: int = 0
    num_stages: int = 1


class PreparedStages:
    """A step whose inputs lie in the requests of all stages."""

    def __init__(self, stages: Sequence[StageRequest], num_rows: int) -> None:
        self._stages, self._num_rows = stages, num_rows
        self.token_ids = stages[0].token_ids

    def logits(self) -> NDArray[np.float32]:
        """As `PreparedStep.logits`."""
        handed: openvino.Tensor | None = None
        for stage in self._stages:
            handed = stage.run(handed)
        assert handed is not None
        logits: NDArray[np.float32] = handed.data
        return logits.reshape(-1, logits.shape[-1])[: self._num_rows]


class OpenVinoRunner:
    """`Runner` of a Hugging Face folder on this machine's CPU.

    Raises:
        SpecError: config.json says what is not computed here; a precision that this CPU does not have.
        ExecutionError: tensors are missing or of other shapes.
    """

    def __init__(self, folder: str | os.PathLike[str], options: OpenVinoOptions = OpenVinoOptions()) -> None:
        path = Path(folder)
        model = load_model(path)
        check_model(model)
        where = path / CONFIG_FILE
        config = json_of(where.read_text(encoding="utf-8"))
        style = decoder_style(model, without_quantisation(config), str(where))
        weights = open_folder(path, config, is_half=options.precision != "float32")
        # Kept as long as what is compiled: constants that need no other layout stay in the mapped files.
        self._source = DecoderSource(model, style, weights)
        self._compiled = self._compile(options)
        layouts = [BlockLayout(port) for compiled in self._compiled for port in _block_ports(compiled)]
        self.block_tokens = BLOCK_TOKENS
        self.block_bytes = sum(layout.num_bytes for layout in layouts)
        self.num_blocks = options.num_blocks or options.block_bytes // self.block_bytes
        self.num_host_blocks = options.num_host_blocks
        self.vocabulary_size, self.max_model_tokens = model.vocabulary_size, model.max_sequence_length
        self._blocks = BlockMemory(layouts, self.num_blocks, self.num_host_blocks)
        tensors = dict(self._blocks.tensors())
        # Two steps' inputs and logits: one is filled and the other read while the step between them runs.
        self._requests = deque(
            [StageRequest(compiled, tensors) for compiled in self._compiled] for _ in range(NUM_PREPARED)
        )

    def prepare(self, inputs: StepInputs) -> PreparedStages:
        """As `PreparingRunner.prepare`. Raises SpecError for adapters."""
        if any(inputs.adapters):
            raise SpecError(f"adapters are not served here: {LACKING['adapters']}", next=OTHER_ENGINE)
        self._requests.rotate()
        stages = self._requests[0]
        for stage in stages:
            stage.fill(inputs)
        return PreparedStages(stages, inputs.rows.size)

    def forward(self, inputs: StepInputs) -> NDArray[np.float32]:
        """As `Runner.forward`. Raises SpecError for adapters."""
        return self.prepare(inputs).logits()

    def move_blocks(self, swap_out: Sequence[Pair], copies: Sequence[Pair], swap_in: Sequence[Pair]) -> None:
        """As `Runner.move_blocks`; of each list all sources are read before anything is written."""
        self._blocks.move(swap_out, copies, swap_in)

    def close(self) -> None:
        """Let go of the compiled graphs and the blocks."""
        self._requests.clear()
        self._compiled = []
        self._blocks = BlockMemory((), 0, 0)

    @property
    def infer_seconds(self) -> float:
        """Time within the runtime's own calls so far; the rest of a step's time is ours."""
        return sum(stage.infer_seconds for stages in self._requests for stage in stages)

    def layer_types(self) -> Counter[str]:
        """What the plugin runs, by its names of layers (RMS, RoPE, LLMMLP, FullyConnected, ...): which fusions took place."""
        nodes = (
            node for compiled in self._compiled for node in compiled.get_runtime_model().get_ordered_ops()
        )
        return Counter(str(node.get_rt_info()["layerType"].astype(str)) for node in nodes)

    def _compile(self, options: OpenVinoOptions) -> list[Any]:
        properties = compile_properties(options.precision, options.block_format, options.num_threads)
        counts = split_layers(self._source.model.num_layers, options.num_stages)
        graphs = (decoder_graph(self._source, layers) for layers in stage_layers(counts))
        return [
            core().compile_model(with_compressed_weights(graph, options.precision), DEVICE, properties)
            for graph in graphs
        ]


def _block_ports(compiled: openvino.CompiledModel) -> list[openvino.ConstOutput]:
    """Inputs for blocks of keys and values."""
    return [port for port in compiled.inputs if "_blocks." in port.get_any_name()]
