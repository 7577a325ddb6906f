// What the colours and patterns mean, and what the marks of differences mean.
import { useTheme } from "../theme";
import { FASTER, SLOWER, UNMATCHED } from "./ink";
import { known } from "./patterns";
import type { DrawnTrace } from "./trace";

export function Swatch({ color, pattern }: { color: string; pattern: string }) {
  return <i class={`swatch pattern-${known(pattern)}`} style={{ backgroundColor: color }} aria-hidden="true" />;
}

export function Legend({ traces, isDifferent }: { traces: DrawnTrace[]; isDifferent: boolean }) {
  const theme = useTheme();
  const kinds = new Map(traces.flatMap((trace) => {
    const used = new Set(trace.kind);
    return trace.kinds.filter((_, place) => used.has(place)).map((kind) => [kind.name, kind] as const);
  }));
  return (
    <ul class="keys" aria-label="Legend">
      {[...kinds.values()].map((kind) => (
        <li key={kind.name}><Swatch color={theme === "dark" ? kind.color_dark : kind.color_light} pattern={kind.pattern} />{kind.name}</li>
      ))}
      {isDifferent && (
        <>
          <li><Swatch color={SLOWER[theme]} pattern="solid" />longer than above</li>
          <li><Swatch color={FASTER[theme]} pattern="solid" />shorter</li>
          <li><Swatch color={UNMATCHED[theme]} pattern="solid" />only here</li>
        </>
      )}
    </ul>
  );
}
