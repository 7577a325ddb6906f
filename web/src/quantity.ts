// Numbers as people read them: seconds, bytes, counts, and the ticks of an axis.

const SECONDS: [number, string][] = [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]];
const BYTES: [number, string][] = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];

function scaled(value: number, reference: number, scales: [number, string][], digits: number): string {
  const size = Math.abs(reference);
  const [scale, unit] = scales.find(([least]) => size >= least * 0.9995) ?? scales[scales.length - 1];
  return `${significant(value / scale, digits)} ${unit}`;
}

/** So many digits, with an exponent only for what is tiny. */
export function significant(value: number, digits = 4): string {
  if (!Number.isFinite(value)) return String(value);
  if (Math.abs(value) >= 1e4) return Math.round(value).toLocaleString("en");
  if (value !== 0 && Math.abs(value) < 1e-4) return value.toExponential(digits - 2);
  return String(Number(value.toPrecision(digits)));
}

export const seconds = (value: number, reference = value): string =>
  reference === 0 ? "0 s" : scaled(value, reference, SECONDS, 4);
export const bytes = (value: number, reference = value): string => scaled(value, reference, BYTES, 3);
export const share = (value: number): string => `${(value * 100).toFixed(Math.abs(value) < 0.0995 ? 1 : 0)} %`;
export const count = (value: number): string => value.toLocaleString("en");

/** Round numbers within [from, to], about `wanted` of them. */
export function ticks(from: number, to: number, wanted: number): number[] {
  const raw = (to - from) / Math.max(1, wanted);
  if (!(raw > 0)) return [from];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = ([1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999) ?? 10) * power;
  const found: number[] = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to + step * 1e-9; i++) found.push(i * step);
  return found;
}

/** A number with its unit: `s` and `B` are scaled, `share` is per cent, other words stand behind it. */
export function inUnit(value: number, unit = "", reference = value): string {
  if (unit === "s") return seconds(value, reference);
  if (unit === "share") return `${significant(value * 100, 3)} %`;
  if (unit === "B") return bytes(value, reference);
  return unit ? `${significant(value)} ${unit}` : significant(value);
}
