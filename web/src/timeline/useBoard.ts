// The board of a timeline: takes what is drawn anew, begins where the address says, and tells when it rests.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { Board, gutterOf, type Panel } from "./board";
import type { View } from "./paint";
import type { Pictures } from "./pictures";
import { within } from "./window";

const TABLE_PAUSE_MS = 250; // the table follows the picture when it rests

/** `initial`: the window of the address; `onView` is told the window when it rests, null where all is seen. */
export function useBoard(
  { pictures, paths, layouts, whole }: Pictures, isCritical: boolean, initial?: View, onView?: (view: View | null) => void,
): Board {
  const board = useRef<Board | null>(null);
  const made = (board.current ??= new Board());
  const opened = (): View => initial ? within(initial.from, initial.to, made.whole) : { from: 0, to: made.whole };
  const isFirst = useRef(true), isSettled = useRef(false);
  useMemo(() => {
    made.take(whole, gutterOf(layouts));
    if (isFirst.current) made.view = opened();
    isFirst.current = false;
    made.panels = pictures.map((picture, place): Panel => ({
      ...(made.panels[place] ?? { lanes: null, scroller: null, memory: null, device: -1 }),
      hovered: -1, picture, path: isCritical ? paths[place] : null,
    }));
  }, [pictures, isCritical]);
  useEffect(() => { // another address was opened, or "back"
    if (!isSettled.current) { isSettled.current = true; return; }
    made.view = opened();
    made.redraw();
  }, [initial]);
  useResting(made, onView);
  useLayoutEffect(() => made.redraw()); // with the frame that shows the rest
  return made;
}

/** Draws the component again, and tells the address, when the window has rested. */
function useResting(board: Board, onView?: (view: View | null) => void): void {
  const [, rested] = useState(0);
  useEffect(() => {
    let resting: ReturnType<typeof setTimeout> | undefined;
    board.onView = (view) => {
      clearTimeout(resting);
      resting = setTimeout(() => {
        rested((n) => n + 1);
        onView?.(view.from <= 0 && view.to >= board.whole ? null : view);
      }, TABLE_PAUSE_MS);
    };
    return () => clearTimeout(resting);
  }, [onView]);
}
