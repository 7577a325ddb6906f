// The page of one document: embedded in the file, or followed while a run goes on.
import { useEffect, useMemo, useState } from "preact/hooks";
import { SCHEMA, type ViewDocument } from "./document";
import { Document } from "./sections/Document";
import { choose, type Choice } from "./theme";
import { ThemeSwitch } from "./ThemeSwitch";
import type { View } from "./timeline/paint";
import { read, viewOf, wordsOf, write } from "./address";

export function Opened({ document: given }: { document: ViewDocument }) {
  const [shown, show] = useState(given);
  const [said, say] = useState("");
  const [words, setWords] = useState(read);
  useEffect(() => {
    choose((words.theme as Choice) ?? "system");
    const back = (): void => setWords(read());
    addEventListener("popstate", back);
    return () => removeEventListener("popstate", back);
  }, [words]);
  useEffect(() => { document.title = `${shown.title} · meshwright`; }, [shown.title]);
  useEffect(() => {
    if (!shown.follow) return undefined;
    const { url, every_s } = shown.follow;
    const waiting = setTimeout(async () => {
      try {
        const answer = await fetch(url);
        if (!answer.ok) throw new Error(`${url} answered ${answer.status}`);
        const found = await answer.json() as ViewDocument & { error?: { message: string } };
        if (found.error) throw new Error(found.error.message);
        say("");
        show(found);
      } catch (error) {
        say(`The run cannot be followed now: ${(error as Error).message}`);
        show({ ...shown });
      }
    }, every_s * 1000);
    return () => clearTimeout(waiting);
  }, [shown]);
  const keep = (next: Record<string, string | null>): void => write({ ...read(), ...next }, false);
  const initial = useMemo(() => viewOf(words), [words]);
  const onView = useMemo(() => (view: View | null) => keep(wordsOf(view)), []);
  if (shown.schema !== SCHEMA) {
    return <main><p class="error" role="alert">This page reads documents of schema “{SCHEMA}”; this one says “{shown.schema}”. Open it with the meshwright that wrote it.</p></main>;
  }
  return (
    <>
      <nav class="top" aria-label="Page">
        <span class="brand">meshwright</span><span class="muted">{shown.kind}</span>
        {shown.follow && <span class="badge live">live</span>}
        {given.follow && !shown.follow && <span class="badge" role="status">ended</span>}
        <ThemeSwitch onChoice={(theme) => keep({ theme: theme === "system" ? null : theme })} />
      </nav>
      <main>
        <p role="status" class={said ? "error" : "unseen"}>{said}</p>
        <Document document={shown} acts={{ initial, onView }} />
      </main>
    </>
  );
}
