// The shapes of a schedule, one for each thing that can happen (pictures/marks.py). What happened is told by shape, whose
// it is by colour. Each returns what makes it longer: a function of where its run ends now.
import { GOOD_ENDS } from "./palette.js";
import { shape } from "./svg.js";

const MIN_PEARL_ROW = 15;

export function drawBox(parent, left, middle, height, paint, kind) {
  const box = shape(parent, "rect", { x: left, y: middle - height / 2, height, fill: paint, stroke: "line", "stroke-width": 0.75, "data-kind": kind });
  const under = kind !== "recomputed" ? [] : [["paper", 4, 1], ["alarm", 3, 3]].map(([colour, up, thick]) => shape(parent, "rect", // in red, under a line of paper
    { x: left, y: middle + height / 2 - up, height: thick, fill: colour, "pointer-events": "none", "data-mark": kind }));
  return (right) => { for (const each of [box, ...under]) each.setAttribute("width", right - left); };
}

// Tokens that were decoded, one per step: a dashed line of round dots is one shape, however long. A band where rows are narrow.
export function drawPearls(parent, left, middle, paint, cell, row) {
  if (row < MIN_PEARL_ROW) {
    const height = Math.max(0.36 * row, 3), band = shape(parent, "rect", { x: left, y: middle - height / 2, height, fill: paint, stroke: "line",
      "stroke-width": 0.5, "data-kind": "decode" });
    return (right) => band.setAttribute("width", right - left);
  }
  const size = Math.max(Math.min(cell - 1.5, row - 12, 12), 3);
  const thread = shape(parent, "rect", { x: left, y: middle - 1, height: 2, fill: paint, "data-kind": "decode" });
  const dots = [[size + 1, "line"], [size, paint]].map(([width, stroke]) => shape(parent, "path", { stroke, "stroke-width": width,
    "stroke-linecap": "round", "stroke-dasharray": `0 ${cell}`, "stroke-dashoffset": -cell / 2, "pointer-events": "none", "data-mark": "decode" }));
  return (right) => {
    thread.setAttribute("width", right - left);
    for (const each of dots) each.setAttribute("d", `M${left} ${middle}H${right}`);
  };
}

// A request that waits, or runs without a token.
export function drawLine(parent, left, y, kind) {
  const line = shape(parent, "path", { stroke: "line", "stroke-width": 1.5, "stroke-dasharray": kind === "idle" ? "2 2" : null, "data-kind": kind });
  return (right) => line.setAttribute("d", `M${left} ${y}H${right}`);
}

// One for each step of a run: a first token, of a prompt that another computed; or a preemption.
export function drawEach(parent, left, y, cell, kind, radius, paint) {
  let done = left;
  return (right) => {
    for (; done < right - 0.5; done += cell) (kind === "forked" ? drawRing : drawCross)(parent, done + cell / 2, y, radius, paint);
  };
}

export function drawRing(parent, x, y, radius, paint) {
  shape(parent, "circle", { cx: x, cy: y, r: radius + 0.75, fill: "line", "data-mark": "forked" });
  shape(parent, "circle", { cx: x, cy: y, r: radius - 0.75, fill: "paper", stroke: paint, "stroke-width": 1.5, "data-kind": "forked" });
}

export function drawCross(parent, x, y, radius) {
  shape(parent, "path", { d: `M${x - radius} ${y - radius}l${2 * radius} ${2 * radius}M${x - radius} ${y + radius}l${2 * radius} ${-2 * radius}`,
    stroke: "alarm", "stroke-width": 2.5, "data-kind": "preempted" });
}

// This step yields the first output token.
export function drawEar(parent, right, top) {
  return shape(parent, "path", { d: `M${right - 6} ${top}h6v6z`, fill: "ink", "pointer-events": "none", "data-mark": "first" });
}

// A bar; with a flag if the request ended early.
export function drawEnd(parent, x, y, height, status, title) {
  const isGood = GOOD_ENDS.includes(status), half = Math.min(height / 2, 5), paint = isGood ? "ink" : "alarm";
  shape(parent, "path", { d: `M${x} ${y + height}V${y}${isGood ? "" : `l8 ${half}l-8 ${half}`}`, stroke: paint, "stroke-width": 3,
    fill: isGood ? "none" : paint, "data-end": isGood ? "good" : "bad" }, "", title);
}
