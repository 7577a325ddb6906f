// The fields of the controls: a choice, a number, a text, a cluster. Each changes one word of the state.
import type { Words } from "../address";
import type { Catalog, Named } from "./server";
import { changed } from "./workload";

export interface FieldProps { catalog: Catalog; words: Words; move: (words: Words) => void; rest: () => void }

type Listed = (string | { name: string; title?: string })[] | undefined;

export function Chooser({ word, title, choices, props }: { word: string; title: string; choices: Listed; props: FieldProps }) {
  const value = props.words[word] ?? "";
  const set = (next: string): void => { props.move({ ...props.words, [word]: next }); props.rest(); };
  const named = (choices ?? []).map((each) => (typeof each === "string" ? { name: each } : each) as Named);
  if (!choices) return <TextField word={word} title={title} props={props} />;
  const isKnown = named.some((each) => each.name === value);
  return (
    <p class="field">
      <label for={`w-${word}`}>{title}</label>
      <select id={`w-${word}`} title={named.find((each) => each.name === value)?.title ?? value} value={value} onChange={(event) => set(event.currentTarget.value)}>
        {!isKnown && <option value={value}>{value || "as is usual"}</option>}
        {named.map((each) => <option key={each.name} value={each.name}>{each.title || each.name || "none"}</option>)}
      </select>
    </p>
  );
}

export function TextField({ word, title, props }: { word: string; title: string; props: FieldProps }) {
  const set = (value: string): void => { props.move({ ...props.words, [word]: value }); props.rest(); };
  return (
    <p class="field"><label for={`w-${word}`}>{title}</label>
      <input id={`w-${word}`} value={props.words[word] ?? ""} onChange={(event) => set(event.currentTarget.value.trim())} /></p>
  );
}

export function NumberField({ word, title, least, step = 1, props }: { word: string; title: string; least: number; step?: number | "any"; props: FieldProps }) {
  return (
    <p class="field">
      <label for={`w-${word}`}>{title}</label>
      <input id={`w-${word}`} type="number" min={least} step={step} inputMode={step === 1 ? "numeric" : "decimal"} value={props.words[word] ?? ""}
        onInput={(event) => event.currentTarget.value && props.move({ ...props.words, [word]: event.currentTarget.value })} onChange={props.rest} />
    </p>
  );
}

/** A known cluster, or a short name such as 16x8xH100; what is cut into degrees follows its devices. */
export function ClusterField({ props }: { props: FieldProps }) {
  const { catalog, words } = props;
  const set = (cluster: string): void => {
    props.move(changed(words, { cluster }, catalog));
    props.rest();
  };
  return (
    <p class="field">
      <label for="w-cluster">Cluster</label>
      <input id="w-cluster" list="clusters" title={words.cluster} value={words.cluster ?? ""} onChange={(event) => event.currentTarget.value.trim() && set(event.currentTarget.value.trim())} />
      <datalist id="clusters">{catalog.clusters.map((each) => <option key={each.name} value={each.name}>{each.title ?? ""}</option>)}</datalist>
    </p>
  );
}
