// The workbench: controls on the left, what they make on the right, all of it in the address.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { parse, read, viewOf, wordsOf, write, type Words } from "../address";
import type { Section, ViewDocument } from "../document";
import { Document } from "../sections/Document";
import { choose, type Choice } from "../theme";
import { ThemeSwitch } from "../ThemeSwitch";
import type { View } from "../timeline/paint";
import { CopyLink } from "./CopyLink";
import { taken } from "./link";
import { Newest } from "./newest";
import { Panel } from "./Panel";
import { PasteDialog, type Paste } from "./PasteDialog";
import { Refusing } from "./Refusing";
import * as server from "./server";
import { usePlanning } from "./usePlanning";
import { changed, completed, isOfJob, isSaid, PARTS, switched, workloadOf, type Workload } from "./workload";

const REST_MS = 350;
const NARROW_PX = 900; // as in app.css: there the controls are folded
const OF_THE_PAGE = ["t0", "t1", "theme", "stage", "zoom", "view"]; // words that are not the plan's

const planWords = (words: Words): Words =>
  Object.fromEntries(Object.entries(words).filter(([word]) => !OF_THE_PAGE.includes(word)));

const refusalOf = (error: Error): server.Refusal => (error instanceof server.Refused ? error.refusal : { message: error.message });

export function Workbench() {
  const [catalog, setCatalog] = useState<server.Catalog | null>(null);
  const [words, setWords] = useState<Words>(read);
  const [shown, show] = useState<ViewDocument | null>(null);
  const [later, setLater] = useState<ViewDocument | null>(null);
  const [inside, setInside] = useState<ViewDocument | null>(null);
  const [refusal, refuse] = useState<server.Refusal | null>(null);
  const [isBehind, behind] = useState(false);
  const [paste, setPaste] = useState<Paste | null>(null);
  const [notes, note] = useState<string[]>([]);
  const [zoom, setZoom] = useState<View | undefined>(() => viewOf(read()));
  const planning = usePlanning((error) => refuse(refusalOf(error)));
  const latest = useRef(words), known = useRef<server.Catalog | null>(null), left = useRef<Partial<Record<Workload, Words>>>({});

  const asking = useMemo(() => new Newest<Words, ViewDocument>(
    (state, sequence) => server.view(planWords(state), sequence, PARTS[workloadOf(state)].now),
    (answer, _, isNewest) => { show(answer); refuse(null); behind(!isNewest); },
    (error) => { refuse(refusalOf(error)); behind(false); }), []);
  const askingLater = useMemo(() => new Newest<Words, ViewDocument>(
    (state, sequence) => server.view(planWords(state), sequence, PARTS[workloadOf(state)].later), setLater, () => setLater(null)), []);
  const askingInside = useMemo(() => new Newest<Words, ViewDocument>(
    (state) => server.segments(planWords(state), Number(state.stage)), setInside,
    (error) => { // the stage of another plan: there is none to show in this one
      setInside(null);
      keep({ stage: null });
      note([`The inside of the stage is not shown: ${error.message}`]);
    }), []);

  const take = (next: Words, isFound = false): void => {
    if (workloadOf(next) !== workloadOf(latest.current)) forget();
    else if (!isFound && !isOfJob(next, latest.current)) planning.forget(); // plans of another job are none for this one
    latest.current = next;
    setWords(next);
    behind(true);
    asking.put(next);
  };
  const forget = (): void => { // what belongs to the other workload
    left.current[workloadOf(latest.current)] = latest.current;
    askingLater.drop();
    askingInside.drop();
    planning.forget();
    setLater(null);
    setInside(null);
    note([]);
  };
  useEffect(() => {
    const arrive = async (): Promise<void> => {
      const said = read();
      choose((said.theme as Choice) ?? "system");
      setZoom(viewOf(said));
      const next = await taken(said).catch((error: Error) => {
        note([`What the link carries could not be read: ${error.message}`]);
        return taken({ ...said, given: "" });
      });
      if (!known.current || said.given) setCatalog(known.current = await server.catalog());
      take(completed(next, known.current));
    };
    const back = (): void => { arrive().catch((error: Error) => refuse(refusalOf(error))); };
    back();
    addEventListener("popstate", back);
    return () => removeEventListener("popstate", back);
  }, []);
  useEffect(() => { // to what changes in a script, where that stands before the plans
    const plans = planning.found && document.querySelector("section.plans");
    if (plans) (planning.found!.sections[0].type === "plans" ? plans : plans.previousElementSibling)?.scrollIntoView();
  }, [planning.found]);
  useEffect(() => { if (shown) document.title = `${shown.title} · meshwright`; }, [shown]);
  useEffect(() => { // what takes longer follows when the moves rest
    if (!shown || isBehind) return undefined;
    const waiting = setTimeout(() => {
      askingLater.put(latest.current);
      if (latest.current.stage !== undefined) askingInside.put(latest.current);
    }, REST_MS);
    return () => clearTimeout(waiting);
  }, [shown, isBehind, words.stage]);

  const keep = (changed: Record<string, string | null>): void => {
    const next = Object.fromEntries(Object.entries({ ...latest.current, ...changed }).filter(([, value]) => value !== null)) as Words;
    latest.current = next;
    setWords(next);
    write(next, false);
  };
  const onView = useMemo(() => (view: View | null): void => keep(wordsOf(view)), []);
  const rest = (): void => write(latest.current, true);
  const go = (next: Words, isFound = false): void => { take(next, isFound); rest(); };
  const merge = (others: Words, isFound = false): void => { if (known.current) go(changed(latest.current, others, known.current), isFound); };
  const turn = (to: Workload): void => { if (known.current) go(switched(latest.current, to, left.current[to], known.current)); };
  const open = (id: string): void => {
    merge(parse(id), true);
    document.querySelector("main")?.scrollIntoView();
  };
  const pasting = (what: "model" | "cluster" | "script"): void => setPaste(pasteOf(what, async (text) => {
    if (what === "script") {
      const found = await server.imported(text, planWords(latest.current));
      setCatalog(known.current = await server.catalog()); // with the model that the script says
      note(found.notes ?? []);
      return merge(found.state);
    }
    const found = await server.pasted(what, text);
    if (known.current) {
      const list = `${what}s` as const;
      known.current = { ...known.current, [list]: [...known.current[list].filter((each) => each.name !== found.name), found] };
      setCatalog(known.current);
    }
    merge({ [what]: found.name });
  }));
  const whole = shown && { ...shown, notes: [...notes, ...(shown.notes ?? [])], sections: ordered(shown, inside, planning.found, later) };
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.querySelector("main")?.focus(); }}>To the timeline</a>
      <nav class="top" aria-label="Page">
        <span class="brand">meshwright</span><span class="muted kind">workbench</span>
        <span class="muted small" role="status">{isBehind ? "pricing…" : ""}</span>
        <CopyLink words={() => latest.current} />
        <ThemeSwitch onChoice={(theme) => keep({ theme: theme === "system" ? null : theme })} />
      </nav>
      <div class="bench">
        <aside aria-label="Controls">
          {catalog && <details class="controls" open={innerWidth > NARROW_PX}><summary>Controls</summary><Panel catalog={catalog} words={words} move={take} rest={rest} onWorkload={turn} onPaste={pasting} onPlan={() => { refuse(null); planning.start(planWords(latest.current)); }} isPlanning={planning.job !== null} /></details>}
        </aside>
        <main tabIndex={-1} class={refusal ? "stale" : ""}>
          {refusal && <Refusing refusal={refusal} />}
          {planning.job !== null && (
            <p class="progress"><label>Searching <progress max={1} value={planning.share ?? undefined} /></label><span role="status">{planning.text}</span>
              <button type="button" onClick={planning.cancel}>Stop</button></p>
          )}
          {whole ? <Document document={whole} acts={{ onPlan: open, isOpen: (id) => isSaid(parse(id), words), initial: zoom, onView, onStage: (stage) => keep({ stage: String(stage) }) }} />
            : !refusal && <p class="note" role="status">Asking the workbench…</p>}
        </main>
      </div>
      {paste && <PasteDialog paste={paste} close={() => setPaste(null)} />}
    </>
  );
}

/** The timeline first, then what is inside the stage that was clicked, then plans, then the rest. */
function ordered(shown: ViewDocument, ...others: (ViewDocument | null)[]): Section[] {
  const [inside, found, later] = others.map((each) => each?.sections ?? []);
  const rest = shown.sections.findIndex((each) => each.type !== "timeline"), at = rest < 0 ? shown.sections.length : rest;
  return [...shown.sections.slice(0, at), ...inside, ...found, ...shown.sections.slice(at), ...later];
}

function pasteOf(what: "model" | "cluster" | "script", give: (text: string) => Promise<void>): Paste {
  const texts = {
    model: { title: "Paste a model", what: "A model's config.json", example: '{"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, …}' },
    cluster: { title: "Paste a cluster", what: "A cluster as TOML", example: 'name = "mine"\n…' },
    script: {
      title: "Paste a Megatron script", what: "A Megatron or DeepSpeed launch script, a plan's TOML or a config.json",
      example: "torchrun pretrain_gpt.py \\\n  --tensor-model-parallel-size 8 \\\n  --pipeline-model-parallel-size 4 …",
    },
  };
  return { ...texts[what], give };
}
