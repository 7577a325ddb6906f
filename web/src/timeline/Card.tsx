// What one row is: the card beside the pointer, and the same as a sentence for screen readers.
import { bytes, seconds } from "../quantity";
import type { Difference } from "./compared";
import { length, NO_TWIN } from "./compared";
import { numberAt, titleOf, type DrawnTrace } from "./trace";

export interface Shown { trace: number; row: number; x: number; y: number; isPinned: boolean }

export interface Line { name: string; value: string }

/** The facts of a row, in the order in which they are read. */
export function facts(trace: DrawnTrace, row: number): Line[] {
  const lane = trace.lanes[trace.lane[row]];
  const stage = numberAt(trace.stage, row), microbatch = numberAt(trace.microbatch, row);
  const moved = trace.bytes ? trace.bytes[row] : 0;
  const source = trace.costSource ? trace.costSources[trace.costSource[row]] : undefined;
  const group = trace.groups.find((each) => each.devices[0] === lane.device && each.count > 1);
  const found: (Line | null)[] = [
    { name: "kind", value: trace.kinds[trace.kind[row]].name },
    { name: "device", value: (trace.devices[lane.device] ?? String(lane.device)) + (group ? ` (one of ${group.count} alike)` : "") },
    { name: "stream", value: lane.stream },
    stage === null ? null : { name: "stage", value: String(stage) },
    microbatch === null ? null : { name: "microbatch", value: String(microbatch) },
    { name: "start", value: seconds(trace.start[row], trace.span) },
    { name: "length", value: seconds(length(trace, row)) },
    moved > 0 ? { name: "bytes", value: bytes(moved) } : null,
    trace.critical ? { name: "critical path", value: trace.critical[row] ? "on it" : "not on it" } : null,
    source ? { name: "price from", value: source } : null,
  ];
  return found.filter((each): each is Line => each !== null);
}

export const sentence = (trace: DrawnTrace, row: number): string =>
  `${titleOf(trace, row)}: ${facts(trace, row).map(({ name, value }) => `${name} ${value}`).join(", ")}`;

const CARD_PX = { wide: 300, tall: 260 };

export function Card({ traces, shown, twins }: {
  traces: DrawnTrace[]; shown: Shown; twins: (Difference | null)[];
}) {
  const trace = traces[shown.trace], row = shown.row;
  const first = shown.trace === 0 ? row : (twins[shown.trace]?.twin[row] ?? NO_TWIN);
  const others = traces.map((other, place) => {
    const at = place === 0 ? first : first === NO_TWIN ? NO_TWIN : (twins[place]?.back[first] ?? NO_TWIN);
    return { other, at };
  });
  const style = { // of the page, so that a pinned card stays where it was put
    left: `${scrollX + Math.max(8, Math.min(shown.x + 14, innerWidth - CARD_PX.wide - 8))}px`,
    top: `${scrollY + (shown.y + CARD_PX.tall > innerHeight ? Math.max(8, shown.y - CARD_PX.tall + 8) : shown.y + 18)}px`,
  };
  return (
    <div class={`card ${shown.isPinned ? "pinned" : ""}`} style={style}>
      <strong>{titleOf(trace, row)}</strong>
      <dl>
        {facts(trace, row).map(({ name, value }) => (<div key={name}><dt>{name}</dt><dd>{value}</dd></div>))}
      </dl>
      {traces.length > 1 && first !== NO_TWIN && (
        <table>
          <thead><tr><th scope="col">in</th><th scope="col" class="number">start</th><th scope="col" class="number">length</th><th scope="col" class="number">ratio</th></tr></thead>
          <tbody>
            {others.map(({ other, at }, place) => (
              <tr key={place}>
                <th scope="row">{other.label}</th>
                <td class="number">{at === NO_TWIN ? "–" : seconds(other.start[at], other.span)}</td>
                <td class="number">{at === NO_TWIN ? "–" : seconds(length(other, at))}</td>
                <td class="number">{at === NO_TWIN || !place ? "" : ratio(length(other, at), length(traces[0], first))}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {traces.length > 1 && first === NO_TWIN && <p class="small">The other trace has no such instruction.</p>}
    </div>
  );
}

export const ratio = (after: number, before: number): string => (before > 0 ? `×${(after / before).toFixed(2)}` : "–");
