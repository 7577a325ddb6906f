"""A document of every kind of section, small enough to read: 1F1B of four devices and eight microbatches, twice."""

from __future__ import annotations

import base64
from itertools import pairwise
from typing import Any

import numpy as np

from meshwright.workbench.document.document import plain_json
from meshwright.workbench.document.drawn.kind import drawn_kinds

DEVICES, MICROBATCHES = 4, 8
FORWARD_S, BACKWARD_S, SEND_S = 0.010, 0.020, 0.001
UNFRIENDLY = "<script>alert(1)</script>"  # a name that somebody else chose
NAMES = ["F", "B", "SEND"]
KINDS: list[dict[str, str]] = plain_json(drawn_kinds(NAMES, ["COMPUTE", "COMPUTE", "SEND"])[0])


def column(values: Any, dtype: str) -> dict[str, Any]:
    found = np.asarray(values, dtype="<" + dtype)
    return {"dtype": dtype, "count": int(found.size), "base64": base64.b64encode(found.tobytes()).decode()}


def rows(slower: float) -> list[tuple[int, float, float, int, int]]:
    """Lane, start, end, kind and microbatch of every instruction; lane 2d computes, 2d + 1 sends."""
    order = {
        device: [("F", m) for m in range(DEVICES - device)]
        + [
            each
            for m in range(MICROBATCHES)
            for each in (("B", m), ("F", m + DEVICES - device))
            if each[1] < MICROBATCHES
        ]
        for device in range(DEVICES)
    }
    ends: dict[tuple[str, int, int], float] = {}
    found: list[tuple[int, float, float, int, int]] = []
    free = [0.0] * DEVICES
    while any(order.values()):
        for device, waiting in order.items():
            while waiting:
                name, m = waiting[0]
                before = (name, m, device + (1 if name == "B" else -1))
                is_first = device == (DEVICES - 1 if name == "B" else 0)
                if is_first and name == "B":
                    before, is_first = ("F", m, device), False
                if not is_first and before not in ends:
                    break
                start = max(free[device], ends.get(before, 0.0))
                end = start + slower * (BACKWARD_S if name == "B" else FORWARD_S)
                free[device] = ends[name, m, device] = end
                found.append((2 * device, start, end, int(name == "B"), m))
                found.append((2 * device + 1, end, end + SEND_S, 2, m))
                waiting.pop(0)
    return sorted(found)


def trace(label: str, source: str, slower: float) -> dict[str, Any]:
    lane, start, end, kind, microbatch = (np.array(each) for each in zip(*rows(slower)))
    return {
        "label": label,
        "source": source,
        "span_s": float(end.max()),
        "devices": [f"pp{device}" for device in range(DEVICES)],
        "groups": [{"name": f"pp{device}", "devices": [device], "count": 2} for device in range(DEVICES)],
        "lanes": [{"device": d, "stream": each} for d in range(DEVICES) for each in ("compute", "send")],
        "kinds": KINDS,
        "names": NAMES,
        "columns": {
            "lane": column(lane, "u1"),
            "start_s": column(start, "f4"),
            "end_s": column(end, "f4"),
            "kind": column(kind, "u1"),
            "name": column(kind, "u1"),
            "stage": column(lane // 2, "u1"),
            "microbatch": column(microbatch, "i4"),
            "critical": column(lane == 0, "u1"),
            "bytes": column(np.where(kind == 2, 1e6, 0), "f4"),
        },
        "memory": [
            {
                "device": d,
                "time_s": column([0, 0.1, 0.2], "f4"),
                "bytes": column([1e9, (5 - d) * 1e9, 2e9], "f4"),
            }
            for d in range(DEVICES)
        ],
        "cap_bytes": 8e9,
        "is_sampled": False,
    }


def table(first: str) -> dict[str, Any]:
    return {
        "columns": [
            {"key": "plan", "title": "Plan", "is_number": False},
            {"key": "", "title": "", "is_number": True},  # some tables have a column without a head
            {"key": "step", "title": "Step", "is_number": True},
        ],
        "rows": [
            {"plan": first, "step": "900 ms"},
            {"plan": "dp4", "step": "1.2 s"},
            {"plan": "tp4", "step": "70 ms"},
        ],
    }


def sections() -> list[dict[str, Any]]:
    nodes = [
        {"id": str(d), "label": f"pp{d}", "x": d / 3, "y": 0.5, "kind": "device"} for d in range(DEVICES)
    ]
    links = [
        {
            "from": a["id"],
            "to": b["id"],
            "label": "activations",
            "bytes": 1e9,
            "busy_share": 0.9 - 0.3 * place,
        }
        for place, (a, b) in enumerate(pairwise(nodes))
    ]
    points = [
        {"x": x, "y": 1 / x, "label": f"plan {x}", "id": f"dp={x}", "is_best": x < 3} for x in (1, 2, 4)
    ]
    parts = [
        {"name": UNFRIENDLY, "seconds": 0.2, "kind": "products"},
        {"name": "waiting", "seconds": 0.1, "kind": ""},
    ]
    line = {"label": "loss", "x": column(range(9), "f8"), "y": column(np.exp(-np.arange(9.0)), "f8")}
    return [
        {"type": "composition", "title": "Where the step goes", "parts": parts, "total_s": 0.3},
        {"type": "plans", "title": "Plans", **table(UNFRIENDLY), "ids": ["", "", ""], "chosen": 1},
        {
            "type": "frontier",
            "title": "Frontier",
            "points": points,
            "x_title": "seconds",
            "y_title": "price",
            "x_unit": "s",
        },
        {"type": "topology", "title": "Communication", "nodes": nodes, "links": links},
        {"type": "series", "title": "Loss", "lines": [line], "x_title": "step", "y_title": "nats"},
        {"type": "table", "title": "Memory", **table("pp0")},
        {
            "type": "binds",
            "title": "What would help",
            "items": [{"name": "links", "share": 0.1, "text": "Faster."}],
        },
    ]


def timeline(*traces: dict[str, Any]) -> dict[str, Any]:
    return {"type": "timeline", "id": "timeline", "title": "Timeline", "note": "", "traces": list(traces)}


def two_traces() -> dict[str, Any]:
    """Of which the second takes a tenth longer."""
    return timeline(trace("predicted", "simulated", 1.0), trace("measured", "measured", 1.1))


def page(kind: str, title: str, subtitle: str, facts: dict[str, str], shown: list[Any]) -> dict[str, Any]:
    """A document; facts have the same small print."""
    return {
        "schema": "meshwright-view 1",
        "kind": kind,
        "title": title,
        "subtitle": subtitle,
        "facts": [{"name": name, "value": value, "note": UNFRIENDLY} for name, value in facts.items()],
        "notes": ["made by hand"],
        "sections": shown,
    }


def document() -> dict[str, Any]:
    """Two traces and one of each other section."""
    facts = {"step": "310 ms"}
    return page("comparison", UNFRIENDLY, "predicted beside measured", facts, [two_traces(), *sections()])


def plan_page() -> dict[str, Any]:
    """One trace, what its step is made of, and the plans beside it."""
    facts = {"step": "310 ms", "tokens/s": "212,000", "MFU": "41 %", "bubble": "27 %", "peak memory": "4 GB"}
    words = [
        ("forward", 0.11),
        ("backward", 0.11),
        ("waiting for the pipeline", 0.06),
        ("optimizer step", 0.03),
    ]
    parts = [{"name": name, "seconds": seconds, "kind": "products"} for name, seconds in words]
    made_of = {"type": "composition", "title": "What a step is made of", "parts": parts, "total_s": 0.31}
    beside = [each for each in sections() if each["type"] in ("plans", "frontier")]
    shown = [timeline(trace("plan", "simulated", 1.0)), made_of, *beside]
    return page("plan", "Four stages, eight microbatches", "1F1B on eight devices", facts, shown)


def comparison_page() -> dict[str, Any]:
    """Two traces and nothing else."""
    facts = {"predicted": "310 ms", "measured": "341 ms"}
    return page("comparison", "Predicted and measured", "1F1B on eight devices", facts, [two_traces()])
