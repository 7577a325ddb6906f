// The cluster as nodes and links; a link is the wider and warmer, the more of the step it is busy.
import { useState } from "preact/hooks";
import type { TopologySection } from "../document";
import { bytes, share } from "../quantity";
import { useWidth } from "../width";
import { DataTable } from "./DataTable";
import { Folded } from "./Folded";

const MOST_WIDTH = 900, MARGIN = 52, LABELS = 24; // more labels than these would cover each other
const LETTER_PX = 6.6, GAP_PX = 8; // of a label, and between two
const LISTED = 30; // in the table
const COLUMNS = [
  { key: "link", title: "Link" }, { key: "label", title: "What" },
  { key: "bytes", title: "Bytes", is_number: true }, { key: "busy", title: "Busy", is_number: true },
];

type Link = TopologySection["links"][number];

/** Five steps from cool to hot; width says the same without colours. */
const heat = (busy: number): number => Math.min(4, Math.floor(Math.max(0, busy) * 5));

export function Topology({ section }: { section: TopologySection }) {
  const [over, point] = useState<Link | null>(null);
  const { nodes, links } = section;
  const xs = nodes.map((node) => node.x), ys = nodes.map((node) => node.y);
  const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const tall = Math.min(560, Math.max(150, new Set(ys.map((y) => y.toFixed(2))).size * 84));
  const [place, room] = useWidth<HTMLDivElement>(MOST_WIDTH);
  const width = Math.max(room, Math.min(MOST_WIDTH, least(nodes)));
  const x = (value: number): number => right > left ? MARGIN + ((value - left) / (right - left)) * (width - 2 * MARGIN) : width / 2;
  const y = (value: number): number => bottom > top ? 34 + ((value - top) / (bottom - top)) * (tall - 68) : tall / 2;
  const at = new Map(nodes.map((node) => [node.id, node]));
  const told = (link: Link): string => `${at.get(link.from)?.label ?? link.from} to ${at.get(link.to)?.label ?? link.to}`;
  const hottest = [...links].sort((a, b) => b.busy_share - a.busy_share);
  const drawn = [...hottest].reverse().filter((link) => at.has(link.from) && at.has(link.to));
  return (
    <>
      <div class="fitted" ref={place} tabIndex={0} role="group" aria-label="Nodes and links">
        <svg viewBox={`0 0 ${width} ${tall}`} width={width} height={tall} role="img" aria-label={`${nodes.length} nodes and ${links.length} links; the table below has the busiest`}>
          {drawn.map((link, number) => {
            const a = at.get(link.from)!, b = at.get(link.to)!;
            return (
              <path key={number} class={`link heat${heat(link.busy_share)} ${over === link ? "over" : ""}`} stroke-width={1.2 + 7 * Math.min(1, link.busy_share)}
                d={bent(x(a.x), y(a.y), x(b.x), y(b.y))} onPointerEnter={() => point(link)} onPointerLeave={() => point(null)} />
            );
          })}
          {nodes.map((node) => (
            <g key={node.id} class="node">
              <circle cx={x(node.x)} cy={y(node.y)} r={nodes.length > LABELS ? 5 : 9} />
              {nodes.length <= LABELS && <text x={x(node.x)} y={y(node.y) + 24} text-anchor="middle">{node.label}</text>}
            </g>
          ))}
        </svg>
      </div>
      <p class="under" role="status">
        {over ? `${told(over)}${over.label ? ` (${over.label})` : ""}: ${bytes(over.bytes)}, busy ${share(over.busy_share)} of the step` : "Wider and warmer: busy for more of the step."}
      </p>
      <Folded title="The busiest links">
        {() => (
          <DataTable label="The busiest links" columns={COLUMNS} rows={hottest.slice(0, LISTED).map((link) => (
            { link: told(link), label: link.label, bytes: bytes(link.bytes), busy: share(link.busy_share) }))} />
        )}
      </Folded>
    </>
  );
}

/** How wide a row of nodes has to be for its labels. */
function least(nodes: TopologySection["nodes"]): number {
  if (nodes.length > LABELS) return 0;
  const rows = new Map<string, string[]>();
  for (const { y, label } of nodes) rows.set(y.toFixed(2), [...(rows.get(y.toFixed(2)) ?? []), label]);
  return Math.max(0, ...[...rows.values()].map((labels) =>
    2 * MARGIN + (labels.length - 1) * (LETTER_PX * Math.max(...labels.map((each) => each.length)) + GAP_PX)));
}

/** A line that leaves neighbours on its way uncovered: long ones are bent. */
function bent(x: number, y: number, toX: number, toY: number): string {
  const long = Math.hypot(toX - x, toY - y), bend = Math.min(46, long * 0.14);
  const across = { x: (-(toY - y) / (long || 1)) * bend, y: ((toX - x) / (long || 1)) * bend };
  return `M${x} ${y}Q${(x + toX) / 2 + across.x} ${(y + toY) / 2 + across.y} ${toX} ${toY}`;
}
