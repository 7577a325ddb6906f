// Which colour each row has: that of its kind, another shade for odd microbatches, pale where something else is looked at.
import type { Theme } from "../theme";
import { numberAt, type DrawnTrace } from "./trace";

export const PALE = 0.16; // what is left of a row that is not looked at
// As in reports/chart/palette.py; on dark ground colours are darker already, and labels on them stay readable on brighter ones.
const ODD_MICROBATCH: Record<Theme, number> = { light: 0.86, dark: 1.16 };
// Orange and blue stay apart for the common colour-vision deficiencies, and carry dark text.
export const SLOWER: Record<Theme, string> = { light: "#ef8a4c", dark: "#ef8a4c" };
export const FASTER: Record<Theme, string> = { light: "#4f9be8", dark: "#5aa0e6" };
export const UNMATCHED: Record<Theme, string> = { light: "#d67fc4", dark: "#e08bc4" };

export type Rgb = [number, number, number];
export const rgb = (hex: string): Rgb => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)) as Rgb;
export const hex = (color: Rgb): string => `rgb(${color.map(Math.round).join(" ")})`;
const mix = (over: Rgb, under: Rgb, share: number): Rgb =>
  over.map((value, i) => value * share + under[i] * (1 - share)) as Rgb;

/** Rows as numbers of a small palette; `text` are the same colours for single rectangles. */
export interface Ink { palette: Rgb[]; text: string[]; of: Uint8Array; track: Rgb; version: number }

export interface Emphasis { isLit: ((row: number) => boolean) | null; tint: Uint8Array | null }

let versions = 0;

/** tint: for each row 0 its own colour, 1 slower, 2 faster, 3 without a twin (4: the same, pale). */
export function ink(trace: DrawnTrace, theme: Theme, track: string, emphasis: Emphasis): Ink {
  const ground = rgb(track);
  const bases = trace.kinds.map((kind) => rgb(theme === "dark" ? kind.color_dark : kind.color_light));
  const shades = bases.flatMap((base) => [base, base.map((value) => Math.min(255, value * ODD_MICROBATCH[theme])) as Rgb]);
  const marks = [SLOWER, FASTER, UNMATCHED].map((mark) => rgb(mark[theme]));
  const bright = [...shades, ...marks];
  const palette = [...bright, ...bright.map((color) => mix(color, ground, PALE))];
  const of = new Uint8Array(trace.rows);
  const { isLit, tint } = emphasis;
  for (let row = 0; row < trace.rows; row++) {
    const microbatch = numberAt(trace.microbatch, row);
    let color = trace.kind[row] * 2 + (microbatch !== null && microbatch % 2 === 1 ? 1 : 0);
    if (tint && tint[row] > 0 && tint[row] < 4) color = shades.length + tint[row] - 1;
    else if (tint && tint[row] === 4) color += bright.length;
    if (isLit && !isLit(row) && color < bright.length) color += bright.length;
    of[row] = color;
  }
  return { palette, text: palette.map(hex), of, track: ground, version: ++versions };
}
