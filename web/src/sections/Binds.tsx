// What binds, and what one more dollar would buy.
import type { BindsSection } from "../document";
import { share } from "../quantity";

export function Binds({ section }: { section: BindsSection }) {
  const most = Math.max(...section.items.map((item) => item.share ?? 0), 1e-9);
  return (
    <ul class="binds">
      {section.items.map((item) => (
        <li key={item.name}>
          <strong>{item.name}</strong>
          {item.share !== null && (
            <span class="gain"><span class="bar" aria-hidden="true"><i style={{ width: `${Math.max(0, (100 * item.share) / most)}%` }} /></span>{share(item.share)}</span>
          )}
          <p>{item.text}</p>
        </li>
      ))}
    </ul>
  );
}
