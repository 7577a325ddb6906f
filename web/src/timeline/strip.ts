// A lane as one line of pixels: each is the mean of what it covers, so that nothing flickers and nothing is lost.
import type { Ink } from "./ink";
import { firstEndingAfter, type DrawnTrace } from "./trace";

const GAP_PX = 0.7; // between rows that are wide enough to stand apart
const GAP_FROM_PX = 3.5;

let sums = new Float32Array(0);

/** Fills `out[at .. at + width)` with the colours (little-endian RGBA) of rows between two times. */
export function strip(
  trace: DrawnTrace, ink: Ink, from: number, to: number, begin: number, finish: number,
  out: Uint32Array, at: number, width: number,
): void {
  if (sums.length < width * 4) sums = new Float32Array(width * 4);
  sums.fill(0, 0, width * 4);
  const perSecond = width / (finish - begin);
  const { start, end } = trace, { palette, of } = ink;
  for (let row = firstEndingAfter(trace, from, to, begin); row < to && start[row] < finish; row++) {
    let left = (start[row] - begin) * perSecond, right = (end[row] - begin) * perSecond;
    if (right - left > GAP_FROM_PX) right -= GAP_PX;
    if (left < 0) left = 0;
    if (right > width) right = width;
    const color = palette[of[row]], first = left | 0, last = right | 0;
    if (first === last) { add(first, right - left, color); continue; }
    add(first, first + 1 - left, color);
    for (let x = first + 1; x < last; x++) add(x, 1, color);
    if (last < width) add(last, right - last, color);
  }
  const [r, g, b] = ink.track;
  for (let x = 0, i = 0; x < width; x++, i += 4) {
    const covered = sums[i + 3], rest = covered < 1 ? 1 - covered : 0, scale = covered > 1 ? 1 / covered : 1;
    out[at + x] = 0xff000000 | ((sums[i + 2] * scale + b * rest) << 16)
      | ((sums[i + 1] * scale + g * rest) << 8) | (sums[i] * scale + r * rest);
  }
}

function add(x: number, share: number, color: readonly number[]): void {
  const i = x * 4;
  sums[i] += color[0] * share;
  sums[i + 1] += color[1] * share;
  sums[i + 2] += color[2] * share;
  sums[i + 3] += share;
}
