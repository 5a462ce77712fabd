// Block tables: a row for each request, its blocks in the order of its text, wherever they lie (pictures/tables.py).
import { MARGIN, ON_COLOUR, WIDTH } from "./palette.js";
import { count, cut, resize, shape, shorten, textAt, textWidth } from "./svg.js";
import { fillBlock, tell } from "./strip.js";

// With more entries than this, words would take too much room; with more than that, numbers too.
const MAX_WORDS = 72, MAX_NUMBERS = 400;

export class Tables {
  constructor(svg) {
    this.svg = svg;
    this.rows = new Map();
  }

  draw(state, width = WIDTH) {
    const tables = [...state.tables].filter(([, table]) => table.length);
    const numEntries = tables.reduce((sum, [, table]) => sum + table.length, 0);
    const size = numEntries <= MAX_WORDS ? "words" : numEntries <= MAX_NUMBERS ? "numbers" : "bare";
    if (this.state !== state || this.width !== width || this.size !== size) {
      Object.assign(this, { state, width, size, rows: new Map() });
      this.svg.replaceChildren();
    }
    for (const [requestId, row] of this.rows) {
      if (!state.tables.get(requestId)?.length) {
        row.group.remove();
        this.rows.delete(requestId);
      }
    }
    let y = 4;
    for (const [requestId, table] of tables) y += this.#place(requestId, table, y);
    resize(this.svg, width, Math.max(y, 24), tables.length ? `Block tables of ${count(tables.length, "request")}: ` + tables.map(
      ([requestId, table]) => `${state.cast.letter(requestId)} holds ${count(table.length, "block")}`).join(", ") : "No request holds a block");
  }

  // Draw a row again if it is another, move it if it stands elsewhere; returns its height.
  #place(requestId, table, y) {
    const state = this.state, copies = new Map(state.copies.map(([source, copy]) => [copy, source]));
    const num = state.numTokens.get(requestId);
    const sign = table.map((id) => {
      const block = state.blocks[id];
      return `${id}${block.kind}${block.refCnt}${block.owners[0]}${this.size === "words" ? block.text : ""}${copies.get(id) ?? ""}`;
    }).join();
    let row = this.rows.get(requestId);
    if (!row || row.sign !== sign) {
      row?.group.remove();
      row = { sign, group: shape(this.svg, "g", { "data-table": requestId }), y: null, bars: [], num: null };
      this.rows.set(requestId, row);
      row.height = this.#drawRow(row, requestId, table, copies);
    }
    if (row.y !== y) row.group.setAttribute("transform", `translate(0 ${row.y = y})`);
    if (row.num !== num) this.#fill(row, num);
    return row.height;
  }

  #drawRow(row, requestId, table, copies) {
    const { state, size } = this, { cast } = state, { group } = row, left = MARGIN + 122, isBare = size === "bare";
    const owner = { id: 0, kind: "used", refCnt: 1, owners: [requestId], text: "" };
    fillBlock(group, owner, cast, MARGIN, isBare ? 0 : 6, 18, 18);
    textAt(group, MARGIN + 9, isBare ? 13 : 19, cast.letter(requestId), 11, ON_COLOUR, { "text-anchor": "middle", "font-weight": "bold" });
    const name = state.requests.get(requestId)?.name || requestId;
    textAt(group, MARGIN + 24, 13, cut(name, 12, 100), 11, "ink", { "font-weight": "bold" }, name);
    row.count = isBare ? null : textAt(group, MARGIN + 24, 25, " ", 9);
    let x = left, y = 0;
    table.forEach((id, index) => {
      const block = state.blocks[id];
      let words = size === "words" && block.text ? shorten(block.text, 44) : "";
      if (words && copies.has(id)) words = `copy of ${copies.get(id)} to come`;
      const width = isBare ? 13 : words ? Math.max(44, textWidth(words, 10) * 0.87 + 10) : 44;
      if (x + width > this.width - MARGIN && x > left) { x = left; y += isBare ? 15 : 34; }
      if (isBare) fillBlock(group, block, cast, x, y, 13, 14);
      else row.bars[index] = drawEntry(group, block, cast, x, y, width, words);
      x += width + (isBare ? 1 : 5);
    });
    return y + (isBare ? 22 : 38);
  }

  // How full each block is; only the last ones change, step by step.
  #fill(row, num) {
    row.num = num;
    const size = this.state.header.block_size;
    if (row.count) row.count.textContent = num === undefined ? "" : count(num, "token");
    row.bars.forEach((bar, index) => {
      if (!bar || num === undefined) return;
      const part = Math.min(Math.max(num - index * size, 0), size) / size;
      if (bar.part !== part) bar.element.setAttribute("width", Math.round(bar.most * (bar.part = part) * 100) / 100);
    });
  }
}

// One block of a table: its number, and its words or how full it is.
function drawEntry(parent, block, cast, x, y, width, words) {
  const quiet = { "pointer-events": "none" };
  fillBlock(parent, block, cast, x, y, width, 31, tell(block, cast));
  textAt(parent, x + 5, y + 11, block.id + (block.refCnt > 1 ? `  ×${block.refCnt}` : ""), 9, ON_COLOUR, { "font-weight": "bold", ...quiet });
  if (words) {
    shape(parent, "rect", { x: x + 3, y: y + 14, width: width - 6, height: 14, fill: "paper", rx: 2, ...quiet });
    textAt(parent, x + 5, y + 24.5, words, 10, "ink", quiet);
    return null;
  }
  shape(parent, "rect", { x: x + 4, y: y + 18, width: width - 8, height: 8, fill: "paper", rx: 1 });
  const element = shape(parent, "rect", { x: x + 4, y: y + 18, width: 0, height: 8, fill: "ink", rx: 1 });
  return { element, most: width - 8, part: 0 };
}
