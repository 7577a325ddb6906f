// The tools above a timeline: search, what is lit up, zoom.
import type { RefObject } from "preact";
import { count } from "../quantity";
import type { Board } from "./board";
import type { Looks, Pictures } from "./pictures";
import { NEARER } from "./useHands";
import type { Pointing } from "./usePointing";

export function Tools({ board, shown, looks, look, pointing, box }: {
  board: Board; shown: Pictures; looks: Looks; look: (change: Partial<Looks>) => void; pointing: Pointing;
  box: RefObject<HTMLInputElement>;
}) {
  const { hits, hit, next, restart, show } = pointing;
  const search = (query: string): void => { look({ query }); restart(); };
  const onKey = (event: KeyboardEvent): void => {
    if (event.key === "Enter") { event.preventDefault(); next(event.shiftKey ? -1 : 1); }
    else if (event.key === "Escape") { search(""); show(null); event.stopPropagation(); }
  };
  return (
    <div class="tools" role="group" aria-label="What the timeline shows">
      <input ref={box} type="search" aria-label="Search instructions" placeholder="Search: F12, stage=2, mb=3…" value={looks.query}
        onInput={(event) => search(event.currentTarget.value)} onKeyDown={onKey} />
      <span class="hits" role="status">{looks.query.trim() ? `${hit >= 0 ? `${count(hit + 1)} of ` : ""}${count(hits)} found` : ""}</span>
      {hasPath(shown) && <Toggle on={looks.isCritical} set={(isCritical) => look({ isCritical })}>Critical path</Toggle>}
      {shown.traces.length > 1 && <Toggle on={looks.isDifferent} set={(isDifferent) => look({ isDifferent })}>Differences</Toggle>}
      {canUnfold(shown) && <Toggle on={looks.isUnfolded} set={(isUnfolded) => look({ isUnfolded })}>All devices</Toggle>}
      <span class="buttons">
        <button type="button" aria-label="Zoom out" onClick={() => board.zoom(1 / NEARER)}>−</button>
        <button type="button" aria-label="Zoom in" onClick={() => board.zoom(NEARER)}>+</button>
        <button type="button" onClick={() => board.all()}>All</button>
      </span>
    </div>
  );
}

export const hasPath = ({ paths }: Pictures): boolean => paths.some((path) => path !== null);

const canUnfold = ({ layouts, traces }: Pictures): boolean => layouts.some((each) => each.hasGroups)
  && traces.some((trace) => trace.groups.some(({ devices, count: many }) => many > 1 && devices.length >= many));

function Toggle({ on, set, children }: { on: boolean; set: (on: boolean) => void; children: string }) {
  return <button type="button" class="toggle" aria-pressed={on} onClick={() => set(!on)}>{children}</button>;
}
