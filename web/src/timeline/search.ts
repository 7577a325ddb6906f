// Search among rows: every word must hold; words are parts of names, or mb=3, stage=2, device=NAME, F12.
import { numberAt, type DrawnTrace } from "./trace";

type Test = (row: number) => boolean;

function numberTest(word: string, key: RegExp, value: (row: number) => number | null): Test | null {
  const found = key.exec(word);
  if (!found) return null;
  const wanted = Number(found[1]);
  return (row) => value(row) === wanted;
}

function textTest(trace: DrawnTrace, word: string): Test {
  const hits = trace.names.map((name) => name.toLowerCase().includes(word));
  const kinds = trace.kinds.map((kind) => kind.name.toLowerCase().includes(word));
  const numbered = /^(\D+)(\d+)$/.exec(word);
  const exact = numbered ? trace.names.map((name) => name.toLowerCase() === numbered[1]) : [];
  return (row) => hits[trace.name[row]] || kinds[trace.kind[row]]
    || (numbered !== null && exact[trace.name[row]] && numberAt(trace.microbatch, row) === Number(numbered[2]));
}

function deviceTest(trace: DrawnTrace, word: string): Test | null {
  const found = /^(?:device|dev|d)[=:](.+)$/.exec(word);
  if (!found) return null;
  const isIt = trace.devices.map((name) => name.toLowerCase() === found[1]);
  const some = isIt.includes(true) ? isIt : trace.devices.map((name) => name.toLowerCase().includes(found[1]));
  return (row) => some[trace.lanes[trace.lane[row]].device];
}

/** The rows that a query names, by start, and whether a row is one. */
export interface Found { rows: Uint32Array; is: Uint8Array }

/** What a query finds; null for an empty one. */
export function searched(trace: DrawnTrace, query: string): Found | null {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return null;
  const tests = words.map((word) =>
    numberTest(word, /^(?:mb|m|microbatch)[=:](\d+)$/, (row) => numberAt(trace.microbatch, row))
    ?? numberTest(word, /^(?:stage|s)[=:](\d+)$/, (row) => numberAt(trace.stage, row))
    ?? deviceTest(trace, word) ?? textTest(trace, word));
  const is = new Uint8Array(trace.rows), found: number[] = [];
  for (let row = 0; row < trace.rows; row++) {
    if (tests.every((test) => test(row))) { is[row] = 1; found.push(row); }
  }
  found.sort((a, b) => trace.start[a] - trace.start[b]);
  return { rows: Uint32Array.from(found), is };
}
