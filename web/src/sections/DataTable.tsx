// A table of texts that scrolls within itself; its heads sort.
import { useMemo, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import type { TableColumn, TableRow } from "../document";

const FIRST_ROWS = 16;
const UNIT: Record<string, number> = {
  ns: 1e-9, us: 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12,
};

/** What a cell sorts by: its first number, with its unit; NaN where it has none. */
function worth(cell: string | number | null | undefined): number {
  if (typeof cell === "number") return cell;
  const found = /(-?[\d,]*\.?\d+(?:e[+-]?\d+)?)\s*([A-Za-z]*)/.exec(cell ?? "");
  return found ? Number(found[1].replaceAll(",", "")) * (UNIT[found[2]] ?? 1) : NaN;
}

function order(rows: TableRow[], column: TableColumn, isDown: boolean): number[] {
  const places = rows.map((_, place) => place);
  const compare = column.is_number
    ? (a: number, b: number): number => {
      const [left, right] = [worth(rows[a][column.key]), worth(rows[b][column.key])];
      return Number.isNaN(left) ? 1 : Number.isNaN(right) ? -1 : left - right;
    }
    : (a: number, b: number): number => String(rows[a][column.key] ?? "").localeCompare(String(rows[b][column.key] ?? ""));
  places.sort(compare);
  return isDown ? places.reverse() : places;
}

export function DataTable({ label, caption, columns, rows, chosen = -1, first }: {
  label: string; caption?: string; columns: TableColumn[]; rows: TableRow[]; chosen?: number;
  first?: (row: number, text: string) => ComponentChildren;
}) {
  const [sorting, sort] = useState<{ key: string; isDown: boolean } | null>(null);
  const [isWhole, whole] = useState(false);
  const places = useMemo(() => {
    const column = sorting && columns.find((each) => each.key === sorting.key);
    return column ? order(rows, column, sorting.isDown) : rows.map((_, place) => place);
  }, [rows, columns, sorting]);
  const shown = isWhole ? places : places.slice(0, FIRST_ROWS);
  const next = (key: string): void => sort(sorting?.key !== key ? { key, isDown: false } : sorting.isDown ? null : { key, isDown: true });
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label={label}>
      <table>
        {caption && <caption>{caption}</caption>}
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.key} scope="col" class={column.is_number ? "number" : ""}
                aria-sort={sorting?.key !== column.key ? "none" : sorting.isDown ? "descending" : "ascending"}>
                {column.title && (
                  <button type="button" class="head" onClick={() => next(column.key)}>
                    {column.title}<span aria-hidden="true">{sorting?.key !== column.key ? "" : sorting.isDown ? " ↓" : " ↑"}</span>
                  </button>
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {shown.map((row) => (
            <tr key={row} class={row === chosen ? "chosen" : ""} aria-current={row === chosen ? "true" : undefined}>
              {columns.map((column, place) => {
                const text = String(rows[row][column.key] ?? "");
                return <td key={column.key} class={column.is_number ? "number" : ""}>{place === 0 && first ? first(row, text) : text}</td>;
              })}
            </tr>
          ))}
        </tbody>
      </table>
      {shown.length < places.length && (
        <button type="button" onClick={() => whole(true)}>Show all {places.length} rows</button>
      )}
    </div>
  );
}
