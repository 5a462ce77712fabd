// The prefix tree: a node is a cached block with its tokens; its parent is the block before it (pictures/tree.py).
import { MARGIN, ON_COLOUR, TREE_GAP, TREE_LINE, TREE_MAX_LINE } from "./palette.js";
import { count, fitted, resize, shape, textAt, textWidth } from "./svg.js";
import { fillBlock, haloOf, tell } from "./strip.js";

// A larger tree is truncated: it would be unreadable, and it changes in every step.
const MAX_NODES = 80;
// A tree with more than MAX_AT_ONCE nodes is drawn at most every EVERY_MS.
const MAX_AT_ONCE = 40, EVERY_MS = 500;

export class Tree {
  constructor(svg) {
    this.svg = svg;
  }

  draw(state, maxNodes = MAX_NODES) {
    const now = performance.now();
    if (this.state === state && (this.version === state.treeVersion || (this.numDrawn > MAX_AT_ONCE && now - this.drawnAt < EVERY_MS))) return;
    Object.assign(this, { state, version: state.treeVersion, drawnAt: now });
    const { root, number, numDrawn } = grow(state, maxNodes);
    const numRows = layOut(root, 0), numLines = mostLines(root), row = 32 + numLines * TREE_LINE;
    this.svg.replaceChildren();
    Object.assign(this, { right: 0, numDrawn });
    this.#drawNode(root, MARGIN, 4, row);
    const left = number - numDrawn, label = `The prefix tree has ${count(number, "block")}`;
    const height = Math.max(numRows, 1) * row + 4;
    if (left) textAt(this.svg, MARGIN, height + 10, `${count(left, "more block")} not drawn`, 11, "faint", { "data-part": "left-out" });
    resize(this.svg, Math.ceil(this.right) + MARGIN, height + (left ? 18 : 0), label + (left ? `; ${numDrawn} are drawn` : ""));
  }

  // Draw the node, and its children to its right.
  #drawNode(node, x, top, high) {
    const y = top + node.row * high, toMiddle = (high - 11) / 2, right = x + node.width, middle = y + toMiddle;
    this.right = Math.max(this.right, right);
    for (const child of node.children) {
      const below = top + child.row * high + toMiddle;
      shape(this.svg, "path", { d: `M${right} ${middle}C${right + 14} ${middle} ${right + 8} ${below} ${right + TREE_GAP} ${below}`,
        stroke: "line", fill: "none", "data-mark": "edge" });
    }
    if (node.block === null) {
      shape(this.svg, "rect", { x: x + 0.5, y: middle - 11.5, width: node.width - 1, height: 23, rx: 11, fill: "null", stroke: "line", "data-mark": "root" });
      textAt(this.svg, x + node.width / 2, middle + 4, "root", 11, "ink", { "text-anchor": "middle" });
    } else {
      this.#drawBox(node, x, y, high - 11);
    }
    for (const child of node.children) this.#drawNode(child, right + TREE_GAP, top, high);
  }

  #drawBox(node, x, y, height) {
    const { block } = node, { cast } = this.state, quiet = { "pointer-events": "none" };
    fillBlock(this.svg, block, cast, x, y, node.width, height, tell(block, cast));
    const owners = block.owners.slice(0, 4).map((owner) => cast.letter(owner)).join("");
    const head = [String(block.id), owners, block.refCnt > 1 ? `×${block.refCnt}` : ""].filter(Boolean).join("  ");
    textAt(this.svg, x + 5, y + 11, head, 9, block.refCnt ? ON_COLOUR : "faint", { "font-weight": "bold", ...haloOf(block, cast), ...quiet });
    shape(this.svg, "rect", { x: x + 3, y: y + 15, width: node.width - 6, height: height - 18, fill: "paper", rx: 2, "data-mark": "text" });
    node.lines.forEach((line, number) => textAt(this.svg, x + 5, y + 26 + number * TREE_LINE, line, 10, "ink", { ...fitted(line, 10, node.width - 10), ...quiet }));
  }
}

function makeNode(block) {
  return { block, children: [], row: 0 };
}

// Return the text of a node, and the width that the node needs for it.
function writeOn(node) {
  node.lines = inLines(node.block === null ? "root" : node.block.text || node.block.key);
  node.width = Math.max(52, Math.max(...node.lines.map((line) => textWidth(line, 10))) * 0.87 + 10);
}

// If several blocks have the same contents, the first of them gets the children. If there are too many nodes, the nodes in use
// come first.
function grow(state, maxNodes) {
  const root = makeNode(null), nodes = new Map(), firstOf = new Map();
  const found = state.blocks.filter((block) => block.key !== null);
  for (const block of found) {
    nodes.set(block.id, makeNode(block));
    if (!firstOf.has(block.key)) firstOf.set(block.key, nodes.get(block.id));
  }
  const parentOf = (block) => (block.parent === null ? root : firstOf.get(block.parent) ?? root);
  let drawn = found;
  if (found.length > maxNodes) {
    const kept = new Set();
    for (const block of [...found].sort((one, other) => (other.refCnt > 0) - (one.refCnt > 0) || one.id - other.id)) {
      const path = [];
      for (let node = nodes.get(block.id); node.block && !kept.has(node.block.id) && path.length <= found.length; node = parentOf(node.block)) path.push(node.block.id);
      if (kept.size + path.length <= maxNodes) for (const id of path) kept.add(id);
    }
    drawn = found.filter((block) => kept.has(block.id));
  }
  writeOn(root);
  for (const block of drawn) {
    writeOn(nodes.get(block.id));
    parentOf(block).children.push(nodes.get(block.id));
  }
  return { root, number: found.length, numDrawn: drawn.length };
}

// Split a long text into two lines of similar length.
function inLines(text) {
  const places = [...text.matchAll(/ (?=[^.,;:!?·])/gu)].map(({ index }) => index).filter((place) => place > 0 && place < text.length - 1);
  if (text.length <= TREE_MAX_LINE || !places.length) return [text];
  const far = (place) => Math.abs(place - text.length / 2);
  const middle = places.reduce((best, place) => (far(place) < far(best) ? place : best));
  return [text.slice(0, middle), text.slice(middle + 1)];
}

function mostLines(node) {
  return Math.max(node.lines.length, ...node.children.map(mostLines));
}

// Give each leaf a row, and put each node in the middle of its children. Returns the first free row.
function layOut(node, row) {
  if (!node.children.length) {
    node.row = row;
    return row + 1;
  }
  for (const child of node.children) row = layOut(child, row);
  node.row = (node.children[0].row + node.children.at(-1).row) / 2;
  return row;
}
