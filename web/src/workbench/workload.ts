// What the model is for, training or serving: which words a state has, and what of them follows the devices.
import type { Words } from "../address";
import { filled, fittedDegrees, merged } from "./degrees";
import { fitted } from "./layouts";
import type { Catalog } from "./server";

export const TRAIN = "train", SERVE = "serve";
export type Workload = typeof TRAIN | typeof SERVE;
/** What is asked for with every move, and what when the moves rest. */
export const PARTS: Record<Workload, { now: string[]; later: string[] }> = {
  train: { now: ["timeline", "memory", "composition", "holders", "topology"], later: ["binds"] },
  serve: { now: ["occupancy"], later: ["against_load"] },
};
// What of a state asks, and does not answer: a script that was pasted among it.
const JOB = ["model", "cluster", "global-batch", "seq", "like", "prompt", "output", "variation", "rate_per_s", "ttft", "tpot"];
const SHARED = ["model", "cluster", "theme"]; // words that stay when the workload changes

export const workloadOf = (words: Words): Workload => (words.workload === SERVE ? SERVE : TRAIN);

/** Do two states ask for the same, whatever plan they have for it? */
export const isOfJob = (words: Words, other: Words): boolean => JOB.every((word) => words[word] === other[word]);

/** Does a state say all of these words so? */
export const isSaid = (some: Words, words: Words): boolean => Object.entries(some).every(([word, value]) => words[word] === value);

/** A state with the usual words where it says nothing; usual degrees are those that its cluster has room for. */
export function completed(words: Words, catalog: Catalog): Words {
  if (workloadOf(words) === SERVE) return { ...catalog.load_defaults, ...words };
  const made = filled({ ...catalog.defaults, ...words }, catalog.clusters);
  return saysDegrees(words) ? made : fittedDegrees(made, catalog.clusters, modelOf(made, catalog));
}

const modelOf = (words: Words, catalog: Catalog) => catalog.models.find((each) => each.name === words.model);
const saysDegrees = (words: Words): boolean => ["tp", "pp", "cp", "dp"].some((which) => words[which]);

/** A state after others said some of its words; what they say nothing of takes the devices that are there, and degrees that
 * nobody said for them are made smaller where the devices are too few. */
export function changed(words: Words, others: Words, catalog: Catalog): Words {
  const next = { ...words, ...others };
  if (workloadOf(next) === SERVE) return fitted(next, catalog);
  const made = merged(words, others, catalog.clusters);
  return saysDegrees(others) ? made : fittedDegrees(made, catalog.clusters, modelOf(made, catalog));
}

/** The other workload of the same model and cluster; `last`: its words when it was left, if it ever was. */
export function switched(words: Words, to: Workload, last: Words | undefined, catalog: Catalog): Words {
  const shared = Object.fromEntries(SHARED.filter((word) => words[word]).map((word) => [word, words[word]]));
  const { dp, ...own } = last ?? {};
  const kept = dp && own.cluster === words.cluster ? { ...own, dp } : own; // else it takes the devices that there are now
  const next = completed({ ...kept, ...shared, ...(to === SERVE ? { workload: SERVE } : {}) }, catalog);
  return to === SERVE ? fitted(next, catalog) : next;
}
