// The search for plans: a job of the server that is asked how far it is.
import { useEffect, useRef, useState } from "preact/hooks";
import type { ViewDocument } from "../document";
import type { Words } from "../address";
import * as server from "./server";

export interface Planning {
  job: string | null; share: number | null; text: string; found: ViewDocument | null;
  start: (state: Words) => void; cancel: () => void; forget: () => void;
}

const EVERY_MS = 250;

export function usePlanning(refuse: (error: Error) => void): Planning {
  const [job, work] = useState<string | null>(null);
  const [progress, say] = useState<{ share: number | null; text: string }>({ share: null, text: "" });
  const [found, find] = useState<ViewDocument | null>(null);
  const refused = useRef(refuse), running = useRef(job);
  refused.current = refuse;
  running.current = job;
  useEffect(() => {
    if (job === null) return undefined;
    let isOver = false;
    const ask = async (): Promise<void> => {
      try {
        const answer = await server.job(job);
        if (isOver) return;
        if (answer.state === "running" || answer.state === "waiting") {
          say({ share: answer.share ?? null, text: answer.text ?? "" });
          waiting = setTimeout(() => void ask(), EVERY_MS);
          return;
        }
        if (answer.document) find(answer.document);
      } catch (error) {
        if (!isOver) refused.current(error as Error);
      }
      if (!isOver) work(null);
    };
    let waiting = setTimeout(() => void ask(), 0);
    return () => { isOver = true; clearTimeout(waiting); };
  }, [job]);
  const cancel = (): void => {
    if (running.current !== null) server.cancel(running.current).catch((error: Error) => refused.current(error));
    work(null);
  };
  return {
    job, ...progress, found, cancel,
    forget: () => {
      cancel();
      find(null);
    },
    start: (state) => {
      say({ share: null, text: "" });
      server.plan(state).then((answer) => work(answer.job), (error: Error) => refused.current(error));
    },
  };
}
