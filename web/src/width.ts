// How wide an element is, for pictures that are drawn to fit.
import type { RefObject } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

/** What to hang on the element, and its width in CSS pixels, at most so many; drawn again when it changes. */
export function useWidth<T extends HTMLElement>(most: number): [RefObject<T>, number] {
  const place = useRef<T>(null);
  const [width, set] = useState(most);
  useLayoutEffect(() => {
    const node = place.current!;
    const measure = (): void => set(Math.min(most, node.clientWidth || most));
    const resized = new ResizeObserver(measure);
    resized.observe(node);
    measure();
    return () => resized.disconnect();
  }, [most]);
  return [place, width];
}
