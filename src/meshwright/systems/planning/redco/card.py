"""Tensor-parallel rules from the names and shapes of any module tree; training from three functions of a user.

Paper:      Redco: A Lightweight Tool to Automate Distributed Training of LLMs on Any GPU/TPUs, Bowen Tan, Yun Zhu,
            Lijuan Liu, Hongyi Wang, Yonghao Zhuang, Jindong Chen, Eric Xing, Zhiting Hu, 2023, arXiv 2310.16355
Problem:    To cut a model over devices, and to train it on several, takes code that knows the model and the machine.
Idea:       Two rules: of the layers of a feed-forward network outputs and inputs are cut in turn; of attention the outputs
            of queries, keys and values, and the inputs of what follows. A column (outputs cut) and the row behind it (inputs
            cut) exchange once, so a block has two all-reduces forwards. A user writes three functions - data -> batch, loss
            of a batch, prediction - and the tool all else.
Kind:       recipe
Use:        meshwright train plan.toml --modules mine.py:model --tensor-rules redco (plan.toml: of a model that stands for
            the user's, with tp); three functions of a file: study.train_functions("mine.py", num_steps=200)
Simulated:  no, because its plan is Megatron's, which the planner simulates (systems/pipeline/megatron_lm/card.py)
Executed:   a user's Sequential cut over gloo processes by `train`, with pipelines and replicas; decoders with public names,
            and tasks of three functions as CALLs of a program (study.py)
Differs:    1. Layers are read in the order of their modules, in units that lead from the stream back to it; the public code
            sorts names, and cuts outputs and inputs in turn along the alphabet. With GPT-2's names that cuts the outputs of
            c_attn, the inputs of c_fc and the outputs of c_proj, which is right but exchanges four times a block. Its lists
            of known names are not here, so only this order is compared.
            2. torch's weights are [outputs, inputs] and flax's [inputs, outputs]; both are read. Fused queries, keys and
            values are cut each by itself. Keys and values with fewer heads than devices stay whole, gradients summed.
            3. Tables of words are padded and cut by row, tied heads with them; heads, and layers that nothing closes, are cut
            by outputs and gathered. Of fused experts, recurrent layers and the like nothing is known: small ones stay
            whole, a module with larger ones is refused by name. Up to 1 MB (`least_bytes`) tables, heads and lonely layers
            stay whole.
            4. The executor runs the user's functions on the stream `host`; all-reduces of a cut model are inside the loss,
            as they are inside the compiler's in the paper. The published tasks are larger; DDPG is REINFORCE here.
            5. Before the first step every module is compared with the whole one on drawn inputs, and refused where it
            differs; the paper's compiler does not need that.
            6. Speed beside FSDP and Alpa is not claimed. "Much fewer lines" than official implementations is the abstract's
            headline; what we can read of the paper has no numbers of lines, so none is claimed.
            7. Of the table of settings that run one is left out: BART-Large on two devices of 10 GB, for which the count of
            bytes says that one would do (its table has no smaller machine).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from meshwright.specs.error import UnknownNameError
from meshwright.specs.training.tensor_rule import Role, TensorRule, Tree, TreeParameter
from meshwright.systems.planning.redco.mechanism import (
    LEAST_BYTES,
    num_block_exchanges,
    published_rules,
    tensor_rules,
    whole_bytes,
)

FILLS = {"tensor_rules": "mechanism:NamedRules"}
CLAIMS = (
    {
        "claim": "{layer} of {tree} on two devices: the dimension of its weight that is cut",
        "kind": "identity",
        "unit": "dimension",
        "tolerance": 1e-9,
        "reason": "a rule gives it or not",
        "how": "rules from names and shapes; weights of GPT-2 are [inputs, outputs], of Llama [outputs, inputs]",
        "by": "cut_dimension",
        "source": "redco/deployers/partition_utils.py (tanyuqian/redco): the two rules",
        "cases": (
            ({"tree": "gpt2", "layer": "h.0.attn.c_attn"}, 1),
            ({"tree": "gpt2", "layer": "h.0.attn.c_proj"}, 0),
            ({"tree": "gpt2", "layer": "h.0.mlp.c_fc"}, 1),
            ({"tree": "gpt2", "layer": "h.0.mlp.c_proj"}, 0),
            ({"tree": "gpt2", "layer": "wte"}, 0),
            ({"tree": "llama", "layer": "model.layers.0.self_attn.k_proj"}, 0),
            ({"tree": "llama", "layer": "model.layers.0.self_attn.o_proj"}, 1),
            ({"tree": "llama", "layer": "model.layers.0.mlp.down_proj"}, 1),
            ({"tree": "llama", "layer": "lm_head"}, 0),
        ),
    },
    {
        "claim": "exchanges in a forward of a block of GPT-2, {rules} rules",
        "kind": "identity",
        "unit": "exchanges",
        "tolerance": 1e-9,
        "reason": "counted from the rules",
        "how": "parts of sums are summed, cut outputs gathered where they are needed whole",
        "by": "block_exchanges",
        "source": "the two rules; the published ones in the order of the alphabet",
        "cases": (({"rules": "our"}, 2), ({"rules": "published"}, 4)),
    },
    {
        "claim": "{tree}: matrices above 1 MB that every device has whole",
        "kind": "identity",
        "unit": "matrices",
        "tolerance": 1e-9,
        "reason": "the project's acceptance",
        "how": "matrices that the rules leave whole, counted in the public model's names and shapes, two devices",
        "by": "num_whole",
        "source": "the project's acceptance",
        "cases": (({"tree": "gpt2"}, 0), ({"tree": "llama"}, 0)),
    },
    {
        "claim": "devices of {gigabytes} GB for {model} in float32 with Adam",
        "kind": "identity",
        "unit": "devices",
        "tolerance": 1e-9,
        "reason": "the smallest power of two that fits",
        "how": "16 bytes a parameter (weight, gradient, two moments), cut evenly; activations are not counted",
        "by": "num_devices",
        "source": "README of tanyuqian/redco: settings that run",
        "cases": (
            ({"model": "GPT2-Large", "billions": 0.774, "gigabytes": 10}, 2),
            ({"model": "LLaMA-7B", "billions": 6.74, "gigabytes": 40}, 4),
            ({"model": "GPT-J-6B", "billions": 6.05, "gigabytes": 40}, 4),
            ({"model": "T5-XL-11B", "billions": 11.3, "gigabytes": 32}, 8),
            ({"model": "OPT-13B", "billions": 12.85, "gigabytes": 32}, 8),
            ({"model": "OPT-66B", "billions": 65.7, "gigabytes": 32}, 64),
        ),
    },
    {
        "claim": "here, two processes: loss of {model} with its names, cut, beside whole, |ratio - 1|",
        "kind": "measured",
        "unit": "relative",
        "tolerance": 1e-5,
        "reason": "the project's acceptance; float64",
        "how": "third step, behind two of Adam; two blocks, an odd vocabulary, one model with one key-value head",
        "by": "study:loss_difference",
        "source": "the project's acceptance",
        "cases": (
            ({"model": "gpt2"}, 0.0),
            ({"model": "llama"}, 0.0),
            ({"model": "llama_one_kv_head"}, 0.0),
        ),
    },
    {
        "claim": "here, two processes: forward all-reduces of a block of {model}",
        "kind": "measured",
        "unit": "all-reduces",
        "tolerance": 1e-9,
        "reason": "counted",
        "how": "all-reduces that ran in the last forward, by path of the layer",
        "by": "study:block_all_reduces",
        "source": "the two rules: a column and the row behind it exchange once",
        "cases": (({"model": "gpt2"}, 2), ({"model": "llama"}, 2), ({"model": "llama_one_kv_head"}, 2)),
    },
    {
        "claim": "here, two processes: of language model, MAML and policy gradient, those that learn by three functions",
        "kind": "measured",
        "unit": "tasks",
        "tolerance": 1e-9,
        "reason": "the paper's examples run with three functions; marks fixed before the runs",
        "how": "held-out loss at most 0.9 of the entropy of single bytes; adapted error at most half of the untrained one; "
        "return at least 0.95 of the best",
        "by": "study:num_marks_reached",
        "source": "examples of tanyuqian/redco: language models, MAML, reinforcement learning",
        "cases": (({}, 3),),
    },
)
NUM_SHARDS = 2
ADAM_BYTES = 16  # of a parameter: itself, its gradient and two moments in float32


def redco(tree: Tree, num_shards: int, head_dim: int = 0) -> dict[str, TensorRule]:
    """How every parameter of a module tree is cut; see `tensor_rules`."""
    return tensor_rules(tree, num_shards, head_dim)


def _tree_and_rules(tree: str) -> tuple[Tree, dict[str, TensorRule]]:
    """A public model by name. Raises UnknownNameError."""
    if tree not in TREES:
        raise UnknownNameError("module tree", tree, TREES)
    make, head_dim, _ = TREES[tree]
    made = make()
    return made, redco(made, NUM_SHARDS, head_dim)


def cut_dimension(tree: str, layer: str) -> float:
    """Of a layer's weight, as it is stored; -1 where it is whole. Raises UnknownNameError."""
    _, rules = _tree_and_rules(tree)
    if f"{layer}.weight" not in rules:
        raise UnknownNameError(f"layer of {tree}", layer, [name.removesuffix(".weight") for name in rules])
    dim = rules[f"{layer}.weight"].dim
    return -1.0 if dim is None else float(dim)


def block_exchanges(rules: str) -> int:
    """In a forward of GPT-2's first block, by "our" or "published" rules. Raises UnknownNameError."""
    if rules not in ("our", "published"):
        raise UnknownNameError("set of rules", rules, ("our", "published"))
    tree, ours = _tree_and_rules("gpt2")
    return num_block_exchanges(tree, ours if rules == "our" else published_rules(tree), "h.0")


def num_whole(tree: str) -> int:
    """Matrices above a size that every device has whole. Raises UnknownNameError."""
    return len(whole_bytes(*_tree_and_rules(tree), LEAST_BYTES))


def num_devices(model: str, billions: float, gigabytes: float) -> int:
    """The smallest power of two on which weights, gradients and Adam's moments of a model fit."""
    found = 1
    while billions * ADAM_BYTES > found * gigabytes:
        found *= 2
    return found


def _layers(shapes: Mapping[str, tuple[int, ...]], role: Role, has_bias: bool) -> Iterable[TreeParameter]:
    """Parameters of layers by path: matrices of a role, and vectors of norms."""
    for path, shape in shapes.items():
        yield TreeParameter(f"{path}.weight", shape, role if len(shape) == 2 else "vector")
        if has_bias:
            yield TreeParameter(f"{path}.bias", (shape[0 if role == "linear" else -1],), "vector")


def gpt2_tree(
    num_layers: int = 12, width: int = 768, vocabulary_size: int = 50257, positions: int = 1024
) -> Tree:
    """GPT-2 by the names of the transformers library, its head tied; defaults are the smallest published one."""
    block = {
        "ln_1": (width,), "attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width),
        "ln_2": (width,), "mlp.c_fc": (width, 4 * width), "mlp.c_proj": (4 * width, width),
    }  # fmt: skip
    layers = {f"h.{number}.{path}": shape for number in range(num_layers) for path, shape in block.items()}
    tables = _layers({"wte": (vocabulary_size, width), "wpe": (positions, width)}, "table", has_bias=False)
    return (*tables, *_layers({**layers, "ln_f": (width,)}, "linear_in_out", has_bias=True))


def llama_tree(
    num_layers: int = 32, width: int = 4096, num_units: int = 11008, kv_width: int = 4096, vocabulary_size: int = 32000
) -> Tree:  # fmt: skip
    """Llama by the names of the transformers library, with a head of its own; defaults are those of the 7B model."""
    block = {
        "self_attn.q_proj": (width, width), "self_attn.k_proj": (kv_width, width), "self_attn.v_proj": (kv_width, width),
        "self_attn.o_proj": (width, width), "mlp.gate_proj": (num_units, width), "mlp.up_proj": (num_units, width),
        "mlp.down_proj": (width, num_units), "input_layernorm": (width,), "post_attention_layernorm": (width,),
    }  # fmt: skip
    layers = {f"model.layers.{n}.{path}": shape for n in range(num_layers) for path, shape in block.items()}
    ends = {"model.norm": (width,), "lm_head": (vocabulary_size, width)}
    tables = _layers({"model.embed_tokens": (vocabulary_size, width)}, "table", has_bias=False)
    return (*tables, *_layers({**layers, **ends}, "linear", has_bias=False))


TREES: Mapping[str, tuple[Callable[[], Tree], int, str]] = {
    "gpt2": (gpt2_tree, 64, "h.0"),
    "llama": (llama_tree, 128, "model.layers.0"),
}
