// What a timeline draws of its traces: where lanes stand, what a search found, critical paths, twins, and the ink of all rows.
import { useMemo } from "preact/hooks";
import type { Trace } from "../document";
import type { Theme } from "../theme";
import { track } from "./board";
import { differences, type Difference } from "./compared";
import { ink } from "./ink";
import { layout, type Layout } from "./layout";
import type { Picture } from "./paint";
import { searched, type Found } from "./search";
import { drawn, type DrawnTrace } from "./trace";

/** What is looked at: the words of a search, and what is lit up. */
export interface Looks { query: string; isCritical: boolean; isDifferent: boolean; isUnfolded: boolean }

/** Of every trace, in their order. */
export interface Pictures {
  traces: DrawnTrace[]; whole: number; layouts: Layout[]; found: (Found | null)[];
  paths: (Uint32Array | null)[]; twins: (Difference | null)[]; pictures: Picture[];
}

export function usePictures(given: Trace[], looks: Looks, theme: Theme): Pictures {
  const { query, isCritical, isDifferent, isUnfolded } = looks;
  const traces = useMemo(() => given.map(drawn), [given]);
  const layouts = useMemo(() => traces.map((trace) => layout(trace, isUnfolded)), [traces, isUnfolded]);
  const found = useMemo(() => traces.map((trace) => searched(trace, query)), [traces, query]);
  const paths = useMemo(() => traces.map((trace) => pathOf(trace.critical, trace.start)), [traces]);
  const twins = useMemo(
    () => traces.map((trace, place) => (place && traces.length > 1 ? differences(traces[0], trace) : null)), [traces]);
  const pictures = useMemo(() => traces.map((trace, place): Picture => {
    const lit = found[place], path = trace.critical;
    const isLit = lit ? (row: number): boolean => lit.is[row] === 1
      : isCritical && path ? (row: number): boolean => path[row] === 1 : null;
    const tint = isDifferent ? (twins[place]?.tint ?? null) : null;
    return { trace, layout: layouts[place], ink: ink(trace, theme, track(), { isLit, tint }), pyramids: new Map(), buffer: null, pixels: null };
  }), [traces, layouts, found, isCritical, isDifferent, theme, twins]);
  return { traces, whole: Math.max(...traces.map((trace) => trace.span), 1e-12), layouts, found, paths, twins, pictures };
}

/** The rows of a critical path by start, or null where the trace has none. */
function pathOf(critical: ArrayLike<number> | null, start: ArrayLike<number>): Uint32Array | null {
  if (!critical) return null;
  const rows: number[] = [];
  for (let row = 0; row < critical.length; row++) if (critical[row]) rows.push(row);
  return rows.length ? Uint32Array.from(rows.sort((a, b) => start[a] - start[b])) : null;
}
