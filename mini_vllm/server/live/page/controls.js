// How fast the engine goes, pause and step; and its sizes, with a restart. Slow is a paused engine that is stepped by a clock.
const POOLS = [12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4095];
const BUDGETS = [4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192];
const BUSY = 409, TRIES = 8;

export class Controls {
  constructor(find, desk) {
    Object.assign(this, { find, desk, isPaused: false, isGoing: false, speed: 0, clock: null });
    find("pause").onclick = () => this.go(!this.isPaused, this.speed);
    find("speed").onchange = () => this.go(false, Number(find("speed").value));
    find("step").onclick = () => this.#do(async () => this.say(await this.#step() ? "" : "There is nothing to compute: send something."));
    find("restart").onclick = () => this.#restart({ num_blocks: POOLS[find("pool-size").value] + 1, max_num_batched_tokens: BUDGETS[find("budget").value] });
    find("as-started").onclick = () => this.#restart({ as_started: true });
    find("restart-anyway").onclick = () => this.#restart(this.refused, true);
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

  // Pause, or run: at full speed (0), or so many steps a second.
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

  // Somebody else let the engine run, or it is gone.
  #stopClock(clock, error) {
    if (clock.signal.aborted) return;
    clock.abort();
    Object.assign(this, { clock: null, speed: 0 });
    this.#show(false);
    if (error.status !== BUSY) this.say(error.message);
  }

  // The server says whether the engine is paused; who runs slowly knows why.
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

  // The sliders stand at what the engine has.
  showSizes({ num_blocks: numBlocks, max_num_batched_tokens: budget, block_size: blockSize, max_num_seqs: numSeats }) {
    for (const [name, values, value] of [["pool-size", POOLS, numBlocks - 1], ["budget", BUDGETS, budget]]) {
      this.find(name).value = values.reduce((best, each, place) => (Math.abs(each - value) < Math.abs(values[best] - value) ? place : best), 0);
      this.#showSlider(name, values, value);
    }
    this.find("sizes").textContent = `Now: ${numBlocks - 1} blocks of ${blockSize} tokens, ${budget} tokens a step, ${numSeats} seat${numSeats === 1 ? "" : "s"}.`;
  }

  #showSlider(name, values, value = values[this.find(name).value]) {
    this.find(`${name}-value`).textContent = String(value);
    this.find(name).setAttribute("aria-valuetext", String(value));
  }

  async #restart(changes, mayAbort = false) {
    this.find("restart-anyway").hidden = true;
    this.say("Restarting…");
    try {
      await this.restart(changes, mayAbort);
    } catch (error) {
      if (error.status === BUSY) Object.assign(this, { refused: changes });
      this.find("restart-anyway").hidden = error.status !== BUSY;
      this.say(error.message);
    }
  }

  // What has just been stopped takes a moment to leave, so it is tried some times.
  async restart(changes, mayAbort = false, tries = mayAbort ? 1 : TRIES) {
    try {
      const model = await this.desk.server.post("/live/restart", { model: this.desk.model.model, abort_running: mayAbort, ...changes });
      this.desk.meet(model);
      this.say("Restarted: the pool is empty, and nothing is cached.");
    } catch (error) {
      if (error.status !== BUSY || tries <= 1) throw error;
      await new Promise((resolve) => { setTimeout(resolve, 150); });
      await this.restart(changes, mayAbort, tries - 1);
    }
  }
}
