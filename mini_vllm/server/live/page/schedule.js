// The schedule of the last steps: a row for each request, a column for each step (pictures/request_panel.py), and above
// them what each step computed (columns.js). Nothing is drawn twice: the whole drawing moves to the left, and a step adds a
// column and makes the last run of each row longer.
import { ON_COLOUR } from "./palette.js";
import { sampleOf } from "./cast.js";
import { BARS, Columns } from "./columns.js";
import { drawBox, drawDrafts, drawEach, drawEar, drawEnd, drawLine, drawPearls } from "./marks.js";
import { count, cut, resize, shape, textAt, textWidth } from "./svg.js";

const ARROWS = ["↑ ", "", "↓ "]; // high, normal and low priority
const CELL = 18, LEFT = 132, RIGHT = 10, TOP = 8, ROWS = TOP + BARS + 8;

export class Schedule {
  constructor(svg) {
    this.svg = svg;
    this.svg.addEventListener("pointerover", (event) => this.#tell(event.target));
  }

  draw(history, width, numSteps = null) {
    const number = numSteps ?? Math.max(Math.floor((width - LEFT - RIGHT) / CELL), 4);
    const { steps, first, rows } = history.shown(number);
    const row = Math.min(Math.max(Math.floor(480 / Math.max(rows.length, 1)), 11), 24);
    if (this.history !== history || this.row !== row || this.number !== number) this.#begin(history, row, number);
    const bottom = ROWS + rows.length * row;
    this.columns.draw(steps, bottom);
    this.#drawRows(rows, first);
    this.#drawForks(rows, first);
    this.moving.setAttribute("transform", `translate(${-first * CELL} 0)`);
    const wide = Math.max(LEFT + number * CELL + RIGHT, width), high = bottom + 20;
    this.window.setAttribute("width", wide - LEFT);
    this.window.setAttribute("height", high);
    this.step.setAttribute("y", bottom + 12);
    resize(this.svg, wide, high, steps.length ? `The last ${count(steps.length, "step")}, up to step ${steps.at(-1).index}: ` +
      count(rows.length, "request") : "No step has been computed yet");
  }

  #begin(history, row, number) {
    Object.assign(this, { history, state: history.state, row, number, rows: new Map(), forkSign: "" });
    this.svg.replaceChildren();
    this.heads = shape(this.svg, "g");
    this.step = textAt(this.heads, 12, 0, "step", 10, "ink", { "font-weight": "bold" });
    this.window = shape(this.svg, "svg", { x: LEFT, y: 0 });
    this.moving = shape(this.window, "g");
    this.columns = new Columns(this.moving, this.heads, this.state, { cell: CELL, top: TOP, left: LEFT });
    this.forks = shape(this.moving, "g");
    this.body = shape(this.moving, "g");
  }

  letter(requestId) {
    return this.state.cast.letter(requestId);
  }

  #drawRows(rows, first) {
    const shown = new Set(rows.map(({ requestId }) => requestId));
    for (const [requestId, drawn] of this.rows) {
      if (shown.has(requestId)) continue;
      drawn.head.remove();
      drawn.group.remove();
      this.rows.delete(requestId);
    }
    rows.forEach(({ requestId, row: { runs, ends } }, number) => {
      const drawn = this.rows.get(requestId) ?? this.#beginRow(requestId), top = ROWS + number * this.row;
      if (drawn.top !== top) for (const each of [drawn.head, drawn.group]) each.setAttribute("transform", `translate(0 ${drawn.top = top})`);
      for (const run of runs) if (run.last >= first) this.#drawRun(drawn, run);
      for (const [run, { group }] of drawn.runs) if (run.last < first) { group.remove(); drawn.runs.delete(run); }
      this.#drawFirst(drawn, requestId, runs);
      for (const end of ends.slice(drawn.numEnds)) {
        drawEnd(drawn.group, (end.place + (end.isThere ? 1 : 0)) * CELL + 1.5, 2, this.row - 4, end.status,
          `step ${end.index}: ${this.letter(requestId)} ended (${end.status})`);
      }
      drawn.numEnds = ends.length;
    });
  }

  // To the left of the row: its letter and its first words; the tooltip says how many tokens of its prompt were found.
  #beginRow(requestId) {
    const drawn = { head: shape(this.heads, "g"), group: shape(this.body, "g", { "data-request": requestId }), runs: new Map(), numEnds: 0, top: null };
    this.rows.set(requestId, drawn);
    const size = Math.min(this.row - 3, 16), middle = this.row / 2, font = Math.min(this.row - 2, 11), { known } = this.history;
    const request = known.get(requestId), letter = this.letter(requestId), sample = sampleOf(requestId, known);
    shape(drawn.head, "rect", { x: 12, y: middle - size / 2, width: size, height: size, rx: 2.5, fill: this.state.cast.paint(requestId), stroke: "line",
      "stroke-width": 0.75, "data-mark": "request" });
    textAt(drawn.head, 12 + size / 2, middle + 0.26 * size, letter, letter.length > 1 ? size * 0.5 : size * 0.72, ON_COLOUR,
      { "text-anchor": "middle", "font-weight": "bold", "pointer-events": "none" });
    const name = (sample === null ? request : known.get(requestId.replace(/#\d+$/u, "#0")))?.name || requestId;
    const told = ARROWS[request?.priority ?? 1] + (sample === null ? "" : `#${sample + 1} `) + name;
    textAt(drawn.head, 34, middle + 0.36 * font, cut(told, font, LEFT - 42), font, "ink", {}, `${requestId}: ${name}; ` +
      `${request?.prompt ?? "?"} prompt tokens, ${request?.found ?? 0} found in the cache; priority ${["high", "normal", "low"][request?.priority ?? 1]}`);
    return drawn;
  }

  #drawRun(drawn, run) {
    const known = drawn.runs.get(run) ?? this.#beginRun(drawn, run);
    if (known.last === run.last) return;
    known.grow((run.last + 1) * CELL);
    if (known.size) {
      for (let place = Math.max(known.last ?? run.first - 1, run.first - 1) + 1; place <= run.last; place += 1) {
        textAt(known.group, (place + 0.5) * CELL, this.row / 2 + 0.36 * known.size, String(run.numTokens), known.size, ON_COLOUR,
          { "text-anchor": "middle", "pointer-events": "none" });
      }
    }
    known.last = run.last;
  }

  #beginRun(drawn, run) {
    const group = shape(drawn.group, "g"), paint = this.state.cast.paint(run.requestId), left = run.first * CELL, middle = this.row / 2;
    group.run = run;
    const known = { group, last: null, size: null };
    if (run.kind === "waiting" || run.kind === "idle") known.grow = drawLine(group, left, middle, run.kind);
    else if (run.kind === "preempted") known.grow = drawEach(group, left, middle, CELL, run.kind, Math.min(this.row, 14) / 2 - 1.5, paint);
    else if (run.kind === "forked") known.grow = drawEach(group, left, middle, CELL, run.kind, Math.max(Math.min(this.row - 12, 12), 3) / 2, paint);
    else if (run.kind === "decode") known.grow = drawPearls(group, left, middle, paint, CELL, this.row);
    else if (run.kind === "drafted") {
      const most = Math.max(this.state.header.num_speculative_tokens ?? 0, run.numDrafted);
      known.grow = drawDrafts(group, left, middle, paint, CELL, this.row, most, run.numAccepted, run.numDrafted - run.numAccepted);
    }
    else {
      const height = this.row - 5;
      known.grow = drawBox(group, left, middle, height, paint, run.kind);
      known.size = [11, 10, 9, 8].find((each) => each <= height + 1 && 0.95 * textWidth(String(run.numTokens), each) + 1 <= CELL);
    }
    drawn.runs.set(run, known);
    return known;
  }

  #drawFirst(drawn, requestId, runs) {
    const place = this.history.known.get(requestId)?.firstPlace;
    if (drawn.ear || place === undefined || runs.some((run) => run.kind === "forked" && run.first <= place && place <= run.last)) return;
    drawn.ear = drawEar(drawn.group, (place + 1) * CELL, 2);
  }

  // Lines from the request that computed a prompt to the samples that start from it.
  #drawForks(rows, first) {
    const lines = [];
    for (const { requestId, row: { runs } } of rows) {
      const forked = runs.find((run) => run.kind === "forked" && run.last >= first), leader = this.rows.get(requestId.replace(/#\d+$/u, "#0"));
      if (!forked || !leader || leader === this.rows.get(requestId)) continue;
      lines.push(`M${(forked.first + 0.5) * CELL} ${leader.top + this.row / 2}V${this.rows.get(requestId).top + this.row / 2}`);
    }
    if (lines.join() === this.forkSign) return;
    this.forkSign = lines.join();
    this.forks.replaceChildren();
    for (const d of lines) shape(this.forks, "path", { d, stroke: "line", "stroke-width": 1.5, "data-part": "fork" });
  }

  // The title of a run is written when a pointer arrives: until then the run grows.
  #tell(target) {
    const run = target.parentElement?.run;
    if (!run) return;
    const [first, last] = [run.first, run.last].map((place) => this.history.indexOf(place));
    const told = target.querySelector("title") ?? shape(target, "title");
    told.textContent = `${first === last ? `step ${first}` : `steps ${first} to ${last}`}: ${describe(run, this.letter(run.requestId))}`;
  }
}

function describe(run, letter) {
  if (run.numTokens) {
    const each = run.first === run.last ? "" : " each";
    return `${letter} computes ${count(run.numTokens, "token")}${each} after ${run.numBefore} computed earlier` +
      (run.numAgain ? `; ${run.numAgain}${each} computed again` : "") + (run.isSampled && run.kind !== "decode" && !run.numDrafted ? "; then a token is sampled" : "") +
      (run.numDrafted ? `; ${run.numDrafted}${each} drafted, ${run.numAccepted}${each} accepted` : "");
  }
  return letter + { forked: " gets its first token from a prompt that another sample computed", waiting: " is waiting",
    idle: " is running, but computes nothing", preempted: " is preempted" }[run.kind];
}
