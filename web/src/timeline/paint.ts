// Draws the lanes of one trace: single rectangles where there are few, a line of pixels a lane where there are many.
import type { Ink } from "./ink";
import type { Layout, Strip } from "./layout";
import { outline, path } from "./marks";
import { names } from "./names";
import { patternOf } from "./patterns";
import { isFine, LONG_LANE_ROWS, pyramidOf, sampled, type Pyramid } from "./pyramid";
import { strip } from "./strip";
import { firstEndingAfter, firstStartingAt, numberAt, titleOf, type DrawnTrace } from "./trace";

export const INK_ON_COLOR = "#16202c";
const MOST_RECTANGLES = 7000; // more are drawn as lines of pixels
const MOST_LABELS = 1500;
const LABEL_FROM_PX = 16;
const PATTERN_FROM_PX = 7;

export interface View { from: number; to: number }
export interface Picture {
  trace: DrawnTrace; layout: Layout; ink: Ink;
  pyramids: Map<number, Pyramid>; buffer: HTMLCanvasElement | null; pixels: ImageData | null; // kept from frame to frame
}
export interface Scene {
  view: View; gutter: number; width: number; height: number; scroll: number; ratio: number;
  hovered: number; path: Uint32Array | null;
}

/** Resizes the canvas where needed and gives its context in CSS pixels, cleared. */
export function prepared(canvas: HTMLCanvasElement, width: number, height: number, ratio: number) {
  if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
  if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d")!;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** Draws, and returns in which way. */
export function paint(canvas: HTMLCanvasElement, picture: Picture, scene: Scene): "rectangles" | "strips" {
  const { view, gutter, width, height, scroll } = scene;
  const context = prepared(canvas, width, height, scene.ratio);
  const bands = picture.layout.bands.filter((band) => band.top + band.height >= scroll && band.top <= scroll + height);
  names(context, bands, scene);
  context.save();
  context.beginPath();
  context.rect(gutter, 0, width - gutter, height);
  context.clip();
  context.translate(0, -scroll);
  const ranges = bands.flatMap((band) => band.strips.map((each) => {
    const lane = picture.trace.lanes[each.lane];
    const first = firstEndingAfter(picture.trace, lane.from, lane.to, view.from);
    return { strip: each, first, last: firstStartingAt(picture.trace, first, lane.to, view.to) };
  }));
  const isFew = ranges.reduce((sum, { first, last }) => sum + last - first, 0) <= MOST_RECTANGLES;
  if (isFew) rectangles(context, picture, scene, ranges);
  else strips(context, picture, scene, ranges.map((each) => each.strip));
  if (scene.path) path(context, picture, scene);
  if (scene.hovered >= 0) outline(context, picture, scene);
  context.restore();
  return isFew ? "rectangles" : "strips";
}

type Range = { strip: Strip; first: number; last: number };

function rectangles(context: CanvasRenderingContext2D, picture: Picture, scene: Scene, ranges: Range[]): void {
  const { trace, ink } = picture, { gutter, view, width } = scene;
  const perSecond = (width - gutter) / (view.to - view.from);
  const track = `rgb(${ink.track.join(" ")})`;
  const patterns = trace.kinds.map((kind) => patternOf(context, kind.pattern));
  let labels = 0;
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (const { strip: { top, height }, first, last } of ranges) {
    context.fillStyle = track;
    context.fillRect(gutter, top, width - gutter, height);
    for (let row = first; row < last; row++) {
      const left = gutter + (trace.start[row] - view.from) * perSecond, wide = (trace.end[row] - trace.start[row]) * perSecond;
      if (wide <= 0) continue;
      const shownFrom = Math.max(left, gutter - 2), shown = Math.min(left + wide, width + 2) - shownFrom;
      const color = ink.of[row];
      context.fillStyle = ink.text[color];
      context.fillRect(shownFrom, top, Math.max(wide > 3.5 ? shown - 0.7 : shown, 0.5), height);
      const pattern = patterns[trace.kind[row]];
      if (pattern && color < ink.palette.length / 2 && wide >= PATTERN_FROM_PX && height >= PATTERN_FROM_PX) {
        context.fillStyle = pattern;
        context.fillRect(shownFrom, top, shown - 0.7, height);
      }
      if (height < 14 || shown < LABEL_FROM_PX || color >= ink.palette.length / 2 || labels >= MOST_LABELS) continue;
      labels += label(context, trace, row, shownFrom, shown, top + height / 2 + 0.5);
    }
  }
}

function label(context: CanvasRenderingContext2D, trace: DrawnTrace, row: number, left: number, wide: number, y: number): number {
  const microbatch = numberAt(trace.microbatch, row);
  const short = microbatch === null ? trace.names[trace.name[row]] : String(microbatch);
  const long = titleOf(trace, row);
  const text = long.length * 6.6 + 8 < wide ? long : short.length * 6.6 + 4 < wide ? short : "";
  if (!text) return 0;
  context.fillStyle = INK_ON_COLOR;
  context.fillText(text, left + wide / 2, y);
  return 1;
}

function strips(context: CanvasRenderingContext2D, picture: Picture, scene: Scene, shown: Strip[]): void {
  const { trace, ink } = picture, { gutter, view, ratio } = scene;
  const width = Math.max(1, Math.round((scene.width - gutter) * ratio));
  if (picture.pixels?.width !== width || picture.pixels.height !== shown.length) picture.pixels = new ImageData(width, shown.length);
  const pixels = picture.pixels, out = new Uint32Array(pixels.data.buffer);
  const [r, g, b] = ink.track, ground = 0xff000000 | (b << 16) | (g << 8) | r;
  const pixel = (view.to - view.from) / width;
  shown.forEach((each, place) => {
    const lane = trace.lanes[each.lane], at = place * width;
    const long = lane.to - lane.from > LONG_LANE_ROWS ? pyramidOf(picture, each.lane) : null;
    if (long && isFine(long, trace.span, pixel)) sampled(long, ground, trace.span, view.from, view.to, out, at, width);
    else strip(trace, ink, lane.from, lane.to, view.from, view.to, out, at, width);
  });
  const buffer = (picture.buffer ??= document.createElement("canvas"));
  if (buffer.width !== width) buffer.width = width;
  if (buffer.height !== shown.length) buffer.height = shown.length;
  buffer.getContext("2d")!.putImageData(pixels, 0, 0);
  context.imageSmoothingEnabled = false;
  shown.forEach((each, place) => {
    context.drawImage(buffer, 0, place, width, 1, gutter, each.top, scene.width - gutter, each.height);
  });
}
