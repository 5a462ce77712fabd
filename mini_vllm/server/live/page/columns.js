// Above the schedule: the tokens of each step in the colours of its requests, compared with the budget (pictures/token_panel.py).
// Rejected drafts are a hollow bar above them.
import { count, shape, textAt } from "./svg.js";

export const BARS = 44;

export class Columns {
  constructor(moving, heads, state, { cell, top, left }) {
    Object.assign(this, { state, cell, top, drawn: new Map(), scale: null });
    this.group = shape(moving, "g", { "data-panel": "tokens" });
    const budget = state.header.max_num_batched_tokens;
    textAt(heads, 12, top + 8, "tokens per step", 10, "ink", { "font-weight": "bold" });
    textAt(heads, 12, top + 22, `budget ${budget}`, 10);
    this.most = textAt(heads, left - 6, top + 4, " ", 9, "faint", { "text-anchor": "end" });
    this.base = shape(moving, "path", { stroke: "line", "data-mark": "step" });
    this.line = shape(moving, "path", { stroke: "ink", "stroke-dasharray": "4 3", "data-part": "budget" }, "", `a step may compute at most ${budget} tokens`);
  }

  draw(steps, bottom) {
    if (!steps.length) return;
    const budget = this.state.header.max_num_batched_tokens, { cell, top } = this;
    const most = Math.max(1, ...steps.map((step) => step.numPrompt + step.numAgain + step.numDecode + step.numDrafted));
    const isInSight = budget <= 4 * most, scale = isInSight ? Math.max(most, budget) : most;
    if (scale !== this.scale || bottom !== this.bottom) {
      Object.assign(this, { scale, bottom });
      for (const { group } of this.drawn.values()) group.remove();
      this.drawn.clear();
      this.most.textContent = String(scale);
    }
    for (const [place, { group }] of this.drawn) if (place < steps[0].place) { group.remove(); this.drawn.delete(place); }
    for (const step of steps) if (!this.drawn.has(step.place)) this.drawn.set(step.place, { group: this.#column(step) });
    const [from, to] = [steps[0].place * cell, (steps.at(-1).place + 1) * cell];
    this.base.setAttribute("d", `M${from} ${top + BARS + 0.5}H${to}`);
    this.line.setAttribute("d", isInSight ? `M${from} ${top + BARS - budget / scale * BARS}H${to}` : "");
  }

  #column(step) {
    const { cell, top } = this, x = step.place * cell, group = shape(this.group, "g", { "data-mark": "step" }), paths = new Map();
    let y = top + BARS;
    const bar = (from, high) => `M${x + 1.5} ${from.toFixed(2)}h${cell - 3}v${Math.max(high, 0.4).toFixed(2)}h${3 - cell}z`;
    for (const [requestId, { numTokens, numAgain, numAccepted }] of step.cells) {
      const height = (numTokens + numAccepted) / this.scale * BARS, paint = this.state.cast.paint(requestId);
      y -= height;
      paths.set(paint, (paths.get(paint) ?? "") + bar(y, height - (height > 3 ? 0.75 : 0)));
      if (numAgain) paths.set("alarm", (paths.get("alarm") ?? "") + bar(y + Math.max(height - 3, 0), Math.min(height, 2.5)));
    }
    shape(group, "path", { d: `M${x} ${top + BARS + 8}V${this.bottom}`, stroke: "grid", "shape-rendering": "crispEdges" });
    for (const [paint, d] of paths) shape(group, "path", { d, fill: paint, "data-bars": paint, "data-mark": paint === "alarm" ? "recomputed" : null });
    const rejected = (step.numDrafted - step.numAccepted) / this.scale * BARS;
    if (rejected) {
      shape(group, "path", { d: bar(y - rejected, rejected - (rejected > 3 ? 0.75 : 0)), fill: "paper", stroke: "faint", "stroke-width": 0.75,
        "data-part": "rejected" });
    }
    const drafts = step.numDrafted ? `, ${step.numDrafted} drafted, ${step.numAccepted} accepted` : "";
    shape(group, "rect", { x, y: top, width: cell, height: BARS, "fill-opacity": 0 }, "", `step ${step.index}: ${count(step.numPrompt, "prompt token")}, ` +
      `${step.numAgain} recomputed, ${step.numDecode} decoded${drafts}; ${count(step.numUsed, "block")} in use`);
    if (step.index % 5 === 0) textAt(group, x + cell / 2, this.bottom + 12, String(step.index), 10, "ink", { "text-anchor": "middle" });
    return group;
  }
}
