// The controls: what is trained, on what, and how it is cut. Every move changes words of the state.
import { useState } from "preact/hooks";
import type { Words } from "../address";
import { Slider } from "./Slider";
import { degree, DEGREES, devicesOf, divisors, merged, moved, refusal, taken, TITLES } from "./degrees";
import type { Catalog, Named } from "./server";

export interface PanelProps {
  catalog: Catalog; words: Words;
  move: (words: Words) => void; rest: () => void;
  onPaste: (what: "model" | "cluster" | "script") => void; onPlan: () => void; isPlanning: boolean;
}

type Listed = (string | { name: string; title?: string })[] | undefined;

function Chooser({ word, title, choices, props }: { word: string; title: string; choices: Listed; props: PanelProps }) {
  const value = props.words[word] ?? "";
  const set = (next: string): void => { props.move({ ...props.words, [word]: next }); props.rest(); };
  const named = (choices ?? []).map((each) => (typeof each === "string" ? { name: each } : each) as Named);
  if (!choices) {
    return (
      <p class="field"><label for={`w-${word}`}>{title}</label>
        <input id={`w-${word}`} value={value} onChange={(event) => set(event.currentTarget.value.trim())} /></p>
    );
  }
  const isKnown = named.some((each) => each.name === value);
  return (
    <p class="field">
      <label for={`w-${word}`}>{title}</label>
      <select id={`w-${word}`} value={value} onChange={(event) => set(event.currentTarget.value)}>
        {!isKnown && <option value={value}>{value || "as is usual"}</option>}
        {named.map((each) => <option key={each.name} value={each.name}>{each.title || each.name || "none"}</option>)}
      </select>
    </p>
  );
}

function NumberField({ word, title, least, props }: { word: string; title: string; least: number; props: PanelProps }) {
  return (
    <p class="field">
      <label for={`w-${word}`}>{title}</label>
      <input id={`w-${word}`} type="number" min={least} step={1} inputMode="numeric" value={props.words[word] ?? ""}
        onInput={(event) => event.currentTarget.value && props.move({ ...props.words, [word]: event.currentTarget.value })} onChange={props.rest} />
    </p>
  );
}

/** A known cluster, or a short name such as 16x8xH100; dp follows its devices. */
function ClusterField({ props }: { props: PanelProps }) {
  const { catalog, words } = props;
  const set = (cluster: string): void => {
    props.move(merged(words, { cluster }, catalog.clusters));
    props.rest();
  };
  return (
    <p class="field">
      <label for="w-cluster">Cluster</label>
      <input id="w-cluster" list="clusters" value={words.cluster ?? ""} onChange={(event) => event.currentTarget.value.trim() && set(event.currentTarget.value.trim())} />
      <datalist id="clusters">{catalog.clusters.map((each) => <option key={each.name} value={each.name}>{each.title ?? ""}</option>)}</datalist>
    </p>
  );
}

function Degrees({ props }: { props: PanelProps }) {
  const { catalog, words } = props;
  const [isFilled, fill] = useState(true);
  const model = catalog.models.find((each) => each.name === words.model);
  const devices = devicesOf(words.cluster, catalog.clusters) ?? taken(words);
  const used = taken(words), values = divisors(devices);
  const which = DEGREES.filter((each) => each !== "ep" || model?.experts !== 0 || degree(words, "ep") > 1);
  return (
    <fieldset>
      <legend>Parallel</legend>
      {which.map((each) => (
        <Slider key={each} id={`w-${each}`} title={TITLES[each]} values={values} value={degree(words, each)}
          refuse={(value) => refusal(words, each, value, devices, model, isFilled)}
          onMove={(value) => props.move(moved(words, each, value, devices, isFilled))} onRest={props.rest} />
      ))}
      <p class={`product ${used === devices ? "" : "off"}`} role="status">
        {(["dp", "tp", "pp", "cp"] as const).map((each) => degree(words, each)).join(" × ")} = {used} of {devices} devices {used === devices ? "✓" : "✗"}
      </p>
      <label class="check"><input type="checkbox" checked={isFilled} onChange={(event) => fill(event.currentTarget.checked)} />data parallelism takes the devices that are left</label>
    </fieldset>
  );
}

export function Panel(props: PanelProps) {
  const { catalog, words } = props;
  const batch = Math.max(1, Math.floor(Number(words["global-batch"] ?? 1)) || 1), dp = degree(words, "dp");
  const micros = divisors(Math.max(1, Math.floor(batch / dp))).slice(0, 24);
  return (
    <form class="panel" aria-label="What is planned" onSubmit={(event) => event.preventDefault()}>
      <fieldset>
        <legend>Job</legend>
        <Chooser word="model" title="Model" choices={catalog.models} props={props} />
        <ClusterField props={props} />
        <NumberField word="global-batch" title="Sequences a step" least={1} props={props} />
        <NumberField word="seq" title="Tokens a sequence" least={1} props={props} />
        <p class="actions">
          <button type="button" onClick={() => props.onPaste("model")}>Paste a model</button>
          <button type="button" onClick={() => props.onPaste("cluster")}>Paste a cluster</button>
          <button type="button" onClick={() => props.onPaste("script")}>Paste a Megatron script</button>
        </p>
      </fieldset>
      <Degrees props={props} />
      <fieldset>
        <legend>Step</legend>
        <Slider id="w-micro" title="Sequences a microbatch" values={micros} value={degree({ dp: words.micro ?? "1" }, "dp")}
          onMove={(value) => props.move({ ...words, micro: String(value) })} onRest={props.rest} />
        <Chooser word="schedule" title="Schedule" choices={catalog.schedules} props={props} />
        <NumberField word="chunks" title="Chunks a device" least={1} props={props} />
        <Chooser word="recompute" title="Recompute" choices={catalog.recomputes} props={props} />
        <Chooser word="zero" title="ZeRO" choices={catalog.zeros} props={props} />
        <Chooser word="offload" title="Offload" choices={catalog.offloads} props={props} />
        <Chooser word="precision" title="Precision" choices={catalog.precisions} props={props} />
      </fieldset>
      <p class="actions"><button type="button" class="main" disabled={props.isPlanning} onClick={props.onPlan}>Plan: search for the best</button></p>
    </form>
  );
}
