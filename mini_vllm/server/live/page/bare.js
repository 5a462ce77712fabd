// A pool of thousands of blocks, and the tables of the requests that hold them, as coloured cells on a canvas: in an SVG,
// the browser would look at every shape again whenever one changes. The paints are the same as in strip.js.
import { MARGIN, PAINTS } from "./palette.js";
import { cut } from "./svg.js";
import { cellOf, paintOf, tell } from "./strip.js";

const dark = matchMedia("(prefers-color-scheme: dark)");
let mode = dark.matches ? "dark" : "light"; // asking each time takes too long
dark.addEventListener("change", () => { mode = dark.matches ? "dark" : "light"; });
const colour = (paint) => PAINTS[paint][mode];

class Sheet {
  constructor(canvas) {
    Object.assign(this, { canvas, context: canvas.getContext("2d") });
    dark.addEventListener("change", () => { this.state = null; }); // so that everything is drawn again
    canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
      const block = this.state && this.blockAt(offsetX, offsetY);
      canvas.title = block ? tell(block, this.state.cast) : "";
    });
  }

  // Afterwards the canvas is empty.
  resize(width, height) {
    const ratio = devicePixelRatio || 1;
    Object.assign(this.canvas, { width: Math.ceil(width * ratio), height: Math.ceil(height * ratio) });
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    this.context.scale(ratio, ratio);
  }

  cell(block, x, y, width, height) {
    const { context } = this, { kind } = block;
    context.fillStyle = colour("paper");
    context.fillRect(x, y, width, height);
    context.fillStyle = colour(paintOf(block, this.state.cast));
    context.fillRect(x + 0.5, y + 0.5, width - 1, height - 1);
    if (kind === "empty") {
      Object.assign(context, { strokeStyle: colour("line"), lineWidth: 0.5 });
      context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
    } else if (kind === "shared") {
      Object.assign(context, { strokeStyle: colour("on-colour"), lineWidth: Math.min(width / 5, 1.5) });
      context.beginPath();
      context.moveTo(x + 0.5, y + height - 0.5);
      context.lineTo(x + width - 0.5, y + 0.5);
      context.stroke();
    }
  }
}

export class BareStrip extends Sheet {
  draw(state, width) {
    const isNew = this.state !== state || this.width !== width;
    if (isNew) {
      const [wide, high] = cellOf(state, width);
      Object.assign(this, { state, width, wide, high, perRow: Math.max(Math.floor((width - 2 * MARGIN) / wide), 1) });
      this.resize(width, Math.ceil(state.blocks.length / this.perRow) * high + 2);
    }
    const gap = this.wide > 6 ? 1 : 0.4;
    for (const id of isNew ? state.blocks.keys() : state.changedBlocks) {
      this.cell(state.blocks[id], MARGIN + (id % this.perRow) * this.wide, Math.floor(id / this.perRow) * this.high, this.wide - gap, this.high - gap);
    }
    this.canvas.setAttribute("aria-label", state.describe());
  }

  blockAt(x, y) {
    const column = Math.floor((x - MARGIN) / this.wide);
    return column < 0 || column >= this.perRow ? null : this.state.blocks[Math.floor(y / this.high) * this.perRow + column];
  }
}

const SIDE = 12, LINE = 14, LEFT = MARGIN + 122;

export class BareTables extends Sheet {
  draw(state, width) {
    const perLine = Math.max(Math.floor((width - MARGIN - LEFT) / (SIDE + 1)), 1);
    if (this.state !== state || this.width !== width) Object.assign(this, { state, width, perLine, slots: [], numLines: 1, size: "" });
    const isFresh = this.#takeSlots(), { slots, numLines } = this, size = `${width} ${slots.length} ${numLines}`, isNew = this.size !== size;
    if (isNew) this.resize(width, slots.length * this.slotHeight + 4);
    this.size = size;
    slots.forEach((requestId, number) => {
      const isAnew = isNew || isFresh.has(number);
      if (isAnew || (requestId !== null && state.changedTables.has(requestId))) this.#row(requestId, number, isAnew);
    });
    const tables = slots.filter((requestId) => requestId !== null).map((requestId) => state.tables.get(requestId).length);
    this.canvas.setAttribute("aria-label", `Block tables of ${tables.length} requests, which hold ${tables.reduce((sum, each) => sum + each, 0)} blocks`);
  }

  get slotHeight() {
    return this.numLines * LINE + 6;
  }

  // A request keeps its place; a new one takes the first free place. Returns the places that must be drawn again.
  #takeSlots() {
    const { slots, state: { tables } } = this, fresh = new Set(), placed = new Set();
    slots.forEach((requestId, number) => {
      if (requestId === null || tables.get(requestId)?.length) placed.add(requestId);
      else { slots[number] = null; fresh.add(number); }
    });
    for (const [requestId, table] of tables) {
      this.numLines = Math.max(this.numLines, Math.ceil(table.length / this.perLine));
      if (!table.length || placed.has(requestId)) continue;
      const free = slots.indexOf(null), number = free < 0 ? slots.length : free;
      slots[number] = requestId;
      fresh.add(number);
    }
    return fresh;
  }

  #row(requestId, number, isAnew) {
    const { context, slotHeight, state: { cast, requests, blocks, changedBlocks, tables } } = this, y = number * slotHeight + 2;
    if (isAnew) context.clearRect(0, y, this.width, slotHeight);
    if (requestId === null) return;
    if (isAnew) {
      context.fillStyle = colour(cast.paint(requestId));
      context.fillRect(MARGIN, y, 16, 13);
      Object.assign(context, { fillStyle: colour("on-colour"), font: "bold 10px Helvetica, Arial, sans-serif", textAlign: "center" });
      context.fillText(cast.letter(requestId), MARGIN + 8, y + 10);
      Object.assign(context, { fillStyle: colour("ink"), font: "11px Helvetica, Arial, sans-serif", textAlign: "left" });
      context.fillText(cut(requests.get(requestId)?.name || requestId, 11, 98), MARGIN + 22, y + 10);
    }
    tables.get(requestId).forEach((id, index) => {
      if (isAnew || changedBlocks.has(id)) {
        this.cell(blocks[id], LEFT + (index % this.perLine) * (SIDE + 1), y + Math.floor(index / this.perLine) * LINE, SIDE, LINE - 1);
      }
    });
  }

  blockAt(x, y) {
    const number = Math.floor((y - 2) / this.slotHeight), column = Math.floor((x - LEFT) / (SIDE + 1)), requestId = this.slots[number] ?? null;
    if (requestId === null || column < 0 || column >= this.perLine) return null;
    return this.state.blocks[this.state.tables.get(requestId)[Math.floor((y - 2 - number * this.slotHeight) / LINE) * this.perLine + column]];
  }
}
