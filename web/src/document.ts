// The document that a page shows: what `meshwright view` embeds and what the workbench's server sends.

export const SCHEMA = "meshwright-view 1";

export type Column =
  | { dtype: string; base64: string; count: number }
  | { dtype: string; value: number; count: number };

export interface Fact { name: string; value: string; note?: string; is_warning?: boolean }
export interface Kind { name: string; color_light: string; color_dark: string; pattern: string }
export interface Memory { device: number; time_s: Column; bytes: Column }
export interface TraceColumns {
  lane: Column; start_s: Column; end_s: Column; kind: Column; name: Column; stage: Column; microbatch: Column;
  critical?: Column; bytes?: Column; cost_source?: Column;
}
export interface Trace {
  label: string; source: string; span_s: number; devices: string[];
  groups: { name: string; devices: number[]; count?: number }[];
  lanes: { device: number; stream: string }[];
  kinds: Kind[]; names: string[]; cost_sources?: string[];
  columns: TraceColumns; memory: Memory[]; cap_bytes: number | null; is_sampled: boolean;
}

export interface TimelineSection { type: "timeline"; id?: string; title?: string; note?: string; traces: Trace[] }
export interface CompositionSection {
  type: "composition"; title?: string; note?: string; total_s: number;
  parts: { name: string; seconds: number; kind: string }[];
}
export interface TableColumn { key: string; title: string; is_number?: boolean }
export type TableRow = Record<string, string | number | null>;
export interface PlansSection {
  type: "plans"; title?: string; note?: string; rows: TableRow[]; columns: TableColumn[]; ids?: string[]; chosen?: number;
}
export interface FrontierPoint { x: number; y: number; label: string; id?: string; is_best: boolean }
export interface FrontierSection {
  type: "frontier"; title?: string; note?: string; points: FrontierPoint[];
  x_title: string; y_title: string; x_unit?: string; y_unit?: string; has_diagonal?: boolean;
}
export interface TopologySection {
  type: "topology"; title?: string; note?: string;
  nodes: { id: string; label: string; x: number; y: number; kind: string }[];
  links: { from: string; to: string; label: string; bytes: number; busy_share: number }[];
}
export interface SeriesSection {
  type: "series"; title?: string; note?: string; x_title: string; y_title: string;
  x_unit?: string; y_unit?: string; is_log?: boolean; // does y go by powers of ten?
  lines: { label: string; x: Column; y: Column }[];
}
export interface TableSection { type: "table"; title?: string; note?: string; columns: TableColumn[]; rows: TableRow[] }
export interface BindsSection {
  type: "binds"; title?: string; note?: string; items: { name: string; share: number | null; text: string }[];
}
export interface SegmentsSection { type: "segments"; title?: string; note?: string; stage: number; traces: Trace[] }
export type Section =
  | TimelineSection | CompositionSection | PlansSection | FrontierSection | TopologySection | SeriesSection
  | TableSection | BindsSection | SegmentsSection;

export interface ViewDocument {
  schema: string; kind: string; title: string; subtitle?: string;
  facts?: Fact[]; notes?: string[]; sections: Section[];
  sequence?: number;
  follow?: { url: string; every_s: number }; // a live run: the page asks again until the answer has none
}

export type Numbers = Float32Array | Float64Array | Int32Array | Uint32Array | Uint16Array | Uint8Array;

const KINDS: Record<string, { new (buffer: ArrayBuffer): Numbers; BYTES_PER_ELEMENT: number }> = {
  f4: Float32Array, f8: Float64Array, i4: Int32Array, u4: Uint32Array, u2: Uint16Array, u1: Uint8Array,
};

/** The numbers of a column; columns are little-endian, as every machine with a browser is. */
export function numbers(column: Column): Numbers {
  const made = KINDS[column.dtype];
  if (!made) throw new Error(`a column of type ${column.dtype}; the page reads ${Object.keys(KINDS).join(", ")}`);
  if ("value" in column) return new made(new ArrayBuffer(column.count * made.BYTES_PER_ELEMENT)).fill(column.value);
  const text = atob(column.base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const found = new made(bytes.buffer);
  if (found.length !== column.count) throw new Error(`a column of ${found.length} numbers that says ${column.count}`);
  return found;
}
