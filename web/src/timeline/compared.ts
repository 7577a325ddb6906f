// Rows of two traces that are the same instruction: same name, microbatch and stage (and device, where both name it).
import type { DrawnTrace } from "./trace";

export const NO_TWIN = 0xffffffff;
export const NOTABLE = 0.05; // a length that differs by less is called the same

export interface Difference {
  twin: Uint32Array; // of each row of the other trace, the row in the first one
  back: Uint32Array; // of each row of the first one, the row in the other
  tint: Uint8Array; // as ink() takes it
  matched: number; ratio: number; shift: number; // medians over the matched
  largest: number[]; // rows of the other trace, by seconds gained or lost
}

const MOST_LISTED = 12;

function keys(trace: DrawnTrace, words: Map<string, number>, hasDevices: boolean): Float64Array {
  const name = trace.names.map((word) => words.get(word) ?? words.set(word, words.size).get(word)!);
  const found = new Float64Array(trace.rows);
  for (let row = 0; row < trace.rows; row++) {
    const device = hasDevices ? trace.lanes[trace.lane[row]].device : 0;
    found[row] = ((name[trace.name[row]] * 4096 + device) * 4096 + (trace.stage[row] + 1)) * 65536 + (trace.microbatch[row] + 1);
  }
  return found;
}

export function differences(first: DrawnTrace, other: DrawnTrace): Difference {
  const hasDevices = first.devices.length === other.devices.length && first.devices.every((name, i) => name === other.devices[i]);
  const words = new Map<string, number>();
  const waiting = new Map<number, number[]>();
  keys(first, words, hasDevices).forEach((key, row) => {
    const found = waiting.get(key);
    if (found) found.push(row); else waiting.set(key, [row]);
  });
  const twin = new Uint32Array(other.rows).fill(NO_TWIN), back = new Uint32Array(first.rows).fill(NO_TWIN);
  const tint = new Uint8Array(other.rows), used = new Map<number, number>();
  const ratios: number[] = [], shifts: number[] = [], rows: number[] = [];
  keys(other, words, hasDevices).forEach((key, row) => {
    const place = used.get(key) ?? 0, at = waiting.get(key)?.[place];
    if (at === undefined) { tint[row] = 3; return; }
    used.set(key, place + 1);
    twin[row] = at;
    back[at] = row;
    const before = first.end[at] - first.start[at], after = other.end[row] - other.start[row];
    const ratio = before > 0 ? after / before : after > 0 ? Infinity : 1;
    tint[row] = ratio > 1 + NOTABLE ? 1 : ratio < 1 / (1 + NOTABLE) ? 2 : 4;
    ratios.push(ratio);
    shifts.push(other.start[row] - first.start[at]);
    rows.push(row);
  });
  const gained = (row: number): number => Math.abs(length(other, row) - length(first, twin[row]));
  return {
    twin, back, tint, matched: rows.length, ratio: median(ratios), shift: median(shifts),
    largest: rows.sort((a, b) => gained(b) - gained(a)).slice(0, MOST_LISTED),
  };
}

export const length = (trace: DrawnTrace, row: number): number => trace.end[row] - trace.start[row];

function median(values: number[]): number {
  const sorted = Float64Array.from(values).sort();
  return sorted[sorted.length >> 1] ?? NaN;
}
