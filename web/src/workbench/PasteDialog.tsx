// A dialog that takes a pasted text and gives it to the server; what the server refuses stays here, beside the text.
import { useEffect, useRef, useState } from "preact/hooks";
import { Refusing } from "./Refusing";
import { Refused, type Refusal } from "./server";

export interface Paste { title: string; what: string; example: string; give: (text: string) => Promise<void> }

const MOST_BYTES = 256 * 1024; // what the server takes

export function PasteDialog({ paste, close }: { paste: Paste; close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [text, write] = useState("");
  const [refusal, refuse] = useState<Refusal | null>(null);
  const [isAsking, ask] = useState(false);
  useEffect(() => { dialog.current?.showModal(); }, []);
  const give = async (): Promise<void> => {
    if (new Blob([text]).size > MOST_BYTES) return refuse({ message: "The text is longer than 256 KiB.", next: "Paste the part that sets the options." });
    ask(true);
    refuse(null);
    try {
      await paste.give(text);
      close();
    } catch (error) {
      refuse(error instanceof Refused ? error.refusal : { message: (error as Error).message });
    }
    ask(false);
  };
  return (
    <dialog ref={dialog} onClose={close} aria-labelledby="paste-title">
      <form method="dialog" onSubmit={(event) => { event.preventDefault(); void give(); }}>
        <h2 id="paste-title">{paste.title}</h2>
        <label for="paste-text">{paste.what}</label>
        <textarea id="paste-text" rows={12} spellcheck={false} placeholder={paste.example} value={text} onInput={(event) => write(event.currentTarget.value)} />
        {refusal && <Refusing refusal={refusal} />}
        <div class="actions">
          <button type="submit" class="main" disabled={!text.trim() || isAsking}>{isAsking ? "Reading…" : "Read it"}</button>
          <button type="button" onClick={() => dialog.current?.close()}>Cancel</button>
        </div>
      </form>
    </dialog>
  );
}
