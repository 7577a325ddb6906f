// The time axis and the memory curves: one scale with the lanes above them.
import { bytes, seconds, ticks } from "../quantity";
import { css } from "../theme";
import type { Curve, DrawnTrace } from "./trace";
import { prepared, type Scene } from "./paint";

export const AXIS_PX = 24;
export const MEMORY_PX = 96;
const TICK_SPACE_PX = 110;

export function axis(canvas: HTMLCanvasElement, scene: Scene): void {
  const { view, gutter, width } = scene;
  const context = prepared(canvas, width, AXIS_PX, scene.ratio);
  context.strokeStyle = context.fillStyle = css("--muted");
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "top";
  const perSecond = (width - gutter) / (view.to - view.from);
  for (const tick of ticks(view.from, view.to, (width - gutter) / TICK_SPACE_PX)) {
    const x = gutter + (tick - view.from) * perSecond;
    context.fillRect(x, 0, 1, 4);
    context.textAlign = x > width - 34 ? "right" : x < gutter + 12 ? "left" : "center";
    context.fillText(seconds(tick, view.to), x, 7);
  }
}

/** Bytes of a step curve at a time. */
export function bytesAt(curve: Curve, time: number): number {
  let low = 0, high = curve.time.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (curve.time[middle] <= time) low = middle + 1; else high = middle;
  }
  return low ? curve.bytes[low - 1] : (curve.bytes[0] ?? 0);
}

/** The most of a curve in each pixel: what matters against a cap is never skipped. */
function most(curve: Curve, scene: Scene, pixels: number): Float64Array {
  const { view } = scene, found = new Float64Array(pixels), perSecond = pixels / (view.to - view.from);
  let low = 0, high = curve.time.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (curve.time[middle] <= view.from) low = middle + 1; else high = middle;
  }
  let value = low ? curve.bytes[low - 1] : (curve.bytes[0] ?? 0), row = low;
  for (let x = 0; x < pixels; x++) {
    let top = value;
    const until = view.from + (x + 1) / perSecond;
    for (; row < curve.time.length && curve.time[row] <= until; row++) {
      value = curve.bytes[row];
      if (value > top) top = value;
    }
    found[x] = top;
  }
  return found;
}

const BAND_CURVES = 128; // of more devices, evenly chosen ones make the band

export function memory(canvas: HTMLCanvasElement, trace: DrawnTrace, scene: Scene, device: number): void {
  const { gutter, width } = scene;
  const context = prepared(canvas, width, MEMORY_PX, scene.ratio);
  const peak = trace.curves.reduce((top, each) => Math.max(top, each.peak), 0);
  const top = Math.max(peak, trace.cap !== null && trace.cap < peak * 3 ? trace.cap : 0) * 1.06 || 1;
  const pixels = Math.max(1, Math.round(width - gutter)), y = (value: number): number => (MEMORY_PX - 2) * (1 - value / top) + 1;
  context.fillStyle = css("--track");
  context.fillRect(gutter, 0, width - gutter, MEMORY_PX);
  const step = Math.max(1, Math.ceil(trace.curves.length / BAND_CURVES));
  const upper = new Float64Array(pixels), lower = new Float64Array(pixels).fill(Infinity);
  let highest: Curve | null = null;
  let line: Float64Array | null = null;
  trace.curves.forEach((each, place) => {
    if (!highest || each.peak > highest.peak) highest = each;
    if (place % step) return;
    const values = most(each, scene, pixels);
    for (let x = 0; x < pixels; x++) {
      if (values[x] > upper[x]) upper[x] = values[x];
      if (values[x] < lower[x]) lower[x] = values[x];
    }
  });
  const named = trace.curves.find((each) => each.device === device) ?? highest;
  if (named) line = most(named, scene, pixels);
  band(context, upper, lower, gutter, y);
  if (line) stroke(context, line, gutter, y);
  scale(context, trace, scene, top, y, named);
}

function band(context: CanvasRenderingContext2D, upper: Float64Array, lower: Float64Array, gutter: number, y: (v: number) => number): void {
  context.fillStyle = css("--band");
  context.beginPath();
  for (let x = 0; x < upper.length; x++) context.lineTo(gutter + x + 0.5, y(upper[x]));
  for (let x = upper.length - 1; x >= 0; x--) context.lineTo(gutter + x + 0.5, y(Math.min(lower[x], upper[x])));
  context.fill();
}

function stroke(context: CanvasRenderingContext2D, values: Float64Array, gutter: number, y: (v: number) => number): void {
  context.strokeStyle = css("--accent");
  context.lineWidth = 1.4;
  context.beginPath();
  values.forEach((value, x) => context.lineTo(gutter + x + 0.5, y(value)));
  context.stroke();
}

function scale(
  context: CanvasRenderingContext2D, trace: DrawnTrace, scene: Scene, top: number, y: (v: number) => number, named: Curve | null,
): void {
  const { gutter, width } = scene;
  context.font = "10px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "right";
  context.fillStyle = css("--muted");
  context.fillText(bytes(0, top), gutter - 7, MEMORY_PX - 6);
  if (named) context.fillText(bytes(named.peak), gutter - 7, Math.min(MEMORY_PX - 20, Math.max(7, y(named.peak))));
  if (trace.cap === null) return;
  const isShown = trace.cap <= top;
  context.fillStyle = context.strokeStyle = css("--off");
  context.textAlign = "right";
  const text = `${isShown ? "" : "↑ "}cap ${bytes(trace.cap)}`;
  const at = isShown ? y(trace.cap) : 0;
  if (isShown) {
    context.setLineDash([6, 4]);
    context.beginPath();
    context.moveTo(gutter, at);
    context.lineTo(width, at);
    context.stroke();
    context.setLineDash([]);
  }
  const baseline = at < 14 ? at + 9 : at - 7;
  context.strokeStyle = css("--track"); // a rim: curves that reach up to the cap do not strike its name through
  context.lineWidth = 4;
  context.lineJoin = "round";
  context.strokeText(text, width - 6, baseline);
  context.fillText(text, width - 6, baseline);
}
