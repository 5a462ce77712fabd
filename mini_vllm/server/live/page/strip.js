// The blocks of the pool side by side: each in the colour of its owner, hatched, pale or blank (pictures/strip.py).
// Only changes are drawn: a cell is replaced when its block differs from the drawn one.
import { CELLS, MARGIN, ON_COLOUR, WIDTH } from "./palette.js";
import { hatch, resize, shape, textAt } from "./svg.js";

// A cell with a number is at least MIN_NUMBERED wide, one with a letter at least MIN_LETTERED.
export const MIN_NUMBERED = 32, MIN_LETTERED = 16;

// Width and height of a cell, which is smaller the more blocks there are.
export function cellOf(state, width) {
  const [, wide, high] = CELLS.find(([most]) => state.blocks.length <= most * Math.max(width / WIDTH, 1));
  return [wide, high];
}

export class Strip {
  constructor(svg) {
    this.svg = svg;
    this.svg.addEventListener("pointerover", (event) => this.#tellLate(event.target));
  }

  draw(state, width = WIDTH) {
    const isNew = this.state !== state || this.width !== width;
    if (isNew) this.#begin(state, width);
    for (const number of isNew ? state.blocks.keys() : state.changedBlocks) {
      const block = state.blocks[number], sign = `${block.kind}|${block.refCnt}|${block.owners.join("\t")}`;
      if (this.signs[number] === sign) continue;
      this.signs[number] = sign;
      this.#drawCell(block, number);
    }
    this.#drawCopies();
    resize(this.svg, this.width, this.height, state.describe());
  }

  #begin(state, width) {
    Object.assign(this, { state, width, signs: [], cells: [], copies: [] });
    const [wide, high] = this.cell = cellOf(state, width);
    this.perRow = Math.max(Math.floor((width - 2 * MARGIN) / wide), 1);
    this.height = Math.ceil(state.blocks.length / this.perRow) * high + 6;
    this.svg.replaceChildren();
    this.panel = shape(this.svg, "g", { "data-panel": "pool" });
    this.arrows = shape(this.svg, "g");
  }

  place(number) {
    const [wide, high] = this.cell;
    return [MARGIN + (number % this.perRow) * wide, Math.floor(number / this.perRow) * high];
  }

  #drawCell(block, number) {
    const [x, y] = this.place(number), [wide, high] = this.cell;
    const group = document.createElementNS(this.svg.namespaceURI, "g"), old = this.cells[number];
    drawBlock(group, block, this.state.cast, x, y, wide, high);
    if (old) old.replaceWith(group);
    else this.panel.append(group);
    this.cells[number] = group;
  }

  // A line under both blocks, and an arrow into the copy.
  #drawCopies() {
    const key = JSON.stringify(this.state.copies);
    if (key === this.copies) return;
    this.copies = key;
    this.arrows.replaceChildren();
    const [wide, high] = this.cell, size = Math.min(high / 8, 5);
    for (const [source, copy] of this.state.copies) {
      const [[left, top], [right, bottom]] = [source, copy].map((id) => {
        const [x, y] = this.place(id);
        return [x + wide / 2, y + high];
      });
      shape(this.arrows, "path", {
        d: `M${left} ${top - size}V${top + size - 1}L${right} ${bottom + size - 1}V${bottom - size - 2}` +
          `m${-size + 1} ${size}l${size - 1} ${-size}l${size - 1} ${size}`,
        stroke: "alarm", "stroke-width": size * 0.4, fill: "none", "stroke-linejoin": "round", "data-part": "copy",
        "pointer-events": "none" });
    }
  }

  // In a large pool, the title of a block is written when a pointer arrives.
  #tellLate(target) {
    const id = target.dataset?.block;
    if (id === undefined) return;
    const told = target.querySelector("title") ?? shape(target, "title");
    told.textContent = tell(this.state.blocks[Number(id)], this.state.cast);
  }
}

export function drawBlock(parent, block, cast, x, y, wide, high) {
  const gap = wide > 11 ? 2 : wide > 6 ? 1 : 0.4, width = wide - gap, height = high - gap;
  fillBlock(parent, block, cast, x, y, width, height, width >= 14 ? tell(block, cast) : "");
  const ink = ["used", "shared", "kept"].includes(block.kind) ? ON_COLOUR : "faint", quiet = { "pointer-events": "none", ...haloOf(block, cast) };
  if (width >= 30) {
    textAt(parent, x + 4, y + 11, String(block.id), 9, ink, quiet);
    if (block.refCnt > 1) {
      textAt(parent, x + width - 4, y + 11, `×${block.refCnt}`, 10, ink,
        { "text-anchor": "end", "font-weight": "bold", ...quiet });
    }
  }
  if (width >= 14) {
    const sign = signOf(block, cast, width), size = width >= 30 && sign.length <= 4 ? 14 : 10;
    textAt(parent, x + width / 2, y + height / 2 + size * 0.36 + (width >= 30 ? 5 : 0), sign, size, ink,
      { "text-anchor": "middle", "font-weight": "bold", ...quiet });
  }
}

// The colour of a block's first owner; without an owner, that of its kind.
export function paintOf({ kind, owners }, cast) {
  if (kind !== "used" && kind !== "shared") return kind;
  return owners.length ? cast.paint(owners[0]) : "used";
}

// Attributes that make a text readable on hatching.
export function haloOf(block, cast) {
  if (block.kind !== "shared") return {};
  return { stroke: paintOf(block, cast), "stroke-width": 3.5, "stroke-linejoin": "round", "paint-order": "stroke" };
}

// Hatched if the block has several owners.
export function fillBlock(parent, block, cast, x, y, width, height, title = "") {
  const { kind } = block;
  shape(parent, "rect", {
    x: x + 0.5, y: y + 0.5, width: width - 1, height: height - 1, rx: width > 10 ? 2 : null, fill: paintOf(block, cast),
    stroke: width > 10 || kind === "empty" ? "line" : null, "stroke-width": width > 10 ? null : 0.5,
    "stroke-dasharray": kind === "cached" && width > 10 ? "3 2" : null, "data-block": block.id, "data-state": kind }, "", title);
  if (kind === "shared") hatch(parent, x + 1, y + 1, width - 2, height - 2);
}

// Return the tooltip of a block.
export function tell(block, cast) {
  const free = { null: "the null block, which is never handed out", cached: "free; its contents are still cached", empty: "free, with nothing cached" };
  const text = block.text ? `; it contains “${block.text}”` : "";
  if (block.kind in free) return `block ${block.id}: ${free[block.kind]}${text}`;
  if (block.kind === "kept") return `block ${block.id}: in no block table, held until it is copied; ref_cnt ${block.refCnt}`;
  const owners = block.owners.map((owner) => cast.letter(owner)).join(", ") || "a request that is not shown";
  return `block ${block.id}: held by ${owners}; ref_cnt ${block.refCnt}${text}`;
}

export function signOf(block, cast, width) {
  const free = { null: "∅", cached: "#", empty: "", kept: "–" };
  if (block.kind in free) return free[block.kind];
  const letters = block.owners.map((owner) => cast.letter(owner));
  if (width < 30) return letters.length === 1 ? letters[0] : letters.length ? "+" : "";
  return letters.length <= 2 ? letters.join("") : `${letters[0]}…${letters.at(-1)}`;
}
