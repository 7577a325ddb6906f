"""A user's modules cut by tensor rules are the whole ones: loss, every gradient, parameters, bytes, sums; else refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.api.trainings.training import run_training as train_plan
from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.job import Job
from meshwright.executor.job.pool import Pool
from meshwright.executor.models.cut.inner_team import InnerTeam
from meshwright.executor.models.cut.module_cut import ModuleCut, rules_of
from meshwright.executor.models.cut.module_tree import module_tree
from meshwright.executor.models.sequential import load_modules
from meshwright.executor.training.tensor_layout import TensorLayout
from meshwright.executor.training.training_job import RANDOM, RandomTokens, TrainingConfig
from meshwright.ir.program import Program
from meshwright.lowering.lower import lower
from meshwright.schedules import registered
from meshwright.specs import Cluster, Plan, Workload
from meshwright.specs.error import ExecutionError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.training.source import Source
from meshwright.specs.training.tensor_rule import num_local_bytes
from meshwright.stage.mesh import data_axes, device_order
from meshwright.stage.piece import executed_pieces, piece_layers
from tests.training_case import ADAMW, largest_difference, torch_optimizer

TOLERANCE, ADAMW_TOLERANCE, ITERATIONS, SEQUENCE, BATCH = 1e-10, 1e-8, 2, 8, 4
ALL = "redco(least_bytes=0)"  # everything is cut, however small
# Stands for the modules below: four blocks of width 16.
MODEL = ModelSpec.decoder(4, 16, 2, vocabulary_size=30, max_sequence_length=SEQUENCE)
MINE = '''
import torch
import torch.nn.functional as F
from torch import nn

class Wide(nn.Module):
    """Outputs and inputs cut in turn; a norm in front."""
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(48, 16)
    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))

class Torchs(nn.Module):
    """torch's own attention, causal."""
    def __init__(self):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(16), nn.MultiheadAttention(16, 4, batch_first=True)
    def forward(self, x):
        y = self.norm(x)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]

class Grouped(nn.Module):
    """Attention of grouped queries that counts its heads."""
    def __init__(self):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = 4, 2, 4
        self.q_proj, self.o_proj = nn.Linear(16, 16, bias=False), nn.Linear(16, 16)
        self.k_proj, self.v_proj = nn.Linear(16, 8, bias=False), nn.Linear(16, 8)
    def forward(self, x):
        B, S, _ = x.shape
        q = self.q_proj(x).view(B, S, self.num_heads, self.head_dim).transpose(1, 2)
        k, v = (p(x).view(B, S, self.num_kv_heads, self.head_dim).transpose(1, 2) for p in (self.k_proj, self.v_proj))
        k, v = (each.repeat_interleave(self.num_heads // self.num_kv_heads, 1) for each in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.o_proj(mixed.transpose(1, 2).flatten(2))

class Convolved(nn.Module):
    """Two causal convolutions over the tokens."""
    def __init__(self):
        super().__init__()
        self.wide, self.back = nn.Conv1d(16, 24, 3), nn.Conv1d(24, 16, 2)
    def forward(self, x):
        y = F.relu(self.wide(F.pad(x.transpose(1, 2), (2, 0))))
        return x + self.back(F.pad(y, (1, 0))).transpose(1, 2)

def model():
    return nn.Sequential(nn.Embedding(30, 16, padding_idx=3), Wide(), Torchs(), Grouped(), Convolved(), nn.Linear(16, 30))
'''


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("modules") / "mine.py"
    path.write_text(MINE)
    return f"{path}:model"


@dataclass(frozen=True)
class Layout:
    """Degrees, schedule and recompute of a training."""

    tp: int = 2
    pp: int = 1
    dp: int = 1
    schedule: str = "1f1b"
    recompute: str = "none"

    def run(self, source: Source, pool: Pool) -> JobResult:
        """Steps on random tokens in float64; every gradient comes back."""
        num, cluster = self.tp * self.pp * self.dp, Cluster.detect(self.tp * self.pp * self.dp)
        plan = Plan.of(
            MODEL, cluster, Workload(BATCH, SEQUENCE), dtype="float64", tp=self.tp, pp=self.pp, dp=self.dp,
            schedule=self.schedule, recompute=self.recompute, microbatch_size=1,
        ).placed(cluster)  # fmt: skip
        assert plan.num_devices == num
        pieces = executed_pieces(plan)
        training = TrainingConfig(
            MODEL, tuple(each.num_blocks for each in piece_layers(plan.stages(), pieces)), SEQUENCE, ADAMW,
            records_gradients=True, layout=TensorLayout.of(plan), data_axes=data_axes(plan), source=source,
        )  # fmt: skip
        program = lower(plan, registered()[plan.schedule], pieces=pieces)
        return pool.run(
            Job.of(program, ITERATIONS, training=training, dtype="float64"), places=device_order(plan)
        )


LAYOUTS = [
    Layout(tp=2),
    pytest.param(Layout(tp=2, pp=2), marks=pytest.mark.slow),
    pytest.param(Layout(tp=2, dp=2), marks=pytest.mark.slow),
    pytest.param(Layout(tp=2, pp=2, schedule="gpipe", recompute="full"), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_cut_modules_train_as_the_whole_ones(layout: Layout, mine: str, gloo_pool: Pool) -> None:
    result = layout.run(replace(RANDOM, modules=mine, tensor_rules=ALL), gloo_pool)
    whole = load_modules(mine, MODEL).double()
    optimizer = torch_optimizer(whole, ADAMW)
    for step in range(ITERATIONS):
        tokens, targets = RandomTokens(30).batch(0, step, range(BATCH), SEQUENCE)
        optimizer.zero_grad()
        loss = F.cross_entropy(whole(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        assert result.losses[step] == pytest.approx(float(loss), rel=TOLERANCE)
        wanted = {name: p.grad.clone() for name, p in whole.named_parameters()}
        assert result.gradients[step].keys() == wanted.keys()
        assert largest_difference(result.gradients[step], wanted) < TOLERANCE
        optimizer.step()
    trained = {name: p.detach() for name, p in whole.named_parameters()}
    assert largest_difference(result.parameters, trained) < ADAMW_TOLERANCE


def test_a_plan_trains_them_and_is_predicted_by_what_stands_for_them(mine: str, gloo_pool: Pool) -> None:
    plan = Plan.of(MODEL, Cluster.detect(2), Workload(BATCH, SEQUENCE), dtype="float32", tp=2)
    done = train_plan(
        plan, source=Source(modules=mine, tensor_rules=ALL, data=RANDOM.data), iterations=2, pool=gloo_pool
    )
    assert done.trace is not None and done.result.parameters.keys() >= {"1.up.weight", "3.q_proj.weight"}
    assert "ALL_REDUCE" not in names_of(done.trace.program) and "ALL_REDUCE" in names_of(
        done.predicted.program
    )
    with pytest.raises(ExecutionError, match="no rules to cut them by"):
        train_plan(plan, source=Source(modules=mine), iterations=2)


def names_of(program: Program) -> set[str]:
    """Of its rows."""
    return {program.tables.effects[effect].name for effect in program.columns.effect.tolist()}


def test_a_device_has_its_share_of_every_weight(mine: str) -> None:
    whole = load_modules(mine, MODEL)
    tree, rules = module_tree(whole), rules_of(whole, ALL, 2)
    matrices = [one for one in tree if len(one.shape) > 1]
    assert {rules[one.name].cut for one in matrices} == {"column", "row", "gathered", "table"}
    # half of every matrix, of what is added behind columns half, behind rows all
    by_hand = 2 * (30 * 16 // 2) + 30 // 2
    by_hand += 2 * 16 + 48 * 16 // 2 + 24 + 48 * 16 // 2 + 16
    by_hand += 2 * 16 + 48 * 16 // 2 + 24 + 16 * 16 // 2 + 16
    by_hand += 16 * 16 // 2 + 2 * (8 * 16 // 2) + 4 + 16 * 16 // 2 + 16
    by_hand += 24 * 16 * 3 // 2 + 12 + 16 * 24 * 2 // 2 + 16
    assert num_local_bytes(tree, rules, 2) == 4 * by_hand


REFUSED = {
    "a norm over what is cut": (
        ("self.down(F.gelu(self.up(self.norm(x))))", "self.down(F.normalize(self.up(self.norm(x)), dim=-1))"),
        r"module 1 \(Wide\) computes something else with its layers cut over 2 devices",
    ),
    "a count that is not asked": (
        ("view(B, S, self.num_heads, self.head_dim)", "view(B, S, 4, self.head_dim)"),
        r"module 3 \(Grouped\) fails with its layers cut over 2 devices: shape '\[2, 5, 4, 4\]'",
    ),
    "one head of keys": (
        ("num_kv_heads, self.head_dim = 4, 2, 4", "num_kv_heads, self.head_dim = 4, 1, 8"),
        r"cannot cut 3.k_proj.weight of a Linear over 2 devices: 1 key-value heads",
    ),
    "a layer of no known use": (
        (
            "self.norm, self.attention = nn.LayerNorm(16), ",
            "self.mix, self.norm, self.attention = nn.GRU(16, 16), nn.LayerNorm(16), ",
        ),
        r"cannot cut 2.mix.weight_ih_l0 of a GRU over 2 devices: 3072 bytes of no known use",
    ),
    "attention with a position of zeros": (
        ("nn.MultiheadAttention(16, 4, ", "nn.MultiheadAttention(16, 4, add_zero_attn=True, "),
        "add_zero_attn, cut over devices",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_to_be_right_is_refused(name: str, tmp_path: Path) -> None:
    (before, behind), message = REFUSED[name]
    assert before in MINE
    (tmp_path / "mine.py").write_text(MINE.replace(before, behind))
    whole = load_modules(f"{tmp_path / 'mine.py'}:model", MODEL)

    def cut(transport: InThreads) -> None:
        made = ModuleCut.of(whole, ALL, InnerTeam(transport.number, 2, transport))
        for number in range(len(whole)):
            made.module(number, MODEL, torch.float64)

    meeting, slots = threading.Barrier(2, timeout=30), dict[int, Tensor]()
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(cut, InThreads(number, meeting, slots)) for number in range(2)]:
            with pytest.raises(ExecutionError, match=message):
                done.result()


@dataclass
class InThreads:
    """A team of two threads of this process."""

    number: int
    meeting: threading.Barrier
    slots: dict[int, Tensor]
    group: Any = None

    def rank(self) -> int:
        """The thread's number."""
        return self.number

    def size(self) -> int:
        """Two."""
        return 2

    def all_of(self, own: Tensor) -> list[Tensor]:
        """What both have."""
        self.slots[self.number] = own.clone()
        self.meeting.wait()
        found = [self.slots[number] for number in range(2)]
        self.meeting.wait()
        return found

    def gather(self, whole: Tensor) -> list[Any]:
        """Done at once."""
        whole.copy_(torch.cat(self.all_of(whole.chunk(2)[self.number])))
        return []

    def combining(self, tensor: Tensor, *, is_maximum: bool, in_place: bool) -> Callable[[], Tensor]:
        """Summed at once."""
        return lambda: tensor.copy_(sum(self.all_of(tensor)))
