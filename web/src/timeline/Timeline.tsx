// A timeline section: traces under one another on one time axis, with search, differences and memory.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Trace } from "../document";
import { count } from "../quantity";
import { useTheme } from "../theme";
import { Board, gutterOf, OVERVIEW_PX, track, type Panel } from "./board";
import { Card, sentence, type Shown } from "./Card";
import { Differences } from "./Differences";
import { differences } from "./compared";
import { Figure } from "./Figure";
import { listen } from "./gestures";
import { ink } from "./ink";
import { layout } from "./layout";
import { Legend } from "./Legend";
import type { View } from "./paint";
import { RowTable } from "./RowTable";
import { searched } from "./search";
import { drawn, numberAt } from "./trace";
import { within } from "./window";

export interface TimelineProps {
  id: string; title: string; note?: string; traces: Trace[];
  initial?: View; onView?: (view: View | null) => void; onStage?: (stage: number) => void;
}

const TABLE_PAUSE_MS = 250; // the table follows the picture when it rests

export function Timeline(props: TimelineProps) {
  const theme = useTheme();
  const [query, search] = useState("");
  const [hit, setHit] = useState(-1);
  const [isCritical, setCritical] = useState(false);
  const [isDifferent, setDifferent] = useState(false);
  const [isUnfolded, unfold] = useState(false);
  const [card, setCard] = useState<Shown | null>(null);
  const [, rested] = useState(0);
  const board = useRef(new Board()).current;
  const box = useRef<HTMLInputElement>(null);

  const traces = useMemo(() => props.traces.map(drawn), [props.traces]);
  const whole = Math.max(...traces.map((trace) => trace.span), 1e-12);
  const layouts = useMemo(() => traces.map((trace) => layout(trace, isUnfolded)), [traces, isUnfolded]);
  const found = useMemo(() => traces.map((trace) => searched(trace, query)), [traces, query]);
  const paths = useMemo(() => traces.map((trace) => pathOf(trace.critical, trace.start)), [traces]);
  const twins = useMemo(
    () => traces.map((trace, place) => (place && traces.length > 1 ? differences(traces[0], trace) : null)), [traces]);
  const pictures = useMemo(() => traces.map((trace, place) => {
    const lit = found[place], path = trace.critical;
    const isLit = lit ? (row: number): boolean => lit.is[row] === 1
      : isCritical && path ? (row: number): boolean => path[row] === 1 : null;
    const tint = isDifferent ? (twins[place]?.tint ?? null) : null;
    return { trace, layout: layouts[place], ink: ink(trace, theme, track(), { isLit, tint }), pyramids: new Map(), buffer: null, pixels: null };
  }), [traces, layouts, found, isCritical, isDifferent, theme, twins]);

  const isFirst = useRef(true), isSettled = useRef(false);
  useMemo(() => {
    board.take(whole, gutterOf(layouts));
    if (isFirst.current) board.view = props.initial ? within(props.initial.from, props.initial.to, whole) : { from: 0, to: whole };
    isFirst.current = false;
    board.panels = pictures.map((picture, place): Panel => ({
      ...(board.panels[place] ?? { lanes: null, scroller: null, memory: null, device: -1 }), hovered: -1, picture, path: isCritical ? paths[place] : null,
    }));
  }, [pictures, isCritical]);
  useEffect(() => setCard(null), [traces]);
  useEffect(() => { // another address was opened, or "back"
    if (!isSettled.current) { isSettled.current = true; return; }
    board.view = props.initial ? within(props.initial.from, props.initial.to, board.whole) : { from: 0, to: board.whole };
    board.redraw();
  }, [props.initial]);

  const show = (next: Shown | null): void => {
    board.panels.forEach((panel, place) => {
      panel.hovered = !next ? -1 : next.trace === place ? next.row : twinOf(next.trace, next.row, place);
      panel.device = next ? panel.picture.trace.lanes[panel.picture.trace.lane[next.trace === place ? next.row : Math.max(0, panel.hovered)]]?.device ?? -1 : -1;
    });
    board.redraw();
    setCard(next);
  };
  const twinOf = (from: number, row: number, to: number): number => {
    const first = from ? (twins[from]?.twin[row] ?? -1) : row;
    const twin = !to ? first : (twins[to]?.back[first] ?? -1);
    return twin === 0xffffffff ? -1 : twin;
  };
  const reveal = (trace: number, row: number): void => {
    show({ trace, row, ...board.reveal(board.panels[trace], row), isPinned: true });
  };
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

  const live = useRef({ show, next, card, onStage: props.onStage });
  live.current = { show, next, card, onStage: props.onStage };
  useEffect(() => {
    let resting: ReturnType<typeof setTimeout> | undefined;
    board.onView = (view) => {
      clearTimeout(resting);
      resting = setTimeout(() => {
        rested((n) => n + 1);
        props.onView?.(view.from <= 0 && view.to >= board.whole ? null : view);
      }, TABLE_PAUSE_MS);
    };
    return () => clearTimeout(resting);
  }, [props.onView]);
  useEffect(() => {
    const stops = board.panels.map((panel, trace) => panel.lanes && listen(panel.lanes, {
      view: () => board.view, whole: () => board.whole, gutter: () => board.gutter, width: () => board.width,
      isEngaged: () => document.activeElement === panel.lanes, show: (view) => board.show(view),
      hover: (x, y, clientX, clientY) => {
        if (live.current.card?.isPinned) return;
        const { row, device } = board.find(board.panels[trace], x, y);
        if (row >= 0) { if (live.current.card?.row !== row) live.current.show({ trace, row, x: clientX, y: clientY, isPinned: false }); }
        else if (live.current.card) live.current.show(null);
        if (board.panels[trace].device !== device) { board.panels[trace].device = device; board.redraw(); }
      },
      leave: () => { if (live.current.card && !live.current.card.isPinned) live.current.show(null); },
      click: (x, y, clientX, clientY) => {
        const { row } = board.find(board.panels[trace], x, y);
        live.current.show(row < 0 ? null : { trace, row, x: clientX, y: clientY, isPinned: true });
        if (row < 0 || numberAt(board.panels[trace].picture.trace.microbatch, row) === null) return; // of no single stage
        const stage = numberAt(board.panels[trace].picture.trace.stage, row);
        if (stage !== null) live.current.onStage?.(stage);
      },
    }));
    const resized = new ResizeObserver(() => board.redraw());
    if (board.axis) resized.observe(board.axis);
    return () => { stops.forEach((stop) => stop?.()); resized.disconnect(); board.stop(); };
  }, [traces.length]);
  useLayoutEffect(() => board.redraw()); // with the frame that shows the rest
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

  const onKey = (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const hasPath = paths.some((path) => path !== null);
    const actions: Record<string, () => void> = {
      "+": () => board.zoom(0.6), "=": () => board.zoom(0.6), "-": () => board.zoom(1 / 0.6), "0": () => board.all(),
      ArrowLeft: () => board.pan(-0.2), ArrowRight: () => board.pan(0.2),
      Home: () => board.show(within(0, board.view.to - board.view.from, board.whole)),
      End: () => board.show(within(board.whole, board.whole + board.view.to - board.view.from, board.whole)),
      Enter: () => next(event.shiftKey ? -1 : 1),
      c: () => { if (hasPath) setCritical(!isCritical); }, d: () => { if (traces.length > 1) setDifferent(!isDifferent); },
    };
    if (actions[event.key]) { event.preventDefault(); actions[event.key](); }
  };
  const hasPath = paths.some((path) => path !== null);
  return (
    <section class="timeline" aria-labelledby={`${props.id}-title`}>
      <h2 id={`${props.id}-title`}>{props.title}</h2>
      {props.note && <p class="note">{props.note}</p>}
      <div class="tools" role="group" aria-label="What the timeline shows">
        <input
          ref={box} type="search" aria-label="Search instructions" placeholder="Search: F12, stage=2, mb=3…" value={query}
          onInput={(event) => { search(event.currentTarget.value); setHit(-1); }}
          onKeyDown={(event) => {
            if (event.key === "Enter") { event.preventDefault(); next(event.shiftKey ? -1 : 1); }
            else if (event.key === "Escape") { search(""); setHit(-1); show(null); event.stopPropagation(); }
          }}
        />
        <span class="hits" role="status">{query.trim() ? `${hit >= 0 ? `${count(hit + 1)} of ` : ""}${count(hits)} found` : ""}</span>
        {hasPath && <Toggle on={isCritical} set={setCritical}>Critical path</Toggle>}
        {traces.length > 1 && <Toggle on={isDifferent} set={setDifferent}>Differences</Toggle>}
        {canUnfold(layouts, traces) && <Toggle on={isUnfolded} set={unfold}>All devices</Toggle>}
        <span class="buttons">
          <button type="button" aria-label="Zoom out" onClick={() => board.zoom(1 / 0.6)}>−</button>
          <button type="button" aria-label="Zoom in" onClick={() => board.zoom(0.6)}>+</button>
          <button type="button" onClick={() => board.all()}>All</button>
        </span>
      </div>
      <Legend traces={traces} isDifferent={isDifferent} />
      <canvas class="overview" style={{ height: `${OVERVIEW_PX}px` }} ref={(canvas) => { board.overview = canvas; }} aria-hidden="true"
        onPointerDown={(event) => jump(board, event)} onPointerMove={(event) => event.buttons & 1 && jump(board, event)} />
      {traces.map((trace, place) => (
        <Figure key={place} trace={trace} layout={layouts[place]} panel={board.panels[place]} onKey={onKey} onScroll={() => board.redraw()}
          label={`${props.title}, ${trace.label}`} />
      ))}
      <canvas class="axis" ref={(canvas) => { board.axis = canvas; }} aria-hidden="true" />
      <p class="hint">
        Drag to move, click then scroll (or pinch) to zoom; keys: arrows, + − 0, Home, / to search, Enter for the next hit{hasPath && ", c for the critical path"}.{props.onStage && " A click on a compute opens its stage."}
      </p>
      <p class="unseen" role="status">{card?.isPinned ? sentence(traces[card.trace], card.row) : ""}</p>
      {isDifferent && traces.map((trace, place) => twins[place] && (
        <Differences key={place} first={traces[0]} other={trace} found={twins[place]!} go={(row) => reveal(place, row)} />
      ))}
      <RowTable traces={traces} view={() => board.view} lit={found.map((each) => each?.is ?? null)} />
      {card && traces[card.trace] && <Card traces={traces} shown={card} twins={twins} />}
    </section>
  );
}

function Toggle({ on, set, children }: { on: boolean; set: (on: boolean) => void; children: string }) {
  return <button type="button" class="toggle" aria-pressed={on} onClick={() => set(!on)}>{children}</button>;
}

const canUnfold = (layouts: { hasGroups: boolean }[], traces: { groups: { devices: number[]; count: number }[] }[]): boolean =>
  layouts.some((each) => each.hasGroups) && traces.some((trace) => trace.groups.some(({ devices, count: many }) => many > 1 && devices.length >= many));

/** The rows of a critical path by start, or null where the trace has none. */
function pathOf(critical: ArrayLike<number> | null, start: ArrayLike<number>): Uint32Array | null {
  if (!critical) return null;
  const rows: number[] = [];
  for (let row = 0; row < critical.length; row++) if (critical[row]) rows.push(row);
  return rows.length ? Uint32Array.from(rows.sort((a, b) => start[a] - start[b])) : null;
}

function jump(board: Board, event: PointerEvent): void {
  const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
  const time = ((event.clientX - box.left - board.gutter) / Math.max(1, box.width - board.gutter)) * board.whole;
  const half = (board.view.to - board.view.from) / 2;
  board.show(within(time - half, time + half, board.whole));
}
