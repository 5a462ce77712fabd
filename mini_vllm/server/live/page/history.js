// What every request did in each of the last steps, as runs of equal cells (trace/history.py).
import { leaderOf, sampleOf } from "./cast.js";
import { draftOf } from "./state.js";

export const MAX_STEPS = 96;

export class History {
  constructor(state) {
    this.state = state;
    this.steps = []; // {place, index, cells: Map, numPrompt, numAgain, numDecode, numDrafted, numAccepted, numUsed}; places are counted from 0
    this.rows = new Map(); // request → {runs, ends}; first and last of a run are places
    this.known = new Map(); // request → what its row needs, also after its end
    this.numPlaces = 0;
  }

  // Call this after the state has processed the event.
  replay(event) {
    for (const requestId of Object.keys(event.prompts)) {
      const request = this.state.requests.get(requestId), { firstPlace, firstS } = this.known.get(requestId) ?? {};
      this.known.set(requestId, Object.assign(request, { firstPlace, firstS })); // a sample may already have its first token
    }
    if (event.step === null) {
      this.#end(event, this.steps.at(-1));
      return;
    }
    const step = { place: this.numPlaces, index: event.step, cells: new Map(), numPrompt: 0, numAgain: 0, numDecode: 0,
      numDrafted: 0, numAccepted: 0, numUsed: this.state.numOf("used", "shared", "kept") };
    this.numPlaces += 1;
    this.steps.push(step);
    this.#compute(event, step);
    this.#others(event, step);
    for (const requestId of event.sampled) {
      const request = this.#request(requestId);
      request.firstPlace ??= step.place;
      request.firstS ??= event.end_s - (this.known.get(leaderOf(requestId, this.known)) ?? request).arrivedS;
    }
    this.#end(event, step);
    if (this.steps.length > MAX_STEPS) this.#drop();
  }

  #request(requestId) {
    if (!this.known.has(requestId)) {
      this.known.set(requestId, this.state.requests.get(requestId) ?? { requestId, prompt: null, name: "", priority: 1,
        arrivedS: this.state.nowS, order: this.state.cast.number(requestId), mostComputed: null, found: null });
    }
    return this.known.get(requestId);
  }

  // Requests that compute: tokens of the prompt, tokens computed before a preemption, or one decoded token, possibly with
  // drafted ones.
  #compute(event, step) {
    const sampled = new Set(event.sampled);
    for (const [requestId, [numBefore, numTokens]] of Object.entries(event.tokens)) {
      const request = this.#request(requestId), end = numBefore + numTokens;
      if (request.mostComputed === null && !sampleOf(requestId, this.known)) request.found ??= numBefore;
      const numAgain = Math.max(Math.min(end, request.mostComputed ?? 0) - numBefore, 0);
      const promptEnd = request.prompt ?? (numTokens > 1 ? end : 0);
      const numPrompt = Math.max(Math.min(end, promptEnd) - numBefore - numAgain, 0);
      const [numDrafted, numAccepted] = draftOf(event, requestId);
      request.mostComputed = Math.max(end + numAccepted, request.mostComputed ?? 0);
      step.numPrompt += numPrompt;
      step.numAgain += numAgain;
      step.numDecode += numTokens - numPrompt - numAgain;
      step.numDrafted += numDrafted;
      step.numAccepted += numAccepted;
      this.#add(requestId, step, { kind: numDrafted ? "drafted" : numAgain ? "recomputed" : numPrompt ? "prompt" : "decode", numTokens, numBefore, numAgain,
        isSampled: sampled.has(requestId), numDrafted, numAccepted });
    }
  }

  // Requests that do not compute: they start from a prompt that another computed, wait, are preempted, or run without a token.
  #others(event, step) {
    const others = new Map(event.sampled.map((requestId) => [requestId, "forked"]));
    for (const requestId of event.waiting) others.set(requestId, "waiting");
    for (const requestId of event.preempted) others.set(requestId, "preempted");
    for (const [requestId, table] of this.state.tables) if (table.length && !others.has(requestId)) others.set(requestId, "idle");
    for (const [requestId, kind] of others) {
      this.#request(requestId);
      if (requestId in event.tokens && kind !== "preempted") continue;
      this.#add(requestId, step, { kind, numTokens: 0, numBefore: 0, numAgain: 0, isSampled: false, numDrafted: 0, numAccepted: 0 });
    }
  }

  // A cell that continues the cell before it, with the tokens that follow, makes that run longer.
  #add(requestId, { place, cells }, cell) {
    if (cell.numTokens) cells.set(requestId, cell);
    const { runs } = this.#row(requestId), run = runs.at(-1);
    if (run && run.last === place - 1 && run.kind === cell.kind && run.numTokens === cell.numTokens && run.numAgain === cell.numAgain &&
        run.isSampled === cell.isSampled && run.numDrafted === cell.numDrafted && run.numAccepted === cell.numAccepted &&
        cell.numBefore === run.numBefore + (run.numTokens + run.numAccepted) * (place - run.first)) run.last = place;
    else runs.push({ ...cell, requestId, first: place, last: place });
  }

  #row(requestId) {
    if (!this.rows.has(requestId)) this.rows.set(requestId, { runs: [], ends: [] });
    return this.rows.get(requestId);
  }

  #end(event, step) {
    for (const [requestId, status] of Object.entries(event.finished)) {
      const request = this.known.get(requestId), row = this.#row(requestId);
      if (request) request.mostComputed = null;
      if (step) row.ends.push({ place: step.place, index: step.index, status, isThere: row.runs.at(-1)?.last === step.place });
    }
  }

  #drop() {
    this.steps.shift();
    const [{ place: first }] = this.steps;
    for (const [requestId, row] of this.rows) {
      row.runs = row.runs.filter((run) => run.last >= first);
      row.ends = row.ends.filter((end) => end.place >= first);
      if (row.runs.length || row.ends.length || this.state.requests.has(requestId)) continue;
      this.rows.delete(requestId);
      this.known.delete(requestId);
    }
  }

  indexOf(place) {
    return this.steps[place - this.steps[0].place]?.index ?? 0;
  }

  // The requests of the last `number` steps, samples of one prompt next to each other.
  shown(number) {
    const steps = this.steps.slice(-number), first = steps[0]?.place ?? 0;
    const placeOf = (requestId) => [this.known.get(leaderOf(requestId, this.known))?.order ?? 0, sampleOf(requestId, this.known) ?? 0];
    const rows = [...this.rows].filter(([, { runs, ends }]) => (runs.at(-1)?.last ?? -1) >= first || (ends.at(-1)?.place ?? -1) >= first)
      .map(([requestId, row]) => ({ requestId, row, at: placeOf(requestId) }))
      .sort(({ at: [a, b] }, { at: [c, d] }) => a - c || b - d);
    return { steps, first, rows };
  }
}
