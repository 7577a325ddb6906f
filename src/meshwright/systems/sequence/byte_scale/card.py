"""Every sequence on as few ranks as hold it, any number of them, short ones packed, and who is free first takes the next.

Paper:      ByteScale: Efficient Scaling of LLM Training with a 2048K Context Length on More Than 12,000 GPUs, Hao Ge,
            Junda Feng, Qi Huang, Fangcheng Fu, Xiaonan Nie, Lei Zuo, Haibin Lin, Bin Cui, Xin Liu, 2025, arXiv 2502.21231
Problem:    A context-parallel degree for the longest sequence lets the keys and values of all short ones travel, too.
Idea:       A rank has room for C tokens. A sequence of s tokens gets D = ceil(s / C) ranks, also 3 or 96, and short ones are
            packed to C. A layer's activations may wait in the host's memory where its forward hides the way: a share r <=
            T(s) B / Act(s), with T seconds, B bytes per second and Act bytes of a layer; with all l layers but the first and
            last D = ceil((2 + (1 - r) (l - 2)) Act(s) / (l Act(C))). What this gives is dealt out longest first to who is
            free first; all ranks keep one order of sequences, so sends between pairs of them cannot deadlock. Gradients are
            sums over tokens, so ranks may run different numbers of microbatches.
Kind:       packing
Use:        meshwright plan MODEL CLUSTER --global-batch BATCH --seq TOKENS --lengths LENGTHS --sequence-groups byte_scale;
            meshwright train PLAN --data TEXT --iterations STEPS --sequence-groups "byte_scale(tokens=8192)"
Simulated:  steps of the paper's 7B job: attention, linear layers, rings at a NIC's rate beside attention, what offloading
            does not hide, waiting for the ranks of a group, reading the data, reducing gradients
Executed:   its groups train on gloo: three processes for one sequence, packed short ones on a fourth, against one process
Differs:    1. The paper hides its devices. Layer times are its own, which are of eight A100 by their rate (41 to 48 % of the
            peak); a NIC of 25 GB/s a device is MegaScale's, on which it ran; 25 GB/s to 125 GB of host memory a device are
            ours. The data sets are its published tails, with a body that is ours (published_lengths.py of the family).
            2. What hangs on the hardware: static steps are rings at the NIC's rate, whatever the lengths, so their seconds go
            with its inverse, and so does what one sequence of 2,048K takes at least, on any number of ranks (134 s, which is
            as long as our balanced steps). Only what is short beside it would change with the devices.
            3. The least share that has to be offloaded is derived anew: l / (l - 2) (1 - D Act(C) / Act(s)). The printed
            bound, min(1, l Act(C) / ((l - 2) Act(s))), is what that leaves of l / (l - 2), with one rank.
            4. Offloading all that is hidden would give 2,048K tokens 16 ranks and half an hour. So host memory bounds it, and
            a sequence that takes more than half of a rank's mean seconds gets more ranks, up to those that hold it without.
            The half is ours: a quarter or one move the factors of the ablation by 7 % at most. Where it ends earlier, those
            that are offloaded get as many ranks as fill all beside each other: of 64 four times 16 rather than 13.
            5. A rank is behind when it is free first, without a least difference delta; while it waits for the others of a
            long sequence it takes what fits there. Where ranks have fewer than eight groups each, packs of 0.6 to 0.95 of C
            tokens are tried, too: full ones leave some ranks a pack more than others.
            6. Longer contexts cost more here (1.5 for a doubling) than is published (1.23 naive, 1.08 balanced): by the
            paper's own factors static steps at 256K would be twice as fast as naive ones.
            7. Remote loading is a term of its own: without it every node reads all tokens of a step before the step, at the
            rate that tokenizers tell. Nothing else of the data's way is modelled.
            8. Models beyond 7B are left out: no layer times of them are published.
            9. Programs of groups offload whole segments, to the nearest of the share; costs fitted to plans have no rate.
"""

from __future__ import annotations

FILLS = {"sequence_groups": "mechanism:ByteScale"}
CLAIMS = (
    {
        "claim": "here, 4 processes, groups of 3 and 1 by byte_scale: largest difference of a gradient to one process",
        "kind": "measured",
        "unit": "absolute",
        "tolerance": 1e-10,
        "reason": "the project's acceptance in float64",
        "how": "seven sequences of 2 to 41 tokens, 16 a rank, uneven numbers of microbatches; one process has one at a time",
        "by": "study:gradient_difference",
        "source": "the mechanism: gradients are sums over tokens, whoever has them",
        "cases": (({}, 0.0),),
    },
    {
        "claim": "{data}: share of {what} in sequences of at least {least}K",
        "kind": "identity",
        "unit": "share",
        "tolerance": 0.1,
        "reason": "drawn from bins that are made of these shares",
        "how": "sixty drawn steps of 32M tokens",
        "by": "published_job:tail",
        "source": "section 2, figure of lengths",
        "cases": (
            ({"data": "Byted", "what": "sequences", "least": 2048}, 0.0005),
            ({"data": "Byted", "what": "tokens", "least": 2048}, 0.121),
            ({"data": "Byted", "what": "sequences", "least": 128}, 0.01),
            ({"data": "Byted", "what": "tokens", "least": 128}, 0.443),
            ({"data": "Byted", "what": "tokens", "least": 256}, 0.37),
            ({"data": "Byted", "what": "sequences", "least": 4}, 0.20),
            ({"data": "GitHub", "what": "tokens", "least": 128}, 0.162),
            ({"data": "GitHub", "what": "tokens", "least": 256}, 0.098),
        ),
    },
    {
        "claim": "7B, 1,024 devices, {context}K, {data}: static over balanced, remotely loaded step",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.25,
        "reason": "the most that a prediction may be off; devices and the body of the lengths are not published",
        "how": "mean of twenty drawn steps of 32M tokens, published layer times, a NIC's rate; nothing of these is fitted",
        "by": "published_job:headline",
        "source": "figure of end-to-end speed-ups",
        "null": {"no effect": 1.0},
        "cases": (({"data": "GitHub", "context": 2048}, 7.89), ({"data": "Byted", "context": 2048}, 4.26)),
    },
    {
        "claim": "7B, 2,048K, Byted: static step over that with {step}, each with those before it",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.25,
        "reason": "as above",
        "how": "as above; the null is the paper's factor without this step of the ablation",
        "by": "published_job:gain",
        "source": "figure of the ablation",
        "null": {"no effect": "published_job:gain_before"},
        "cases": (
            ({"step": "dynamic communication"}, 1.59),
            ({"step": "offload"}, 2.01),
            ({"step": "balance"}, 3.69),
            ({"step": "remote loading"}, 3.89),
        ),
    },
    {
        "claim": "7B, 2,048K, Byted: pairs of the ablation's neighbours of which the later is faster",
        "kind": "predicted",
        "unit": "pairs",
        "tolerance": 1e-9,
        "reason": "an order holds or not",
        "how": "as above",
        "by": "published_job:num_ordered",
        "source": "figure of the ablation",
        "null": {"no effect": 0.0},
        "cases": (({}, 4),),
    },
    {
        "claim": "7B, 2,048K, Byted: seconds of a step, {step}",
        "kind": "predicted",
        "unit": "s",
        "tolerance": 0.25,
        "reason": "as above",
        "how": "as above; the null divides all computes evenly, or is the bytes of rings over the NIC",
        "by": "published_job:step_seconds",
        "source": "8m40s, 4m32s, 2m37s in the text",
        "null": {"bytes over bandwidth": "published_job:least_seconds"},
        "cases": (({"step": "static"}, 520.0), ({"step": "offload"}, 272.0), ({"step": "balance"}, 157.0)),
    },
    {
        "claim": "7B, Byted: by what a {step} step is slower for twice the context, from 256K to 2,048K",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.25,
        "reason": "as above",
        "how": "as above",
        "by": "published_job:doubling",
        "source": "text on throughput for doubled contexts",
        "null": {"no effect": 1.0},
        "cases": (({"step": "static"}, 2.0), ({"step": "offload"}, 1.23), ({"step": "balance"}, 1.08)),
    },
    {
        "claim": "7B, 2,048K, Byted: {which} of the seconds that ranks are busy, dealt out naively",
        "kind": "predicted",
        "unit": "s",
        "tolerance": 0.25,
        "reason": "as above",
        "how": "as above, median of twenty steps; the null has every rank as busy as the mean",
        "by": "published_job:rank_seconds",
        "source": "figure of execution times of ranks",
        "null": {"mean of inputs": "published_job:even_rank_seconds"},
        "cases": (
            ({"which": "least"}, 60.0),
            ({"which": "most"}, 279.0),
            ({"which": "standard deviation"}, 68.0),
        ),
    },
    {
        "claim": "2,048K, Byted: share of a static microbatch that is communication",
        "kind": "predicted",
        "unit": "share",
        "tolerance": 0.01,
        "reason": "less than what is left for computes",
        "how": "seconds of rings over those of the group; the null is rings alone",
        "by": "published_job:communication_share",
        "source": "text on static context parallelism",
        "null": {"bytes over bandwidth": 1.0},
        "cases": (({}, 0.976),),
    },
    {
        "claim": "{length}K on {degree} ranks: seconds over those of its computes",
        "kind": "predicted",
        "unit": "x",
        "tolerance": 0.1,
        "reason": "what is hidden costs nothing; a tenth may be seen",
        "how": "hops beside attention; the null runs them one behind the other",
        "by": "published_job:alone_ratio",
        "source": "text: computes hide what 39 ranks send for a sequence of 312K",
        "null": {"bytes over bandwidth": "published_job:one_behind_the_other"},
        "cases": (({"length": 312, "degree": 39}, 1.0),),
    },
    {
        "claim": "64K, ratio {ratio}, {state_bytes} bytes of state a parameter over {tp} devices: share of memory it saves",
        "kind": "predicted",
        "unit": "share",
        "tolerance": 0.25,
        "reason": "what else lies in memory is not published, so three pictures of it are claimed",
        "how": "8K tokens a device; bfloat16 parameters and gradients of 2 or 4 bytes; all layers but two wait elsewhere",
        "by": "published_job:saved_memory",
        "source": "figure of offloading at 64K",
        "null": {"no effect": 0.0, "mean of inputs": "published_job:every_layer_saved"},
        "cases": (
            ({"ratio": 0.5, "state_bytes": 4, "tp": 1}, 0.323),
            ({"ratio": 0.5, "state_bytes": 6, "tp": 1}, 0.323),
            ({"ratio": 0.5, "state_bytes": 6, "tp": 8}, 0.323),
        ),
    },
    {
        "claim": "{length}K: seconds that offloading a ratio of {ratio} adds",
        "kind": "predicted",
        "unit": "s",
        "tolerance": 0.01,
        "reason": "a hundredth of a second of the twelve that it takes",
        "how": "bytes at 25 GB/s each way beside published layer times; the null has nothing beside them",
        "by": "published_job:offload_seconds",
        "source": "figure of offloading at 64K: at no cost",
        "null": {"bytes over bandwidth": "published_job:offload_in_turn"},
        "cases": (({"length": 64, "ratio": 0.5}, 0.0),),
    },
)
