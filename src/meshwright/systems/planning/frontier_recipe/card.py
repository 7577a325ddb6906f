"""Training GPT models of 22 billion to a trillion parameters on MI250X: degrees found by search, failures counted.

Paper:      Optimizing Distributed Training on Frontier for Large Language Models, Sajal Dash, Isaac Lyngaas, Junqi Yin,
            Xiao Wang, Romain Egele, Guojing Cong, Feiyi Wang, Prasanna Balaprakash, 2023, arXiv 2312.12705
Problem:    On nodes of eight GCDs with fast links inside and slow ones between, few of all layouts are fast, and many of
            them do not fit.
Idea:       Tensor parallelism of degree TP stays in a node, PP stages between nodes, optimizer states sharded over the
            DP replicas (ZeRO-1), all blocks recomputed. A state of 14 bytes a parameter on GCDs of 64 GB needs
            TP PP > 14 P / 64e9 without sharding. A search over (TP, PP, microbatch size) counts a layout that runs out
            of memory as a failure, and does not drop it. Rates are F / (n t): F = 96 B s l h^2 (1 + s/(6 h) + V/(16 l h))
            FLOPs of a step of t seconds on n GCDs (see systems/pipeline/megatron_lm/card.py), recompute counted.
Kind:       recipe
Use:        meshwright plan MODEL CLUSTER --global-batch BATCH --seq TOKENS --planner frontier_recipe
Simulated:  the step of a plan's program, computes and messages by the data sheet's roofline, times one constant
Executed:   no, because the rows need 16 GCDs or more
Differs:    1. No step was measured on MI250X, so computes are a roofline, in which kernels are as efficient for small
            shapes as for large ones. One constant, fitted on the 22B row, scales the rates of all rows.
            2. Rates are the abstract's shares of the peak (38.38, 36.14 and 31.96 %) of 191.5 TF/s. Layers, widths, TP, PP,
            microbatch and batch of 175B and 1T are from a summary of the paper, not from its tables, which we could not read;
            the widths give the names' parameters. The claims about the tuned layout rest on that summary.
            3. We do not know the layout of 22B: it is the fastest that our own search finds on 16 GCDs, with the batch of
            175B. How many GCDs the tuned jobs had is not known either: every row here is two replicas.
            4. A full enumeration instead of Bayesian optimisation: the space is small, and a prediction takes a moment.
            5. GCDs of a package have four links, those of different packages one (some two, which are not counted). A group
            runs two rings beside each other, as both GCDs of a package leave it on a link of their own: 100 GB/s. With one
            ring, as this card had it, tensor parallelism of degree 4 took twice as long, and the fall from 22B to 175B was
            19 % instead of 12 % (6 % in the abstract).
            6. The abstract's strong scaling names no batch and no least number of GCDs. Ours starts from the tuned jobs: 175B
            keeps 640 sequences from 128 to 1,024 GCDs, a miss (40 microbatches for 16 stages; at 5,120 sequences we have
            0.96); 1T keeps 1536 (the most below 1600 that the six replicas of 3,072 GCDs divide) from 1,024.
"""

from __future__ import annotations

FILLS = {"planner": "mechanism:planned"}
CLAIMS = (
    {
        "claim": "parameters of the {size} model, in billions",
        "kind": "identity",
        "unit": "billion",
        "tolerance": 0.01,
        "reason": "the paper names its models by two or three digits",
        "how": "12 l h^2 (1 + 13/(12 h) + (V+s)/(12 l h)), as the sum over the tensors of a GPT model of the row",
        "by": "mechanism:billion_parameters",
        "source": "the models' names",
        "cases": (({"size": "22B"}, 22), ({"size": "175B"}, 175), ({"size": "1T"}, 1000)),
    },
    {
        "claim": "TF/s of each GCD training {size}",
        "kind": "fitted on 22B",
        "unit": "TF/s",
        "tolerance": 0.15,
        "reason": "the project's tolerance for a predicted step",
        "how": "roofline of the plan's program times one constant fitted on 22B; paper_value is the abstract's share of "
        "191.5 TF/s",
        "by": "mechanism:teraflops",
        "source": "abstract",
        "null": {"no effect": 73.5},
        "cases": (({"size": "175B"}, 69.2), ({"size": "1T"}, 61.2)),
    },
    {
        "claim": "weak scaling of {size} from {first} to {last} GCDs, the batch of a replica kept",
        "kind": "predicted",
        "unit": "share",
        "tolerance": 0.05,
        "reason": "the abstract rounds to whole percents; the GCDs that the paper counts from are not in it",
        "how": "ratio of the predicted rates of a GCD; the constant drops out",
        "by": "mechanism:weak_scaling",
        "source": "abstract: 100 %",
        "null": {"perfect scaling": 1.0},
        "cases": (
            ({"size": "175B", "first": 128, "last": 1024}, 1.0),
            ({"size": "1T", "first": 1024, "last": 3072}, 1.0),
        ),
    },
    {
        "claim": "strong scaling of {size} from {first} to {last} GCDs, {global_batch} sequences a step",
        "kind": "predicted",
        "unit": "share",
        "tolerance": 0.15,
        "reason": "the project's tolerance for a predicted step",
        "how": "ratio of the predicted rates of a GCD; the constant drops out. First number of GCDs and batch are the tuned "
        "job's, as the abstract names none",
        "by": "mechanism:strong_scaling",
        "source": "abstract",
        "null": {"perfect scaling": 1.0},
        "cases": (
            ({"size": "175B", "first": 128, "last": 1024, "global_batch": 640}, 0.89),
            ({"size": "1T", "first": 1024, "last": 3072, "global_batch": 1536}, 0.87),
        ),
    },
    {
        "claim": "175B without sharded states: the least power of two TP PP that fits 64 GB",
        "kind": "predicted",
        "unit": "GCDs",
        "tolerance": 1e-9,
        "reason": "powers of two are equal or not",
        "how": "our memory estimate of every layout; paper_value is the first power of two above 14 P / 64 GB = 38.3",
        "by": "mechanism:least_model_parallel",
        "source": "a summary of the paper: 14 bytes a parameter",
        "null": {"bytes over bandwidth": "mechanism:least_memories"},
        "cases": (({"size": "175B"}, 64),),
    },
    {
        "claim": "175B on 128 GCDs: {what} of the fastest layout that fits",
        "kind": "predicted",
        "unit": "1",
        "tolerance": 1e-9,
        "reason": "whole numbers are equal or not",
        "how": "all layouts with ZeRO-1 predicted, those that do not fit counted as failures; paper_value is that of the "
        "paper's tuned job",
        "by": "mechanism:of_fastest",
        "source": "a summary of the paper; its tables were not read",
        "null": {"no effect": 1.0},
        "cases": (({"what": "nodes of a tensor-parallel group"}, 1), ({"what": "microbatch size"}, 1)),
    },
    {
        "claim": "175B on 128 GCDs: {what} of the fastest layout that fits",
        "kind": "predicted",
        "unit": "stages",
        "tolerance": 1e-9,
        "reason": "whole numbers are equal or not",
        "how": "as above",
        "by": "mechanism:of_fastest",
        "source": "a summary of the paper; its tables were not read",
        "null": {"no effect": 1.0},
        "cases": (({"what": "pipeline degree"}, 16),),
    },
)
