// The timeline as a table: the rows that are seen, for those who do not see the picture, and to copy from.
import type { TableColumn, TableRow } from "../document";
import { bytes, count, seconds } from "../quantity";
import { DataTable } from "../sections/DataTable";
import { Folded } from "../sections/Folded";
import { length } from "./compared";
import type { View } from "./paint";
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

const WORDS = ["Device", "Stream", "Instruction"], NUMBERS = ["Stage", "Microbatch", "Start", "Length"];

function columnsOf(trace: DrawnTrace): TableColumn[] {
  const numbers = trace.bytes ? [...NUMBERS, "Bytes"] : NUMBERS;
  return [...WORDS, ...numbers].map((title) => ({ key: title, title, is_number: !WORDS.includes(title) }));
}

function cellsOf(trace: DrawnTrace, row: number): TableRow {
  const lane = trace.lanes[trace.lane[row]];
  return {
    Device: trace.devices[lane.device], Stream: lane.stream, Instruction: trace.names[trace.name[row]],
    Stage: numberAt(trace.stage, row), Microbatch: numberAt(trace.microbatch, row),
    Start: seconds(trace.start[row], trace.span), Length: seconds(length(trace, row)),
    Bytes: trace.bytes?.[row] ? bytes(trace.bytes[row]) : "",
  };
}

export function RowTable({ traces, view, lit }: { traces: DrawnTrace[]; view: View; lit: (Uint8Array | null)[] }) {
  return (
    <Folded title="As a table" name="rows">
      {() => traces.map((trace, place) => {
        const { rows, total } = seen(trace, view, lit[place]);
        const many = total > rows.length ? `the first ${count(rows.length)} of ${count(total)}` : count(total);
        return (
          <DataTable key={place} label={`Rows of ${trace.label}`} columns={columnsOf(trace)} rows={rows.map((row) => cellsOf(trace, row))}
            caption={`${trace.label}: ${many} rows between ${seconds(view.from, view.to)} and ${seconds(view.to)}`} />
        );
      })}
    </Folded>
  );
}
