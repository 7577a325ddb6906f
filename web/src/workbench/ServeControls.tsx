// The load that is served, how the model is cut for it, and what a step may have.
import { degree, devicesOf } from "./degrees";
import { Chooser, NumberField, TextField, type FieldProps } from "./Fields";
import { cut, CUT_TITLES, LAYOUT, offered, refusal, used } from "./layouts";
import { Slider } from "./Slider";

const STEPS = [
  { word: "max_batch_tokens", title: "Tokens a step", values: [256, 512, 1024, 2048, 4096, 8192] },
  { word: "max_sequences", title: "Sequences a step", values: [16, 32, 64, 128, 256, 512, 1024] },
];

function Layout({ props }: { props: FieldProps }) {
  const { catalog, words } = props;
  const model = catalog.models.find((each) => each.name === words.model);
  const devices = devicesOf(words.cluster, catalog.clusters) ?? used(words);
  const which = LAYOUT.filter((each) => each !== "ep" || model?.experts !== 0 || degree(words, "ep") > 1);
  const fits = used(words) <= devices;
  return (
    <fieldset>
      <legend>Layout</legend>
      {which.map((each) => (
        <Slider key={each} id={`w-${each}`} title={CUT_TITLES[each]} values={offered(words, each, devices)} value={degree(words, each)}
          refuse={(value) => refusal(words, each, value, devices, model)}
          onMove={(value) => props.move(cut(words, each, value, devices))} onRest={props.rest} />
      ))}
      <p class={`product ${fits ? "" : "off"}`} role="status">
        {(["replicas", "tp", "pp"] as const).map((each) => degree(words, each)).join(" × ")} = {used(words)} of {devices} devices {fits ? "✓" : "✗"}
      </p>
    </fieldset>
  );
}

export function LoadFields({ props }: { props: FieldProps }) {
  return (
    <fieldset>
      <legend>Load</legend>
      <NumberField word="rate_per_s" title="Requests a second" least={0} step="any" props={props} />
      <NumberField word="prompt" title="Prompt tokens" least={1} props={props} />
      <NumberField word="output" title="Output tokens" least={1} props={props} />
      <NumberField word="variation" title="Vary by (share)" least={0} step={0.1} props={props} />
      <TextField word="ttft" title="TTFT within" props={props} />
      <TextField word="tpot" title="TPOT within" props={props} />
    </fieldset>
  );
}

export function ServeControls({ props }: { props: FieldProps }) {
  const { catalog, words } = props;
  return (
    <>
      <LoadFields props={props} />
      <Layout props={props} />
      <fieldset>
        <legend>Step</legend>
        {STEPS.map(({ word, title, values }) => (
          <Slider key={word} id={`w-${word}`} title={title} values={values} value={degree(words, word)}
            onMove={(value) => props.move({ ...words, [word]: String(value) })} onRest={props.rest} />
        ))}
        <Chooser word="precision" title="Precision" choices={catalog.precisions} props={props} />
      </fieldset>
    </>
  );
}
