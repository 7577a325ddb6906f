// Two traces compared in words: how many rows match, how they are shifted, and which differ most.
import type { TableColumn, TableRow } from "../document";
import { count, seconds } from "../quantity";
import { DataTable } from "../sections/DataTable";
import { Folded } from "../sections/Folded";
import { ratio } from "./Card";
import { length, NOTABLE, type Difference } from "./compared";
import { numberAt, titleOf, type DrawnTrace } from "./trace";

interface Compared { first: DrawnTrace; other: DrawnTrace; found: Difference }

export function Differences({ go, ...compared }: Compared & { go: (row: number) => void }) {
  const { first, other, found } = compared;
  let longer = 0, shorter = 0;
  found.tint.forEach((tint) => { if (tint === 1) longer++; else if (tint === 2) shorter++; });
  return (
    <div class="differences">
      <p class="note">
        {count(found.matched)} of {count(other.rows)} rows of {other.label} are also in {first.label}.
        {found.matched > 0 && ` Half of them start ${seconds(Math.abs(found.shift), first.span)} or more ${found.shift < 0 ? "earlier" : "later"};
        the median length is ${ratio(found.ratio, 1)}. ${count(longer)} are longer and ${count(shorter)} shorter by over ${NOTABLE * 100} %.`}
      </p>
      {found.largest.length > 0 && (
        <Folded title="The largest differences in length">
          {() => (
            <DataTable label="The largest differences" columns={columnsOf(compared)} rows={found.largest.map((row) => cellsOf(compared, row))}
              first={(row, text) => <button type="button" class="link" onClick={() => go(found.largest[row])}>{text}</button>} />
          )}
        </Folded>
      )}
    </div>
  );
}

const columnsOf = ({ first, other }: Compared): TableColumn[] => [
  { key: "instruction", title: "Instruction" },
  ...[["stage", "Stage"], ["before", first.label], ["now", other.label], ["ratio", "Ratio"], ["shift", "Shift"]]
    .map(([key, title]) => ({ key, title, is_number: true })),
];

function cellsOf({ first, other, found }: Compared, row: number): TableRow {
  const twin = found.twin[row];
  return {
    instruction: titleOf(other, row), stage: numberAt(other.stage, row),
    before: seconds(length(first, twin)), now: seconds(length(other, row)), ratio: ratio(length(other, row), length(first, twin)),
    shift: seconds(other.start[row] - first.start[twin], first.span),
  };
}
