// Which row is pointed at, in all traces at once: by the pointer, by a search, by a list.
import { useEffect, useState } from "preact/hooks";
import type { Board } from "./board";
import type { Shown } from "./Card";
import { NO_TWIN } from "./compared";
import type { Pictures } from "./pictures";

export interface Pointing {
  card: Shown | null; show: (next: Shown | null) => void; reveal: (trace: number, row: number) => void;
  hits: number; hit: number; next: (by: number) => void; restart: () => void; // of what a search found
}

export function usePointing(board: Board, { traces, twins, found }: Pictures): Pointing {
  const [card, setCard] = useState<Shown | null>(null);
  const [hit, setHit] = useState(-1);
  useEffect(() => setCard(null), [traces]);
  const twinOf = (from: number, row: number, to: number): number => {
    const first = from ? (twins[from]?.twin[row] ?? -1) : row;
    const twin = !to ? first : (twins[to]?.back[first] ?? -1);
    return twin === NO_TWIN ? -1 : twin;
  };
  const show = (next: Shown | null): void => {
    board.panels.forEach((panel, place) => {
      const { trace } = panel.picture;
      panel.hovered = !next ? -1 : next.trace === place ? next.row : twinOf(next.trace, next.row, place);
      panel.device = next ? (trace.lanes[trace.lane[Math.max(0, panel.hovered)]]?.device ?? -1) : -1;
    });
    board.redraw();
    setCard(next);
  };
  const reveal = (trace: number, row: number): void =>
    show({ trace, row, ...board.reveal(board.panels[trace], row), isPinned: true });
  const hits = found.reduce((sum, each) => sum + (each?.rows.length ?? 0), 0);
  const next = (by: number): void => {
    if (!hits) return;
    const place = (((hit + by) % hits) + hits) % hits;
    setHit(place);
    let left = place;
    found.forEach((each, trace) => {
      if (left >= 0 && left < (each?.rows.length ?? 0)) reveal(trace, each!.rows[left]);
      left -= each?.rows.length ?? 0;
    });
  };
  return { card, show, reveal, hits, hit, next, restart: () => setHit(-1) };
}
