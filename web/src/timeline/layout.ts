// Where devices and their lanes stand: one tall lane a device, thin ones for its other streams, groups folded.
import type { DrawnTrace } from "./trace";

export interface Strip { lane: number; top: number; height: number }
export interface Band { device: number; label: string; count: number; top: number; height: number; strips: Strip[] }
export interface Layout { bands: Band[]; height: number; hasGroups: boolean }

// Heights in CSS pixels by how many devices there are: the compute lane, each further lane, the space below.
const SIZES: [most: number, tall: number, thin: number, gap: number][] = [
  [4, 26, 6, 7], [8, 22, 5, 6], [16, 16, 4, 5], [40, 10, 2, 3], [Infinity, 7, 2, 1],
];

export function layout(trace: DrawnTrace, isUnfolded: boolean): Layout {
  const lanesOf = new Map<number, number[]>();
  trace.lanes.forEach((lane, index) => {
    const found = lanesOf.get(lane.device);
    if (found) found.push(index); else lanesOf.set(lane.device, [index]);
  });
  const shown = rowsOf(trace, isUnfolded, [...lanesOf.keys()]);
  const [, tall, thin, gap] = SIZES.find(([most]) => shown.length <= most)!;
  const bands: Band[] = [];
  let top = 0;
  for (const each of shown) {
    const lanes = lanesOf.get(each.source) ?? [];
    const strips: Strip[] = [];
    let y = top;
    lanes.forEach((lane, place) => {
      const height = place ? thin : tall;
      strips.push({ lane, top: y, height });
      y += height + (thin > 2 ? 1 : 0);
    });
    bands.push({ device: each.device, label: each.label, count: each.count, top, height: y - top, strips });
    top = y + gap;
  }
  return { bands, height: top, hasGroups: trace.groups.some((group) => group.count > 1) };
}

function rowsOf(trace: DrawnTrace, isUnfolded: boolean, drawn: number[]) {
  const name = (device: number): string => trace.devices[device] ?? String(device);
  if (!trace.groups.length) return drawn.map((device) => ({ device, source: device, count: 1, label: name(device) }));
  return trace.groups.flatMap(({ name: group, devices, count }) => {
    const source = devices[0];
    if (!isUnfolded || devices.length < count) return [{ device: source, source, count, label: group || name(source) }];
    return devices.map((device) => ({ device, source, count: 1, label: name(device) }));
  });
}

/** The band and lane at a height, or null between them. */
export function at(found: Layout, y: number): { band: Band; strip: Strip | null } | null {
  const band = found.bands.find((each) => y >= each.top && y < each.top + each.height + 1);
  if (!band) return null;
  return { band, strip: band.strips.find((each) => y >= each.top && y < each.top + each.height + 1) ?? null };
}
