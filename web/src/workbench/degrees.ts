// Which degrees fit: products that use the cluster's devices, and what the model can be cut into.
import type { Words } from "../address";
import type { Named } from "./server";

export const DEGREES = ["dp", "tp", "pp", "cp", "ep"] as const;
export type Degree = (typeof DEGREES)[number];
export const TITLES: Record<Degree, string> = {
  dp: "Data parallel", tp: "Tensor parallel", pp: "Pipeline stages", cp: "Context parallel", ep: "Expert parallel",
};

export const divisors = (whole: number): number[] =>
  Array.from({ length: Math.max(1, whole) }, (_, i) => i + 1).filter((each) => whole % each === 0);

/** A word that says a whole number from 1. */
export const degree = (words: Words, which: string): number => Math.max(1, Math.floor(Number(words[which] ?? 1)) || 1);

/** Devices that the mesh takes; expert parallelism reuses those of the other axes. */
export const taken = (words: Words): number =>
  (["dp", "tp", "pp", "cp"] as const).reduce((product, which) => product * degree(words, which), 1);

/** The devices of a cluster: as the catalog says, or by a short name such as 8x8xH100. */
export function devicesOf(cluster: string | undefined, known: Named[]): number | undefined {
  const found = known.find((each) => each.name === cluster)?.devices;
  if (found) return found;
  const sizes = /^((?:\d+x)+)[A-Za-z]/.exec(cluster ?? "")?.[1].split("x").filter(Boolean).map(Number);
  return sizes?.reduce((product, each) => product * each, 1);
}

/** Words that others were merged into, with dp taking the devices that are left where those say no dp. */
export function merged(words: Words, others: Words, known: Named[]): Words {
  const { dp: _, ...rest } = words;
  return filled({ ...rest, ...others }, known);
}

/** The words with dp taking the devices that are left, where they say no dp. */
export function filled(words: Words, known: Named[]): Words {
  const devices = devicesOf(words.cluster, known), others = taken({ ...words, dp: "1" });
  return words.dp || !devices || devices % others ? words : { ...words, dp: String(devices / others) };
}

/** The words with degrees that the devices of the cluster are enough for: of each the largest that there is room for, tensor
 * parallelism first; as they are where these divide the devices and the model already. */
export function fittedDegrees(words: Words, known: Named[], model: Named | undefined): Words {
  const devices = devicesOf(words.cluster, known), isWhole = !model?.tps || model.tps.includes(degree(words, "tp"));
  if (!devices || (isWhole && devices % taken({ ...words, dp: "1" }) === 0)) return words;
  const next = { ...words };
  let left = devices;
  for (const which of ["tp", "pp", "cp"] as const) {
    const allowed = divisors(left).filter((each) => each <= degree(words, which) && (which !== "tp" || !model?.tps || model.tps.includes(each)));
    const value = Math.max(1, ...allowed);
    next[which] = String(value);
    left /= value;
  }
  next.dp = String(left);
  const ranks = taken({ ...next, pp: "1" });
  if (ranks % degree(next, "ep")) next.ep = String(Math.max(...divisors(ranks).filter((each) => degree(next, "ep") % each === 0)));
  return withContext(next);
}

/** The words without groups that exchange heads, where so many devices of cp or this way of attending have none. */
export function withContext(words: Words): Words {
  const { ulysses, ...rest } = words;
  const cp = degree(words, "cp"), isInside = (words.context ?? "ring") === "ring";
  return ulysses === undefined || (isInside && degree(words, "ulysses") < cp && cp % degree(words, "ulysses") === 0) ? words : { ...rest, ulysses: "1" };
}

/** Why a degree is not allowed beside the others, or null where it is. */
export function refusal(words: Words, which: Degree, value: number, devices: number, model: Named | undefined, isFilled: boolean): string | null {
  const others = taken({ ...words, [which]: "1", ...(isFilled && which !== "dp" ? { dp: "1" } : {}) });
  if (which === "ep") {
    const ranks = taken({ ...words, pp: "1" });
    if (ranks % value) return `tp × cp × dp = ${ranks} is not divided by ${value}`;
    if (model?.experts === undefined || value === 1) return null;
    if (!model.experts) return "the model has no experts";
    return model.experts % value === 0 ? null : `${model.experts} experts are not divided by ${value}`;
  }
  if (others * value > devices) return `${others} × ${value} is more than ${devices} devices`;
  if (devices % (others * value)) return `${devices} devices are not divided by ${others} × ${value}`;
  if (!(isFilled && which !== "dp") && others * value < devices) return `${others} × ${value} leaves some of ${devices} devices without work`;
  if (which === "tp" && model?.tps && !model.tps.includes(value)) return `the model is divided by ${model.tps.join(", ")}, not by ${value}`;
  return null;
}

/** The words after a degree was moved; with `isFilled`, dp takes the devices that are left. */
export function moved(words: Words, which: Degree, value: number, devices: number, isFilled: boolean): Words {
  const next = withContext({ ...words, [which]: String(value) });
  if (!isFilled || which === "dp" || which === "ep") return next;
  const others = taken({ ...next, dp: "1" });
  return devices % others === 0 ? { ...next, dp: String(devices / others) } : next;
}
