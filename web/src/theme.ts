// Light or dark: what the system prefers, or what was chosen here.
import { useEffect, useState } from "preact/hooks";

export type Choice = "system" | "light" | "dark";
export type Theme = "light" | "dark";

const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();
let chosen: Choice = "system";

export const theme = (): Theme => (chosen !== "system" ? chosen : system.matches ? "dark" : "light");
export const choice = (): Choice => chosen;

function tell(): void {
  document.documentElement.dataset.theme = theme();
  listeners.forEach((told) => told());
}
export function choose(next: Choice): void {
  chosen = next === "light" || next === "dark" ? next : "system";
  tell();
}
system.addEventListener("change", tell);
tell();

/** The theme now; the component is drawn again when it changes. */
export function useTheme(): Theme {
  const [, again] = useState(0);
  useEffect(() => {
    const told = (): void => again((n) => n + 1);
    listeners.add(told);
    return () => void listeners.delete(told);
  }, []);
  return theme();
}

/** A colour of the style sheet, as the canvas needs it. */
export const css = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
