// Points of two quantities; those that no other beats in both are joined. A point opens its plan.
import { useState } from "preact/hooks";
import type { FrontierPoint, FrontierSection } from "../document";
import { inUnit, ticks } from "../quantity";
import { useWidth } from "../width";

const MOST_WIDTH = 760, HEIGHT = 330, LEFT = 76, BOTTOM = 46, TOP = 14, RIGHT = 18;
const TICK_PX = { x: 76, y: 60 }; // from one to the next, at least about
const MARGIN = 0.06; // of the range, on each side

type Scale = (value: number) => number;

function range(values: number[]): [number, number] {
  const low = Math.min(...values), high = Math.max(...values), margin = (high - low || Math.abs(high) || 1) * MARGIN;
  return [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];
}

const scaled = ([from, to]: [number, number], first: number, last: number): Scale =>
  (value) => first + ((value - from) / (to - from)) * (last - first);

interface FrontierProps { section: FrontierSection; onPlan?: (id: string) => void }

export function Frontier(props: FrontierProps) {
  return props.section.points.length ? <Plotted {...props} /> : <p class="note">There are no points.</p>;
}

function Plotted({ section, onPlan }: FrontierProps) {
  const [over, point] = useState<FrontierPoint | null>(null);
  const [place, width] = useWidth<HTMLDivElement>(MOST_WIDTH);
  const { points } = section;
  const rangeX = range(points.map((each) => each.x)), rangeY = range(points.map((each) => each.y));
  const x = scaled(rangeX, LEFT, width - RIGHT), y = scaled(rangeY, HEIGHT - BOTTOM, TOP);
  const best = points.filter((each) => each.is_best).sort((a, b) => a.x - b.x);
  const told = (each: FrontierPoint): string =>
    `${each.label}: ${section.x_title} ${inUnit(each.x, section.x_unit)}, ${section.y_title} ${inUnit(each.y, section.y_unit)}`;
  return (
    <div class="fitted" ref={place}>
      <svg viewBox={`0 0 ${width} ${HEIGHT}`} width={width} height={HEIGHT} role="group"
        aria-label={`${section.title ?? "Frontier"}: ${points.length} points, ${best.length} on the frontier`}>
        <Axes section={section} width={width} x={x} y={y} rangeX={rangeX} rangeY={rangeY} />
        {section.has_diagonal && <Diagonal x={x} y={y} rangeX={rangeX} rangeY={rangeY} />}
        <polyline class="front" points={best.map((each) => `${x(each.x)},${y(each.y)}`).join(" ")} />
        {points.map((each, number) => (
          <Mark key={number} mark={each} x={x(each.x)} y={y(each.y)} told={told(each)} point={point} onPlan={each.id ? onPlan : undefined} />
        ))}
      </svg>
      <p class="under" role="status">{over ? told(over) : !best.length ? section.has_diagonal ? `On the dashed line ${section.y_title} and ${section.x_title} are equal.` : "" : `Diamonds: no other point is better in both.${onPlan ? " A click opens the plan." : ""}`}</p>
    </div>
  );
}

/** Where both quantities are equal, as far as both axes go. */
function Diagonal({ x, y, rangeX, rangeY }: { x: Scale; y: Scale; rangeX: [number, number]; rangeY: [number, number] }) {
  const low = Math.max(rangeX[0], rangeY[0]), high = Math.min(rangeX[1], rangeY[1]);
  return low < high ? <line class="equal" x1={x(low)} y1={y(low)} x2={x(high)} y2={y(high)} /> : null;
}

function Axes({ section, width, x, y, rangeX, rangeY }: {
  section: FrontierSection; width: number; x: Scale; y: Scale; rangeX: [number, number]; rangeY: [number, number];
}) {
  const middleX = (LEFT + width - RIGHT) / 2, middleY = (HEIGHT - BOTTOM + TOP) / 2;
  return (
    <>
      {ticks(...rangeX, (width - LEFT - RIGHT) / TICK_PX.x).map((tick) => (
        <g key={tick}><line class="grid" x1={x(tick)} x2={x(tick)} y1={TOP} y2={HEIGHT - BOTTOM} /><text x={x(tick)} y={HEIGHT - BOTTOM + 16} text-anchor="middle">{inUnit(tick, section.x_unit, rangeX[1])}</text></g>
      ))}
      {ticks(...rangeY, (HEIGHT - TOP - BOTTOM) / TICK_PX.y).map((tick) => (
        <g key={tick}><line class="grid" x1={LEFT} x2={width - RIGHT} y1={y(tick)} y2={y(tick)} /><text x={LEFT - 8} y={y(tick) + 4} text-anchor="end">{inUnit(tick, section.y_unit, rangeY[1])}</text></g>
      ))}
      <text class="title" x={middleX} y={HEIGHT - 8} text-anchor="middle">{section.x_title}</text>
      <text class="title" x={14} y={middleY} text-anchor="middle" transform={`rotate(-90 14 ${middleY})`}>{section.y_title}</text>
    </>
  );
}

function Mark({ mark, x, y, told, point, onPlan }: {
  mark: FrontierPoint; x: number; y: number; told: string; point: (over: FrontierPoint | null) => void; onPlan?: (id: string) => void;
}) {
  const open = (): void => onPlan?.(mark.id!);
  return (
    <g class={`point ${mark.is_best ? "best" : ""} ${onPlan ? "open" : ""}`} role={onPlan ? "button" : "img"} aria-label={told}
      tabIndex={mark.is_best ? 0 : undefined} onPointerEnter={() => point(mark)} onPointerLeave={() => point(null)}
      onFocus={() => point(mark)} onBlur={() => point(null)} onClick={open} onKeyDown={(event) => { if (event.key === "Enter") open(); }}>
      <circle class="reach" cx={x} cy={y} r={11} />
      {mark.is_best
        ? <rect x={x - 5} y={y - 5} width={10} height={10} transform={`rotate(45 ${x} ${y})`} />
        : <circle class="dot" cx={x} cy={y} r={4} />}
    </g>
  );
}
