"""Works and bytes of relays: steps together are the segment, what travels is what the closed forms say."""

from __future__ import annotations

from typing import Any

import pytest
from tests.lowering.plans import plan
from tests.lowering.segment.segment_program import ONE_LAYER

from meshwright.lowering.segment.segmented import inner_degrees
from meshwright.stage.chain.attention_work import attention_bytes
from meshwright.stage.chain.decoder import decoder_chain
from meshwright.stage.chain.segment_work import segment_works
from meshwright.stage.exchange.relay_exchange import SentRows, full_score_exchanges, token_ring_exchanges

QUERY, KEYS, HEADS = 64, 32, 8  # of ONE_LAYER: eight heads of 8 numbers, four of keys


def relays_of(**choices: Any) -> list[dict[str, Any]]:
    """Works of the segments of one layer that are relays."""
    chosen = plan(ONE_LAYER, batch=1, **choices)
    chain = decoder_chain(chosen.model, chosen.stages()[0], inner_degrees(chosen))
    found = zip(chain.segments, segment_works(chosen, chain, 1.0), strict=True)
    return [works for segment, works in found if segment.relay is not None]


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
def test_queries_that_travel_cost_what_blocks_do(layout: str) -> None:
    """Besides what is merged: of blocks that came in their step, of what comes back behind it."""
    (ring,) = relays_of(cp=4, token_layout=layout)
    (token_ring,) = relays_of(cp=4, token_layout=layout, context="token_ring")
    for name in (name for name in ring if name.startswith("ATTEND")):
        products = [
            [each for each in works[name].operators if each.kind == "attention"]
            for works in (ring, token_ring)
        ]
        assert products[0] == products[1] != []
    for name in ("MERGE", "MERGE_AGAIN", "ADD_GRADIENT", "PREPARE_ROWS"):
        assert token_ring[name].bytes > 0 and name not in ring


def test_scores_and_values_share_the_products() -> None:
    scores, weighted = relays_of(cp=4, context="ring_self_attention")
    assert scores["SCORE"].flops == weighted["WEIGH"].flops > 0
    assert scores["SCORE_BACKWARD"].flops == weighted["WEIGH_BACKWARD"].flops == 2 * scores["SCORE"].flops
    assert [each.label for each in scores["F"].operators] == ["softmax"] and not weighted["F"].operators
    assert [each.label for each in scores["SOFTMAX_BACKWARD"].operators] == ["softmax"]


@pytest.mark.parametrize(
    ("dtype", "element", "wide"), [("bfloat16", 2, 4), ("float32", 4, 4), ("float64", 8, 8)]
)
def test_what_is_sent_is_the_closed_form(dtype: str, element: int, wide: int) -> None:
    """Of values between steps, and of composed exchanges: hops of one are parts of the other."""
    chosen, cp = plan(ONE_LAYER, batch=1, cp=4, context="token_ring", dtype=dtype), 4
    sizes = attention_bytes(chosen)
    found = {name: sizes[name] * cp for name in ("travelling_query", "returned_state", "travelling_rows")}
    assert found == {
        "travelling_query": QUERY * element,
        "returned_state": QUERY * element + HEADS * wide,
        "travelling_rows": 2 * QUERY * element + 2 * HEADS * wide,
    }
    assert sizes["returned_query_gradient"] * cp == QUERY * wide
    rows = SentRows(10, element, QUERY, 2 * KEYS, QUERY, HEADS)
    for is_backward, kinds in (
        (False, ("travelling_query", "returned_state")),
        (True, ("travelling_rows", "returned_query_gradient")),
    ):
        composed = [each[1] for each in token_ring_exchanges(rows, cp, is_backward)]
        assert composed == pytest.approx([sizes[kind] * cp * cp * 10 for kind in kinds])
    whole = cp * 10 * element * 2 * KEYS
    assert [each[1] for each in full_score_exchanges(rows, cp, is_backward=True)] == [whole, whole]
