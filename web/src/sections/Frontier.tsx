// Points of two quantities; those that no other beats in both are joined. A point opens its plan.
import { useState } from "preact/hooks";
import type { FrontierPoint, FrontierSection } from "../document";
import { inUnit, ticks } from "../quantity";

const WIDTH = 760, HEIGHT = 330, LEFT = 76, BOTTOM = 46, TOP = 14, RIGHT = 18;
const MARGIN = 0.06; // of the range, on each side

function range(values: number[]): [number, number] {
  const low = Math.min(...values), high = Math.max(...values), margin = (high - low || Math.abs(high) || 1) * MARGIN;
  return [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];
}

export function Frontier({ section, onPlan }: { section: FrontierSection; onPlan?: (id: string) => void }) {
  const [over, point] = useState<FrontierPoint | null>(null);
  const { points } = section;
  if (!points.length) return <p class="note">There are no points.</p>;
  const [fromX, toX] = range(points.map((each) => each.x)), [fromY, toY] = range(points.map((each) => each.y));
  const x = (value: number): number => LEFT + ((value - fromX) / (toX - fromX)) * (WIDTH - LEFT - RIGHT);
  const y = (value: number): number => HEIGHT - BOTTOM - ((value - fromY) / (toY - fromY)) * (HEIGHT - BOTTOM - TOP);
  const best = points.filter((each) => each.is_best).sort((a, b) => a.x - b.x);
  const isOpen = (each: FrontierPoint): boolean => Boolean(onPlan && each.id);
  const told = (each: FrontierPoint): string =>
    `${each.label}: ${section.x_title} ${inUnit(each.x, section.x_unit)}, ${section.y_title} ${inUnit(each.y, section.y_unit)}`;
  return (
    <div class="wide" tabIndex={0} role="group" aria-label={section.title || "Frontier"}>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="group" aria-label={`${section.title ?? "Frontier"}: ${points.length} points, ${best.length} on the frontier`}>
        {ticks(fromX, toX, 7).map((tick) => (
          <g key={tick}><line class="grid" x1={x(tick)} x2={x(tick)} y1={TOP} y2={HEIGHT - BOTTOM} /><text x={x(tick)} y={HEIGHT - BOTTOM + 16} text-anchor="middle">{inUnit(tick, section.x_unit, toX)}</text></g>
        ))}
        {ticks(fromY, toY, 5).map((tick) => (
          <g key={tick}><line class="grid" x1={LEFT} x2={WIDTH - RIGHT} y1={y(tick)} y2={y(tick)} /><text x={LEFT - 8} y={y(tick) + 4} text-anchor="end">{inUnit(tick, section.y_unit, toY)}</text></g>
        ))}
        <text class="title" x={(LEFT + WIDTH - RIGHT) / 2} y={HEIGHT - 8} text-anchor="middle">{section.x_title}</text>
        <text class="title" x={14} y={(HEIGHT - BOTTOM + TOP) / 2} text-anchor="middle" transform={`rotate(-90 14 ${(HEIGHT - BOTTOM + TOP) / 2})`}>{section.y_title}</text>
        <polyline class="front" points={best.map((each) => `${x(each.x)},${y(each.y)}`).join(" ")} />
        {points.map((each, place) => (
          <g key={place} class={`point ${each.is_best ? "best" : ""} ${isOpen(each) ? "open" : ""}`}
            role={isOpen(each) ? "button" : "img"} aria-label={told(each)} tabIndex={each.is_best ? 0 : undefined}
            onPointerEnter={() => point(each)} onPointerLeave={() => point(null)} onFocus={() => point(each)} onBlur={() => point(null)}
            onClick={() => isOpen(each) && onPlan!(each.id!)}
            onKeyDown={(event) => { if (event.key === "Enter" && isOpen(each)) onPlan!(each.id!); }}>
            <circle class="reach" cx={x(each.x)} cy={y(each.y)} r={11} />
            {each.is_best
              ? <rect x={x(each.x) - 5} y={y(each.y) - 5} width={10} height={10} transform={`rotate(45 ${x(each.x)} ${y(each.y)})`} />
              : <circle class="dot" cx={x(each.x)} cy={y(each.y)} r={4} />}
          </g>
        ))}
      </svg>
      <p class="under" role="status">{over ? told(over) : !best.length ? "" : `Diamonds: no other point is better in both.${onPlan ? " A click opens the plan." : ""}`}</p>
    </div>
  );
}
