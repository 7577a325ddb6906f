// The state in the address, behind `#`, as a query string of the words of the command line.
import type { View } from "./timeline/paint";

export type Words = Record<string, string>;

export const read = (): Words => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

export const parse = (query: string): Words => Object.fromEntries(new URLSearchParams(query));

/** The words as a query string, empty ones left out. */
export function query(words: Record<string, string | null | undefined>): string {
  const found = new URLSearchParams();
  for (const [word, value] of Object.entries(words)) if (value !== null && value !== undefined && value !== "") found.set(word, value);
  return found.toString();
}

/** Puts the words in the address: as a step that "back" undoes, or in place of the present one. */
export function write(words: Record<string, string | null | undefined>, isStep: boolean): void {
  const address = `#${query(words)}`;
  if (address === location.hash || (address === "#" && !location.hash)) return;
  if (isStep) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
}

/** The part of time that an address shows, where it says one. */
export function viewOf(words: Words): View | undefined {
  const from = Number(words.t0), to = Number(words.t1);
  return words.t0 !== undefined && Number.isFinite(from) && Number.isFinite(to) && to > from ? { from, to } : undefined;
}

export const wordsOf = (view: View | null): { t0: string | null; t1: string | null } =>
  view ? { t0: view.from.toPrecision(7), t1: view.to.toPrecision(7) } : { t0: null, t1: null };
