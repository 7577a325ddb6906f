"""Rules from names, order and shapes; what cannot be cut says why; exchanges and whole matrices counted."""

from __future__ import annotations

import pytest

from meshwright.specs.training.tensor_rule import Role, Tree, TreeParameter
from meshwright.systems.planning.redco.card import gpt2_tree, llama_tree
from meshwright.systems.planning.redco.mechanism import (
    LEAST_BYTES,
    num_block_exchanges,
    published_rules,
    tensor_rules,
    whole_bytes,
)


def tree_of(*layers: tuple[str, int, int]) -> Tree:
    """Linear layers by (path, outputs, inputs), without biases."""
    return tuple(TreeParameter(f"{path}.weight", (o, i), "linear") for path, o, i in layers)


def cuts(tree: Tree, num_shards: int = 2, **options: int) -> dict[str, str]:
    """Rule of every weight by path."""
    return {
        name.removesuffix(".weight"): rule.cut
        for name, rule in tensor_rules(tree, num_shards, **options).items()
    }


def test_gpt2_is_not_cut_along_the_alphabet() -> None:
    tree = gpt2_tree(2)
    ours, theirs = tensor_rules(tree, 2, 64), published_rules(tree)
    for block in ("h.0", "h.1"):
        names = [
            f"{block}.{layer}.weight" for layer in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
        ]
        assert [ours[name].cut for name in names] == ["column", "row", "column", "row"]
        assert [theirs[name].cut for name in names] == ["column", "column", "row", "column"]
        assert num_block_exchanges(tree, ours, block) == 2 and num_block_exchanges(tree, theirs, block) == 4
    assert ours["h.0.attn.c_attn.weight"].sections == (768, 768, 768)
    assert ours["h.0.attn.c_attn.bias"].sections == (768, 768, 768)
    assert ours["h.0.mlp.c_proj.bias"].dim is None and ours["h.0.ln_1.weight"].dim is None
    assert ours["wte.weight"].rows == 50258


def test_another_layer_does_not_flip_the_others() -> None:
    tree = gpt2_tree(1)
    more = (*tree, TreeParameter("h.0.attn.a_gate.weight", (8, 768), "linear"))
    assert (
        published_rules(more)["h.0.mlp.c_fc.weight"].cut != published_rules(tree)["h.0.mlp.c_fc.weight"].cut
    )
    ours, before = tensor_rules(more, 2, 64), tensor_rules(tree, 2, 64)
    assert all(ours[name] == before[name] for name in before)


def test_unknown_names_are_cut_by_order_and_shape() -> None:
    tree = tree_of(
        ("b.0.mix.first", 64, 64),
        ("b.0.mix.second", 64, 64),
        ("b.0.mix.third", 64, 64),
        ("b.0.wide.out", 256, 64),
        ("b.0.wide.back", 64, 256),
    )
    assert list(cuts(tree).values()) == ["column", "column", "row", "column", "row"]


def test_layers_in_modules_of_their_own_are_joined() -> None:
    tree = tree_of(
        ("l.0.attention.self.query", 64, 64),
        ("l.0.attention.self.key", 64, 64),
        ("l.0.attention.self.value", 64, 64),
        ("l.0.attention.output.dense", 64, 64),
        ("l.0.intermediate.dense", 256, 64),
        ("l.0.output.dense", 64, 256),
        ("pooler.dense", 64, 64),
    )
    wanted = ["column", "column", "column", "row", "column", "row", "whole"]
    assert list(cuts(tree).values()) == wanted
    assert cuts(tree, least_bytes=0)["pooler.dense"] == "gathered"


def test_a_closing_name_may_stand_in_front() -> None:
    tree = tree_of(
        ("l.0.attn.o_proj", 64, 64),
        ("l.0.attn.qkv_proj", 192, 64),
        ("l.0.mlp.w1", 96, 64),
        ("l.0.mlp.w2", 64, 96),
        ("l.0.mlp.w3", 96, 64),
    )
    assert cuts(tree) == {
        "l.0.attn.o_proj": "row",
        "l.0.attn.qkv_proj": "column",
        "l.0.mlp.w1": "column",
        "l.0.mlp.w2": "row",
        "l.0.mlp.w3": "column",
    }


@pytest.mark.parametrize(("num_shards", "is_cut"), [(2, True), (4, True), (8, False)])
def test_key_value_heads_that_do_not_suffice_stay_whole(num_shards: int, is_cut: bool) -> None:
    rules = tensor_rules(llama_tree(1, 1024, 2048, kv_width=4 * 64), num_shards, head_dim=64)
    key = rules["model.layers.0.self_attn.k_proj.weight"]
    assert (key.cut == "column") == is_cut and key.is_shared != is_cut
    assert rules["model.layers.0.self_attn.q_proj.weight"].cut == "column"
    if not is_cut:
        assert key.reason == "4 key-value heads, 8 devices"


def test_what_does_not_divide_keeps_its_unit_whole() -> None:
    rules = tensor_rules(tree_of(("l.0.mlp.up_proj", 97, 64), ("l.0.mlp.down_proj", 64, 97)), 2)
    assert {rule.cut for rule in rules.values()} == {"whole"}
    assert "97" in rules["l.0.mlp.down_proj.weight"].reason


def test_grouped_fused_projections_have_three_sections() -> None:
    rules = tensor_rules(tree_of(("l.0.attn.qkv_proj", 64 + 2 * 16, 64), ("l.0.attn.o_proj", 64, 64)), 2)
    assert rules["l.0.attn.qkv_proj.weight"].sections == (64, 16, 16)


@pytest.mark.parametrize("tree", [gpt2_tree(), llama_tree()], ids=["gpt2", "llama"])
def test_no_large_matrix_stays_whole(tree: Tree) -> None:
    for num_shards in (2, 4, 8):
        assert whole_bytes(tree, tensor_rules(tree, num_shards), LEAST_BYTES) == []


@pytest.mark.parametrize("role", ["vector", "other"])
def test_what_is_no_matrix_of_a_layer_stays_whole(role: Role) -> None:
    rules = tensor_rules((TreeParameter("x.scale", (8,) if role == "vector" else (8, 8, 8), role),), 2)
    assert rules["x.scale"].cut == "whole"
