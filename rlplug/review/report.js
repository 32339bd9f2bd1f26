"use strict";
// Draws the metric that is selected: hover shows values, a drag zooms in, a double click zooms out.
const data = JSON.parse(document.getElementById("data").textContent);
const chart = document.getElementById("chart"), tip = document.getElementById("tip");
const legend = document.getElementById("legend");
const select = document.getElementById("metric");
const COLORS = ["#1a6fb5", "#c2410c", "#2f855a", "#7c3aed", "#b7791f", "#0f766e", "#be185d", "#4b5563"];
const GREEDY = "#2f855a", MEAN = "#4b5563";
const LEFT = 64, RIGHT = 32, TOP = 10, BOTTOM = 28, HEIGHT = 340;
let range = null;

const format = (x) => {
  const size = Math.abs(x);
  if (size >= 1e15 || (size > 0 && size < 1e-4)) return x.toExponential(2);
  return x.toLocaleString("en-US", { maximumSignificantDigits: size >= 1000 ? 6 : 4 });
};
const svg = (name, attributes, parent) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (parent) parent.append(node);
  return node;
};

// The curves of a metric; the evaluations stand beside the return of training.
function curves(name) {
  const found = [];
  data.runs.forEach((run, index) => {
    const color = COLORS[index % COLORS.length], several = data.runs.length > 1;
    const add = (metric, label, stroke, dots) => {
      const series = run.metrics[metric];
      if (series) found.push({ label: several ? run.label : label, color: stroke, dots: dots && !several, thin: several, steps: series[0], values: series[1] });
    };
    add(name, name, several || name !== "eval/return_mean" ? color : GREEDY, name.startsWith("eval/"));
    if (!several && name === data.training) add("eval/return_mean", "eval/return_mean", GREEDY, true);
  });
  const band = data.bands[name];
  if (band) found.push({ label: "mean", color: MEAN, dots: name.startsWith("eval/"), steps: band.steps, values: band.mean, low: band.low, high: band.high });
  return found;
}

function smooth(values) {
  const half = Math.max(1, Math.floor(values.length / 40));
  return values.map((_, at) => {
    const near = values.slice(Math.max(0, at - half), at + half + 1).filter((x) => x !== null);
    return near.length ? near.reduce((a, b) => a + b, 0) / near.length : null;
  });
}

function ticks(low, high, most) {
  const raw = (high - low) / most || 1, size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((x) => x * size).find((x) => x >= raw);
  const found = [];
  for (let at = Math.ceil(low / step) || 0; at * step <= high + step * 1e-9; at++) found.push(at * step);
  return found;
}

function draw() {
  const name = select.value, lines = curves(name), width = chart.clientWidth || 900;
  chart.querySelector("svg")?.remove();
  const steps = lines.flatMap((one) => one.steps);
  let [first, last] = range || [Math.min(...steps), Math.max(...steps)];
  if (first === last) { first -= 1; last += 1; }
  const shown = lines.flatMap((one) => [one.values, one.low || [], one.high || []].flatMap((values) => values.filter((x, at) => x !== null && one.steps[at] >= first && one.steps[at] <= last)));
  let low = Math.min(...shown), high = Math.max(...shown);
  if (!shown.length) { low = 0; high = 1; }
  const pad = (high - low || Math.abs(high) || 1) * 0.06;
  low -= pad; high += pad;
  const x = (step) => LEFT + ((step - first) / (last - first)) * (width - LEFT - RIGHT);
  const y = (value) => TOP + (1 - (value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  legend.replaceChildren(...(lines.length > 1 ? lines : []).map((one) => {
    const label = document.createElement("span");
    label.textContent = one.label;
    label.style.setProperty("--color", one.color);
    return label;
  }));
  const root = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}` });
  chart.prepend(root);
  // Wide enough for the marks of the first and the last point.
  svg("rect", { x: LEFT - 4, y: 0, width: width - LEFT - RIGHT + 8, height: HEIGHT }, svg("clipPath", { id: "clip" }, root));
  for (const at of ticks(low, high, 6)) {
    svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(at), y2: y(at) }, root);
    svg("text", { x: LEFT - 8, y: y(at) + 4, "text-anchor": "end" }, root).textContent = format(at);
  }
  for (const at of ticks(first, last, Math.max(2, width / 130)))
    svg("text", { x: x(at), y: HEIGHT - 8, "text-anchor": "middle" }, root).textContent = format(at);
  const inside = svg("g", { "clip-path": "url(#clip)" }, root);
  const path = (one, values, attributes) => {
    let d = "", pen = "M";
    values.forEach((value, at) => {
      if (value === null) { pen = "M"; return; }
      d += `${pen}${x(one.steps[at]).toFixed(1)},${y(value).toFixed(1)}`; pen = "L";
    });
    svg("path", { d, fill: "none", stroke: one.color, "stroke-linejoin": "round", ...attributes }, inside);
  };
  for (const one of lines.filter((one) => one.low)) {
    const ends = one.steps.map((step, at) => [step, one.low[at], one.high[at]]).filter(([, low, high]) => low !== null && high !== null);
    const edge = (rows, column) => rows.map((row) => `${x(row[0]).toFixed(1)},${y(row[column]).toFixed(1)}`);
    svg("polygon", { points: [...edge(ends, 2), ...edge(ends.reverse(), 1)].join(" "), fill: one.color, opacity: 0.18 }, inside);
  }
  for (const one of lines) {
    if (one.thin) { path(one, one.values, { "stroke-width": 1, opacity: 0.6 }); continue; }
    const noisy = !one.dots && !one.low && one.values.length >= 20 && !/total|sum|cumulative|best/.test(name);
    if (noisy) path(one, one.values, { class: "raw", "stroke-width": 1 });
    path(one, noisy ? smooth(one.values) : one.values, { "stroke-width": 2 });
    if (one.dots && one.values.length < 200)
      one.values.forEach((value, at) => value !== null && svg("circle", { cx: x(one.steps[at]), cy: y(value), r: 3, fill: one.color }, inside));
  }
  if (data.best && (name === data.training || name === "eval/return_mean")) {
    // Not clipped: the best is often the last.
    const [step, value] = data.best;
    if (step >= first && step <= last) svg("text", { x: x(step), y: y(value) + 7, "text-anchor": "middle", style: "font-size:20px;fill:var(--best)" }, root).textContent = "★";
  }
  const cursor = svg("line", { class: "grid", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" }, root);
  const zoom = svg("rect", { class: "zoom", y: TOP, height: HEIGHT - TOP - BOTTOM, width: 0 }, root);
  const place = (event) => Math.min(Math.max(event.offsetX * (width / root.clientWidth), LEFT), width - RIGHT);
  const stepAt = (at) => first + ((at - LEFT) / (width - LEFT - RIGHT)) * (last - first);
  let from = null;
  root.addEventListener("pointerdown", (event) => { from = place(event); root.setPointerCapture(event.pointerId); });
  root.addEventListener("pointermove", (event) => {
    const at = place(event), step = stepAt(at);
    if (from !== null) {
      zoom.setAttribute("x", Math.min(from, at));
      zoom.setAttribute("width", Math.abs(at - from));
    }
    const rows = lines.map((one) => {
      let near = -1;
      one.steps.forEach((other, index) => {
        if (one.values[index] !== null && (near < 0 || Math.abs(other - step) < Math.abs(one.steps[near] - step))) near = index;
      });
      return near < 0 ? null : { one, near };
    }).filter((row) => row);
    if (!rows.length) return;
    cursor.setAttribute("visibility", "visible");
    cursor.setAttribute("x1", at); cursor.setAttribute("x2", at);
    tip.replaceChildren(...rows.map(({ one, near }) => {
      const line = document.createElement("div");
      const interval = one.low ? ` [${format(one.low[near])}, ${format(one.high[near])}]` : "";
      line.textContent = `${one.label}: ${format(one.values[near])}${interval} at step ${format(one.steps[near])}`;
      line.style.color = one.color;
      return line;
    }));
    tip.style.display = "block";
    const left = (at / width) * root.clientWidth;
    tip.style.left = `${left + 14 + tip.offsetWidth > root.clientWidth ? left - 14 - tip.offsetWidth : left + 14}px`;
    tip.style.top = `${Math.max(0, event.offsetY - 20)}px`;
  });
  root.addEventListener("pointerup", (event) => {
    const to = place(event);
    if (from !== null && Math.abs(to - from) > 8) { range = [stepAt(Math.min(from, to)), stepAt(Math.max(from, to))]; draw(); }
    from = null;
    zoom.setAttribute("width", 0);
  });
  root.addEventListener("pointerleave", () => { tip.style.display = "none"; cursor.setAttribute("visibility", "hidden"); });
  root.addEventListener("dblclick", () => { range = null; draw(); });
}

const names = [...new Set(data.runs.flatMap((run) => Object.keys(run.metrics)))];
const areas = new Map();
for (const name of names) {
  const area = name.includes("/") ? name.slice(0, name.indexOf("/")) : "other";
  if (!areas.has(area)) areas.set(area, []);
  areas.get(area).push(name);
}
const order = ["rollout", "eval", "loss", "train"];
const rank = (area) => (order.indexOf(area) + order.length + 1) % (order.length + 1);
for (const [area, members] of [...areas].sort(([a], [b]) => rank(a) - rank(b) || a.localeCompare(b))) {
  const group = document.createElement("optgroup");
  group.label = area;
  for (const name of members.sort()) group.append(new Option(name, name, name === data.training, name === data.training));
  select.append(group);
}
if (names.length) {
  select.addEventListener("change", () => { range = null; draw(); });
  addEventListener("resize", draw);
  draw();
} else {
  select.remove();
  chart.textContent = "No metrics have been reported yet.";
}
