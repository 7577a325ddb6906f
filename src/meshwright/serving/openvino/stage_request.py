"""One compiled graph of consecutive layers with inputs of its own: a step fills them, and infers when its turn comes."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import openvino
from numpy.typing import NDArray

from meshwright.serving.engine.runner import StepInputs
from meshwright.serving.openvino.decoder_graph import HIDDEN, POSITIONS, ROWS, TOKEN_IDS
from meshwright.serving.openvino.step_buffers import StepBuffer, StepScalar

TOKENS, SEQUENCES, BLOCKS = 4096, 256, 4096  # room at the start; a step that needs more makes more
NO_ROWS = np.zeros(1, np.int64)  # a head of no rows is not asked for: the first one's logits are thrown away


class StageRequest:
    """Runs one stage of the model on the inputs of a step."""

    def __init__(self, compiled: openvino.CompiledModel, tensors: Mapping[str, openvino.Tensor]) -> None:
        self._request = request = compiled.create_infer_request()
        names = {port.get_any_name() for port in compiled.inputs}
        for name in names & set(tensors):
            request.set_tensor(name, tensors[name])
        self.takes_hidden, self.has_rows = HIDDEN in names, ROWS in names
        self.infer_seconds = 0.0
        if not self.takes_hidden:
            self._token_ids = StepBuffer(request, TOKEN_IDS, np.int64, TOKENS)
        if self.has_rows:
            self._rows = StepBuffer(request, ROWS, np.int64, SEQUENCES)
        self._positions = StepBuffer(request, POSITIONS, np.int64, TOKENS)
        self._past_lengths = StepBuffer(request, "past_lengths", np.int32, SEQUENCES)
        self._query_starts = StepBuffer(request, "query_starts", np.int32, SEQUENCES)
        self._block_ids = StepBuffer(request, "block_ids", np.int32, BLOCKS)
        self._block_starts = StepBuffer(request, "block_starts", np.int32, SEQUENCES)
        self._max_context = StepScalar(request, "max_context")

    def fill(self, inputs: StepInputs) -> None:
        """Take what a step needs; its logits or hidden states, if there were any, are gone."""
        if not self.takes_hidden:
            self._token_ids.fill(inputs.token_ids)
        if self.has_rows:
            self._rows.fill(inputs.rows if inputs.rows.size else NO_ROWS)
        self._positions.fill(inputs.positions)
        self._past_lengths.fill(inputs.past_lengths)
        self._query_starts.fill(inputs.query_starts)
        self._block_ids.fill(inputs.block_ids)
        self._block_starts.fill(inputs.block_starts)
        self._max_context.fill(inputs.max_context)

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """``[T]``, as the graph reads them; of the first stage."""
        view: NDArray[np.int64] = self._token_ids.view
        return view

    def run(self, hidden: openvino.Tensor | None) -> openvino.Tensor:
        """Logits or hidden states, valid until it is filled again; `hidden` is what the stage before returned."""
        if self.takes_hidden:
            self._request.set_tensor(HIDDEN, hidden)
        begin = time.perf_counter()
        self._request.infer(share_outputs=True)
        self.infer_seconds += time.perf_counter() - begin
        return self._request.get_output_tensor(0)
