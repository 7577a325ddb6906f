// The canvases of one timeline and what they show together: drawn once a frame, however much changed.
import { css } from "../theme";
import { axis, memory, MEMORY_PX } from "./axis";
import { at, type Layout } from "./layout";
import { overview, OVERVIEW_PX } from "./overview";
import { paint, type Picture, type Scene, type View } from "./paint";
import { firstEndingAfter, type DrawnTrace } from "./trace";
import { isWhole, panned, within, zoomed } from "./window";

export const MOST_HEIGHT_PX = 720; // a trace of more devices scrolls
const NEAR_PX = 3; // how far from a thin row the pointer may be

export interface Panel {
  picture: Picture; lanes: HTMLCanvasElement | null; scroller: HTMLElement | null;
  memory: HTMLCanvasElement | null; hovered: number; device: number; path: Uint32Array | null;
}

declare global { var meshwrightFrames: number[] | undefined } // where a measurement wants the times of frames

export class Board {
  view: View = { from: 0, to: 1 };
  whole = 1;
  gutter = 60;
  panels: Panel[] = [];
  overview: HTMLCanvasElement | null = null;
  axis: HTMLCanvasElement | null = null;
  width = 0;
  onView: (view: View) => void = () => {};
  private asked = 0;

  /** Takes other traces: the window stays where it was, unless all was seen. */
  take(whole: number, gutter: number): void {
    const wasWhole = isWhole(this.view, this.whole);
    this.whole = whole;
    this.gutter = gutter;
    this.view = wasWhole ? { from: 0, to: whole } : within(this.view.from, this.view.to, whole);
  }
  show(view: View): void {
    this.view = view;
    this.onView(view);
    this.redraw();
  }
  zoom(factor: number, about = (this.view.from + this.view.to) / 2): void {
    this.show(zoomed(this.view, factor, about, this.whole));
  }
  pan(share: number): void { this.show(panned(this.view, share, this.whole)); }
  all(): void { this.show({ from: 0, to: this.whole }); }

  /** Brings a row into view, no nearer than it takes to see it among its neighbours; where it then is in the window. */
  reveal(panel: Panel, row: number): { x: number; y: number } {
    const { trace, layout } = panel.picture;
    const span = this.view.to - this.view.from, long = trace.end[row] - trace.start[row];
    const wanted = Math.min(span, Math.max(long * 40, this.whole / 5e4));
    const middle = trace.start[row] + long / 2;
    this.show(within(middle - wanted / 2, middle + wanted / 2, this.whole));
    const top = layout.bands.find((band) => band.strips.some((each) => each.lane === trace.lane[row]))?.top ?? 0;
    const { scroller, lanes } = panel;
    if (scroller && (top < scroller.scrollTop || top > scroller.scrollTop + scroller.clientHeight - 40)) {
      scroller.scrollTop = top - scroller.clientHeight / 2;
    }
    lanes?.scrollIntoView({ block: "nearest" });
    const box = lanes?.getBoundingClientRect(), share = (middle - this.view.from) / (this.view.to - this.view.from);
    return {
      x: (box?.left ?? 0) + this.gutter + share * Math.max(0, (box?.width ?? 0) - this.gutter),
      y: (box?.top ?? 0) + top - (scroller?.scrollTop ?? 0) + 16,
    };
  }
  redraw(): void {
    if (!this.asked) this.asked = requestAnimationFrame(() => { this.asked = 0; this.draw(); });
  }
  stop(): void { cancelAnimationFrame(this.asked); this.asked = 0; }

  private scene(height: number, scroll: number, hovered: number, path: Uint32Array | null): Scene {
    return {
      view: this.view, gutter: this.gutter, width: this.width, height, scroll, hovered, path,
      ratio: devicePixelRatio || 1,
    };
  }
  private draw(): void {
    const begun = performance.now();
    this.width = this.axis?.clientWidth ?? 0;
    if (!this.width) return;
    const flat = this.scene(0, 0, -1, null);
    if (this.overview && this.panels[0]) overview(this.overview, this.panels[0].picture, flat, this.whole);
    for (const panel of this.panels) {
      const { picture, lanes, scroller } = panel;
      if (lanes) {
        const height = Math.min(picture.layout.height, MOST_HEIGHT_PX);
        lanes.dataset.mode = paint(lanes, picture, this.scene(height, scroller?.scrollTop ?? 0, panel.hovered, panel.path));
      }
      if (panel.memory) memory(panel.memory, picture.trace, flat, panel.device);
    }
    if (this.axis) axis(this.axis, flat);
    globalThis.meshwrightFrames?.push(performance.now() - begun);
  }

  /** The row under a place on the lanes of a panel, and its device; -1 where there is none. */
  find(panel: Panel, x: number, y: number): { row: number; device: number } {
    const { trace, layout } = panel.picture;
    const found = at(layout, y + (panel.scroller?.scrollTop ?? 0));
    if (!found) return { row: -1, device: -1 };
    if (!found.strip || x < this.gutter) return { row: -1, device: found.band.device };
    const pixel = (this.view.to - this.view.from) / Math.max(1, this.width - this.gutter);
    const time = this.view.from + (x - this.gutter) * pixel, lane = trace.lanes[found.strip.lane];
    const exact = firstEndingAfter(trace, lane.from, lane.to, time);
    const row = exact < lane.to && trace.start[exact] <= time ? exact : nearest(trace, lane, time, NEAR_PX * pixel);
    return { row, device: found.band.device };
  }
}

function nearest(trace: DrawnTrace, lane: { from: number; to: number }, time: number, near: number): number {
  const row = firstEndingAfter(trace, lane.from, lane.to, time - near);
  return row < lane.to && trace.start[row] <= time + near ? row : -1;
}

/** How wide the names of devices are, in CSS pixels; narrow pages give them less. */
export function gutterOf(layouts: Layout[]): number {
  const context = document.createElement("canvas").getContext("2d")!;
  context.font = "12px system-ui, sans-serif";
  let widest = 44;
  for (const { bands } of layouts) for (const { label, count } of bands) {
    widest = Math.max(widest, context.measureText(count > 1 ? `${label} ×${count}` : label).width);
  }
  return Math.ceil(Math.min(widest, innerWidth < 600 ? 72 : 150)) + 14;
}

export const track = (): string => css("--track");
export { MEMORY_PX, OVERVIEW_PX };
