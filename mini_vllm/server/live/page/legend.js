// The meaning of each mark of a drawing, next to the drawing. The code that draws a mark also draws its sample.
// An entry is [mark, text, sample]. A test compares the marks of a legend with those of its drawing.
import { Cast } from "./cast.js";
import { make } from "./dom.js";
import { drawBox, drawCross, drawDrafts, drawEar, drawEnd, drawLine, drawPearls, drawRing } from "./marks.js";
import { GOOD_ENDS, ON_COLOUR } from "./palette.js";
import { drawBar } from "./replicas.js";
import { drawBlock, fillBlock, haloOf } from "./strip.js";
import { shape, textAt } from "./svg.js";

const WIDE = 34, HIGH = 22, MIDDLE = HIGH / 2; // of a sample
const cast = new Cast(), A = cast.paint("A"), B = cast.paint("B"); // a short id is its own letter
const BLOCKS = {
  used: { id: 3, refCnt: 1, owners: ["A"] }, shared: { id: 5, refCnt: 2, owners: ["A", "B"] }, cached: { id: 7, refCnt: 0, owners: [] },
  empty: { id: 8, refCnt: 0, owners: [] }, kept: { id: 6, refCnt: 1, owners: [] }, null: { id: 0, refCnt: 0, owners: [] },
};
const blockOf = (kind) => ({ kind, text: "", ...BLOCKS[kind] });

// ---- samples: each draws into an SVG of WIDE by HIGH pixels, or of the size that it defines

function cell(kind, isLarge) {
  const [wide, high] = isLarge ? [43.5, 30] : [21.75, 20], size = isLarge ? { width: 44, height: 30 } : { width: WIDE, height: HIGH };
  return Object.assign((svg) => drawBlock(svg, blockOf(kind), cast, (size.width - wide) / 2 + 1, (size.height - high) / 2 + 1, wide, high), size);
}

// A cell on a canvas (bare.js), which has neither a letter nor hatching.
const bareCell = (kind) => (svg) => {
  fillBlock(svg, { ...blockOf(kind), kind: kind === "shared" ? "used" : kind }, cast, 11, 5, 10, 12);
  if (kind === "shared") shape(svg, "path", { d: "M11.5 16.5L20.5 5.5", stroke: ON_COLOUR, "stroke-width": 1.5 });
};

const arrow = (svg) => shape(svg, "path", { d: "M6 4V17H27V7m-4 4l4 -4l4 4", stroke: "alarm", "stroke-width": 2, fill: "none", "stroke-linejoin": "round" });

const line = (d, more = {}) => (svg) => shape(svg, "path", { d, stroke: "line", fill: "none", ...more });

const words = (text) => (svg) => textAt(svg, WIDE / 2, 15.5, text, 12, "ink", { "text-anchor": "middle" });

function chip(svg) {
  shape(svg, "rect", { x: 9, y: 3, width: 16, height: 16, rx: 2.5, fill: A, stroke: "line", "stroke-width": 0.75 });
  textAt(svg, 17, 15.2, "A", 11.5, ON_COLOUR, { "text-anchor": "middle", "font-weight": "bold" });
}

function bars(svg) {
  shape(svg, "rect", { x: 9.5, y: 3, width: 15, height: 5, fill: B });
  shape(svg, "rect", { x: 9.5, y: 8.75, width: 15, height: 11, fill: A });
  line("M2 20.5H32")(svg);
}

const box = (kind, text) => (svg) => {
  drawBox(svg, 8, MIDDLE, 18, A, kind)(26);
  textAt(svg, 17, 14.6, text, 10, ON_COLOUR, { "text-anchor": "middle" });
};

// A box of a table or of the tree: its head, and the white part under it.
const node = (kind, head) => (svg) => {
  fillBlock(svg, blockOf(kind), cast, 0, 0, WIDE, HIGH);
  textAt(svg, 4, 11, head, 9, BLOCKS[kind].refCnt ? ON_COLOUR : "faint", { "font-weight": "bold", ...haloOf(blockOf(kind), cast) });
  shape(svg, "rect", { x: 3, y: 13.5, width: WIDE - 6, height: 5.5, fill: "paper", rx: 1 });
};

function text(svg) {
  fillBlock(svg, blockOf("used"), cast, 0, 0, WIDE, HIGH);
  shape(svg, "rect", { x: 3, y: 4, width: WIDE - 6, height: 14, fill: "paper", rx: 2 });
  textAt(svg, WIDE / 2, 14.5, "king", 10, "ink", { "text-anchor": "middle" });
}

function fullness(svg) {
  fillBlock(svg, blockOf("used"), cast, 0, 0, WIDE, HIGH);
  shape(svg, "rect", { x: 4, y: 7, width: WIDE - 8, height: 8, fill: "paper", rx: 1 });
  shape(svg, "rect", { x: 4, y: 7, width: 15, height: 8, fill: "ink", rx: 1 });
}

function root(svg) {
  shape(svg, "rect", { x: 0.5, y: 2.5, width: WIDE - 1, height: 17, rx: 8.5, fill: "null", stroke: "line" });
  textAt(svg, WIDE / 2, 14.5, "root", 10, "ink", { "text-anchor": "middle" });
}

// A bar of the replicas, or the sign of a replica.
const belief = (part) => (svg) => drawBar(shape(svg, "svg", { x: 0, y: 6, width: WIDE, height: 10 }), A, part, WIDE - 2);

function replica(svg) {
  shape(svg, "rect", { x: 3, y: 3, width: 28, height: 16, rx: 8, fill: A, stroke: "line", "stroke-width": 0.75 });
  textAt(svg, 17, 15, "R0", 11.5, ON_COLOUR, { "text-anchor": "middle", "font-weight": "bold" });
}

// ---- the legends

// Larger cells contain the block's number and the number of its owners.
export function poolLegend(isLarge) {
  return [
    ["used", isLarge ? "a block with its number; the letter and colour of its request" : "the letter and colour of the request that holds the block", cell("used", isLarge)],
    ["shared", isLarge ? "hatched: shared by several requests (×2: by two)" : "hatched, with + for several letters: shared by several requests", cell("shared", isLarge)],
    ["cached", "dashed, with #: free, but its tokens are still cached", cell("cached", isLarge)],
    ["empty", "blank: free, with nothing cached", cell("empty", isLarge)],
    ["copy", "red arrow: this step copies the block before a request writes (copy on write)", arrow],
    ["kept", "with –: in no block table, held until it is copied", cell("kept", isLarge)],
    ["null", "∅: the null block, which is never handed out", cell("null", isLarge)],
  ];
}

// The key is the id of the drawing.
export const LEGENDS = {
  "bare-pool": [
    ["used", "the colour of the request that holds the block", bareCell("used")],
    ["shared", "slanted line: shared by several requests", bareCell("shared")],
    ["cached", "free, but its tokens are still cached", bareCell("cached")],
    ["empty", "blank: free, with nothing cached", bareCell("empty")],
    ["kept", "in no block table, held until it is copied", bareCell("kept")],
    ["null", "block 0: the null block, which is never handed out", bareCell("null")],
  ],
  schedule: [
    ["step", "bars: tokens that each request computes in the step", bars],
    ["budget", "dashed line: the most tokens that a step may compute", line("M1 11H33", { stroke: "ink", "stroke-dasharray": "4 3" })],
    ["prompt", "box: part of a prompt, with its number of tokens", box("prompt", "21")],
    ["decode", "dots (a band in narrow rows): one decoded token per step", (svg) => drawPearls(svg, 0, MIDDLE, A, 17, HIGH)(WIDE)],
    ["accepted", "squares: drafted tokens that were accepted", (svg) => drawDrafts(svg, 0, MIDDLE, A, WIDE, HIGH, 2, 2, 0)(WIDE)],
    ["rejected", "hollow squares: drafted tokens that were rejected", (svg) => drawDrafts(svg, 0, MIDDLE, A, WIDE, HIGH, 2, 0, 2)(WIDE)],
    ["first", "corner: the first output token", (svg) => { box("prompt", "5")(svg); drawEar(svg, 26, 2); }],
    ["recomputed", "red underline: tokens computed again after a preemption", box("recomputed", "21")],
    ["waiting", "line: waiting", (svg) => drawLine(svg, 1, MIDDLE, "waiting")(WIDE - 1)],
    ["idle", "dotted line: running, but no token in this step", (svg) => drawLine(svg, 1, MIDDLE, "idle")(WIDE - 1)],
    ["preempted", "red cross: preempted, its blocks are taken away", (svg) => drawCross(svg, WIDE / 2, MIDDLE, 5.5)],
    ["good", "bar: finished", (svg) => drawEnd(svg, WIDE / 2, 3, 16, GOOD_ENDS[0])],
    ["bad", "red flag: ended early (stopped, failed, or out of blocks)", (svg) => drawEnd(svg, 14, 3, 16, "")],
    ["forked", "ring: first token from a prompt that another sample computed", (svg) => drawRing(svg, WIDE / 2, MIDDLE, 5, A)],
    ["fork", "vertical line: leads from that sample to the ring", line("M17 1V21", { "stroke-width": 1.5 })],
    ["request", "letter and colour of a request", chip],
    ["priority", "high or low priority", words("↑ ↓")],
    ["sample", "second of several samples of one prompt", words("#2")],
  ],
  tables: [
    ["request", "letter and colour of the request", chip],
    ["used", "number of a block that only this request holds", node("used", "3")],
    ["shared", "hatched: shared by several requests (×2: by two)", node("shared", "5  ×2")],
    ["text", "tokens of a full block, or the block it will be copied from", text],
    ["full", "bar: how full the block is", fullness],
  ],
  "bare-tables": [
    ["request", "letter and colour of the request", chip],
    ["used", "a block that only this request holds", bareCell("used")],
    ["shared", "slanted line: shared by several requests", bareCell("shared")],
  ],
  replicas: [
    ["replica", "a replica: its letter, number and colour", replica],
    ["expected", "number after a replica: cached blocks that the router expected there before it chose", words("4")],
    ["held", "filled part: blocks that the router believes to be cached there", belief(0.6)],
    ["missing", "empty part: blocks that it does not", belief(0)],
  ],
  tree: [
    ["root", "the beginning of every text", root],
    ["edge", "line: the right block continues the left one", line("M2 5C16 5 18 17 32 17")],
    ["text", "the tokens of a block", text],
    ["used", "number of the block, letter of its request", node("used", "3  A")],
    ["shared", "hatched: shared by several requests (×2: by two)", node("shared", "5  ×2")],
    ["cached", "dashed: no request holds it; it stays cached until the block is needed", node("cached", "7")],
    ["kept", "in no block table, held until it is copied", node("kept", "6")],
  ],
};

// Marks of drafts: they are explained only if the engine drafts.
export const DRAFT_MARKS = ["accepted", "rejected"];

export function showLegend(list, entries) {
  list.replaceChildren(...entries.map(([mark, meaning, draw]) => {
    const item = make("li", { "data-mark": mark }), { width = WIDE, height = HIGH } = draw;
    draw(shape(item, "svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }));
    item.append(make("span", { textContent: meaning }));
    return item;
  }));
}
