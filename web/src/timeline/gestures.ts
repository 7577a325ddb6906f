// Pointer, wheel and pinch on a canvas become zooms about the pointer, pans and clicks.
import { panned, within, zoomed } from "./window";
import type { View } from "./paint";

export interface Hands {
  view: () => View; whole: () => number; gutter: () => number; width: () => number; isEngaged: () => boolean;
  show: (view: View) => void;
  hover: (x: number, y: number, clientX: number, clientY: number) => void;
  leave: () => void; click: (x: number, y: number, clientX: number, clientY: number) => void;
}

const CLICK_PX = 4; // a press that moves less is a click
const WHEEL_ZOOM = 0.0022;
const PINCH_ZOOM = 0.012; // a pinch on a touchpad arrives as small wheel steps with ctrl

/** Listens until the returned function is called. */
export function listen(canvas: HTMLElement, hands: Hands): () => void {
  const stop = new AbortController(), signal = stop.signal;
  const down = new Map<number, { x: number; y: number }>();
  let grabbed: { x: number; view: View; moved: number } | null = null;
  let pinch: { distance: number; about: number; view: View } | null = null;
  const perPx = (view: View): number => (view.to - view.from) / Math.max(1, hands.width() - hands.gutter());
  const timeAt = (x: number, view: View): number => view.from + (x - hands.gutter()) * perPx(view);
  const place = (event: PointerEvent | WheelEvent): { x: number; y: number } => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const spread = (): { distance: number; middle: number } => {
    const [a, b] = [...down.values()];
    return { distance: Math.max(8, Math.abs(a.x - b.x)), middle: (a.x + b.x) / 2 };
  };

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    down.set(event.pointerId, place(event));
    canvas.setPointerCapture(event.pointerId);
    if (down.size === 2) {
      const { distance, middle } = spread();
      pinch = { distance, about: timeAt(middle, hands.view()), view: hands.view() };
    } else grabbed = { x: place(event).x, view: hands.view(), moved: 0 };
  }, { signal });
  canvas.addEventListener("pointermove", (event) => {
    const at = place(event);
    if (down.has(event.pointerId)) down.set(event.pointerId, at);
    if (pinch && down.size >= 2) {
      hands.show(zoomed(pinch.view, pinch.distance / spread().distance, pinch.about, hands.whole()));
    } else if (grabbed) {
      grabbed.moved = Math.max(grabbed.moved, Math.abs(at.x - grabbed.x));
      if (grabbed.moved < CLICK_PX) return;
      canvas.classList.add("dragging");
      hands.leave();
      const by = (at.x - grabbed.x) * perPx(grabbed.view);
      hands.show(within(grabbed.view.from - by, grabbed.view.to - by, hands.whole()));
    } else hands.hover(at.x, at.y, event.clientX, event.clientY);
  }, { signal });
  const release = (event: PointerEvent): void => {
    const at = place(event);
    if (grabbed && !pinch && grabbed.moved < CLICK_PX && event.type === "pointerup") {
      hands.click(at.x, at.y, event.clientX, event.clientY);
    }
    down.delete(event.pointerId);
    if (down.size < 2) pinch = null;
    grabbed = null;
    canvas.classList.remove("dragging");
  };
  canvas.addEventListener("pointerup", release, { signal });
  canvas.addEventListener("pointercancel", release, { signal });
  canvas.addEventListener("pointerleave", () => hands.leave(), { signal });
  canvas.addEventListener("dblclick", (event) => {
    hands.show(zoomed(hands.view(), 0.4, timeAt(place(event as unknown as PointerEvent).x, hands.view()), hands.whole()));
  }, { signal });
  canvas.addEventListener("wheel", (event) => {
    const isSideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
    const isPinch = event.ctrlKey || event.metaKey;
    if (!isSideways && !isPinch && !hands.isEngaged()) return; // the page scrolls
    event.preventDefault();
    if (isSideways && !isPinch) {
      const by = (event.deltaX || event.deltaY) / Math.max(1, hands.width() - hands.gutter());
      hands.show(panned(hands.view(), by, hands.whole()));
      return;
    }
    const step = event.deltaMode === 1 ? event.deltaY * 16 : event.deltaY;
    const factor = Math.exp(step * (isPinch && Math.abs(step) < 50 ? PINCH_ZOOM : WHEEL_ZOOM));
    hands.show(zoomed(hands.view(), factor, timeAt(place(event).x, hands.view()), hands.whole()));
  }, { signal, passive: false });
  return () => stop.abort();
}
