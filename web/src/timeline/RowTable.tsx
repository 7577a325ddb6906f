// The timeline as a table: the rows that are seen, for those who do not see the picture, and to copy from.
import { useState } from "preact/hooks";
import { bytes, count, seconds } from "../quantity";
import type { View } from "./paint";
import { length } from "./compared";
import { numberAt, type DrawnTrace } from "./trace";

const MOST_ROWS = 100;

/** The first rows within the window by start, of those that are looked for. */
function seen(trace: DrawnTrace, view: View, lit: Uint8Array | null): { rows: number[]; total: number } {
  const rows: number[] = [];
  for (let row = 0; row < trace.rows; row++) {
    if (trace.end[row] >= view.from && trace.start[row] <= view.to && (!lit || lit[row])) rows.push(row);
  }
  rows.sort((a, b) => trace.start[a] - trace.start[b]);
  return { rows: rows.slice(0, MOST_ROWS), total: rows.length };
}

export function RowTable({ traces, view, lit }: {
  traces: DrawnTrace[]; view: () => View; lit: (Uint8Array | null)[];
}) {
  const [isOpen, open] = useState(false);
  return (
    <details class="rows" onToggle={(event) => open((event.currentTarget as HTMLDetailsElement).open)}>
      <summary>As a table</summary>
      {isOpen && traces.map((trace, place) => <One key={place} trace={trace} view={view()} lit={lit[place]} />)}
    </details>
  );
}

function One({ trace, view, lit }: { trace: DrawnTrace; view: View; lit: Uint8Array | null }) {
  const { rows, total } = seen(trace, view, lit);
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label={`Rows of ${trace.label}`}>
      <table>
        <caption>
          {trace.label}: {total > rows.length ? `the first ${count(rows.length)} of ${count(total)}` : count(total)} rows
          between {seconds(view.from, view.to)} and {seconds(view.to)}
        </caption>
        <thead>
          <tr>
            <th scope="col">Device</th><th scope="col">Stream</th><th scope="col">Instruction</th>
            <th scope="col" class="number">Stage</th><th scope="col" class="number">Microbatch</th>
            <th scope="col" class="number">Start</th><th scope="col" class="number">Length</th>
            {trace.bytes && <th scope="col" class="number">Bytes</th>}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => {
            const lane = trace.lanes[trace.lane[row]];
            return (
              <tr key={row}>
                <td>{trace.devices[lane.device]}</td><td>{lane.stream}</td><td>{trace.names[trace.name[row]]}</td>
                <td class="number">{numberAt(trace.stage, row) ?? ""}</td>
                <td class="number">{numberAt(trace.microbatch, row) ?? ""}</td>
                <td class="number">{seconds(trace.start[row], trace.span)}</td>
                <td class="number">{seconds(length(trace, row))}</td>
                {trace.bytes && <td class="number">{trace.bytes[row] ? bytes(trace.bytes[row]) : ""}</td>}
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}
