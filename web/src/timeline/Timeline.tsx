// A timeline section: traces under one another on one time axis, with search, differences and memory.
import { useMemo, useRef, useState } from "preact/hooks";
import type { Trace } from "../document";
import { useTheme } from "../theme";
import { OVERVIEW_PX, type Board } from "./board";
import { Card, sentence } from "./Card";
import { Differences } from "./Differences";
import { Figure } from "./Figure";
import { Legend } from "./Legend";
import type { View } from "./paint";
import { usePictures, type Looks } from "./pictures";
import { RowTable } from "./RowTable";
import { hasPath, Tools } from "./Tools";
import { useBoard } from "./useBoard";
import { laneKeys, useHands, usePageKeys } from "./useHands";
import { usePointing } from "./usePointing";
import { within } from "./window";

export interface TimelineProps {
  id: string; title: string; note?: string; traces: Trace[];
  initial?: View; onView?: (view: View | null) => void; onStage?: (stage: number) => void;
}

const NOTHING: Looks = { query: "", isCritical: false, isDifferent: false, isUnfolded: false };

export function Timeline(props: TimelineProps) {
  const [looks, setLooks] = useState(NOTHING);
  const look = (change: Partial<Looks>): void => setLooks((now) => ({ ...now, ...change }));
  const shown = usePictures(props.traces, looks, useTheme());
  const board = useBoard(shown, looks.isCritical, props.initial, props.onView);
  const pointing = usePointing(board, shown);
  const box = useRef<HTMLInputElement>(null);
  useHands(board, shown.traces.length, pointing, props.onStage);
  usePageKeys(box, pointing);
  const { traces, layouts, twins } = shown, { card, reveal } = pointing;
  const onKey = laneKeys(board, pointing, {
    c: () => { if (hasPath(shown)) look({ isCritical: !looks.isCritical }); },
    d: () => { if (traces.length > 1) look({ isDifferent: !looks.isDifferent }); },
  });
  const lit = useMemo(() => shown.found.map((each) => each?.is ?? null), [shown.found]);
  return (
    <section class="timeline" aria-labelledby={`${props.id}-title`}>
      <h2 id={`${props.id}-title`}>{props.title}</h2>
      {props.note && <p class="note">{props.note}</p>}
      <Tools board={board} shown={shown} looks={looks} look={look} pointing={pointing} box={box} />
      <Legend traces={traces} isDifferent={looks.isDifferent} />
      <canvas class="overview" style={{ height: `${OVERVIEW_PX}px` }} ref={(canvas) => { board.overview = canvas; }} aria-hidden="true"
        onPointerDown={(event) => jump(board, event)} onPointerMove={(event) => event.buttons & 1 && jump(board, event)} />
      {traces.map((trace, place) => (
        <Figure key={place} trace={trace} layout={layouts[place]} panel={board.panels[place]} onKey={onKey} onScroll={() => board.redraw()}
          label={`${props.title}, ${trace.label}`} />
      ))}
      <canvas class="axis" ref={(canvas) => { board.axis = canvas; }} aria-hidden="true" />
      <p class="hint">
        Drag to move, click then scroll (or pinch) to zoom; keys: arrows, + − 0, Home, / to search, Enter for the next hit{hasPath(shown) && ", c for the critical path"}.{props.onStage && " A click on a compute opens its stage."}
      </p>
      <p class="unseen" role="status">{card?.isPinned ? sentence(traces[card.trace], card.row) : ""}</p>
      {looks.isDifferent && traces.map((trace, place) => twins[place] && (
        <Differences key={place} first={traces[0]} other={trace} found={twins[place]!} go={(row) => reveal(place, row)} />
      ))}
      <RowTable traces={traces} view={board.view} lit={lit} />
      {card && traces[card.trace] && <Card traces={traces} shown={card} twins={twins} />}
    </section>
  );
}

function jump(board: Board, event: PointerEvent): void {
  const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
  const time = ((event.clientX - box.left - board.gutter) / Math.max(1, box.width - board.gutter)) * board.whole;
  const half = (board.view.to - board.view.from) / 2;
  board.show(within(time - half, time + half, board.whole));
}
