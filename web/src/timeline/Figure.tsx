// One trace of a timeline: its caption, its lanes (which scroll where devices are many) and its memory curves.
import { bytes, count, seconds } from "../quantity";
import { MEMORY_PX, MOST_HEIGHT_PX, type Panel } from "./board";
import type { Layout } from "./layout";
import type { DrawnTrace } from "./trace";

export function Figure({ trace, layout, panel, label, onKey, onScroll }: {
  trace: DrawnTrace; layout: Layout; panel: Panel; label: string; onKey: (event: KeyboardEvent) => void; onScroll: () => void;
}) {
  const height = Math.min(layout.height, MOST_HEIGHT_PX);
  const devices = layout.bands.reduce((sum, band) => sum + band.count, 0);
  const top = trace.curves.reduce((most, each) => (each.peak > most.peak ? each : most), { peak: 0, device: 0, peakAt: 0 });
  return (
    <figure class="trace">
      <figcaption>
        <strong>{trace.label}</strong>
        <span class="badge">{trace.source}</span>
        <span>{seconds(trace.span)}</span>
        <span>{count(devices)} devices{layout.bands.length < devices ? `, drawn as ${count(layout.bands.length)} group${layout.bands.length > 1 ? "s" : ""}` : ""}</span>
        <span>{count(trace.rows)} rows{trace.isSampled ? " (sampled: there were more)" : ""}</span>
      </figcaption>
      <div class="scroller" style={{ height: `${height}px` }} ref={(node) => { panel.scroller = node; }} onScroll={onScroll}>
        <div style={{ height: `${layout.height}px` }}>
          <canvas
            class="lanes" style={{ height: `${height}px` }} tabIndex={0} role="application" aria-roledescription="timeline"
            aria-label={`${label}: ${count(trace.rows)} instructions of ${count(devices)} devices in ${seconds(trace.span)}. The table below has the rows.`}
            ref={(canvas) => { panel.lanes = canvas; }} onKeyDown={onKey}
          />
        </div>
      </div>
      {trace.curves.length > 0 && (
        <>
          <p class="over">
            Memory: the band is all devices, the line {trace.devices[top.device]} or the one pointed at; at most {bytes(top.peak)}
            {trace.cap !== null && ` of ${bytes(trace.cap)}`}
          </p>
          <canvas class="memory" style={{ height: `${MEMORY_PX}px` }} ref={(canvas) => { panel.memory = canvas; }} role="img"
            aria-label={`Memory over time: at most ${bytes(top.peak)} on ${trace.devices[top.device]}, at ${seconds(top.peakAt)}${trace.cap === null ? "" : `; the cap is ${bytes(trace.cap)}`}`} />
        </>
      )}
    </figure>
  );
}
