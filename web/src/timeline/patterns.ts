// Patterns that tell kinds apart without colours: on the canvas, and the same in the legend.

const SIZE = 8;
export const PATTERNS = ["solid", "diagonal", "back_diagonal", "cross", "dots", "horizontal", "vertical", "zigzag", "grid"] as const;
export type Pattern = (typeof PATTERNS)[number];
export const known = (name: string): Pattern =>
  (PATTERNS as readonly string[]).includes(name) ? (name as Pattern) : "solid";

const LINES: Record<Pattern, [number, number, number, number][]> = {
  solid: [], dots: [],
  diagonal: [[-2, 10, 10, -2], [-2, 2, 2, -2], [6, 10, 10, 6]],
  back_diagonal: [[-2, -2, 10, 10], [6, -2, 10, 2], [-2, 6, 2, 10]],
  cross: [[-2, 10, 10, -2], [-2, 2, 2, -2], [6, 10, 10, 6], [-2, -2, 10, 10]],
  horizontal: [[0, 2, 8, 2], [0, 6, 8, 6]],
  vertical: [[2, 0, 2, 8], [6, 0, 6, 8]],
  zigzag: [[0, 6, 4, 2], [4, 2, 8, 6]],
  grid: [[0, 4, 8, 4], [4, 0, 4, 8]],
};

function tile(name: Pattern, color: string): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = SIZE;
  const context = canvas.getContext("2d")!;
  context.strokeStyle = context.fillStyle = color;
  context.lineWidth = 1.2;
  for (const [x, y, toX, toY] of LINES[name]) {
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(toX, toY);
    context.stroke();
  }
  if (name === "dots") for (const [x, y] of [[2, 2], [6, 6]]) context.fillRect(x - 1, y - 1, 2, 2);
  return canvas;
}

const made = new Map<Pattern, CanvasPattern | null>();

/** The pattern as ink over a colour, or null for a solid one. */
export function patternOf(context: CanvasRenderingContext2D, name: string): CanvasPattern | null {
  const which = known(name);
  if (which === "solid") return null;
  if (!made.has(which)) made.set(which, context.createPattern(tile(which, "rgb(10 16 24 / 0.28)"), "repeat"));
  return made.get(which) ?? null;
}
