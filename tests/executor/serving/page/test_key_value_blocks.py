"""Blocks of keys and values: where new ones go, and moves in their order."""

from __future__ import annotations

import torch

from meshwright.executor.serving.page.key_value_blocks import KeyValueBlocks


def blocks() -> KeyValueBlocks:
    """Two layers, eight blocks of three tokens, two heads of four numbers, and two blocks in host memory."""
    made = KeyValueBlocks(2, 8, 3, 2, 4, torch.float32, torch.device("cpu"), 2)
    made.pages.copy_(torch.randn(made.pages.shape, generator=torch.Generator().manual_seed(1)))
    return made


def test_moves_take_their_turns() -> None:
    """Out, then from block to block, of which one reads what another has written, then in."""
    made = blocks()
    before = made.pages.clone()
    made.move([(3, 1)], [(0, 3), (3, 7), (5, 6)], [(1, 5)])
    came_from = {3: 0, 7: 0, 6: 5, 5: 3}
    for block in range(8):
        assert torch.equal(made.pages[:, :, block], before[:, :, came_from.get(block, block)]), block


def test_writes_go_to_their_slots() -> None:
    made = blocks()
    before = made.pages.clone()
    key, value = torch.full((2, 2, 4), 1.0), torch.full((2, 2, 4), 2.0)
    made.write(1, torch.tensor([7 * 3 + 2, 4]), key, value)
    changed = (made.pages != before).flatten(4).any(-1).nonzero().tolist()
    assert changed == [[0, 1, 1, 1], [0, 1, 7, 2], [1, 1, 1, 1], [1, 1, 7, 2]]
    assert made.of_layer(1)[1][7, 2].eq(2.0).all()
