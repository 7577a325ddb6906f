"""What every step of a decoder's chain is given: the microbatch's data, and modules of its block.

Shapes: B samples, S tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from meshwright.executor.models.block import Block
from meshwright.executor.models.decoder import DecoderStage
from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.linear import SplitLinear
from meshwright.executor.ops.randomness import SampleKeys
from meshwright.specs.sequence.sequence_part import OwnTokens
from meshwright.stage.chain.parameters import LAST_PRODUCT


@dataclass(frozen=True)
class MicrobatchData:
    """What steps know of the microbatch besides the values between them: tokens_BS and targets_BS of whole sequences, where
    documents begin, names of dropout's draws, and the weight of one token's loss. ``part``: which tokens of the sequences are
    on this device, or in this chunk, to which tokens_BS and targets_BS are then cut (None: all). Of an encoder-decoder
    tokens_BS are of the first half of every window, and the second is continued_BS, to which the targets belong.
    ``is_packed``: documents are the sequences that ``part`` packs, so that what is visible is known without a mask."""

    tokens_BS: Tensor
    targets_BS: Tensor
    documents: DocumentMask | None
    keys: SampleKeys | None
    token_weight: float
    part: OwnTokens | None = None
    continued_BS: Tensor | None = None
    is_packed: bool = False

    @property
    def length(self) -> int:
        """Tokens of a whole sequence."""
        return self.tokens_BS.shape[1] if self.part is None else self.part.sequence_length


def block_of(stage: DecoderStage, number: int) -> Block:
    """Block number `number` of the model, which is on this stage."""
    found = stage.layers[str(number)]
    assert isinstance(found, Block), "a chain is of plain decoders"
    return found


def last_product(block: Block, part: str) -> SplitLinear:
    """The product at the end of attention, of cross attention, or of the MLP."""
    found = getattr(block, LAST_PRODUCT[part])
    assert isinstance(found, SplitLinear), "every matrix has a split backward"
    return found
