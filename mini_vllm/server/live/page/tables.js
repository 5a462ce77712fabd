// Block tables: a row for each request, its blocks in the order of its text (pictures/tables.py).
import { MARGIN, ON_COLOUR, WIDTH } from "./palette.js";
import { count, cut, measuredWidth, resize, shape, shorten, textAt } from "./svg.js";
import { fillBlock, haloOf, tell } from "./strip.js";

// With more entries than this, words would take too much room.
const MAX_WORDS = 72;
// In a narrower drawing, the blocks of a request are under its name, not to the right of it.
const MIN_BESIDE = 520, HEAD = 122;

export class Tables {
  constructor(svg) {
    this.svg = svg;
    this.rows = new Map();
  }

  draw(state, width = WIDTH) {
    const tables = [...state.tables].filter(([, table]) => table.length);
    const numEntries = tables.reduce((sum, [, table]) => sum + table.length, 0);
    const hasWords = numEntries <= MAX_WORDS;
    if (this.state !== state || this.width !== width || this.hasWords !== hasWords) {
      Object.assign(this, { state, width, hasWords, rows: new Map() });
      this.svg.replaceChildren();
    }
    for (const [requestId, row] of this.rows) {
      if (!state.tables.get(requestId)?.length) {
        row.group.remove();
        this.rows.delete(requestId);
      }
    }
    let y = 4;
    for (const [requestId, table] of tables) {
      let row = this.rows.get(requestId);
      if (!row || state.changedTables.has(requestId)) row = this.#drawRow(requestId, table, row);
      if (row.y !== y) row.group.setAttribute("transform", `translate(0 ${row.y = y})`);
      const num = state.numTokens.get(requestId);
      if (row.num !== num) this.#fill(row, num);
      y += row.height;
    }
    resize(this.svg, width, Math.max(y, 24), tables.length ? `Block tables of ${count(tables.length, "request")}: ` + tables.map(
      ([requestId, table]) => `${state.cast.letter(requestId)} holds ${count(table.length, "block")}`).join(", ") : "No request holds a block");
  }

  // Unchanged entries stay. If the width of an entry changes, all entries after it move.
  #drawRow(requestId, table, old) {
    const row = old ?? this.#beginRow(requestId), [left, top] = this.width < MIN_BESIDE ? [MARGIN, 32] : [MARGIN + HEAD, 0];
    let x = left, y = top;
    table.forEach((id, index) => {
      const block = this.state.blocks[id], words = this.#words(block);
      const width = words ? Math.max(44, measuredWidth(words, 10) + 10) : 44;
      if (x + width > this.width - MARGIN && x > left) { x = left; y += 34; }
      const sign = `${id} ${x} ${y} ${block.kind} ${block.refCnt} ${block.owners[0]} ${words}`;
      if (row.entries[index]?.sign !== sign) {
        for (const element of row.entries[index]?.elements ?? []) element.remove();
        row.entries[index] = { sign, ...drawEntry(row.group, block, this.state.cast, x, y, width, words) };
        row.num = null; // its bar is empty
      }
      x += width + 5;
    });
    for (const { elements } of row.entries.splice(table.length)) for (const element of elements) element.remove();
    row.height = y + 38;
    return row;
  }

  #words(block) {
    if (!this.hasWords || !block.text) return "";
    const copy = this.state.copies.find(([, target]) => target === block.id);
    return copy ? `will be copied from ${copy[0]}` : shorten(block.text, 44);
  }

  // To the left of the blocks: the request that holds them.
  #beginRow(requestId) {
    const { cast, requests } = this.state, group = shape(this.svg, "g", { "data-table": requestId });
    const name = requests.get(requestId)?.name || requestId;
    fillBlock(group, { id: 0, kind: "used", refCnt: 1, owners: [requestId], text: "" }, cast, MARGIN, 6, 18, 18);
    group.lastChild.dataset.mark = "request";
    textAt(group, MARGIN + 9, 19, cast.letter(requestId), 11, ON_COLOUR, { "text-anchor": "middle", "font-weight": "bold" });
    textAt(group, MARGIN + 24, 13, cut(name, 11, (this.width < MIN_BESIDE ? this.width - MARGIN : HEAD) - 32, true), 11, "ink", { "font-weight": "bold" }, name);
    const row = { group, entries: [], y: null, num: null, count: textAt(group, MARGIN + 24, 25, " ", 9) };
    this.rows.set(requestId, row);
    return row;
  }

  // Draw how full each block is. Only the last blocks change from step to step.
  #fill(row, num) {
    row.num = num;
    const size = this.state.header.block_size;
    row.count.textContent = num === undefined ? "" : count(num, "token");
    row.entries.forEach(({ bar }, index) => {
      if (!bar || num === undefined) return;
      const part = Math.min(Math.max(num - index * size, 0), size) / size;
      if (bar.part !== part) bar.element.setAttribute("width", Math.round(bar.most * (bar.part = part) * 100) / 100);
    });
  }
}

// One block of a table: its number, and its words or how full it is.
function drawEntry(parent, block, cast, x, y, width, words) {
  const before = parent.childElementCount, quiet = { "pointer-events": "none" };
  fillBlock(parent, block, cast, x, y, width, 31, tell(block, cast));
  textAt(parent, x + 5, y + 11, block.id + (block.refCnt > 1 ? `  ×${block.refCnt}` : ""), 9, ON_COLOUR,
    { "font-weight": "bold", ...haloOf(block, cast), ...quiet });
  let bar = null;
  if (words) {
    shape(parent, "rect", { x: x + 3, y: y + 14, width: width - 6, height: 14, fill: "paper", rx: 2, "data-mark": "text", ...quiet });
    textAt(parent, x + 5, y + 24.5, words, 10, "ink", quiet);
  } else {
    shape(parent, "rect", { x: x + 4, y: y + 18, width: width - 8, height: 8, fill: "paper", rx: 1, "data-mark": "full" });
    bar = { element: shape(parent, "rect", { x: x + 4, y: y + 18, width: 0, height: 8, fill: "ink", rx: 1, "data-mark": "full" }), most: width - 8, part: 0 };
  }
  return { elements: [...parent.children].slice(before), bar };
}
