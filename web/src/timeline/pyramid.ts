// A long lane at halving resolutions, made once: any zoom is then read with about two bins a pixel.
import type { Ink } from "./ink";
import type { Picture } from "./paint";
import { strip } from "./strip";
import type { DrawnTrace } from "./trace";

export const LONG_LANE_ROWS = 6000; // shorter lanes are summed row by row in each frame
const BINS_A_ROW = 2;
const MOST_BINS = 2 ** 20;
const LEAST_BINS = 512;

/** levels[0] is the finest; each bin is a colour over an equal part of the span. */
export interface Pyramid { levels: Uint32Array<ArrayBuffer>[]; version: number }

export function pyramid(trace: DrawnTrace, ink: Ink, from: number, to: number): Pyramid {
  const bins = Math.min(MOST_BINS, 2 ** Math.ceil(Math.log2((to - from) * BINS_A_ROW)));
  const levels = [new Uint32Array(bins)];
  const at = 4096; // bins of one pass: the sums of a pass stay in the cache
  for (let bin = 0; bin < bins; bin += at) {
    strip(trace, ink, from, to, (bin / bins) * trace.span, ((bin + at) / bins) * trace.span, levels[0], bin, at);
  }
  while (levels[levels.length - 1].length > LEAST_BINS) levels.push(halved(levels[levels.length - 1]));
  return { levels, version: ink.version };
}

const mean = (a: number, b: number): number => (a & b) + (((a ^ b) & 0xfefefefe) >>> 1);

function halved(fine: Uint32Array): Uint32Array<ArrayBuffer> {
  const coarse = new Uint32Array(fine.length / 2);
  for (let i = 0; i < coarse.length; i++) coarse[i] = mean(fine[2 * i], fine[2 * i + 1]);
  return coarse;
}

/** Whether the finest bins are fine enough for pixels of this many seconds. */
export const isFine = (found: Pyramid, span: number, pixel: number): boolean =>
  span / found.levels[0].length <= pixel;

/** Fills a line of pixels from the level whose bins are at most a pixel wide. */
export function sampled(
  found: Pyramid, ground: number, span: number, begin: number, finish: number,
  out: Uint32Array, at: number, width: number,
): void {
  const pixel = (finish - begin) / width;
  let level = 0;
  while (level + 1 < found.levels.length && span / found.levels[level + 1].length <= pixel) level++;
  const bins = found.levels[level], perSecond = bins.length / span, last = bins.length - 1;
  for (let x = 0; x < width; x++) {
    if (begin + x * pixel >= span) { out[at + x] = ground; continue; }
    const first = Math.max(0, Math.min(last, ((begin + x * pixel) * perSecond) | 0));
    const second = Math.max(0, Math.min(last, ((begin + (x + 1) * pixel) * perSecond - 1e-9) | 0));
    out[at + x] = 0xff000000 | mean(bins[first], bins[second]);
  }
}

/** The pyramid of a long lane, made anew when its colours have changed. */
export function pyramidOf(picture: Picture, lane: number): Pyramid {
  const found = picture.pyramids.get(lane);
  if (found && found.version === picture.ink.version) return found;
  const { from, to } = picture.trace.lanes[lane];
  const made = pyramid(picture.trace, picture.ink, from, to);
  picture.pyramids.set(lane, made);
  return made;
}
