// Which layouts can serve: replicas that the devices are enough for, and what the model can be cut into.
import type { Words } from "../address";
import { degree, devicesOf, divisors } from "./degrees";
import type { Catalog, Named } from "./server";

export const LAYOUT = ["tp", "pp", "ep", "replicas"] as const;
export type Cut = (typeof LAYOUT)[number];
export const CUT_TITLES: Record<Cut, string> = {
  tp: "Tensor parallel", pp: "Pipeline stages", ep: "Expert parallel", replicas: "Replicas",
};
const MOST_REPLICAS = 64; // that the server simulates
const REPLICAS = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64];

/** Devices that all replicas take. */
export const used = (words: Words): number => degree(words, "tp") * degree(words, "pp") * degree(words, "replicas");

/** What a slider offers. */
export function offered(words: Words, which: Cut, devices: number): number[] {
  if (which === "ep") return [...new Set([1, degree(words, "tp")])];
  return which === "replicas" ? REPLICAS.filter((each) => each <= devices) : divisors(devices);
}

/** Why a value is not allowed beside the others, or null where it is. */
export function refusal(words: Words, which: Cut, value: number, devices: number, model: Named | undefined): string | null {
  if (which === "ep") {
    if (value === 1 || model?.experts === undefined) return null;
    return model.experts > 0 && model.experts % value === 0 ? null : `${model.experts} experts are not divided by ${value}`;
  }
  if (which === "replicas" && value > MOST_REPLICAS) return `at most ${MOST_REPLICAS} here`;
  const taken = used(cut(words, which, value, devices));
  if (taken > devices) return `${taken} is more than ${devices} devices`;
  if (which === "tp" && model?.tps && !model.tps.includes(value)) return `the model is divided by ${model.tps.join(", ")}, not by ${value}`;
  return null;
}

/** The words after a slider was moved: fewer replicas where each takes more devices, whole experts on as many as share a matrix. */
export function cut(words: Words, which: Cut, value: number, devices: number): Words {
  const next = { ...words, [which]: String(value) };
  if (which === "tp" && degree(words, "ep") > 1) next.ep = next.tp;
  const most = Math.floor(devices / (degree(next, "tp") * degree(next, "pp")));
  if ((which === "tp" || which === "pp") && most && degree(next, "replicas") > most) next.replicas = String(most);
  return next;
}

/** The words with fewer devices where the cluster has not so many: fewer replicas, or one of a smaller layout. */
export function fitted(words: Words, catalog: Catalog): Words {
  const devices = devicesOf(words.cluster, catalog.clusters);
  if (!devices || used(words) <= devices) return words;
  const least = cut(words, "tp", degree(words, "tp"), devices);
  if (used(least) <= devices) return least;
  const tps = catalog.models.find((each) => each.name === words.model)?.tps ?? divisors(devices);
  const tp = Math.max(1, ...tps.filter((each) => each <= Math.min(devices, degree(words, "tp"))));
  return { ...cut(words, "tp", tp, devices), pp: "1", replicas: "1" };
}
