// The whole of a trace as one strip, with the part that is seen framed.
import { css } from "../theme";
import { prepared, type Picture, type Scene, type View } from "./paint";
import { strip } from "./strip";

export const OVERVIEW_PX = 22;
const MOST_LANES = 48; // of more, evenly chosen ones make the mean

interface Kept { version: number; width: number; image: HTMLCanvasElement }
const kept = new WeakMap<Picture, Kept>();

function mean(picture: Picture, whole: number, width: number): HTMLCanvasElement {
  const found = kept.get(picture);
  if (found && found.version === picture.ink.version && found.width === width) return found.image;
  const { trace, ink, layout } = picture;
  const lanes = layout.bands.map((band) => trace.lanes[band.strips[0]?.lane]).filter(Boolean);
  const step = Math.max(1, Math.ceil(lanes.length / MOST_LANES));
  const sums = new Float64Array(width * 3), line = new Uint32Array(width);
  let used = 0;
  for (let place = 0; place < lanes.length; place += step, used++) {
    strip(trace, ink, lanes[place].from, lanes[place].to, 0, whole, line, 0, width);
    for (let x = 0; x < width; x++) for (let c = 0; c < 3; c++) sums[3 * x + c] += (line[x] >>> (8 * c)) & 255;
  }
  const image = document.createElement("canvas");
  image.width = width;
  image.height = 1;
  const pixels = new ImageData(width, 1);
  for (let x = 0; x < width; x++) {
    for (let c = 0; c < 3; c++) pixels.data[4 * x + c] = sums[3 * x + c] / Math.max(1, used);
    pixels.data[4 * x + 3] = 255;
  }
  image.getContext("2d")!.putImageData(pixels, 0, 0);
  kept.set(picture, { version: ink.version, width, image });
  return image;
}

export function overview(canvas: HTMLCanvasElement, picture: Picture, scene: Scene, whole: number): void {
  const { gutter, width, view } = scene;
  const context = prepared(canvas, width, OVERVIEW_PX, scene.ratio);
  const wide = Math.max(1, Math.round(width - gutter));
  context.imageSmoothingEnabled = false;
  context.drawImage(mean(picture, whole, wide), gutter, 3, wide, OVERVIEW_PX - 6);
  const [left, right] = edges(view, whole, gutter, width);
  context.fillStyle = css("--veil");
  context.fillRect(gutter, 3, left - gutter, OVERVIEW_PX - 6);
  context.fillRect(right, 3, width - right, OVERVIEW_PX - 6);
  context.strokeStyle = css("--ink");
  context.lineWidth = 1.5;
  context.strokeRect(left, 1.5, Math.max(2, right - left - 1), OVERVIEW_PX - 3);
}

const edges = (view: View, whole: number, gutter: number, width: number): [number, number] =>
  [gutter + (view.from / whole) * (width - gutter), gutter + (view.to / whole) * (width - gutter)];
