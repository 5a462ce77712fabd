// The page: panes on one side, the engine on the other, and lessons that watch both.
import { HATCH } from "./palette.js";
import { Controls } from "./controls.js";
import { LessonList } from "./lesson_list.js";
import { Numbers } from "./numbers.js";
import { Pane } from "./pane.js";
import { Replicas } from "./replicas.js";
import { Server } from "./server.js";
import { PROMPTS, QUESTIONS, SIZES, SPEED } from "./small_pool.js";
import { View } from "./view.js";

const find = (id) => document.getElementById(id);
const HINT = "Press “Send all”: the two prompts begin alike, so their requests share blocks.";

class Desk {
  constructor() {
    this.server = new Server(askForKey);
    this.view = new View(find);
    this.numbers = new Numbers(find("tiles"), find("queue"), find("sentence"));
    this.controls = new Controls(find, this);
    this.replicas = new Replicas(find, this.server, (name) => this.showReplica(name));
    this.panes = [];
    this.joined = promised(); // resolved when a snapshot arrives
    this.lessons = new LessonList(find("lessons"), (lesson) => this.setUp(lesson));
    find("start-over").onclick = () => this.lessons.startOver();
    find("small-pool").onclick = () => this.showSmallPool();
    find("small-pool").title = `Restarts the engine with ${SIZES.num_blocks - 1} blocks of ${SIZES.block_size} tokens, and fills in two prompts that share blocks`;
    find("add-pane").onclick = () => this.openPane().prompt.focus();
    find("send-all").onclick = () => { this.controls.say(""); this.panes.forEach((pane) => pane.send()); };
    find("stop-all").onclick = () => this.panes.forEach((pane) => pane.stop());
    find("model").onchange = () => this.watch(find("model").value);
    addEventListener("resize", () => this.redraw());
    setInterval(() => { if (this.state) this.numbers.draw(this.state, this.controls.isPaused); }, 500);
  }

  get state() {
    return this.view.state;
  }

  async start() {
    if (!await this.replicas.begin()) await this.#lookAt();
    else if (!this.replicas.chosen) find("connection").textContent = "No replica is up.";
  }

  // Show the engine of one of several replicas. Requests still go where the router sends them.
  async showReplica(name) {
    this.controls.leave();
    for (const pane of this.panes) pane.forgetLetters();
    this.server.base = `/replicas/${encodeURIComponent(name)}`;
    find("lessons").closest("section").hidden = true; // the router may send their requests to another replica
    try {
      await this.#lookAt();
    } catch (error) {
      if (this.replicas.chosen === name) find("connection").textContent = error.message;
    }
  }

  async #lookAt() {
    this.watching?.abort();
    const watching = this.watching = new AbortController();
    const { models } = await this.server.get("/live/models");
    if (watching.signal.aborted) return;
    const chosen = find("model").value;
    find("model").replaceChildren(...models.map((name) => new Option(name, name, false, name === chosen)));
    await this.watch(find("model").value);
  }

  // Follow one model until another is chosen.
  async watch(name) {
    this.watching?.abort();
    this.lessons.leave();
    const watching = this.watching = new AbortController();
    find("connection").textContent = `Loading ${name}…`;
    const model = await this.server.post("/live/model", { model: name });
    if (watching.signal.aborted) return;
    this.meet(model);
    if (!this.panes.length) this.#welcome();
    for await (const message of this.server.events(name, watching.signal, () => { find("connection").textContent = "Connection lost. Trying again…"; })) {
      this.#hear(message);
    }
  }

  meet(model) {
    this.model = model;
    this.controls.showSizes(model.sizes);
    this.controls.hear(model.is_paused);
  }

  #hear(message) {
    if (message.type === "snapshot") {
      this.view.begin(message);
      this.lessons.reset();
      this.joined.resolve();
      find("connection").textContent = `Watching ${message.header.model ?? this.model.model}${this.replicas.chosen ? ` at ${this.replicas.chosen}` : ""}`;
    } else if (message.type === "event") {
      const moment = this.view.take(message);
      this.lessons.notice(moment);
      this.numbers.hear(message);
      this.state.forget(message);
    } else if (message.type === "state") {
      this.controls.hear(message.is_paused);
    }
    this.redraw();
  }

  redraw() {
    if (this.frame || !this.state) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      this.view.draw();
      this.numbers.draw(this.state, this.controls.isPaused);
      for (const pane of this.panes) pane.refresh(this.state);
    });
  }

  openPane(settings = {}) {
    const pane = new Pane(this, settings);
    this.panes.push(pane);
    find("panes").append(pane.element);
    return pane;
  }

  closePane(pane) {
    this.panes = this.panes.filter((each) => each !== pane);
    pane.element.remove();
  }

  // The first two panes. In a small pool the engine is slow enough to watch, unless another page has paused it.
  #welcome() {
    this.#openTwoPanes();
    if (["num_blocks", "block_size"].some((name) => this.model.sizes[name] !== SIZES[name])) return;
    if (!this.model.is_paused) this.joined.promise.then(() => this.controls.go(false, SPEED)); // only once this page listens: when the last page leaves, a paused engine resumes
    this.controls.say(HINT);
  }

  #openTwoPanes() {
    for (const prompt of this.model.has_chat_template ? QUESTIONS : PROMPTS) this.openPane({ prompt });
  }

  // Stop the requests of this page, then set up a lesson's engine and panes. Returns whether that worked.
  async setUp(lesson) {
    for (const pane of this.panes) pane.stop();
    if (!await this.#restart(lesson.sizes)) return false;
    this.#closePanes();
    for (const settings of lesson.panes) this.openPane(settings);
    await this.#ready(lesson.speed, "Set up. Press “Send all” now.");
    return true;
  }

  // Restart with a pool that fits on the screen, and two prompts that share blocks in it.
  async showSmallPool() {
    if (!await this.#restart(SIZES)) return;
    this.#closePanes();
    this.#openTwoPanes();
    await this.#ready(SPEED, HINT);
  }

  async #restart(sizes) {
    this.joined = promised();
    if (!await this.controls.restartOrAsk(sizes)) return false;
    await this.joined.promise; // until then no lesson would notice what the new engine does
    return true;
  }

  #closePanes() {
    for (const pane of [...this.panes]) pane.close();
  }

  async #ready(speed, hint) {
    await this.controls.go(false, speed);
    this.controls.say(hint);
    find("send-all").focus();
  }
}

function promised() {
  let resolve;
  const promise = new Promise((keep) => { resolve = keep; });
  return { promise, resolve };
}

function askForKey(why) {
  const dialog = find("key-dialog");
  find("key-why").textContent = why;
  dialog.showModal();
  return new Promise((resolve) => {
    find("key-form").onsubmit = (event) => {
      event.preventDefault();
      dialog.close();
      resolve(find("key").value.trim());
      find("key").value = "";
    };
  });
}

find("patterns").innerHTML = HATCH;
const desk = new Desk();
globalThis.desk = desk; // for the curious, in the browser's console
desk.start().catch((error) => { find("connection").textContent = error.message; });
