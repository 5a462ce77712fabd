// All drawings of the engine. Events only change the state; what changed is drawn once, before the next frame.
import { BareStrip, BareTables } from "./bare.js";
import { History } from "./history.js";
import { Matches } from "./matches.js";
import { DRAFT_MARKS, LEGENDS, poolLegend, showLegend } from "./legend.js";
import { Schedule } from "./schedule.js";
import { EngineState } from "./state.js";
import { cellOf, MIN_LETTERED, MIN_NUMBERED, Strip } from "./strip.js";
import { Tables } from "./tables.js";
import { Tree } from "./tree.js";

// The cells of a larger pool, and of tables with more entries, have no letters.
const MAX_CELLS = 640, MAX_ENTRIES = 400;

export class View {
  constructor(find) {
    this.find = find;
    Object.assign(this, { strip: new Strip(find("pool")), tables: new Tables(find("tables")), tree: new Tree(find("tree")),
      bareStrip: new BareStrip(find("bare-pool")), bareTables: new BareTables(find("bare-tables")),
      schedule: new Schedule(find("schedule")), matches: new Matches(find("matches"), find("match-list")), state: null, history: null });
    for (const [name, entries] of Object.entries(LEGENDS)) showLegend(find(`${name}-legend`), entries);
    this.#showPoolLegend(false);
    this.#showScheduleLegend(false);
  }

  begin({ header, base, events }) {
    this.state = new EngineState(header);
    this.#showScheduleLegend(Boolean(header.num_speculative_tokens));
    this.history = new History(this.state);
    this.state.applyBase(base);
    this.history.replay({ ...base, step: null, finished: {} });
    for (const event of events) { this.take(event); this.state.forget(event); }
  }

  // Returns what changed, for the lessons.
  take(event) {
    const { state, history } = this;
    const changes = state.apply(event);
    history.replay(event);
    return { event, changes, state, history };
  }

  draw() {
    const { state } = this;
    const width = Math.max(this.find("pool").closest("section").clientWidth - 26, 280); // read once: each time, the browser computes its layout again
    const numEntries = [...state.tables.values()].reduce((sum, table) => sum + table.length, 0);
    const [cellWidth] = cellOf(state, width);
    this.#choose("pool", state.blocks.length > MAX_CELLS || cellWidth < MIN_LETTERED, this.bareStrip, this.strip).draw(state, width);
    this.#showPoolLegend(cellWidth >= MIN_NUMBERED);
    this.#choose("tables", numEntries > MAX_ENTRIES, this.bareTables, this.tables).draw(state, width);
    this.schedule.draw(this.history, width);
    this.matches.draw(state);
    this.tree.draw(state);
    state.noteDrawn();
    this.find("pool-sentence").textContent = state.describe();
    this.#showOrSay("schedule", "no-steps", this.history.steps.length);
    this.#showOrSay("tables", "no-tables", numEntries);
  }

  #showPoolLegend(isLarge) {
    if (this.isLarge === isLarge) return;
    this.isLarge = isLarge;
    showLegend(this.find("pool-legend"), poolLegend(isLarge));
  }

  #showScheduleLegend(hasDrafts) {
    showLegend(this.find("schedule-legend"), LEGENDS.schedule.filter(([mark]) => hasDrafts || !DRAFT_MARKS.includes(mark)));
  }

  // Show shapes, or only cells, each with its legend. The hidden drawing misses changes, so it starts again when it is shown.
  #choose(name, isBare, bare, shapes) {
    const [chosen, other] = isBare ? [bare, shapes] : [shapes, bare];
    this.find(name).toggleAttribute("hidden", isBare);
    this.find(`bare-${name}`).hidden = !isBare;
    this.find(`${name}-legend`).hidden = isBare;
    this.find(`bare-${name}-legend`).hidden = !isBare;
    other.state = null;
    return chosen;
  }

  // Show a sentence instead of an empty picture.
  #showOrSay(picture, sentence, hasSomething) {
    this.find(picture).parentElement.hidden = !hasSomething;
    this.find(sentence).hidden = Boolean(hasSomething);
  }
}
