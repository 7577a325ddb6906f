// One section of a document, drawn by its type; what is not known is said, never left out in silence.
import { Component, type ComponentChildren } from "preact";
import type { Section as AnySection } from "../document";
import type { View } from "../timeline/paint";
import { Timeline } from "../timeline/Timeline";
import { Binds } from "./Binds";
import { Composition } from "./Composition";
import { DataTable } from "./DataTable";
import { Frontier } from "./Frontier";
import { Plans } from "./Plans";
import { Series } from "./Series";
import { Topology } from "./Topology";

export interface Acts {
  onPlan?: (id: string) => void; isOpen?: (id: string) => boolean; onStage?: (stage: number) => void;
  initial?: View; onView?: (view: View | null) => void;
}

const TITLES: Record<string, string> = {
  timeline: "Timeline", composition: "What a step is made of", plans: "Plans", frontier: "Cost against time", topology: "Communication",
  series: "Over time", table: "Table", binds: "What binds", segments: "Inside a stage",
};

export function Section({ section, id, acts }: { section: AnySection; id: string; acts: Acts }) {
  const title = section.title || TITLES[section.type] || section.type;
  if (section.type === "timeline" || section.type === "segments") {
    const { initial, onView, onStage } = acts;
    return <Guard title={title}><Timeline id={id} title={title} note={section.note} traces={section.traces} initial={initial} onView={onView} onStage={onStage} /></Guard>;
  }
  return (
    <section class={section.type} aria-labelledby={`${id}-title`}>
      <h2 id={`${id}-title`}>{title}</h2>
      {section.note && <p class="note">{section.note}</p>}
      <Guard title={title}>{content(section, acts)}</Guard>
    </section>
  );
}

function content(section: Exclude<AnySection, { type: "timeline" | "segments" }>, acts: Acts): ComponentChildren {
  switch (section.type) {
    case "composition": return <Composition section={section} />;
    case "plans": return <Plans section={section} onPlan={acts.onPlan} isOpen={acts.isOpen} />;
    case "frontier": return <Frontier section={section} onPlan={acts.onPlan} />;
    case "topology": return <Topology section={section} />;
    case "series": return <Series section={section} />;
    case "table": return <DataTable label={section.title ?? "Table"} columns={section.columns} rows={section.rows} />;
    case "binds": return <Binds section={section} />;
    default: return <p class="error">This page does not know sections of type {(section as { type: string }).type}.</p>;
  }
}

/** What cannot be drawn says why, and the other sections stay. */
class Guard extends Component<{ title: string; children: ComponentChildren }, { said: string }> {
  state = { said: "" };
  static getDerivedStateFromError(error: Error): { said: string } { return { said: error.message }; }
  render(): ComponentChildren {
    return this.state.said ? <p class="error" role="alert">{this.props.title} cannot be drawn: {this.state.said}</p> : this.props.children;
  }
}
