// A trace as the canvas needs it: typed arrays, and for each lane where its rows begin and end.
import { numbers, type Kind, type Numbers, type Trace } from "../document";

export interface Curve { device: number; time: Numbers; bytes: Numbers; peak: number; peakAt: number }
export interface DrawnTrace {
  label: string; source: string; span: number; devices: string[]; names: string[]; kinds: Kind[];
  lanes: { device: number; stream: string; from: number; to: number }[];
  groups: { name: string; devices: number[]; count: number }[];
  rows: number; start: Numbers; end: Numbers; kind: Numbers; name: Numbers; lane: Numbers;
  stage: Numbers; microbatch: Numbers; critical: Numbers | null; bytes: Numbers | null;
  costSource: Numbers | null; costSources: string[];
  curves: Curve[]; cap: number | null; isSampled: boolean;
}

function curve(memory: Trace["memory"][number]): Curve {
  const time = numbers(memory.time_s), bytes = numbers(memory.bytes);
  let at = 0;
  for (let i = 1; i < bytes.length; i++) if (bytes[i] > bytes[at]) at = i;
  return { device: memory.device, time, bytes, peak: bytes[at] ?? 0, peakAt: time[at] ?? 0 };
}

export function drawn(trace: Trace): DrawnTrace {
  const columns = trace.columns;
  const lane = numbers(columns.lane), start = numbers(columns.start_s), end = numbers(columns.end_s);
  const lanes = trace.lanes.map((each) => ({ ...each, from: 0, to: 0 }));
  for (let i = 0; i < lane.length; ) {
    const at = lane[i];
    let to = i;
    while (to < lane.length && lane[to] === at) to++;
    if (lanes[at]) Object.assign(lanes[at], { from: i, to });
    i = to;
  }
  return {
    label: trace.label, source: trace.source, span: trace.span_s, devices: trace.devices, names: trace.names,
    kinds: trace.kinds, lanes, rows: lane.length, start, end, lane,
    groups: trace.groups.map((each) => ({ count: each.devices.length, ...each })),
    kind: numbers(columns.kind), name: numbers(columns.name),
    stage: numbers(columns.stage), microbatch: numbers(columns.microbatch),
    critical: columns.critical ? numbers(columns.critical) : null,
    bytes: columns.bytes ? numbers(columns.bytes) : null,
    costSource: columns.cost_source ? numbers(columns.cost_source) : null, costSources: trace.cost_sources ?? [],
    curves: (trace.memory ?? []).map(curve), cap: trace.cap_bytes, isSampled: trace.is_sampled,
  };
}

const NONE: Record<number, number> = { 1: 0xff, 2: 0xffff, 4: 0xffffffff };

/** A number of a row, or null where there is none: -1, or the largest of an unsigned type. */
export function numberAt(column: Numbers, row: number): number | null {
  const value = column[row];
  const isUnsigned = column instanceof Uint8Array || column instanceof Uint16Array || column instanceof Uint32Array;
  return value < 0 || Number.isNaN(value) || (isUnsigned && value === NONE[column.BYTES_PER_ELEMENT]) ? null : value;
}

/** What a row is called: its name, with the microbatch where it has one. */
export function titleOf(trace: DrawnTrace, row: number): string {
  const microbatch = numberAt(trace.microbatch, row);
  return microbatch === null ? trace.names[trace.name[row]] : `${trace.names[trace.name[row]]} ${microbatch}`;
}

/** First row in [from, to) that ends after the time; within a lane the ends grow with the starts. */
export function firstEndingAfter(trace: DrawnTrace, from: number, to: number, time: number): number {
  const { end } = trace;
  while (from < to) {
    const middle = (from + to) >> 1;
    if (end[middle] > time) to = middle; else from = middle + 1;
  }
  return from;
}

/** First row in [from, to) that starts at the time or later. */
export function firstStartingAt(trace: DrawnTrace, from: number, to: number, time: number): number {
  const { start } = trace;
  while (from < to) {
    const middle = (from + to) >> 1;
    if (start[middle] >= time) to = middle; else from = middle + 1;
  }
  return from;
}
