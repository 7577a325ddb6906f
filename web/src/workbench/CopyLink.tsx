// The button that gives a link to what is seen, for others, too.
import { useState } from "preact/hooks";
import type { Words } from "../address";
import { linkOf } from "./link";

const SAID_MS = 2000;

export function CopyLink({ words }: { words: () => Words }) {
  const [said, say] = useState("Copy link");
  const copy = async (): Promise<void> => {
    try {
      const link = await linkOf(words());
      history.replaceState(null, "", link); // there it can be copied where the clipboard is closed
      await navigator.clipboard.writeText(link);
      say("Copied");
    } catch {
      say("Copy it from the address");
    }
    setTimeout(() => say("Copy link"), SAID_MS);
  };
  return <button type="button" onClick={() => void copy()}>{said}</button>;
}
