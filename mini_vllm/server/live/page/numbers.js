// The numbers: tokens per second, hit rate, blocks, the queue; and one sentence for screen readers.
import { chip, make } from "./dom.js";
import { draftOf } from "./state.js";
import { count } from "./svg.js";

const WINDOW_MS = 2000, SAY_EVERY_MS = 4000;
const NAMES = ["high", "normal", "low"];
const DRAFTS = "drafts accepted"; // only while the engine drafts

export class Numbers {
  constructor(tiles, queue, sentence) {
    Object.assign(this, { tiles, queue, sentence, tokens: [], saidAt: 0, said: "" });
    this.cells = new Map();
  }

  hear(event, now = performance.now()) {
    const number = event.sampled.reduce((sum, requestId) => sum + 1 + draftOf(event, requestId)[1], 0);
    if (number) this.tokens.push([now, number]);
    while (this.tokens.length && this.tokens[0][0] < now - WINDOW_MS) this.tokens.shift();
  }

  rate(now = performance.now()) {
    const recent = this.tokens.filter(([at]) => at >= now - WINDOW_MS);
    if (!recent.length) return 0;
    return recent.reduce((sum, [, number]) => sum + number, 0) / Math.max((now - recent[0][0]) / 1000, 0.25);
  }

  draw(state, isPaused) {
    const { totals, header } = state, numUsed = state.numOf("used", "shared", "kept");
    const numRunning = [...state.tables.values()].filter((table) => table.length).length;
    const hitRate = totals.num_query_tokens ? `${Math.round(100 * totals.num_hit_tokens / totals.num_query_tokens)} %` : "–";
    const tiles = { "tokens/s": isPaused ? "paused" : String(Math.round(this.rate())), "hit rate": hitRate,
      "blocks in use": `${numUsed} of ${header.num_blocks - 1}`, running: `${numRunning} of ${header.max_num_seqs}`,
      waiting: String(state.waiting.length), preemptions: String(totals.num_preemptions), "copies on write": String(totals.num_forks),
      evictions: String(totals.num_evictions) };
    if (header.num_speculative_tokens) tiles[DRAFTS] = `${totals.num_accepted_tokens} of ${totals.num_drafted_tokens}`;
    for (const [name, told] of this.cells) if (!(name in tiles)) { told.parentElement.remove(); this.cells.delete(name); }
    for (const [name, value] of Object.entries(tiles)) this.#tile(name, value);
    this.#drawQueue(state);
    this.#say(state, numRunning, numUsed, hitRate, isPaused);
  }

  #tile(name, value) {
    if (!this.cells.has(name)) {
      const told = make("dd");
      this.tiles.append(make("div", { className: name === DRAFTS ? "wide" : "" }, make("dt", { textContent: name }), told));
      this.cells.set(name, told);
    }
    const told = this.cells.get(name);
    if (told.textContent !== value) told.textContent = value;
  }

  // The waiting requests, next one first, and how priority and waiting time add up.
  #drawQueue(state) {
    const rate = state.header.aging_rate ?? 0.1, waiting = state.waiting.slice(0, 8);
    const rows = waiting.map((requestId) => {
      const request = state.requests.get(requestId) ?? { priority: 1, arrivedS: state.nowS };
      const waitedS = Math.max(state.nowS - request.arrivedS, 0);
      return [requestId, NAMES[request.priority], waitedS.toFixed(1), (request.priority - waitedS * rate).toFixed(1), request.priority];
    });
    const sign = JSON.stringify(rows) + state.waiting.length;
    if (sign === this.queueSign) return;
    this.queueSign = sign;
    this.queue.replaceChildren(...rows.map(([requestId, name, waited, effective, base]) => make("li", {},
      chip(state.cast.letter(requestId), state.cast.paint(requestId)),
      ` ${name}, waited ${waited} s: ${base} − ${waited} × ${rate} = `, make("strong", { textContent: effective }))));
    if (state.waiting.length > waiting.length) this.queue.append(make("li", { textContent: `and ${state.waiting.length - waiting.length} more` }));
    if (!rows.length) this.queue.append(make("li", { className: "none", textContent: "No request is waiting." }));
  }

  #say(state, numRunning, numUsed, hitRate, isPaused) {
    const now = performance.now(), isStep = isPaused && state.step !== this.saidStep;
    if (now - this.saidAt < SAY_EVERY_MS && !isStep) return;
    const text = `${state.step === null ? "No step yet" : `Step ${state.step}`}: ${count(numRunning, "request")} running, ` +
      `${state.waiting.length} waiting; ${numUsed} of ${state.header.num_blocks - 1} blocks in use, ` +
      `${state.numOf("shared")} shared, ${state.numOf("cached")} free but still cached. Hit rate ${hitRate}.${isPaused ? " Paused." : ""}`;
    if (text === this.said) return;
    Object.assign(this, { said: text, saidAt: now, saidStep: state.step });
    this.sentence.textContent = text;
  }
}
