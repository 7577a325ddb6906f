// Headline numbers with their small print, and notes.
import type { Fact } from "../document";

export function Facts({ facts }: { facts: Fact[] }) {
  return (
    <dl class="figures">
      {facts.map((fact) => (
        <div key={fact.name} class={fact.is_warning ? "warning" : ""}><dt>{fact.name}</dt><dd>{fact.value}</dd>{fact.note && <dd class="small">{fact.note}</dd>}</div>
      ))}
    </dl>
  );
}

export function Notes({ notes }: { notes: string[] }) {
  return <ul class="plain" aria-label="Notes">{notes.map((note) => <li key={note}>{note}</li>)}</ul>;
}
