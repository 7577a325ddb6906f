// Draws the timelines of a page on canvases that share one time scale: hover, zoom, pan, keyboard.
(() => {
  "use strict";
  const source = document.getElementById("traces");
  if (!source) return;
  const page = JSON.parse(source.textContent);
  const INK = "#16202c";
  const horizon = page.horizon;
  const view = { from: 0, to: horizon };
  let hovered = null;
  const tip = document.getElementById("tip");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const SCALES = [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]];

  function scaleOf(size) {
    if (page.unit !== "s") return [1, page.unit];
    return SCALES.find(([scale]) => size >= scale * 0.9995) || SCALES[SCALES.length - 1];
  }
  function quantity(value, reference) {
    const [scale, unit] = scaleOf(Math.abs(reference === undefined ? value : reference));
    const scaled = value / scale;
    const text = Math.abs(scaled) >= 1e4 ? scaled.toFixed(0) : String(Number(scaled.toPrecision(4)));
    return unit ? text + " " + unit : text;
  }
  function ticks(from, to, count) {
    const raw = (to - from) / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= raw * 0.999);
    const found = [];
    for (let i = Math.ceil(from / step - 1e-9); i * step <= to + step * 1e-9; i++) found.push(i * step);
    return found;
  }

  const pictures = page.traces.map((trace, place) => {
    const canvas = document.getElementById("trace" + place);
    const many = trace.devices.length;
    const tall = many <= 4 ? 26 : many <= 8 ? 22 : many <= 16 ? 15 : many <= 40 ? 9 : 5;
    const thin = many <= 16 ? 4 : many <= 40 ? 2 : 1;
    const gap = many <= 16 ? 5 : many <= 40 ? 2 : 1;
    const pitch = tall + thin * (trace.lanes.length - 1) + gap;
    trace.device = new Array(trace.row.length);
    trace.groups.forEach(([device, , from, to]) => {
      for (let i = from; i < to; i++) {
        trace.device[i] = device;
        if (i > from) trace.start[i] += trace.start[i - 1]; // starts come as differences within a lane
      }
    });
    const byLane = new Map();
    trace.groups.forEach(([device, lane, from, to]) => byLane.set(device + "/" + lane, [from, to]));
    const indexOfRow = new Map();
    trace.row.forEach((row, index) => indexOfRow.set(row, index));
    const lengths = trace.groups.filter(([, lane]) => lane === 0)
      .flatMap(([, , from, to]) => trace.length.slice(from, to)).sort((a, b) => a - b);
    const typical = (lengths[lengths.length >> 1] || 0) * page.tick; // of a compute, in seconds
    canvas.style.height = many * pitch + 24 + "px";
    return { trace, canvas, tall, thin, pitch, many, byLane, indexOfRow, typical, width: 0 };
  });
  const gutter = (() => {
    const context = document.createElement("canvas").getContext("2d");
    context.font = "12px system-ui, sans-serif";
    const widths = page.traces.flatMap((trace) => trace.devices.map((name) => context.measureText(name).width));
    return Math.ceil(Math.max(24, ...widths)) + 10;
  })();
  const startOf = (trace, index) => trace.start[index] * page.tick;
  const endOf = (trace, index) => (trace.start[index] + trace.length[index]) * page.tick;

  // First index in [from, to) whose end is after the time: the ends within a lane grow with the starts.
  function firstEndingAfter(trace, from, to, time) {
    while (from < to) {
      const middle = (from + to) >> 1;
      if (endOf(trace, middle) > time) to = middle; else from = middle + 1;
    }
    return from;
  }

  function draw(picture) {
    const { trace, canvas, tall, thin, pitch, many } = picture;
    const width = canvas.clientWidth, height = canvas.clientHeight, ratio = window.devicePixelRatio || 1;
    if (!width) return;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    picture.width = width;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const perSecond = (width - gutter) / (view.to - view.from);
    const x = (time) => gutter + (time - view.from) * perSecond;
    const ink = css("--ink"), muted = css("--muted"), track = css("--track");
    for (let device = 0; device < many; device++) {
      const y = device * pitch;
      if (tall >= 9 || device % 8 === 0) {
        context.fillStyle = ink;
        context.font = (tall >= 15 ? 12 : 9) + "px system-ui, sans-serif";
        context.textAlign = "right";
        context.textBaseline = "middle";
        context.fillText(trace.devices[device], gutter - 7, y + tall / 2 + 0.5);
      }
      context.fillStyle = track;
      context.fillRect(gutter, y, width - gutter, tall);
      context.save();
      context.beginPath();
      context.rect(gutter, y, width - gutter, pitch);
      context.clip();
      trace.lanes.forEach((lane, place) => {
        const top = place ? y + tall + 1 + (place - 1) * thin : y;
        drawLane(context, picture, device, lane, top, place ? Math.max(1, thin - 1) : tall, x, perSecond, width);
      });
      context.restore();
    }
    drawAxis(context, many * pitch, width, x, muted);
  }

  function drawLane(context, picture, device, lane, top, height, x, perSecond, width) {
    const { trace, byLane } = picture;
    const range = byLane.get(device + "/" + lane);
    if (!range) return;
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "middle";
    let drawnTo = -1;
    for (let i = firstEndingAfter(trace, range[0], range[1], view.from); i < range[1]; i++) {
      const start = startOf(trace, i);
      if (start > view.to) break;
      const left = x(start), wide = trace.length[i] * page.tick * perSecond;
      const isHovered = hovered !== null && trace.row[i] === hovered;
      if (wide <= 0 || (left + wide < drawnTo + 0.4 && !isHovered)) continue;
      const [, , colour, odd] = trace.names[trace.name[i]];
      const number = trace.microbatch[i];
      const edge = wide > 4 && height > 6 ? 0.7 : 0;
      context.fillStyle = number % 2 === 1 ? odd : colour;
      context.fillRect(left, top, Math.max(wide - edge, 0.5), height);
      drawnTo = left + wide;
      if (isHovered) {
        context.strokeStyle = css("--ink");
        context.lineWidth = 2;
        context.strokeRect(left + 1, top + 1, Math.max(wide - 2 - edge, 1), height - 2);
      }
      const shown = Math.min(left + wide, width) - Math.max(left, gutter);
      if (height >= 15 && number >= 0 && shown > 15) {
        const text = picture.typical * perSecond > 70 && shown > 50 ? trace.text[i] : String(number);
        context.fillStyle = INK;
        context.fillText(text, Math.max(left, gutter) + shown / 2, top + height / 2 + 0.5);
      }
    }
  }

  function drawAxis(context, y, width, x, muted) {
    context.strokeStyle = context.fillStyle = muted;
    context.lineWidth = 1;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "top";
    const marks = ticks(view.from, view.to, Math.floor((width - gutter) / 110));
    const largest = Math.max(Math.abs(view.from), Math.abs(view.to));
    marks.forEach((tick) => {
      const place = x(tick);
      context.beginPath();
      context.moveTo(place + 0.5, y);
      context.lineTo(place + 0.5, y + 4);
      context.stroke();
      context.textAlign = place > width - 30 ? "right" : place < gutter + 10 ? "left" : "center";
      context.fillText(quantity(tick, largest), place, y + 7);
    });
  }

  let isAsked = false;
  function redraw() {
    if (isAsked) return;
    isAsked = true;
    requestAnimationFrame(() => { isAsked = false; pictures.forEach(draw); });
  }
  function show(from, to) {
    const span = Math.min(horizon, Math.max(to - from, horizon / 1e5));
    view.from = Math.max(0, Math.min(from, horizon - span));
    view.to = view.from + span;
    redraw();
  }
  function zoom(factor, centre) {
    const middle = centre === undefined ? (view.from + view.to) / 2 : centre;
    show(middle - (middle - view.from) * factor, middle + (view.to - middle) * factor);
  }
  const pan = (share) => show(view.from + share * (view.to - view.from), view.to + share * (view.to - view.from));
  const timeAt = (picture, px) => view.from + (px - gutter) / (picture.width - gutter) * (view.to - view.from);

  function find(picture, px, py) {
    const { trace, tall, thin, pitch, many, byLane } = picture;
    const device = Math.floor(py / pitch), inside = py - device * pitch;
    if (device < 0 || device >= many || px < gutter) return -1;
    const place = inside < tall ? 0 : Math.min(trace.lanes.length - 1, 1 + Math.floor((inside - tall) / thin));
    const range = byLane.get(device + "/" + trace.lanes[place]);
    if (!range) return -1;
    const time = timeAt(picture, px), near = 3 * (view.to - view.from) / (picture.width - gutter);
    const index = firstEndingAfter(trace, range[0], range[1], time - near);
    return index < range[1] && startOf(trace, index) <= time + near ? index : -1;
  }

  function cell(parent, tag, text) {
    const element = document.createElement(tag);
    element.textContent = text;
    parent.appendChild(element);
    return element;
  }
  function describe(picture, index) {
    const { trace } = picture;
    tip.textContent = "";
    cell(tip, "strong", trace.text[index]);
    cell(tip, "span", "  " + trace.devices[trace.device[index]] + ", " + trace.streams[trace.stream[index]]);
    const table = cell(tip, "table", "");
    const twins = page.same ? pictures : [picture];
    let lengths = [];
    twins.forEach((other) => {
      const at = other === picture ? index : other.indexOfRow.get(trace.row[index]);
      if (at === undefined) return;
      const line = cell(table, "tr", "");
      const start = startOf(other.trace, at), end = endOf(other.trace, at);
      cell(line, "th", other.trace.label || "time");
      cell(line, "td", quantity(start) + " to " + quantity(end));
      cell(line, "td", quantity(end - start));
      lengths.push(end - start);
    });
    if (lengths.length === 2 && lengths[0] > 0) {
      const line = cell(table, "tr", "");
      cell(line, "th", "ratio");
      cell(line, "td", "");
      cell(line, "td", (lengths[1] / lengths[0]).toFixed(2) + "x");
    }
  }
  function point(picture, event) {
    const box = picture.canvas.getBoundingClientRect();
    const index = find(picture, event.clientX - box.left, event.clientY - box.top);
    const row = index < 0 ? null : picture.trace.row[index];
    if (index >= 0) {
      describe(picture, index);
      tip.style.display = "block";
      const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
      const below = event.clientY + 18;
      tip.style.left = left + "px";
      tip.style.top = (below + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 12 : below) + "px";
    } else tip.style.display = "none";
    if (row !== hovered) { hovered = row; redraw(); }
  }

  pictures.forEach((picture) => {
    const { canvas } = picture;
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX, from: view.from, to: view.to };
      canvas.setPointerCapture(event.pointerId);
      canvas.classList.add("dragging");
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) return point(picture, event);
      const moved = (event.clientX - drag.x) / (picture.width - gutter) * (drag.to - drag.from);
      tip.style.display = "none";
      show(drag.from - moved, drag.to - moved);
    });
    const release = () => { drag = null; canvas.classList.remove("dragging"); };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => {
      tip.style.display = "none";
      if (hovered !== null) { hovered = null; redraw(); }
    });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(Math.exp(event.deltaY * 0.004), timeAt(picture, event.offsetX));
    }, { passive: false });
    canvas.addEventListener("dblclick", (event) => zoom(0.4, timeAt(picture, event.offsetX)));
    canvas.addEventListener("keydown", (event) => {
      const actions = {
        "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), "0": () => show(0, horizon),
        ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2),
      };
      if (actions[event.key] && !event.ctrlKey && !event.metaKey) { event.preventDefault(); actions[event.key](); }
    });
  });
  document.querySelectorAll("button[data-do]").forEach((button) => button.addEventListener("click", () => ({
    in: () => zoom(0.6), out: () => zoom(1 / 0.6), all: () => show(0, horizon),
  })[button.dataset.do]()));
  window.addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  redraw();
})();
