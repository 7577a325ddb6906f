// The names of devices beside their lanes, as many as there is room for.
import { css } from "../theme";
import type { Band } from "./layout";
import type { Scene } from "./paint";

export function names(context: CanvasRenderingContext2D, bands: Band[], scene: Scene): void {
  context.fillStyle = css("--ink");
  context.textAlign = "right";
  context.textBaseline = "middle";
  let above = -Infinity;
  for (const band of bands) {
    const tall = band.strips[0]?.height ?? 0, y = band.top - scene.scroll + tall / 2 + 0.5;
    if (y - above < 11) continue;
    above = y;
    context.font = `${tall >= 15 ? 12 : 10}px system-ui, sans-serif`;
    const text = band.count > 1 ? `${band.label} ×${band.count}` : band.label;
    context.fillText(fitted(context, text, scene.gutter - 12), scene.gutter - 7, y);
  }
}

function fitted(context: CanvasRenderingContext2D, text: string, width: number): string {
  if (context.measureText(text).width <= width) return text;
  let kept = text.length - 1;
  while (kept > 1 && context.measureText(text.slice(0, kept) + "…").width > width) kept--;
  return text.slice(0, kept) + "…";
}
