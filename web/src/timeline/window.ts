// The part of time that is seen: moves and zooms stay within the whole.
import type { View } from "./paint";

const MOST_ZOOM = 1e5;

export function within(from: number, to: number, whole: number): View {
  const span = Math.min(whole, Math.max(to - from, whole / MOST_ZOOM));
  const start = Math.max(0, Math.min(from, whole - span));
  return { from: start, to: start + span };
}

/** factor < 1 goes nearer; the time `about` stays where it is. */
export const zoomed = (view: View, factor: number, about: number, whole: number): View =>
  within(about - (about - view.from) * factor, about + (view.to - about) * factor, whole);

export function panned(view: View, share: number, whole: number): View {
  const by = share * (view.to - view.from);
  return within(view.from + by, view.to + by, whole);
}

export const isWhole = (view: View, whole: number): boolean => view.from <= 0 && view.to >= whole * (1 - 1e-9);
