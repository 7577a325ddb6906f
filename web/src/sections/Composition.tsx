// What a step is made of: one bar, and the parts with their seconds and shares.
import type { CompositionSection } from "../document";
import { seconds, share } from "../quantity";
import { PATTERNS } from "../timeline/patterns";

// Those of reports/chart/bars.py, apart for the colour-blind; patterns change with each.
const COLORS = ["#5b8fd9", "#e09a52", "#58b394", "#c97bb0", "#a9d6b2", "#e8cf5a", "#e06c6c", "#7fd0e0", "#aa8909", "#c3c9d1"];
const LEAST_LABEL_SHARE = 0.07;

export function Composition({ section }: { section: CompositionSection }) {
  const total = section.total_s || section.parts.reduce((sum, part) => sum + part.seconds, 0) || 1;
  const mark = (place: number): { style: { backgroundColor: string }; pattern: string } => ({
    style: { backgroundColor: COLORS[place % COLORS.length] }, pattern: PATTERNS[place % PATTERNS.length],
  });
  return (
    <>
      <div class="stack" aria-hidden="true">
        {section.parts.map((part, place) => {
          const { style, pattern } = mark(place), size = part.seconds / total;
          return (
            <span key={part.name} class={`pattern-${pattern}`} title={`${part.name}: ${seconds(part.seconds)}`}
              style={{ ...style, width: `${100 * size}%` }}>{size >= LEAST_LABEL_SHARE && <b>{share(size)}</b>}</span>
          );
        })}
      </div>
      <ul class="parts" aria-label="Parts of the step">
        {section.parts.map((part, place) => {
          const { style, pattern } = mark(place);
          return (
            <li key={part.name}>
              <i class={`swatch pattern-${pattern}`} style={style} aria-hidden="true" />
              <span>{part.name}</span>{part.kind && <span class="muted">{part.kind}</span>}
              <b>{seconds(part.seconds)}</b><span class="muted">{share(part.seconds / total)}</span>
            </li>
          );
        })}
        <li class="total"><span>step</span><b>{seconds(total)}</b></li>
      </ul>
    </>
  );
}
