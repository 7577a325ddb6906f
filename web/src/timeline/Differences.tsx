// Two traces compared in words: how many rows match, how they are shifted, and which differ most.
import { count, seconds } from "../quantity";
import { ratio } from "./Card";
import { length, NOTABLE, type Difference } from "./compared";
import { numberAt, titleOf, type DrawnTrace } from "./trace";

export function Differences({ first, other, found, go }: {
  first: DrawnTrace; other: DrawnTrace; found: Difference; go: (row: number) => void;
}) {
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
        <details>
          <summary>The largest differences in length</summary>
          <div class="scroll" tabIndex={0} role="group" aria-label="The largest differences">
            <table>
              <thead><tr>
                <th scope="col">Instruction</th><th scope="col" class="number">Stage</th><th scope="col" class="number">{first.label}</th>
                <th scope="col" class="number">{other.label}</th><th scope="col" class="number">Ratio</th><th scope="col" class="number">Shift</th>
              </tr></thead>
              <tbody>
                {found.largest.map((row) => {
                  const twin = found.twin[row];
                  return (
                    <tr key={row}>
                      <th scope="row"><button type="button" class="link" onClick={() => go(row)}>{titleOf(other, row)}</button></th>
                      <td class="number">{numberAt(other.stage, row) ?? ""}</td>
                      <td class="number">{seconds(length(first, twin))}</td>
                      <td class="number">{seconds(length(other, row))}</td>
                      <td class="number">{ratio(length(other, row), length(first, twin))}</td>
                      <td class="number">{seconds(other.start[row] - first.start[twin], first.span)}</td>
                    </tr>
                  );
                })}
              </tbody>
            </table>
          </div>
        </details>
      )}
    </div>
  );
}
