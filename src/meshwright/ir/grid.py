"""The grid that error messages show: lists side by side, with an arrow at the position that is wrong."""

from __future__ import annotations

from meshwright.ir.program import Program

WIDTH = 8  # devices shown at most
MARGIN = 2  # positions shown before and behind the wrong one


def grid(program: Program, row: int) -> str:
    """Rows around ``row`` on its own and neighbouring devices, as text, an arrow at its position."""
    view = program.row(row)
    first = max(0, min(view.device - WIDTH // 2, program.num_lists - WIDTH))
    devices = range(first, min(first + WIDTH, program.num_lists))
    head = ["pos", *(f"dev{d}" for d in devices)]
    lines = [head]
    for position in range(max(0, view.position - MARGIN), view.position + MARGIN + 1):
        cells = [_cell(program, d, position) for d in devices]
        if any(cells):
            lines.append([str(position), *cells])
    widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
    text = []
    for line in lines:
        arrow = "   <-- here" if line[0] == str(view.position) else ""
        text.append(
            "  "
            + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            + arrow
        )
    return "\n".join(text)


def _cell(program: Program, device: int, position: int) -> str:
    row = int(program.offsets[device]) + position
    return program.text_of(row) if row < int(program.offsets[device + 1]) else ""
