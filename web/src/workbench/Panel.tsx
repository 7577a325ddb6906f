// The controls: what the model is for, on what it runs, and how it is cut. Every move changes words of the state.
import { ClusterField, Chooser, NumberField, type FieldProps } from "./Fields";
import { ServeControls } from "./ServeControls";
import { TrainControls } from "./TrainControls";
import { changed, SERVE, TRAIN, workloadOf, type Workload } from "./workload";

export interface PanelProps extends FieldProps {
  onWorkload: (workload: Workload) => void; onPaste: (what: "model" | "cluster" | "script") => void;
  onPlan: () => void; isPlanning: boolean;
}

const WORKLOADS: [Workload, string][] = [[TRAIN, "Train"], [SERVE, "Serve"]];

function Switch({ workload, onWorkload }: { workload: Workload; onWorkload: (workload: Workload) => void }) {
  return (
    <fieldset class="switch">
      <legend class="unseen">What the model is for</legend>
      {WORKLOADS.map(([each, title]) => (
        <label key={each}><input type="radio" name="workload" value={each} checked={each === workload} onChange={() => onWorkload(each)} />{title}</label>
      ))}
    </fieldset>
  );
}

export function Panel(props: PanelProps) {
  const { catalog, words } = props;
  const isServing = workloadOf(words) === SERVE;
  return (
    <form class="panel" aria-label="What is planned" onSubmit={(event) => event.preventDefault()}>
      {catalog.load_defaults && <Switch workload={workloadOf(words)} onWorkload={props.onWorkload} />}
      <fieldset>
        <legend>Job</legend>
        <Chooser word="model" title="Model" choices={catalog.models} props={{ ...props, move: ({ model }) => props.move(changed(words, { model }, catalog)) }} />
        <ClusterField props={props} />
        {!isServing && <NumberField word="global-batch" title="Sequences a step" least={1} props={props} />}
        {!isServing && <NumberField word="seq" title="Tokens a sequence" least={1} props={props} />}
        <p class="actions">
          <button type="button" onClick={() => props.onPaste("model")}>Paste a model</button>
          <button type="button" onClick={() => props.onPaste("cluster")}>Paste a cluster</button>
          {!isServing && <button type="button" onClick={() => props.onPaste("script")}>Paste a Megatron script</button>}
        </p>
      </fieldset>
      {isServing ? <ServeControls props={props} /> : <TrainControls props={props} />}
      <div class="search">
        <p class="actions"><button type="button" class="main" disabled={props.isPlanning} onClick={props.onPlan}>Plan: search for the best</button></p>
        {!isServing && words.like && <p class="hint">It tells what would change in the script that was pasted.</p>}
      </div>
    </form>
  );
}
