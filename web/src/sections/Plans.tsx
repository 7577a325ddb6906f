// Ranked plans; in the workbench a click opens one.
import type { PlansSection } from "../document";
import { DataTable } from "./DataTable";

export function Plans({ section, onPlan, isOpen }: { section: PlansSection; onPlan?: (id: string) => void; isOpen?: (id: string) => boolean }) {
  const open = onPlan && section.ids?.length
    ? (row: number, text: string) => section.ids![row]
      ? <button type="button" class="link" onClick={() => onPlan(section.ids![row])}>{text || "open"}</button> : text
    : undefined;
  return <DataTable label={section.title ?? "Plans"} columns={section.columns} rows={section.rows} chosen={isOpen && section.ids ? section.ids.findIndex(isOpen) : section.chosen ?? -1} first={open} />;
}
