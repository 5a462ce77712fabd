// The replicas behind a front: which are up, which one served which request, and what the router believes they have cached.
import { NUM_REQUEST_COLOURS } from "./palette.js";
import { button, chip, make } from "./dom.js";
import { count, shape } from "./svg.js";

const EVERY_MS = 1000, BAR = 40;
const pause = () => new Promise((resolve) => { setTimeout(resolve, EVERY_MS); });

// Return the letter and the number of a replica: R0 for replica-0.
export function labelOf(name) {
  return name.length <= 3 ? name : name[0].toUpperCase() + (/\d+$/u.exec(name)?.[0] ?? "");
}

export class Replicas {
  // `choose(name)` is called when a replica's engine is to be shown.
  constructor(find, server, choose) {
    Object.assign(this, { find, server, choose, chosen: null, wasUp: false, names: "", rows: new Map(), drawn: {} });
  }

  // Returns whether there are replicas. If so, the panel is kept up to date from now on.
  async begin() {
    const state = await this.server.replicas();
    if (!state) return false;
    this.find("replicas").hidden = false;
    this.draw(state);
    this.#follow();
    return true;
  }

  async #follow() {
    for (;;) {
      await pause();
      if (!document.hidden) await this.server.replicas().then((state) => this.draw(state), (error) => this.#say(`Not up to date: ${error.message}`));
    }
  }

  // Draw the state, and choose the first replica that is up, or the chosen one again when it has come back.
  draw(state) {
    const { router, replicas } = state;
    this.#say(router.error ? `The router failed: ${router.error}` : "");
    this.#drawReplicas(replicas);
    this.#once("requests", [state.requests, this.names], () => this.#drawRequests(state.requests, router));
    this.#once("prefixes", [state.prefixes, this.names], () => this.#drawPrefixes(state.prefixes, replicas, router));
    this.chosen ??= replicas.find((replica) => replica.is_up)?.name ?? null;
    const isUp = replicas.some(({ name, is_up: isUp }) => isUp && name === this.chosen), hasCome = isUp && !this.wasUp;
    this.wasUp = isUp;
    if (hasCome) this.#choose(this.chosen);
  }

  #say(text) {
    if (this.find("replicas-said").textContent !== text) this.find("replicas-said").textContent = text;
  }

  #choose(name) {
    this.chosen = name;
    for (const [each, { button: pressed }] of this.rows) pressed.setAttribute("aria-pressed", String(each === name));
    this.choose(name);
  }

  // Elements are replaced only if what they show has changed.
  #once(part, value, draw) {
    const sign = JSON.stringify(value);
    if (this.drawn[part] === sign) return;
    this.drawn[part] = sign;
    draw();
  }

  // Rows stay, so that a button keeps the focus.
  #drawReplicas(replicas) {
    const names = JSON.stringify(replicas.map(({ name }) => name));
    if (this.names !== names) {
      this.names = names;
      this.order = new Map(replicas.map(({ name }, number) => [name, number]));
      this.rows = new Map(replicas.map(({ name }) => [name, this.#beginRow(name)]));
      this.find("replica-rows").replaceChildren(...[...this.rows.values()].map(({ row }) => row));
    }
    for (const { name, is_up: isUp, ...numbers } of replicas) {
      const { row, cells } = this.rows.get(name);
      row.classList.toggle("down", !isUp);
      [isUp ? "up" : "down", numbers.num_running, numbers.num_answered, numbers.num_blocks].forEach((value, place) => {
        const text = String(value ?? "–");
        if (cells[place].textContent !== text) cells[place].textContent = text;
      });
    }
  }

  #beginRow(name) {
    const pressed = button("", () => this.#choose(name), { ariaPressed: String(name === this.chosen), title: `Shows the engine of ${name} below` });
    pressed.append(this.chip(name), " ", name);
    const cells = Array.from({ length: 4 }, () => make("td"));
    return { row: make("tr", {}, make("th", { scope: "row" }, pressed), ...cells), cells, button: pressed };
  }

  // The sign of a replica. A name that the front does not list, such as a production router's, is written out.
  chip(name) {
    const number = this.order.get(name);
    if (number === undefined) return make("span", { textContent: name });
    const made = chip(labelOf(name), this.paint(name));
    made.classList.add("replica");
    return Object.assign(made, { title: name });
  }

  paint(name) {
    return `request-${this.order.get(name) % NUM_REQUEST_COLOURS}`;
  }

  #drawRequests(requests, router) {
    this.find("no-routed").hidden = requests.length > 0;
    this.find("routed-by").textContent = `${router.name} chose where each request went.`;
    this.find("routed").replaceChildren(...requests.map((request) => make("li", { value: request.number },
      make("p", { className: "routed-text" }, request.replica ? this.chip(request.replica) : make("span", { textContent: "–" }),
        make("bdi", { textContent: request.text || "(no text)" }), make("span", { className: "status", textContent: request.status })),
      make("p", { className: "note" }, `${count(request.num_blocks, "block")}`, ...this.#expected(request)))));
  }

  #expected({ expected, error }) {
    const parts = Object.entries(expected ?? {}).flatMap(([name, number]) => [" ", this.chip(name), make("span", { className: "expected", textContent: ` ${number}` })]);
    if (error) parts.push(`; the router failed: ${error}`);
    return parts.length && expected ? ["; expected in the cache:", ...parts] : parts;
  }

  #drawPrefixes(prefixes, replicas, router) {
    this.find("no-prefixes").hidden = Boolean(prefixes?.length);
    this.find("no-prefixes").textContent = prefixes ? "No prompt has filled a block yet." : router.error ? "Unknown, because the router failed." : `${router.name} does not say what it believes.`;
    this.find("prefixes").hidden = !prefixes?.length;
    const owners = new Set((prefixes ?? []).map(({ model, caller }) => JSON.stringify([model, caller])));
    this.find("prefix-head").replaceChildren(make("th", { scope: "col", textContent: "Beginning of a prompt" }),
      ...replicas.map(({ name }) => make("th", { scope: "col" }, this.chip(name))));
    this.find("prefix-rows").replaceChildren(...(prefixes ?? []).map((row) => {
      const text = make("th", { scope: "row" }, make("bdi", { textContent: (row.level ? "…" : "") + row.text }),
        make("span", { className: "note", textContent: [count(row.num_blocks, "block"), ...(owners.size > 1 && !row.level ? [row.model, row.caller] : [])].filter(Boolean).join(", ") }));
      text.style.paddingLeft = `${Math.min(row.level, 8) * 0.8}rem`;
      return make("tr", {}, text, ...replicas.map(({ name }) => this.#believed(row, name)));
    }));
  }

  // A bar and a number: how many blocks of the row the router believes the replica has. Empty if the replica is down.
  #believed({ cached, num_blocks: numBlocks }, name) {
    const cell = make("td"), number = cached[name];
    if (number === undefined) { cell.textContent = "–"; return cell; }
    const svg = shape(cell, "svg", { width: BAR + 2, height: 10, "aria-hidden": "true" });
    drawBar(svg, this.paint(name), number / numBlocks);
    cell.append(make("span", { textContent: ` ${number}` }));
    return cell;
  }
}

// The part of a prefix that a replica is believed to have.
export function drawBar(svg, paint, part, width = BAR) {
  shape(svg, "rect", { x: 1, y: 1, width, height: 8, fill: "paper", stroke: "line", "data-mark": "missing" });
  if (part) shape(svg, "rect", { x: 1, y: 1, width: width * part, height: 8, fill: paint, stroke: "line", "data-mark": "held" });
}
