// How a training is cut, and what its step is.
import { useState } from "preact/hooks";
import type { Words } from "../address";
import { degree, DEGREES, devicesOf, divisors, moved, refusal, taken, TITLES, withContext } from "./degrees";
import { Chooser, NumberField, type FieldProps } from "./Fields";
import { Slider } from "./Slider";

function Degrees({ props }: { props: FieldProps }) {
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

/** How the devices that share a sequence attend. */
function Context({ props }: { props: FieldProps }) {
  const { catalog, words } = props, cp = degree(words, "cp");
  if (cp === 1 || !catalog.contexts) return null;
  const follow = { ...props, move: (next: Words): void => props.move(withContext(next)) };
  return (
    <fieldset>
      <legend>Shared sequences</legend>
      <Chooser word="context" title="Attention" choices={catalog.contexts} props={follow} />
      <Chooser word="token_layout" title="Tokens lie" choices={catalog.token_layouts} props={props} />
      {(words.context ?? "ring") === "ring" && cp > 2 && <Slider id="w-ulysses" title="Neighbours exchanging heads" values={divisors(cp).filter((each) => each < cp)}
        value={degree(words, "ulysses")} onMove={(value) => props.move({ ...words, ulysses: String(value) })} onRest={props.rest} />}
    </fieldset>
  );
}

export function TrainControls({ props }: { props: FieldProps }) {
  const { catalog, words } = props;
  const batch = Math.max(1, Math.floor(Number(words["global-batch"] ?? 1)) || 1), dp = degree(words, "dp");
  const micros = divisors(Math.max(1, Math.floor(batch / dp))).slice(0, 24);
  return (
    <>
      <Degrees props={props} />
      <Context props={props} />
      <fieldset>
        <legend>Step</legend>
        <Slider id="w-micro" title="Sequences a microbatch" values={micros} value={degree(words, "micro")}
          onMove={(value) => props.move({ ...words, micro: String(value) })} onRest={props.rest} />
        <Chooser word="schedule" title="Schedule" choices={catalog.schedules} props={props} />
        <NumberField word="chunks" title="Chunks a device" least={1} props={props} />
        <Chooser word="recompute" title="Recompute" choices={catalog.recomputes} props={props} />
        <Chooser word="zero" title="ZeRO" choices={catalog.zeros} props={props} />
        <Chooser word="offload" title="Offload" choices={catalog.offloads} props={props} />
        <Chooser word="precision" title="Precision" choices={catalog.precisions} props={props} />
      </fieldset>
    </>
  );
}
