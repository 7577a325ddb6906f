// A refusal of the server: what was given, what is allowed, what to do next.
import type { Refusal } from "./server";

export function Refusing({ refusal }: { refusal: Refusal }) {
  const allowed = Array.isArray(refusal.allowed) ? refusal.allowed.join(", ") : refusal.allowed;
  return (
    <div class="error" role="alert">
      <p>{refusal.message}</p>
      {allowed && <p><b>Allowed:</b> {allowed}</p>}
      {refusal.next && <p><b>Next:</b> {refusal.next}</p>}
    </div>
  );
}
