// The shapes of a schedule, one per kind of event (pictures/marks.py). The colour identifies the request. Each function
// returns a function that makes its shape longer, given the new end of the run.
import { GOOD_ENDS, MAX_DRAFT, MIN_DRAFT } from "./palette.js";
import { shape } from "./svg.js";

const MIN_PEARL_ROW = 15;

export function drawBox(parent, left, middle, height, paint, kind) {
  const box = shape(parent, "rect", { x: left, y: middle - height / 2, height, fill: paint, stroke: "line", "stroke-width": 0.75, "data-kind": kind });
  const under = kind !== "recomputed" ? [] : [["paper", 4, 1], ["alarm", 3, 3]].map(([colour, up, thick]) => shape(parent, "rect", // in red, below a line in the paper's colour
    { x: left, y: middle + height / 2 - up, height: thick, fill: colour, "pointer-events": "none", "data-mark": kind }));
  return (right) => { for (const each of [box, ...under]) each.setAttribute("width", right - left); };
}

// Decoded tokens, one per step: a dashed line of round dots is one shape, however long. In narrow rows, a band.
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

// The tokens of a step with drafts, in the order of the text: accepted ones as squares, the token that the model added as a
// pearl, rejected ones as hollow squares. Where these would be too small: a band with bars, up for accepted, down for
// rejected tokens. `most` is the largest number of tokens that a step may draft.
export function drawDrafts(parent, left, middle, paint, cell, row, most, numAccepted, numRejected) {
  const height = row - 4, size = draftSize(cell, row, most), isBar = size < MIN_DRAFT, numbers = [numAccepted, 1, numRejected];
  const area = shape(parent, "rect", { x: left, y: middle - height / 2, height, "fill-opacity": 0, "data-kind": "drafted" });
  const solid = { fill: paint, stroke: isBar ? null : "line" };
  const looks = [{ ...solid, "data-part": "accepted" }, { ...solid, "data-mark": "decode" }, { fill: "paper", stroke: "faint", "data-part": "rejected" }];
  const parts = looks.map((look, index) => (numbers[index] ? shape(parent, "path", { "stroke-width": 0.75, "pointer-events": "none", ...look }) : null));
  return (right) => {
    area.setAttribute("width", right - left);
    const paths = isBar ? draftBars(left, right, middle, row, most, numAccepted, numRejected)
      : draftTokens(left, right, middle, cell, size, numAccepted, numRejected);
    parts.forEach((part, index) => part?.setAttribute("d", paths[index]));
  };
}

// The largest size at which `most` drafted tokens and the model's token fit into a cell.
function draftSize(cell, row, most) {
  const sizes = Array.from({ length: most + 1 }, (_, index) => Math.min(0.9 * cell / (index + 1), (row - 6) / Math.ceil((most + 1) / (index + 1))));
  return Math.min(Math.max(...sizes), MAX_DRAFT);
}

function draftBars(left, right, middle, row, most, numAccepted, numRejected) {
  const band = Math.max(0.36 * row, 3), unit = (row - 4 - band) / 2 / most, top = middle - band / 2;
  return [[top - numAccepted * unit, numAccepted * unit], [top, band], [top + band, numRejected * unit]]
    .map(([y, height]) => box(left, y, right - left, height));
}

function draftTokens(left, right, middle, cell, size, numAccepted, numRejected) {
  const number = numAccepted + 1 + numRejected, columns = Math.min(Math.floor(0.9 * cell / size + 1e-6), number);
  const top = middle - Math.ceil(number / columns) * size / 2, half = size / 2 - 0.6, paths = ["", "", ""];
  for (let start = left; start < right - 0.5; start += cell) {
    for (let index = 0; index < number; index += 1) {
      const x = start + (cell - columns * size) / 2 + (index % columns + 0.5) * size, y = top + (Math.floor(index / columns) + 0.5) * size;
      if (index === numAccepted) paths[1] += disc(x, y, half);
      else paths[index < numAccepted ? 0 : 2] += box(x - half, y - half, 2 * half, 2 * half);
    }
  }
  return paths;
}

const box = (x, y, width, height) => `M${x} ${y}h${width}v${height}h${-width}z`;
const disc = (x, y, radius) => `M${x - radius} ${y}a${radius} ${radius} 0 0 0 ${2 * radius} 0a${radius} ${radius} 0 0 0 ${-2 * radius} 0z`;

// A request that waits, or runs without a token.
export function drawLine(parent, left, y, kind) {
  const line = shape(parent, "path", { stroke: "line", "stroke-width": 1.5, "stroke-dasharray": kind === "idle" ? "2 2" : null, "data-kind": kind });
  return (right) => line.setAttribute("d", `M${left} ${y}H${right}`);
}

// A mark for each step of a run: a first token from a prompt that another sample computed, or a preemption.
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

// A bar, with a flag if the request ended early.
export function drawEnd(parent, x, y, height, status, title) {
  const isGood = GOOD_ENDS.includes(status), half = Math.min(height / 2, 5), paint = isGood ? "ink" : "alarm";
  shape(parent, "path", { d: `M${x} ${y + height}V${y}${isGood ? "" : `l8 ${half}l-8 ${half}`}`, stroke: paint, "stroke-width": 3,
    fill: isGood ? "none" : paint, "data-end": isGood ? "good" : "bad" }, "", title);
}
