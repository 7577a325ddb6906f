// What is shown where it is asked for, and made only then: it may be large.
import { useState } from "preact/hooks";
import type { ComponentChildren } from "preact";

export function Folded({ title, name, children }: { title: string; name?: string; children: () => ComponentChildren }) {
  const [isOpen, open] = useState(false);
  return (
    <details class={name} onToggle={(event) => open(event.currentTarget.open)}>
      <summary>{title}</summary>
      {isOpen && children()}
    </details>
  );
}
