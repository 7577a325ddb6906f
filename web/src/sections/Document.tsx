// A whole document: what it is, its numbers, its sections, its notes.
import type { ViewDocument } from "../document";
import { Facts, Notes } from "./Facts";
import { Section, type Acts } from "./Section";

export function Document({ document: shown, acts }: { document: ViewDocument; acts: Acts }) {
  return (
    <>
      <header class="about">
        <h1>{shown.title}</h1>
        {shown.subtitle && <p>{shown.subtitle}</p>}
      </header>
      {shown.facts && shown.facts.length > 0 && <Facts facts={shown.facts} />}
      {shown.sections.map((section, place) => (
        <Section key={`${section.type}${place}`} id={`s${place}`} section={section} acts={acts} />
      ))}
      {shown.notes && shown.notes.length > 0 && (
        <section aria-labelledby="notes-title"><h2 id="notes-title">Notes</h2><Notes notes={shown.notes} /></section>
      )}
    </>
  );
}
