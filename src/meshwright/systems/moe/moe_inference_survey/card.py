"""The headings of a survey of inference with experts, each with the code here that is of it, or the reason why none is.

Paper:      A Survey on Inference Optimization Techniques for Mixture of Experts Models, Jiacheng Liu, Peng Tang, Wenfeng
            Wang, Yuhang Ren, Xiaofeng Hou, Pheng-Ann Heng, Minyi Guo, Chao Li, 2024, arXiv 2412.14219
Problem:    Work on inference with experts is of many kinds, and a library says of each whether it has it.
Idea:       Three levels: model (architecture, compression, skipping and merging of experts), system (expert parallelism,
            offloading, others), hardware; the leaves are the headings of its reading list.
Kind:       survey
Use:        meshwright run 'moe_inference_survey(model="EXPERTS")'; it says what there is for your own mixture of experts, as
            commands
Simulated:  no, because it is a list of what is
Executed:   no, because it is a list of what is; the page of docs is made from it
Differs:    1. The headings are those of the public reading list (MoE-Inf/awesome-moe-inference);
            the paper's text was not read.
            2. What changes the answers of a model is out of scope, with that as the reason.
"""

from __future__ import annotations

from meshwright.systems.moe.moe_inference_survey.mechanism import TAXONOMY, is_there

FILLS = {"job": "job:SurveyOfModel"}
SLOTS = ("weights", "expert_placement")  # that headings name
CLAIMS = (
    {
        "claim": "share of headings, {level} level, whose code is in the tree or that have a reason",
        "kind": "identity",
        "unit": "share",
        "tolerance": 1e-12,
        "reason": "a heading without both is a mistake of the list",
        "how": "files are read, and the names looked for",
        "by": "named_share",
        "source": "own",
        "cases": (({"level": "model"}, 1.0), ({"level": "system"}, 1.0), ({"level": "hardware"}, 1.0)),
    },
)  # fmt: skip


def named_share(level: str) -> float:
    """Of the headings of a level. Slots are looked up by the tests of the page, which know the catalog."""
    own = [topic for topic in TAXONOMY if topic.heading[0] == level]
    return sum(
        topic.why_not != "" or all(is_there(code, SLOTS) for code in topic.code) for topic in own
    ) / len(own)
