"""Synchronous pipeline training with microbatches and recomputed activations.

Paper:      GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism, Yanping Huang, Youlong Cheng,
            Ankur Bapna, Orhan Firat, Mia Xu Chen, Dehao Chen, HyoukJoong Lee, Jiquan Ngiam, Quoc V. Le, Yonghui Wu,
            Zhifeng Chen, 2019, arXiv 1811.06965
Problem:    A model that does not fit on one accelerator leaves all but one idle when its layers are spread over several.
Idea:       Cut the L layers into K stages and the batch of N samples into M microbatches; run all forwards, then all
            backwards in reverse order, and step once, so the result is that of one device. Idle are (K-1)/(M+K-1) of the
            time. A stage keeps only its inputs and runs its forward again before its backward: activations at the peak
            fall from N L/K to N + (L/K)(N/M) in units of one layer of one sample, for one more forward.
Kind:       schedule
Use:        meshwright plan MODEL CLUSTER --global-batch BATCH --seq TOKENS --fix schedule=gpipe,recompute=full
Simulated:  one step on virtual time; forward : backward = 1 : 2, recompute = forward; stages by a balance and a roofline
            of their layers, messages by the bytes at their boundary (image_network.py)
Executed:   F, R, B, SEND, RECV and STEP of a decoder on gloo processes, by the core's schedule and recompute pass
Differs:    1. Plans cut layers by count, the paper minimises the variance of their estimated costs. The claims about
            torchgpipe cut them as its benchmarks do, those about the paper's AmoebaNet by its rule (mechanism.balance).
            2. No batch normalisation in what is executed, so nothing about its statistics per microbatch.
            3. Recomputing all but the last microbatch is torchgpipe's, whose measurements most claims are about.
            4. Kernels are a roofline of the data sheet, equally fast for few and many samples, and nothing is fitted.
            AmoebaNet-D at 4,4 is predicted a fifth too fast: the same balance at 4,32 is met, so what is missing is not in
            the shares of its stages; what else differs between the two runs, torchgpipe does not say.
            5. The paper names no costs that its partitions balance. With FLOPs as costs the slow speed-ups of AmoebaNet on
            TPUs explain themselves: on a chip with so many FLOP/s for each byte a cell takes the time of its bytes, and of
            these the first cells, with the largest maps, have most. Equal FLOPs on 8 devices put a third of the time on one.
            6. A batch "was adjusted to fit memory": with one microbatch, where one device works at a time, 8 partitions are
            1.38 x as fast as 2. That is an input of the claims about AmoebaNet on TPUs.
            7. Left out: M = 4 of the paper's table on TPUs (K = 2, 4, 8: AmoebaNet 1.07, 1.26, 1.72, ours 1.14, 1.65, 2.38;
            Transformer 1.7, 3.2, 4.8, ours 1.47, 2.24, 3.03). M K / (M+K-1) is 2.9 for K = 8, so 4.8 is more than any
            pipeline of four microbatches can be faster than one device: its batch is another than that of M = 1. And the
            largest models of the paper's first table: what fits depends on the compiler, which it does not describe.
"""

from __future__ import annotations

# The project's own tolerance for a predicted step (15 %); what a claim leaves out has to fit into it.
CLAIMS = (
    {
        "claim": "idle share of the devices with K={num_partitions}, M={num_microbatches}: (K-1)/(M+K-1)",
        "kind": "identity",
        "unit": "share",
        "tolerance": 1e-9,
        "reason": "equal stages and free messages: the schedule's own arithmetic",
        "how": "bubble of the simulated step",
        "by": "mechanism:bubble_share",
        "source": "section 2.3",
        "cases": (
            ({"num_partitions": 4, "num_microbatches": 8}, 0.2727272727272727),
            ({"num_partitions": 8, "num_microbatches": 32}, 0.1794871794871795),
        ),
    },
    {
        "claim": "recompute divides peak activations by (L/K) / (1 + L/(K M)), K={num_partitions}, "
        "L={num_layers}, M={num_microbatches}",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.15,
        "reason": "O(N + L/K N/M) leaves out the output and the gradient under way: 2/M of N, 12.5 % of 2 N at M=8",
        "how": "ratio of the peaks of the simulated memory ledger, fullest device, no parameters",
        "by": "mechanism:memory_ratio",
        "source": "section 2.3, the two orders of memory",
        "null": {"no effect": 1.0},
        "cases": (
            ({"num_partitions": 4, "num_layers": 32, "num_microbatches": 8}, 4.0),
            ({"num_partitions": 8, "num_layers": 72, "num_microbatches": 32}, 7.024390243902439),
        ),
    },
    {
        "claim": "ResNet-101 on {num_partitions} devices, m={num_microbatches}, speed-up over one without pipeline",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.15,
        "reason": "the project's tolerance for a predicted step",
        "how": "paper_value measured by torchgpipe; ours: stages of its balance, their time and messages by a roofline of "
        "a P40's data sheet, all but the last microbatch recomputed",
        "by": "mechanism:resnet_speed_up",
        "source": "torchgpipe, docs/benchmarks.rst",
        "null": {"no effect": 1.0, "perfect scaling": "mechanism:all_busy"},
        "cases": (
            ({"num_partitions": 1, "num_microbatches": 2}, 0.853),
            ({"num_partitions": 2, "num_microbatches": 1667}, 1.414),
            ({"num_partitions": 4, "num_microbatches": 256}, 2.774),
            ({"num_partitions": 8, "num_microbatches": 150}, 4.294),
        ),
    },
    {
        "claim": "AmoebaNet-D speed-up over n,m = 2,1 at {num_partitions},{num_microbatches} (torchgpipe)",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.15,
        "reason": "the project's tolerance for a predicted step",
        "how": "paper_value measured by torchgpipe; ours: stages of its balance, their time and messages by a roofline of "
        "a P40's data sheet; a kernel as fast for few samples as for many",
        "by": "mechanism:amoebanet_speed_up",
        "source": "torchgpipe, docs/benchmarks.rst",
        "null": {"no effect": 1.0, "perfect scaling": "mechanism:all_busy"},
        "cases": (
            ({"num_partitions": 4, "num_microbatches": 1}, 1.004),
            ({"num_partitions": 8, "num_microbatches": 1}, 0.932),
            ({"num_partitions": 2, "num_microbatches": 4}, 1.539),
            ({"num_partitions": 4, "num_microbatches": 4}, 1.666),
            ({"num_partitions": 8, "num_microbatches": 4}, 2.621),
            ({"num_partitions": 2, "num_microbatches": 32}, 1.773),
            ({"num_partitions": 4, "num_microbatches": 32}, 2.709),
            ({"num_partitions": 8, "num_microbatches": 32}, 4.953),
        ),
    },
    {
        "claim": "AmoebaNet-D speed-up over 2,1 at {num_partitions},32 on TPUs (the paper)",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.15,
        "reason": "the project's tolerance for a predicted step",
        "how": "the paper's own value with one microbatch times what 32 microbatches gain: stages of equal FLOPs, their time "
        "by a roofline of a TPU v2 core's data sheet, messages free, all recomputed",
        "by": "mechanism:tpu_amoebanet_speed_up",
        "source": "Table 2",
        "null": {
            "no effect": "mechanism:one_microbatch",
            "perfect scaling": "mechanism:one_microbatch_all_busy",
        },
        "cases": (
            ({"num_partitions": 2}, 1.21),
            ({"num_partitions": 4}, 1.84),
            ({"num_partitions": 8}, 3.48),
        ),
    },
    {
        "claim": "Transformer-48 speed-up over 2,1 at {num_partitions},{num_microbatches} on TPUs (the paper)",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.15,
        "reason": "the project's tolerance for a predicted step",
        "how": "equal stages, messages free, all recomputed; a stage recomputes while it waits",
        "by": "mechanism:transformer_speed_up",
        "source": "Table 2",
        "null": {"no effect": 1.0, "perfect scaling": "mechanism:all_busy"},
        "cases": (
            ({"num_partitions": 4, "num_microbatches": 1}, 1.07),
            ({"num_partitions": 8, "num_microbatches": 1}, 1.3),
            ({"num_partitions": 2, "num_microbatches": 32}, 1.8),
            ({"num_partitions": 4, "num_microbatches": 32}, 3.4),
            ({"num_partitions": 8, "num_microbatches": 32}, 6.3),
        ),
    },
    {
        "claim": "{model} on GPUs without NVLink, speed-up over 2 partitions at {num_partitions}, M = 32 (the paper)",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.15,
        "reason": "the project's tolerance for a predicted step",
        "how": "Transformer: equal stages, messages free. AmoebaNet-D (18, 128): stages of equal FLOPs, a roofline of a "
        "P100's data sheet, messages over PCIe. All recomputed",
        "by": "mechanism:gpu_speed_up",
        "source": "Table 3",
        "null": {"no effect": 1.0, "perfect scaling": "mechanism:as_many_times"},
        "cases": (
            ({"model": "Transformer", "num_partitions": 4}, 1.8),
            ({"model": "Transformer", "num_partitions": 8}, 3.3),
            ({"model": "AmoebaNet-D", "num_partitions": 4}, 1.7),
            ({"model": "AmoebaNet-D", "num_partitions": 8}, 2.7),
        ),
    },
    {
        "claim": "here, two processes: recompute divides the measured peak of activations by M s / (M a + s), "
        "M={num_microbatches}",
        "kind": "measured",
        "unit": "x",
        "tolerance": 0.15,
        "reason": "as above: the formula leaves out what one microbatch has under way beside what it saves",
        "how": "live storages of the last stage, less parameters, optimizer and gradients; paper_value is the formula "
        "with s = 41004 bytes saved and a = 512 received a token by this decoder's stage",
        "by": "study:memory_ratio",
        "source": "the formula of the claim",
        "cases": (({"num_microbatches": 8}, 7.2734),),
    },
    {
        "claim": "here, two processes: speed-up of M={num_microbatches} over M=1 is 2 M / (M + 1)",
        "kind": "measured",
        "unit": "x",
        "tolerance": 0.15,
        "reason": "the project's tolerance for a predicted step",
        "how": "median ratio of 11 interleaved pairs of jobs on gloo; messages and unequal stages are in it",
        "by": "study:speed_up",
        "source": "the formula of the claim",
        "cases": (({"num_microbatches": 8}, 1.7778),),
    },
)
