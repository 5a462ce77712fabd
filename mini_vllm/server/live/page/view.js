// All drawings of the engine. Events only change the state; what changed is drawn once, before the next frame.
import { History } from "./history.js";
import { Schedule } from "./schedule.js";
import { EngineState } from "./state.js";
import { Strip } from "./strip.js";
import { Tables } from "./tables.js";
import { Tree } from "./tree.js";

export class View {
  constructor(find) {
    this.find = find;
    Object.assign(this, { strip: new Strip(find("pool")), tables: new Tables(find("tables")), tree: new Tree(find("tree")),
      schedule: new Schedule(find("schedule")), state: null, history: null, drawTimes: [] });
  }

  begin({ header, base, events }) {
    this.state = new EngineState(header);
    this.history = new History(this.state);
    this.state.applyBase(base);
    this.history.replay({ ...base, step: null, finished: {} });
    for (const event of events) { this.take(event); this.state.forget(event); }
  }

  // Returns what changed, for those who listen.
  take(event) {
    const { state, history } = this;
    const changes = state.apply(event);
    history.replay(event);
    return { event, changes, state, history };
  }

  draw() {
    const started = performance.now(), { state } = this, width = (name) => Math.max(this.find(name).closest("section").clientWidth - 26, 280);
    this.strip.draw(state, width("pool"));
    this.schedule.draw(this.history, width("schedule"));
    this.tables.draw(state, width("tables"));
    this.tree.draw(state);
    state.noteDrawn();
    this.find("pool-sentence").textContent = state.describe();
    this.#showOrSay("schedule", "no-steps", this.history.steps.length);
    this.#showOrSay("tables", "no-tables", this.find("tables").childElementCount);
    this.drawTimes.push(performance.now() - started);
    if (this.drawTimes.length > 500) this.drawTimes.shift();
  }

  // A picture of nothing is a sentence.
  #showOrSay(picture, sentence, hasSomething) {
    this.find(picture).parentElement.hidden = !hasSomething;
    this.find(sentence).hidden = Boolean(hasSomething);
  }
}
