// What the workbench asks of its server, and what refusals look like.
import type { ViewDocument } from "../document";
import type { Words } from "../address";

export interface Refusal { message: string; allowed?: string | string[] | null; next?: string | null }
export class Refused extends Error {
  constructor(readonly refusal: Refusal) { super(refusal.message); }
}
/** Another page asked later, and this question was dropped. */
export class Superseded extends Refused {}

export interface Named {
  name: string; title?: string; devices?: number; // of a cluster
  tps?: number[]; experts?: number; // of a model: tensor-parallel degrees that divide it, and what ep divides
}
type Choice = string | { name: string; title?: string };
export interface Catalog {
  models: Named[]; clusters: Named[]; schedules?: Choice[]; recomputes?: Choice[]; offloads?: Choice[]; zeros?: Choice[];
  precisions?: Choice[]; contexts?: Choice[]; token_layouts?: Choice[]; defaults?: Words; load_defaults?: Words; // of an empty address, and of one that says workload=serve
}
export interface Job {
  job: string; state: "waiting" | "running" | "done" | "failed" | "cancelled"; share?: number | null; text?: string;
  document?: ViewDocument; error?: Refusal;
}

async function asked<T>(method: string, path: string, body?: unknown): Promise<T> {
  let answer: Response;
  try {
    answer = await fetch(path, {
      method, ...(body === undefined ? {} : { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } }),
    });
  } catch {
    throw new Refused({ message: "The workbench does not answer.", next: "Start `meshwright view` again and reload this page." });
  }
  const found = await answer.json().catch(() => ({})) as T & { error?: Refusal; is_superseded?: boolean };
  if (found.error) throw new (found.is_superseded ? Superseded : Refused)(found.error);
  if (!answer.ok) throw new Refused({ message: `${path} answered ${answer.status}` });
  return found;
}

export const catalog = (): Promise<Catalog> => asked("GET", "/api/catalog");
export const view = (state: Words, sequence: number, parts: string[]): Promise<ViewDocument> =>
  asked("POST", "/api/view", { state, sequence, parts });
export const segments = (state: Words, stage: number): Promise<ViewDocument> => asked("POST", "/api/segments", { state, stage });
export const plan = (state: Words): Promise<{ job: string }> => asked("POST", "/api/plan", { state });
export const job = (id: string): Promise<Job> => asked("GET", `/api/plan/${encodeURIComponent(id)}`);
export const cancel = (id: string): Promise<Job> => asked("DELETE", `/api/plan/${encodeURIComponent(id)}`);
export const imported = (text: string, state: Words): Promise<{ state: Words; notes?: string[] }> =>
  asked("POST", "/api/import", { text, state });
/** The text of something that this session knows by a name of its own, and which path takes it. */
export interface Source { what: "model" | "cluster" | "import"; text: string }
export const sources = (names: string[]): Promise<{ sources: Source[] }> => asked("GET", `/api/sources?names=${names.join(",")}`);
export const pasted = (what: "model" | "cluster", text: string): Promise<Named> => asked("POST", `/api/${what}`, { text });
