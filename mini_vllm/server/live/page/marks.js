// The shapes of a schedule, one for each thing that can happen (pictures/marks.py). What happened is told by shape, whose
// it is by colour.
import { GOOD_ENDS } from "./palette.js";
import { shape } from "./svg.js";

export function drawBox(parent, left, right, middle, height, paint, kind, title) {
  shape(parent, "rect", { x: left, y: middle - height / 2, width: right - left, height, fill: paint, stroke: "line",
    "stroke-width": 0.75, "data-kind": kind }, "", title);
  if (kind !== "recomputed") return;
  for (const [colour, up, thick] of [["paper", 4, 1], ["alarm", 3, 3]]) { // in red, under a line of paper
    shape(parent, "rect", { x: left, y: middle + height / 2 - up, width: right - left, height: thick, fill: colour, "pointer-events": "none" });
  }
}

// Tokens that were decoded, one a step: a dashed line of round dots is one shape, however long.
export function drawPearls(parent, left, right, middle, paint, cell, row, title) {
  const size = Math.max(Math.min(cell - 1.5, row - 12, 12), 3);
  shape(parent, "rect", { x: left, y: middle - 1, width: right - left, height: 2, fill: paint, "data-kind": "decode" }, "", title);
  for (const [width, stroke] of [[size + 1, "line"], [size, paint]]) {
    shape(parent, "path", { d: `M${left} ${middle}H${right}`, stroke, "stroke-width": width, "stroke-linecap": "round",
      "stroke-dasharray": `0 ${cell}`, "stroke-dashoffset": -cell / 2, "pointer-events": "none" });
  }
}

// A first token, of a prompt that another computed.
export function drawRing(parent, x, y, radius, paint, title) {
  shape(parent, "circle", { cx: x, cy: y, r: radius + 0.75, fill: "line" });
  shape(parent, "circle", { cx: x, cy: y, r: radius - 0.75, fill: "paper", stroke: paint, "stroke-width": 1.5, "data-kind": "forked" }, "", title);
}

// A request that waits, or runs without a token.
export function drawLine(parent, left, right, y, kind, title) {
  shape(parent, "path", { d: `M${left} ${y}H${right}`, stroke: "line", "stroke-width": 1.5,
    "stroke-dasharray": kind === "idle" ? "2 2" : null, "data-kind": kind }, "", title);
}

export function drawCross(parent, x, y, radius, title) {
  shape(parent, "path", { d: `M${x - radius} ${y - radius}l${2 * radius} ${2 * radius}M${x - radius} ${y + radius}l${2 * radius} ${-2 * radius}`,
    stroke: "alarm", "stroke-width": 2.5, "data-kind": "preempted" }, "", title);
}

// The first token comes of this step.
export function drawEar(parent, right, top) {
  shape(parent, "path", { d: `M${right - 6} ${top}h6v6z`, fill: "ink", "pointer-events": "none" });
}

// A bar; with a flag if the request did not come to its own end.
export function drawEnd(parent, x, y, height, status, title) {
  const isGood = GOOD_ENDS.includes(status), half = Math.min(height / 2, 5), paint = isGood ? "ink" : "alarm";
  shape(parent, "path", { d: `M${x} ${y + height}V${y}${isGood ? "" : `l8 ${half}l-8 ${half}`}`, stroke: paint, "stroke-width": 3,
    fill: isGood ? "none" : paint, "data-end": isGood ? "good" : "bad" }, "", title);
}
