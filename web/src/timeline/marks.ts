// What is drawn over the lanes: the row that is pointed at, and the line of the critical path.
import { css } from "../theme";
import type { Strip } from "./layout";
import type { Picture, Scene } from "./paint";

function boxes(picture: Picture, scene: Scene): (row: number) => [number, number, number, number][] {
  const stripsOf = new Map<number, Strip[]>();
  for (const band of picture.layout.bands) for (const each of band.strips) {
    stripsOf.set(each.lane, [...(stripsOf.get(each.lane) ?? []), each]);
  }
  const { trace } = picture, { gutter, view, width } = scene;
  const perSecond = (width - gutter) / (view.to - view.from);
  return (row) => (stripsOf.get(trace.lane[row]) ?? []).map(({ top, height }) => [
    gutter + (trace.start[row] - view.from) * perSecond, top, (trace.end[row] - trace.start[row]) * perSecond, height,
  ]);
}

export function outline(context: CanvasRenderingContext2D, picture: Picture, scene: Scene): void {
  context.strokeStyle = css("--ink");
  context.lineWidth = 2;
  for (const [left, top, wide, tall] of boxes(picture, scene)(scene.hovered)) {
    context.strokeRect(left, top - 1, Math.max(wide, 2), tall + 2);
  }
}

const MOST_PATH_ROWS = 3000; // more cannot be followed by eye

/** A line from the end of each row of the critical path to the start of the next one, in the order of time. */
export function path(context: CanvasRenderingContext2D, picture: Picture, scene: Scene): void {
  const { trace } = picture, { view } = scene;
  const seen = scene.path!.filter((row) => trace.end[row] >= view.from && trace.start[row] <= view.to);
  if (seen.length > MOST_PATH_ROWS) return;
  const box = boxes(picture, scene);
  context.strokeStyle = css("--accent");
  context.lineWidth = 1.5;
  context.beginPath();
  seen.forEach((row, place) => {
    const found = box(row)[0];
    if (!found) return;
    const [left, top, wide, tall] = found, y = top + tall / 2;
    if (place) context.lineTo(left, y);
    context.moveTo(left + wide, y);
  });
  context.stroke();
}

