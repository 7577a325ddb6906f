// Pointer and keyboard of a timeline: gestures on its canvases, and the keys that work anywhere on the page.
import type { RefObject } from "preact";
import { useEffect, useRef, type MutableRef } from "preact/hooks";
import type { Board } from "./board";
import { listen, type Hands } from "./gestures";
import { numberAt } from "./trace";
import type { Pointing } from "./usePointing";
import { within } from "./window";

type Live = MutableRef<{ pointing: Pointing; onStage?: (stage: number) => void }>;

/** Listens on the canvases of so many traces, and to the width of the page. */
export function useHands(board: Board, count: number, pointing: Pointing, onStage?: (stage: number) => void): void {
  const live = useRef({ pointing, onStage });
  live.current = { pointing, onStage };
  useEffect(() => {
    const stops = board.panels.map((panel, trace) => panel.lanes && listen(panel.lanes, handsOf(board, trace, live)));
    const resized = new ResizeObserver(() => board.redraw());
    if (board.axis) resized.observe(board.axis);
    return () => { stops.forEach((stop) => stop?.()); resized.disconnect(); board.stop(); };
  }, [count]);
}

function handsOf(board: Board, trace: number, live: Live): Hands {
  const panel = () => board.panels[trace]; // another one after every new picture
  return {
    view: () => board.view, whole: () => board.whole, gutter: () => board.gutter, width: () => board.width,
    isEngaged: () => document.activeElement === panel().lanes, show: (view) => board.show(view),
    hover: (x, y, clientX, clientY) => {
      const { card, show } = live.current.pointing;
      if (card?.isPinned) return;
      const { row, device } = board.find(panel(), x, y);
      if (row >= 0) { if (card?.row !== row) show({ trace, row, x: clientX, y: clientY, isPinned: false }); }
      else if (card) show(null);
      if (panel().device !== device) { panel().device = device; board.redraw(); }
    },
    leave: () => { if (live.current.pointing.card && !live.current.pointing.card.isPinned) live.current.pointing.show(null); },
    click: (x, y, clientX, clientY) => {
      const { row } = board.find(panel(), x, y), shown = panel().picture.trace;
      live.current.pointing.show(row < 0 ? null : { trace, row, x: clientX, y: clientY, isPinned: true });
      if (row < 0 || numberAt(shown.microbatch, row) === null) return; // of no single stage
      const stage = numberAt(shown.stage, row);
      if (stage !== null) live.current.onStage?.(stage);
    },
  };
}

/** "/" goes to the search, Escape closes the card. */
export function usePageKeys(box: RefObject<HTMLInputElement>, pointing: Pointing): void {
  const live = useRef(pointing);
  live.current = pointing;
  useEffect(() => {
    const pressed = (event: KeyboardEvent): void => {
      const target = event.target as HTMLElement;
      if (event.key === "/" && !/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) && !event.ctrlKey && !event.metaKey) {
        event.preventDefault();
        box.current?.focus();
      } else if (event.key === "Escape" && live.current.card) live.current.show(null);
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

/** What a key does on the lanes: moves the window, goes to the next hit, or what `more` says. */
export function laneKeys(board: Board, pointing: Pointing, more: Record<string, () => void>): (event: KeyboardEvent) => void {
  const span = (): number => board.view.to - board.view.from;
  return (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const actions: Record<string, () => void> = {
      "+": () => board.zoom(NEARER), "=": () => board.zoom(NEARER), "-": () => board.zoom(1 / NEARER), "0": () => board.all(),
      ArrowLeft: () => board.pan(-STEP), ArrowRight: () => board.pan(STEP),
      Home: () => board.show(within(0, span(), board.whole)), End: () => board.show(within(board.whole, board.whole + span(), board.whole)),
      Enter: () => pointing.next(event.shiftKey ? -1 : 1), ...more,
    };
    if (actions[event.key]) { event.preventDefault(); actions[event.key](); }
  };
}

export const NEARER = 0.6; // of the window, at a key or button
const STEP = 0.2; // of the window, at an arrow
