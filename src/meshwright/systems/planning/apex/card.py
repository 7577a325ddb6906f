"""Search over replicas, stages and replicas of attention, each plan simulated under the whole load with its batches.

Paper:      APEX: An Extensible and Dynamism-Aware Simulator for Automated Parallel Execution in LLM Serving, Yi-Chien Lin,
            Woosuk Kwon, Ronald Pineda, Fanny Nina Paravecino, 2024, arXiv 2411.17651
Problem:    Which way to share a model and its requests serves a load soonest depends on the lengths of prompts and outputs,
            which rules of thumb do not look at.
Idea:       A model is a block that repeats, and a block is cells (attention, feed-forward, experts). A plan has r replicas of
            the model, p stages, and within a stage replicas of a cell: attention by data in d groups beside feed-forward by
            tensor over t devices, r p t = N, with collectives between cells. Only one block is searched. Every plan that fits
            is simulated with batches that change from step to step, and the one that ends first is taken. Here r p t d are
            tried in the order of a bound: the rows and decodes of all requests, at the best seconds for one that any step
            has, and no request before its own steps; behind the first plan whose bound is no less than the best time nothing
            can be sooner.
Kind:       planner
Use:        meshwright plan MODEL CLUSTER --requests FILE --planner apex
Simulated:  every step by kernels and collectives of the devices, batches by the scheduler that serves, memory of blocks
Executed:   no, because it chooses plans; what it names is served as any other plan
Differs:    1. Known errors of the authors' code (github.com/microsoft/apex_plus, commit 8769096) are not here, a test each:
            results are kept under a product of three numbers, so that requests overwrite each other; a plan that does not fit
            ends the search; TTFT is the seconds of one step, without waiting; a preempted request goes on for nothing; the
            clock of a pipeline counts one stage's seconds a step, so requests come p times later than they say; MFU counts 6
            FLOPs a parameter, which is training.
            2. Feed-forward is never replicated beside attention that is not: each weight would be there several times. All
            devices of a stage are used by both.
            3. Stages may have unequal numbers of blocks; prompts are cut into chunks; a step has the scheduler's limits in
            place of 64k tokens. Prefixes that are found again cost nothing.
            4. Groups that attend apart are taken to have equal parts of every batch, as in the authors' code.
            5. The 45 % of energy of the abstract is not among the claims. Here a device draws one power all the time, so of
            plans on the same devices the soonest is the one of least energy: a gain of 0 by construction. The authors'
            energies are of kernels measured at 810 and 1,980 MHz, in tables (profile/comp/H100-SXM-80GB) that could not be
            read here; no law of a clock is known by which to replace them.
            6. Of its README's example the file of requests is not published. 100 requests, 1,198 tokens of prompt and 209 of
            output in the mean, and 14.4 under way in a step follow from its figures: the claims take 100 equal requests of 14
            clients. Its memory for keys and values is taken as given: with the tables of the vocabulary, which it does not
            count, and NCCL's buffers the hybrid does not fit two H100 of 80 GB.
            7. The plans of the abstract's 3.37 x are not named. The rules of thumb are those of the repository's script; the
            pipeline is far the slower of them.
            8. Curves of NCCL on H100, by which exchanges are priced, were fitted on the authors' own times, among others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from meshwright.planner.serving.serving_search import ServingSearch
from meshwright.serving.fleet.fleet import serve
from meshwright.serving.fleet.replica import SimulatedReplica
from meshwright.serving.fleet.serving_plan import ServingPlan
from meshwright.serving.loop.arrivals import ClientArrivals
from meshwright.serving.loop.report import LatencyObjective, LoadReport
from meshwright.serving.request.arrival import ClosedLoop
from meshwright.serving.request.request import Request
from meshwright.serving.request.request_file import read_requests
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.forward_program import ForwardProgram
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.serving.simulated.step_table import StepTable
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.dtype import dtype_bytes
from meshwright.specs.model.parameter import block_parameters
from meshwright.systems.planning.apex.mechanism import soonest

FILLS = {"serving_planner": "mechanism:planned"}
CLAIMS = (
    {
        "claim": "{plan}: tokens of output a second",
        "kind": "predicted",
        "unit": "1/s",
        "tolerance": 0.25,
        "reason": "simulator against simulator: its kernels are measured in another engine, its requests are unequal",
        "how": "100 requests of the README's mean lengths from 14 clients, on its memory for keys and values",
        "by": "tokens_per_s",
        "source": "README of the authors' repository, Llama-3-70B on 2 H100",
        "null": {
            "nearest published row": "nearest_tokens_per_s",
            "bytes over bandwidth": "sheet_tokens_per_s",
        },
        "cases": (({"plan": "TP2"}, 336.752), ({"plan": "hybrid"}, 243.242), ({"plan": "PP2"}, 163.343)),
    },
    {
        "claim": "{plan}: time per token of output",
        "kind": "predicted",
        "unit": "ms",
        "tolerance": 0.25,
        "reason": "as the tokens a second",
        "how": "as the tokens a second; the mean of requests",
        "by": "tpot_ms",
        "source": "README of the authors' repository, Llama-3-70B on 2 H100",
        "null": {"nearest published row": "nearest_tpot_ms", "bytes over bandwidth": "sheet_tpot_ms"},
        "cases": (({"plan": "TP2"}, 44.064), ({"plan": "hybrid"}, 50.885), ({"plan": "PP2"}, 62.767)),
    },
    {
        "claim": "{plan}: seconds of the step that computes a prompt",
        "kind": "predicted",
        "unit": "ms",
        "tolerance": 0.25,
        "reason": "as the tokens a second; the README calls it TTFT, without waiting",
        "how": "one prompt of the mean length beside 13 decodes",
        "by": "prompt_step_ms",
        "source": "README of the authors' repository, Llama-3-70B on 2 H100",
        "null": {"nearest published row": "nearest_prompt_ms", "bytes over bandwidth": "sheet_prompt_ms"},
        "cases": (({"plan": "TP2"}, 200.707), ({"plan": "hybrid"}, 348.1), ({"plan": "PP2"}, 279.278)),
    },
    {
        "claim": "{plan}: share of a step's time in {part}",
        "kind": "predicted",
        "unit": "share",
        "tolerance": 0.25,
        "reason": "as the tokens a second; norms and the head are in none of its parts, and small",
        "how": "parts of steps that decode 14 requests, and of the one in 16 that computes a prompt, of all that is computed "
        "or sent. Of the hybrid the README's shares of the time without its 20.2 % of idling",
        "by": "share_of_part",
        "source": "README of the authors' repository, Llama-3-70B on 2 H100",
        "null": {"bytes over bandwidth": "sheet_share"},
        "cases": (
            ({"plan": "TP2", "part": "attention"}, 0.278),
            ({"plan": "TP2", "part": "feed-forward"}, 0.635),
            ({"plan": "TP2", "part": "exchanges"}, 0.087),
            ({"plan": "hybrid", "part": "attention"}, 0.376),
            ({"plan": "hybrid", "part": "feed-forward"}, 0.555),
            ({"plan": "hybrid", "part": "exchanges"}, 0.068),
        ),
    },
    {
        "claim": "{plan}: weights of blocks on a device",
        "kind": "identity",
        "unit": "GiB",
        "tolerance": 0.005,
        "reason": "the README has one decimal",
        "how": "2 bytes for each number of a block; attention's divided by the devices of a group, the others' by all",
        "by": "block_gib",
        "source": "README of the authors' repository, Llama-3-70B on 2 H100",
        "cases": (({"plan": "TP2"}, 63.8), ({"plan": "hybrid"}, 75.0), ({"plan": "PP2"}, 63.8)),
    },
    {
        "claim": "{row} on {devices} H100: measured mean time per token of output",
        "kind": "predicted",
        "unit": "ms",
        "tolerance": 0.25,
        "reason": "the host's part of a step is that of another version of the engine",
        "how": "the recorded requests at their times, limits of a step as they are usual here",
        "by": "measured_tpot_ms",
        "source": "vllm/results of the authors' repository: vLLM 0.6.0, Llama-3.1-70B, load creation_05",
        "null": {
            "nearest published row": "nearest_measured_tpot_ms",
            "bytes over bandwidth": "sheet_measured_tpot_ms",
        },
        "cases": (
            ({"row": "all requests", "devices": 8}, 17.721),
            ({"row": "all requests", "devices": 4}, 25.299),
            ({"row": "a replica of 2", "devices": 4}, 21.519),
            ({"row": "a replica of 4", "devices": 2}, 33.479),
        ),
    },
    {
        "claim": "{row} on {devices} H100: measured mean time to the first token",
        "kind": "predicted",
        "unit": "ms",
        "tolerance": 0.25,
        "reason": "as the time per token",
        "how": "as the time per token",
        "by": "measured_ttft_ms",
        "source": "vllm/results of the authors' repository: vLLM 0.6.0, Llama-3.1-70B, load creation_05",
        "null": {
            "nearest published row": "nearest_measured_ttft_ms",
            "bytes over bandwidth": "sheet_measured_ttft_ms",
        },
        "cases": (
            ({"row": "all requests", "devices": 8}, 48.283),
            ({"row": "all requests", "devices": 4}, 45.478),
            ({"row": "a replica of 2", "devices": 4}, 55.894),
            ({"row": "a replica of 4", "devices": 2}, 79.760),
        ),
    },
    {
        "claim": "the most that the search gains over a rule of thumb",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.25,
        "reason": "the abstract's 3.37 is the most of loads and models that it does not name",
        "how": "Llama-3.1-70B on 8 H100; the loads creation and a quarter of summarization, all requests at once; over all "
        "devices in one tensor-parallel group, and over all in one pipeline, as in the script",
        "by": "largest_gain",
        "source": "abstract; baselines of vllm/llama70b_baselines.sh",
        "null": {"no effect": 1.0},
        "cases": (({}, 3.37),),
    },
)
# Published figures that claim nothing: what they are, their values, and why.
LEFT_OUT: Mapping[str, tuple[tuple[float, ...], str]] = {
    "total seconds of TP2, hybrid, PP2 (README)": (
        (62.06, 85.92, 127.95),
        "the same tokens over the tokens a second",
    ),
    "kJ of TP2, hybrid, PP2 (README)": ((75.69, 85.91, 158.52), "energies of kernels; see Differs, 5"),
    "share of communication of PP2 (README)": ((0.0,), "0.04 of 127.95 s: printed as nothing"),
    "ms to the first token and per token, lmsys and summarization (vllm/results)": (
        (55.2, 32.6, 38.2, 20.1, 38.0, 14.1, 440.2, 41.2, 170.6, 24.8, 243.7, 15.9),
        "outputs ended before their recorded lengths (a quarter to two thirds of their tokens are missing), and which did is "
        "not told; of creation they are whole to 1 %",
    ),
    "minutes of a search (abstract)": ((15.0,), "of another machine"),
}

MODEL, GIB, MS = "llama-3.1-70b", 1 << 30, 1e3
PLANS = {
    "TP2": ReplicaLayout(2),
    "hybrid": ReplicaLayout(2, attention_dp=2),
    "PP2": ReplicaLayout(1, 2),
}
NEAREST = {"TP2": "hybrid", "hybrid": "TP2", "PP2": "hybrid"}  # the published plan most like each
# Of the README: requests, their mean tokens, those under way, and GiB for keys and values on a device.
NUM_REQUESTS, PROMPT, OUTPUT, CLIENTS = 100, 1198, 209, 14
KEYS_GIB = {"TP2": 16.2, "hybrid": 5.0, "PP2": 16.2}
BLOCK_TOKENS, MOST_CONTEXT = 16, 2048
LOADS = {
    "all requests": "creation_05",
    "a replica of 2": "creation_05_2dp4tp_0",
    "a replica of 4": "creation_05_4dp2tp_1",
}
NEAREST_ROW = {
    ("all requests", 8): ("all requests", 4),
    ("all requests", 4): ("a replica of 2", 4),
    ("a replica of 2", 4): ("all requests", 4),
    ("a replica of 4", 2): ("a replica of 2", 4),
}
OF_SEARCH = ("creation_05", "summarization_05_4dp2tp_0")
PARTS = {"attention": ("attention",), "feed-forward": ("mlp",), "exchanges": ("exchanges",)}
NULLS_OF = {"tokens": 0, "tpot": 1, "prompt": 2, "measured tpot": 5, "measured ttft": 6}  # places in CLAIMS


@cache
def requests_of(name: str) -> tuple[Request, ...]:
    """A load of the authors' repository (traces/llama, MIT licence): seconds, tokens of prompt and of output."""
    return tuple(read_requests(Path(__file__).with_name(f"{name}.csv")))


@cache
def program_of(layout: ReplicaLayout) -> ForwardProgram:
    """Steps of a layout on a node of H100s."""
    return ForwardProgram(load_model(MODEL), Cluster("1x8xH100"), layout)


@cache
def readme_report(plan: str) -> LoadReport:
    """The README's load on one of its plans."""
    layout, program = PLANS[plan], program_of(PLANS[plan])
    limits = ServingPlan(layout).limits(MOST_CONTEXT)
    attention = program.model.attention
    token_bytes = (
        (attention.key_size + attention.value_size) * program.model.num_layers * dtype_bytes(program.dtype)
    )
    share = layout.attention_tp * layout.pp  # of a token on a device
    num_blocks = int(KEYS_GIB[plan] * GIB * share / token_bytes / BLOCK_TOKENS) * layout.attention_dp
    steps = StepTable(program, limits.max_batch_tokens, limits.max_sequences, MOST_CONTEXT)
    replica = SimulatedReplica(steps, num_blocks, BLOCK_TOKENS, limits, layout.pp)
    requests = [Request(str(i), PROMPT, OUTPUT, 0.0, num_output_tokens=OUTPUT) for i in range(NUM_REQUESTS)]
    replica.serve(ClientArrivals(ClosedLoop(requests, CLIENTS)))
    return LoadReport.of([replica.log])


def tokens_per_s(plan: str) -> float:
    """Of output."""
    return readme_report(plan).output_tokens_per_s


def tpot_ms(plan: str) -> float:
    """Mean of requests."""
    return MS * readme_report(plan).tpot_s["mean"]


def prompt_step_ms(plan: str) -> float:
    """Through all stages."""
    return MS * program_of(PLANS[plan]).step(_with_prompt()).latency_s


def share_of_part(plan: str, part: str) -> float:
    """Of seconds of all parts."""
    program, decodes = program_of(PLANS[plan]), BatchShape.of((), CLIENTS, CLIENTS * _context())
    alone, beside = program.parts_s(decodes), program.parts_s(_with_prompt())
    number = (OUTPUT - 1) / CLIENTS  # steps that decode alone, for each with a prompt
    seconds = {name: number * alone[name] + beside[name] for name in alone}
    return sum(seconds[name] for name in PARTS[part]) / sum(seconds.values())


def block_gib(plan: str) -> float:
    """On the device with the most."""
    layout, model = PLANS[plan], load_model(MODEL)
    found = 0.0
    for each in block_parameters(model, 0):
        found += each.num_elements / (layout.attention_tp if each.is_attention else layout.tp)
    return found * model.num_layers / layout.pp * dtype_bytes("bfloat16") / GIB


@cache
def measured_report(row: str, devices: int) -> LoadReport:
    """The recorded requests, at their times."""
    program, requests = program_of(ReplicaLayout(devices)), requests_of(LOADS[row])
    plan = ServingPlan(ReplicaLayout(devices))
    most = max(each.num_prompt_tokens + each.max_output_tokens for each in requests)
    steps = StepTable(program, plan.max_batch_tokens, plan.max_sequences, most)
    return LoadReport.of(serve(plan, program, steps, requests, program.model.max_sequence_length).logs)


def measured_tpot_ms(row: str, devices: int) -> float:
    """Mean of requests."""
    return MS * measured_report(row, devices).tpot_s["mean"]


def measured_ttft_ms(row: str, devices: int) -> float:
    """Mean of requests, waiting included."""
    return MS * measured_report(row, devices).ttft_s["mean"]


def largest_gain() -> float:
    """Of loads and rules: seconds of the rule's plan over those of the search's."""
    gains = []
    for name in OF_SEARCH:
        requests = [replace(each, arrival_s=0.0) for each in requests_of(name)]
        search = ServingSearch(load_model(MODEL), Cluster("1x8xH100"), requests, LatencyObjective())
        best = soonest(search)[0].report.duration_s
        rules = search.served([ServingPlan(ReplicaLayout(8)), ServingPlan(ReplicaLayout(1, 8))], requests)
        gains += [each.report.duration_s / best for each in rules]
    return max(gains)


def nearest_tokens_per_s(plan: str) -> float:
    """Of the published plan most like it."""
    return _published("tokens", plan=NEAREST[plan])


def nearest_tpot_ms(plan: str) -> float:
    """Of the published plan most like it."""
    return _published("tpot", plan=NEAREST[plan])


def nearest_prompt_ms(plan: str) -> float:
    """Of the published plan most like it."""
    return _published("prompt", plan=NEAREST[plan])


def nearest_measured_tpot_ms(row: str, devices: int) -> float:
    """Of the other load on as many devices, else of the same on the next number of them."""
    row, devices = NEAREST_ROW[row, devices]
    return _published("measured tpot", row=row, devices=devices)


def nearest_measured_ttft_ms(row: str, devices: int) -> float:
    """As the time per token."""
    row, devices = NEAREST_ROW[row, devices]
    return _published("measured ttft", row=row, devices=devices)


def sheet_tpot_ms(plan: str) -> float:
    """Weights of all stages one behind the other, at the bandwidth of the data sheet."""
    device = program_of(PLANS[plan]).cluster.devices[0]
    return MS * block_gib(plan) * GIB * PLANS[plan].pp / device.memory_bandwidth_bytes_per_s


def sheet_tokens_per_s(plan: str) -> float:
    """Of as many requests as there are clients."""
    return MS * CLIENTS / sheet_tpot_ms(plan)


def sheet_prompt_ms(plan: str) -> float:
    """2 FLOPs a parameter and token, at the peak of the data sheet, on the devices that work at the same time."""
    return _sheet_prompt_ms(PLANS[plan].tp, PROMPT)


def sheet_share(plan: str, part: str) -> float:
    """Bytes of weights; nothing is sent."""
    layout, model = PLANS[plan], load_model(MODEL)
    attention = sum(each.num_elements for each in block_parameters(model, 0) if each.is_attention)
    others = sum(each.num_elements for each in block_parameters(model, 0)) - attention
    sizes = {
        "attention": attention / layout.attention_tp,
        "feed-forward": others / layout.tp,
        "exchanges": 0.0,
    }
    return sizes[part] / sum(sizes.values())


def sheet_measured_tpot_ms(row: str, devices: int) -> float:
    """Weights at the bandwidth of the data sheet."""
    device, model = program_of(ReplicaLayout(devices)).cluster.devices[0], load_model(MODEL)
    return MS * model.num_parameters * dtype_bytes("bfloat16") / devices / device.memory_bandwidth_bytes_per_s


def sheet_measured_ttft_ms(row: str, devices: int) -> float:
    """Of the mean prompt, at the peak of the data sheet."""
    requests = requests_of(LOADS[row])
    return _sheet_prompt_ms(devices, sum(each.num_prompt_tokens for each in requests) / len(requests))


def _sheet_prompt_ms(devices: int, tokens: float) -> float:
    device, model = program_of(ReplicaLayout(devices)).cluster.devices[0], load_model(MODEL)
    return MS * 2 * model.num_parameters * tokens / devices / device.peak_flops_per_s("bfloat16")


def _published(what: str, **arguments: object) -> float:
    cases = CLAIMS[NULLS_OF[what]]["cases"]
    assert isinstance(cases, tuple)
    return next(float(value) for given, value in cases if given == arguments)


def _context() -> int:
    """Tokens that a decode sees in the mean."""
    return PROMPT + OUTPUT // 2


def _with_prompt() -> BatchShape:
    return BatchShape.of([(0, PROMPT)], CLIENTS - 1, (CLIENTS - 1) * _context())
