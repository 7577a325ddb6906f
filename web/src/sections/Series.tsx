// Lines over one axis, by uPlot: loss, tokens a second, latency against load.
import { useEffect, useMemo, useRef } from "preact/hooks";
import uPlot from "uplot";
import { numbers, type SeriesSection, type TableColumn, type TableRow } from "../document";
import { inUnit } from "../quantity";
import { css, useTheme } from "../theme";
import { DataTable } from "./DataTable";
import { Folded } from "./Folded";

// So many that, beside six colours, the first ten lines differ in one or the other also for the colour-blind.
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [14, 5]];
const COLORS = 6; // --s1 to --s6
const TALL_PX = 250;

/** All lines on the union of their x, with null where a line has no value. */
function aligned(section: SeriesSection): uPlot.AlignedData {
  const tables = section.lines.map((line) => [Array.from(numbers(line.x)), Array.from(numbers(line.y))] as uPlot.AlignedData);
  return tables.length === 1 ? tables[0] : uPlot.join(tables);
}

function options(section: SeriesSection, width: number): uPlot.Options {
  const muted = css("--muted"), line = css("--line");
  const axis = (label: string, unit?: string): uPlot.Axis => ({
    label, stroke: muted, grid: { stroke: line, width: 1 }, ticks: { stroke: line }, labelSize: 22, size: 62,
    font: "11px system-ui", labelFont: "12px system-ui", values: (_, marks) => marks.map((value) => (value === null ? "" : inUnit(value, unit))), // null: a tick without a text
  });
  const x = axis(section.x_title, section.x_unit);
  return {
    width, height: TALL_PX, legend: { live: true }, cursor: { drag: { x: true, y: false } },
    hooks: { init: [(plot) => sampled(plot)] }, scales: { x: { time: false }, y: section.is_log ? { distr: 3 } : {} }, axes: [{ ...x, size: 34 }, axis(section.y_title, section.y_unit)],
    series: [
      { label: section.x_title, value: (_, value) => (value === null ? "–" : inUnit(value, section.x_unit)) },
      ...section.lines.map((each, place): uPlot.Series => ({
        label: each.label, ...lookOf(place), width: 1.8, spanGaps: true,
        points: { show: each.x.count <= 40 }, value: (_, value) => (value === null || value === undefined ? "–" : inUnit(value, section.y_unit)),
      })),
    ],
  };
}

const SAMPLE = { wide: 24, tall: 8 }; // pixels of a line in the legend

/** Puts a piece of each line into the legend: colour and dash, where uPlot has a square of the colour. */
function sampled(plot: uPlot): void {
  plot.root.querySelectorAll(".u-marker").forEach((marker, place) => {
    if (!place) return marker.remove(); // of x
    const { stroke, dash } = lookOf(place - 1);
    const drawn = document.createElementNS("http://www.w3.org/2000/svg", "svg"), line = document.createElementNS(drawn.namespaceURI, "line");
    const sized = { width: SAMPLE.wide, height: SAMPLE.tall, "aria-hidden": true };
    const across = { x1: 0, x2: SAMPLE.wide, y1: SAMPLE.tall / 2, y2: SAMPLE.tall / 2, stroke, "stroke-width": 2, "stroke-dasharray": dash.join(" ") };
    Object.entries(sized).forEach(([name, value]) => drawn.setAttribute(name, String(value)));
    Object.entries(across).forEach(([name, value]) => line.setAttribute(name, String(value)));
    drawn.append(line);
    marker.replaceWith(drawn);
  });
}

const lookOf = (place: number): { stroke: string; dash: number[] } =>
  ({ stroke: css(`--s${(place % COLORS) + 1}`), dash: DASHES[place % DASHES.length] });

export function Series({ section }: { section: SeriesSection }) {
  const theme = useTheme(), place = useRef<HTMLDivElement>(null);
  const data = useMemo(() => aligned(section), [section]);
  useEffect(() => {
    const node = place.current!;
    const plot = new uPlot(options(section, Math.max(240, node.clientWidth)), data, node);
    const resized = new ResizeObserver(() => plot.setSize({ width: Math.max(240, node.clientWidth), height: TALL_PX }));
    resized.observe(node);
    return () => { resized.disconnect(); plot.destroy(); };
  }, [section, data, theme]);
  const last = section.lines.map((line) => {
    const values = numbers(line.y);
    return `${line.label}: ${values.length ? inUnit(values[values.length - 1], section.y_unit) : "nothing yet"}`;
  });
  const name = section.y_title || section.title || "Values";
  return (
    <>
      <div class="plot" ref={place} role="img" aria-label={`${name} over ${section.x_title}. Last: ${last.join("; ")}. The table below has all.`} />
      <Folded title="As a table">
        {() => <DataTable label={`${name} as a table`} columns={columnsOf(section)} rows={rowsOf(section, data)} />}
      </Folded>
    </>
  );
}

const columnsOf = (section: SeriesSection): TableColumn[] =>
  [section.x_title || "x", ...section.lines.map((line) => line.label)].map((title, place) => ({ key: String(place), title, is_number: true }));

/** A row for every x, with an empty cell where a line has no value. */
function rowsOf(section: SeriesSection, data: uPlot.AlignedData): TableRow[] {
  const units = [section.x_unit, ...section.lines.map(() => section.y_unit)];
  return Array.from(data[0], (_, row) => Object.fromEntries(units.map((unit, column) => {
    const value = data[column][row];
    return [String(column), value === null || value === undefined ? "" : inUnit(value, unit)];
  })));
}
