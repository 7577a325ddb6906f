// A slider over a few values, of which some are marked as not allowed beside the others.
export function Slider({ id, title, values, value, refuse, onMove, onRest }: {
  id: string; title: string; values: number[]; value: number; refuse?: (value: number) => string | null;
  onMove: (value: number) => void; onRest: () => void;
}) {
  const all = values.includes(value) ? values : [...values, value].sort((a, b) => a - b);
  const why = refuse?.(value) ?? null;
  return (
    <div class="slider">
      <label for={id}>{title}</label>
      <output for={id}>{value}</output>
      <input
        id={id} type="range" min={0} max={Math.max(1, all.length - 1)} step={1} value={all.indexOf(value)} disabled={all.length < 2}
        aria-valuetext={why ? `${value}, not allowed: ${why}` : String(value)} aria-invalid={why !== null}
        onInput={(event) => onMove(all[Math.min(all.length - 1, Number(event.currentTarget.value))])} onChange={onRest}
      />
      <div class="marks" aria-hidden="true">
        {all.map((each) => <i key={each} class={refuse?.(each) ? "no" : each === value ? "here" : ""} />)}
      </div>
      {why && <p class="why">{why}</p>}
    </div>
  );
}
