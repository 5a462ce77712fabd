// Speed, pause, step, sizes and restarts of the engine. To run it slowly, the page pauses it and steps it by a clock.
import { count } from "./svg.js";

const POOLS = [12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4095];
const BUDGETS = [4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192];
const BUSY = 409, TRIES = 8, ANYWAY = "anyway";

export class Controls {
  constructor(find, desk) {
    Object.assign(this, { find, desk, isPaused: false, isGoing: false, isRestarting: false, speed: 0, clock: null });
    find("pause").onclick = () => this.go(!this.isPaused, this.speed);
    find("speed").onchange = () => this.go(false, Number(find("speed").value));
    find("step").onclick = () => this.#do(async () => this.say(await this.#step() ? "" : "There is nothing to compute. Send a request first."));
    find("restart").onclick = () => this.restartOrAsk({ num_blocks: POOLS[find("pool-size").value] + 1, max_num_batched_tokens: BUDGETS[find("budget").value] });
    find("as-started").onclick = () => this.restartOrAsk({ as_started: true });
    find("restart-anyway").onclick = () => find("restart-dialog").close(ANYWAY);
    find("restart-not").onclick = () => find("restart-dialog").close("");
    for (const [name, values] of [["pool-size", POOLS], ["budget", BUDGETS]]) {
      find(name).max = values.length - 1;
      find(name).oninput = () => this.#showSlider(name, values);
    }
  }

  async #do(action) {
    try {
      await action();
    } catch (error) {
      this.say(error.message);
    }
  }

  async #step() {
    return (await this.desk.server.post("/live/step", { model: this.desk.model.model })).has_computed;
  }

  // Pause, or run: at full speed (0), or at this number of steps per second.
  async go(isPaused, speed) {
    Object.assign(this, { speed, isGoing: true });
    this.#show(isPaused);
    this.clock?.abort();
    this.clock = null;
    await this.#do(() => this.desk.server.post(isPaused || speed ? "/live/pause" : "/live/resume", { model: this.desk.model.model }));
    this.isGoing = false;
    if (!isPaused && speed) this.#tick(this.clock = new AbortController(), 1000 / speed);
  }

  async #tick(clock, everyMs) {
    while (!clock.signal.aborted) {
      const started = performance.now();
      await this.#step().catch((error) => this.#stopClock(clock, error));
      await new Promise((resolve) => { setTimeout(resolve, Math.max(everyMs - (performance.now() - started), 0)); });
    }
  }

  say(text) {
    this.find("said").textContent = text;
  }

  // Another engine is shown now.
  leave() {
    this.clock?.abort();
    Object.assign(this, { clock: null, speed: 0 });
  }

  // Another page has resumed the engine, or the engine is gone.
  #stopClock(clock, error) {
    if (clock.signal.aborted) return;
    clock.abort();
    Object.assign(this, { clock: null, speed: 0 });
    this.#show(false);
    if (error.status !== BUSY) this.say(error.message);
  }

  // The server reports whether the engine is paused. Ignore it while this page steps the engine by its clock.
  hear(isPaused) {
    if (!this.clock && !this.isGoing) this.#show(isPaused);
  }

  #show(isPaused) {
    this.isPaused = isPaused;
    this.find("speed").value = String(this.speed);
    this.find("pause").textContent = isPaused ? "Resume" : "Pause";
    this.find("pause").setAttribute("aria-pressed", String(isPaused));
    this.find("step").disabled = !isPaused;
  }

  // Set the sliders to the sizes of the engine.
  showSizes({ num_blocks: numBlocks, max_num_batched_tokens: budget, block_size: blockSize, max_num_seqs: numSeats }) {
    for (const [name, values, value] of [["pool-size", POOLS, numBlocks - 1], ["budget", BUDGETS, budget]]) {
      this.find(name).value = values.reduce((best, each, place) => (Math.abs(each - value) < Math.abs(values[best] - value) ? place : best), 0);
      this.#showSlider(name, values, value);
    }
    this.find("sizes").textContent = `Now: ${numBlocks - 1} blocks of ${blockSize} tokens; per step at most ${count(budget, "token")} of at most ${count(numSeats, "request")}.`;
  }

  #showSlider(name, values, value = values[this.find(name).value]) {
    this.find(`${name}-value`).textContent = String(value);
    this.find(name).setAttribute("aria-valuetext", String(value));
  }

  // Restart with these changes. If requests are running, ask first. Returns whether the engine was restarted.
  async restartOrAsk(changes) {
    if (this.isRestarting) return false;
    this.isRestarting = true;
    this.say("Restarting…");
    try {
      await this.restart(changes).catch(async (error) => {
        if (error.status !== BUSY || !await this.#mayEndRequests(error.message)) throw error;
        await this.restart(changes, true);
      });
      return true;
    } catch (error) {
      this.say(`Not restarted: ${error.message}.`);
      return false;
    } finally {
      this.isRestarting = false;
    }
  }

  #mayEndRequests(why) {
    const dialog = this.find("restart-dialog");
    this.find("restart-why").textContent = `${why}.`;
    dialog.returnValue = "";
    dialog.showModal();
    return new Promise((resolve) => { dialog.onclose = () => resolve(dialog.returnValue === ANYWAY); });
  }

  // A request that was just stopped takes a moment to leave, so this tries several times.
  async restart(changes, mayAbort = false, tries = mayAbort ? 1 : TRIES) {
    try {
      const model = await this.desk.server.post("/live/restart", { model: this.desk.model.model, abort_running: mayAbort, ...changes });
      this.desk.meet(model);
      this.desk.lessons.leave();
      this.say("Restarted. The pool is empty and nothing is cached.");
    } catch (error) {
      if (error.status !== BUSY || tries <= 1) throw error;
      await new Promise((resolve) => { setTimeout(resolve, 150); });
      await this.restart(changes, mayAbort, tries - 1);
    }
  }
}
