"""1F1B whose devices run ahead by twice as many forwards, so that every message has a compute to hide behind.

Paper:      On Optimizing the Communication of Model Parallelism, Yonghao Zhuang, Hexu Zhao, Lianmin Zheng et al., 2022,
            arXiv 2211.05322
Problem:    In 1F1B a stage waits for its neighbour's message and has nothing else to compute meanwhile.
Idea:       Stage s of p runs 2 (p - s) - 1 forwards ahead instead of p - s; a message then has a compute of another
            microbatch to run beside, for up to p - s - 1 more live activations.
Kind:       schedule
Use:        meshwright simulate --schedule eager_1f1b, or meshwright plan ... --fix schedule=eager_1f1b
Simulated:  any plan
Executed:   any plan on gloo
Differs:    none known
"""

from __future__ import annotations

from meshwright.systems.pipeline.eager_1f1b.mechanism import eager_1f1b

FILLS = {"schedule": "mechanism:eager_1f1b"}
CLAIMS = (
    {
        "claim": "forwards ahead of the first backward on stage {stage} of {stages}",
        "kind": "identity",
        "unit": "microbatches",
        "tolerance": 0.0,
        "reason": "the paper's rule",
        "how": "counted in the order",
        "by": "ahead",
        "cases": (({"stage": 0, "stages": 4}, 7), ({"stage": 3, "stages": 4}, 1)),
    },
)


def ahead(stage: int, stages: int) -> int:
    """Forwards before the first backward."""
    return eager_1f1b(stages, 4 * stages)[stage].index("B0")
