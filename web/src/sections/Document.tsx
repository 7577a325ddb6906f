// A whole document: what it is, its numbers, its sections, its notes.
import type { Section as AnySection, ViewDocument } from "../document";
import { Facts, Notes } from "./Facts";
import { Section, type Acts } from "./Section";

const MAIN = "timeline0"; // the timeline whose zoom is in the address

/** A section keeps its place on the page, and what was opened in it, when others come and go. */
function keyed(sections: AnySection[]): { section: AnySection; key: string }[] {
  const seen = new Map<string, number>();
  return sections.map((section) => {
    const place = seen.get(section.type) ?? 0;
    seen.set(section.type, place + 1);
    return { section, key: `${section.type}${place}` };
  });
}

export function Document({ document: shown, acts }: { document: ViewDocument; acts: Acts }) {
  return (
    <>
      <header class="about">
        <h1>{shown.title}</h1>
        {shown.subtitle && <p>{shown.subtitle}</p>}
      </header>
      {shown.facts && shown.facts.length > 0 && <Facts facts={shown.facts} />}
      {keyed(shown.sections).map(({ section, key }) => <Section key={key} id={key} section={section} acts={key === MAIN ? acts : { onPlan: acts.onPlan, isOpen: acts.isOpen }} />)}
      {shown.notes && shown.notes.length > 0 && (
        <section aria-labelledby="notes-title"><h2 id="notes-title">Notes</h2><Notes notes={shown.notes} /></section>
      )}
    </>
  );
}
