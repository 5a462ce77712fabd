// The schedule of the last steps: a row for each request, a column for each step (pictures/request_panel.py), and over it
// how many tokens each step computed, against the budget (pictures/token_panel.py).
import { ON_COLOUR } from "./palette.js";
import { sampleOf } from "./cast.js";
import { drawBox, drawCross, drawEar, drawEnd, drawLine, drawPearls, drawRing } from "./marks.js";
import { count, cut, resize, shape, textAt, textWidth } from "./svg.js";

const CELL = 18, LEFT = 132, RIGHT = 10, BARS = 44, TOP = 8;

export class Schedule {
  constructor(svg) {
    this.svg = svg;
    this.names = new Map(); // letters take the browser longest, so names stay while their request is shown
    [this.back, this.front, this.rows] = ["back", "names", "rows"].map(() => shape(svg, "g"));
  }

  draw(history, width, numSteps = null) {
    const { state } = history, cell = CELL;
    const number = numSteps ?? Math.max(Math.floor((width - LEFT - RIGHT) / cell), 4);
    const { shown, rows } = history.rows(number);
    const sign = `${shown.at(-1)?.index}|${shown.at(-1)?.ends.size}|${width}|${rows.size}`;
    if (this.history === history && this.sign === sign) return;
    const row = Math.min(Math.max(Math.floor(480 / Math.max(rows.size, 1)), 11), 24);
    Object.assign(this, { history, sign, cell, row, shown, state });
    const back = document.createDocumentFragment(), drawing = document.createDocumentFragment();
    this.#drawTokens(back);
    let y = TOP + BARS + 8;
    const tops = new Map();
    for (const requestId of rows.keys()) { tops.set(requestId, y); y += row; }
    this.#drawGrid(back, TOP + BARS + 8, y);
    this.#drawForks(back, rows, tops);
    for (const [requestId, { runs, ends }] of rows) {
      const group = shape(drawing, "g", { "data-request": requestId }), top = tops.get(requestId);
      for (const run of runs) this.#drawRun(group, requestId, run, top + row / 2);
      this.#drawFirst(group, requestId, runs, top);
      for (const { place, status, isThere } of ends) {
        drawEnd(group, this.x(place + (isThere ? 1 : 0)) + 1.5, top + 2, row - 4, status, `step ${shown[place].index}: ${this.letter(requestId)} ends (${status})`);
      }
    }
    this.#drawNumbers(drawing, y + 12);
    this.back.replaceChildren(back);
    this.#placeNames(tops);
    this.rows.replaceChildren(drawing);
    resize(this.svg, Math.max(this.x(number) + RIGHT, width), y + 20, shown.length ? `The last ${count(shown.length, "step")}, to step ` +
      `${shown.at(-1).index}: ${count(rows.size, "request")}` : "No step has been computed yet");
  }

  x(place) {
    return LEFT + place * this.cell;
  }

  letter(requestId) {
    return this.state.cast.letter(requestId);
  }

  // Pieces of prompts and decoded tokens, in the colours of their requests, against the budget.
  #drawTokens(parent) {
    const budget = this.state.header.max_num_batched_tokens, base = TOP + BARS;
    const most = Math.max(1, ...this.shown.map((step) => step.numPrompt + step.numAgain + step.numDecode));
    const isInSight = budget <= 4 * most, top = isInSight ? Math.max(most, budget) : most;
    textAt(parent, 12, TOP + 8, "tokens in a step", 10, "ink", { "font-weight": "bold" });
    textAt(parent, 12, TOP + 22, `budget ${budget}`, 10);
    textAt(parent, LEFT - 6, TOP + 4, String(top), 9, "faint", { "text-anchor": "end" });
    const paths = new Map(), panel = shape(parent, "g", { "data-panel": "tokens" });
    this.shown.forEach((step, place) => {
      let y = base;
      for (const [requestId, { numTokens, numAgain }] of step.cells) {
        if (!numTokens) continue;
        const height = numTokens / top * BARS;
        y -= height;
        const bar = (from, high) => `M${this.x(place) + 1.5} ${from.toFixed(2)}h${this.cell - 3}v${Math.max(high, 0.4).toFixed(2)}h${3 - this.cell}z`;
        const paint = this.state.cast.paint(requestId);
        paths.set(paint, (paths.get(paint) ?? "") + bar(y, height - (height > 3 ? 0.75 : 0)));
        if (numAgain) paths.set("alarm", (paths.get("alarm") ?? "") + bar(y + Math.max(height - 3, 0), Math.min(height, 2.5)));
      }
    });
    for (const [paint, d] of paths) shape(panel, "path", { d, fill: paint, "data-bars": paint });
    shape(parent, "path", { d: `M${LEFT} ${base + 0.5}H${this.x(this.shown.length)}`, stroke: "line" });
    if (isInSight && this.shown.length) {
      const y = base - budget / top * BARS;
      shape(parent, "path", { d: `M${LEFT} ${y}H${this.x(this.shown.length)}`, stroke: "ink", "stroke-dasharray": "4 3", "data-part": "budget" },
        "", `a step computes at most ${budget} tokens`);
    }
    const cover = shape(parent, "g", { "fill-opacity": 0 });
    this.shown.forEach((step, place) => shape(cover, "rect", { x: this.x(place), y: TOP, width: this.cell, height: BARS }, "",
      `step ${step.index}: ${step.numPrompt} prompt, ${step.numAgain} recomputed, ${step.numDecode} decode tokens; ${count(step.numUsed, "block")} in use`));
  }

  #drawGrid(parent, top, bottom) {
    const d = this.shown.map((_, place) => `M${this.x(place)} ${top}V${bottom}`).join("");
    if (d) shape(parent, "path", { d, stroke: "grid", "shape-rendering": "crispEdges" });
  }

  // From the request that computed a prompt down to those that begin from it.
  #drawForks(parent, rows, tops) {
    for (const [requestId, { runs }] of rows) {
      const forked = runs.find((run) => run.kind === "forked"), leader = requestId.replace(/#\d+$/u, "#0");
      if (!forked || leader === requestId || !tops.has(leader)) continue;
      shape(parent, "path", { d: `M${this.x(forked.first) + this.cell / 2} ${tops.get(leader) + this.row / 2}V${tops.get(requestId) + this.row / 2}`,
        stroke: "line", "stroke-width": 1.5, "data-part": "fork" });
    }
  }

  #placeNames(tops) {
    const { history, row } = this;
    for (const [requestId, name] of this.names) {
      if (!tops.has(requestId) || name.history !== history || name.row !== row) { name.group.remove(); this.names.delete(requestId); }
    }
    for (const [requestId, top] of tops) {
      if (!this.names.has(requestId)) {
        const group = shape(this.front, "g");
        this.#drawName(group, requestId, 0);
        this.names.set(requestId, { group, history, row, top: null });
      }
      const name = this.names.get(requestId);
      if (name.top !== top) name.group.setAttribute("transform", `translate(0 ${name.top = top})`);
    }
  }

  // Left of the row: its letter, its first words, and how many tokens of its prompt were found.
  #drawName(parent, requestId, top) {
    const size = Math.min(this.row - 3, 16), middle = top + this.row / 2, font = Math.min(this.row - 2, 11);
    const request = this.history.known.get(requestId), letter = this.letter(requestId);
    shape(parent, "rect", { x: 12, y: middle - size / 2, width: size, height: size, rx: 2.5, fill: this.state.cast.paint(requestId), stroke: "line",
      "stroke-width": 0.75 });
    textAt(parent, 12 + size / 2, middle + 0.26 * size, letter, letter.length > 1 ? size * 0.5 : size * 0.72, ON_COLOUR,
      { "text-anchor": "middle", "font-weight": "bold", "pointer-events": "none" });
    const sample = sampleOf(requestId, this.history.known);
    const leader = sample === null ? request : this.history.known.get(requestId.replace(/#\d+$/u, "#0"));
    const name = (leader?.name ?? "") || requestId, mark = ["↑", "", "↓"][request?.priority ?? 1];
    const told = (mark ? `${mark} ` : "") + (sample === null ? "" : `#${sample + 1} `) + name;
    textAt(parent, 34, middle + 0.36 * font, cut(told, font, LEFT - 44), font, "ink", {}, `${requestId}: ${name}; ` +
      `${request?.prompt ?? "?"} prompt tokens, ${request?.found ?? 0} found in the cache; priority ${["high", "normal", "low"][request?.priority ?? 1]}`);
  }

  #drawRun(parent, requestId, run, middle) {
    const left = this.x(run.first), right = this.x(run.last + 1), paint = this.state.cast.paint(requestId);
    const [first, last] = [this.shown[run.first].index, this.shown[run.last].index];
    const title = `${first === last ? `step ${first}` : `steps ${first} to ${last}`}: ${describe(run, this.letter(requestId))}`;
    const places = Array.from({ length: run.last - run.first + 1 }, (_, number) => this.x(run.first + number) + this.cell / 2);
    if (run.kind === "waiting" || run.kind === "idle") drawLine(parent, left, right, middle, run.kind, title);
    else if (run.kind === "preempted") for (const x of places) drawCross(parent, x, middle, Math.min(this.row, 14) / 2 - 1.5, title);
    else if (run.kind === "forked") for (const x of places) drawRing(parent, x, middle, Math.max(Math.min(this.cell - 1.5, this.row - 12, 12), 3) / 2, paint, title);
    else if (run.kind === "decode") drawPearls(parent, left, right, middle, paint, this.cell, this.row, title);
    else {
      const height = this.row - 5;
      drawBox(parent, left, right, middle, height, paint, run.kind, title);
      const size = [11, 10, 9, 8].find((each) => each <= height + 1 && 0.95 * textWidth(String(run.numTokens), each) + 1 <= this.cell);
      if (size) for (const x of places) textAt(parent, x, middle + 0.36 * size, String(run.numTokens), size, ON_COLOUR, { "text-anchor": "middle", "pointer-events": "none" });
    }
  }

  #drawFirst(parent, requestId, runs, top) {
    const first = this.history.known.get(requestId)?.firstStep;
    const place = this.shown.findIndex((step) => step.index === first);
    if (place < 0 || runs.some((run) => run.kind === "forked" && run.first <= place && place <= run.last)) return;
    drawEar(parent, this.x(place + 1), top + 2);
  }

  #drawNumbers(parent, y) {
    textAt(parent, 12, y, "step", 10, "ink", { "font-weight": "bold" });
    this.shown.forEach((step, place) => {
      if (step.index % 5 === 0) textAt(parent, this.x(place) + this.cell / 2, y, String(step.index), 10, "ink", { "text-anchor": "middle" });
    });
  }
}

function describe(run, letter) {
  if (run.numTokens) {
    const each = run.first === run.last ? "" : " each";
    return `${count(run.numTokens, "token")}${each} of ${letter}, ${run.numBefore} computed before` +
      (run.numAgain ? `, ${run.numAgain}${each} recomputed` : "") + (run.isSampled && run.kind !== "decode" ? ", one more is sampled" : "");
  }
  return letter + { forked: " gets its first token, from a prompt computed by another", waiting: " waits", idle: " runs, but gets no token",
    preempted: " is preempted" }[run.kind];
}
