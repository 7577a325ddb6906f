// The switch between light, dark and what the system prefers.
import { choice, choose, useTheme, type Choice } from "./theme";

const CHOICES: [Choice, string][] = [["system", "System"], ["light", "Light"], ["dark", "Dark"]];

export function ThemeSwitch({ onChoice }: { onChoice?: (choice: Choice) => void }) {
  useTheme();
  return (
    <label class="theme">
      <span class="unseen">Colours</span>
      <select value={choice()} onChange={(event) => { choose(event.currentTarget.value as Choice); onChoice?.(choice()); }}>
        {CHOICES.map(([value, text]) => <option key={value} value={value}>{text}</option>)}
      </select>
    </label>
  );
}
