// What every request did in each of the last steps (trace/history.py): a cell for each, merged into runs when drawn.
import { leaderOf, sampleOf } from "./cast.js";

export const MAX_STEPS = 96;

export class History {
  constructor(state) {
    this.state = state;
    this.steps = []; // {index, startS, endS, cells: Map, ends: Map, numPrompt, numAgain, numDecode, numUsed}
    this.known = new Map(); // request → what its row needs, also after its end
    this.keys = new Set(); // of all requests seen lately, for who leads whom
  }

  // To be called after the state has taken the event in.
  replay(event) {
    for (const requestId of Object.keys(event.prompts)) {
      const request = this.state.requests.get(requestId), { firstStep, firstS } = this.known.get(requestId) ?? {};
      this.known.set(requestId, Object.assign(request, { firstStep, firstS })); // a sample may have its first token before
    }
    if (event.step === null) {
      this.#end(event, this.steps.at(-1));
      return;
    }
    const step = { index: event.step ?? this.steps.length, startS: event.start_s, endS: event.end_s, cells: new Map(), ends: new Map(),
      numPrompt: 0, numAgain: 0, numDecode: 0, numUsed: this.state.numOf("used", "shared", "kept"), copies: event.copies };
    this.steps.push(step);
    this.#compute(event, step);
    this.#others(event, step);
    for (const requestId of event.sampled) {
      const request = this.#request(requestId);
      request.firstStep ??= step.index;
      request.firstS ??= event.end_s - (this.known.get(leaderOf(requestId, this.known)) ?? request).arrivedS;
    }
    this.#end(event, step);
    if (this.steps.length > MAX_STEPS) this.#drop();
  }

  #request(requestId) {
    if (!this.known.has(requestId)) {
      this.known.set(requestId, this.state.requests.get(requestId) ??
        { requestId, prompt: null, name: "", priority: 1, arrivedS: this.state.nowS, order: this.state.cast.number(requestId), mostComputed: null, found: null });
    }
    return this.known.get(requestId);
  }

  // Those that compute: of the prompt, again what they had computed before, or one by one.
  #compute(event, step) {
    const sampled = new Set(event.sampled);
    for (const [requestId, [numBefore, numTokens]] of Object.entries(event.tokens)) {
      const request = this.#request(requestId), end = numBefore + numTokens;
      if (request.mostComputed === null && !sampleOf(requestId, this.known)) request.found ??= numBefore;
      const numAgain = Math.max(Math.min(end, request.mostComputed ?? 0) - numBefore, 0);
      const promptEnd = request.prompt ?? (numTokens > 1 ? end : 0);
      const numPrompt = Math.max(Math.min(end, promptEnd) - numBefore - numAgain, 0);
      request.mostComputed = Math.max(end, request.mostComputed ?? 0);
      step.numPrompt += numPrompt;
      step.numAgain += numAgain;
      step.numDecode += numTokens - numPrompt - numAgain;
      step.cells.set(requestId, { kind: numAgain ? "recomputed" : numPrompt ? "prompt" : "decode", numTokens, numBefore, numAgain,
        isSampled: sampled.has(requestId) });
    }
  }

  // Those that do not: they begin from another's prompt, wait, lose their blocks, or run without a token.
  #others(event, step) {
    const others = new Map(event.sampled.map((requestId) => [requestId, "forked"]));
    for (const requestId of event.waiting) others.set(requestId, "waiting");
    for (const requestId of event.preempted) others.set(requestId, "preempted");
    for (const [requestId, table] of this.state.tables) if (table.length && !others.has(requestId)) others.set(requestId, "idle");
    for (const [requestId, kind] of others) {
      this.#request(requestId);
      if (!(requestId in event.tokens)) step.cells.set(requestId, { kind, numTokens: 0, numBefore: 0, numAgain: 0, isSampled: false });
      else if (kind === "preempted") step.cells.set(requestId, { ...step.cells.get(requestId), isPreempted: true });
    }
  }

  #end(event, step) {
    for (const [requestId, status] of Object.entries(event.finished)) {
      const request = this.known.get(requestId);
      if (request) request.mostComputed = null;
      if (step) step.ends.set(requestId, status);
    }
  }

  #drop() {
    this.steps.shift();
    const seen = new Set(this.steps.flatMap((step) => [...step.cells.keys(), ...step.ends.keys()]));
    for (const requestId of this.known.keys()) {
      if (!seen.has(requestId) && !this.state.requests.has(requestId)) this.known.delete(requestId);
    }
  }

  // The last `number` steps: who is in them, samples of one prompt side by side, and the runs of each.
  rows(number) {
    const shown = this.steps.slice(-number), rows = new Map();
    shown.forEach((step, place) => {
      for (const [requestId, cell] of step.cells) {
        if (!rows.has(requestId)) rows.set(requestId, { runs: [], ends: [] });
        const kinds = cell.isPreempted ? [cell, { kind: "preempted", numTokens: 0, numBefore: 0, numAgain: 0, isSampled: false }] : [cell];
        for (const each of kinds) addCell(rows.get(requestId).runs, place, each);
      }
      for (const [requestId, status] of step.ends) {
        if (!rows.has(requestId)) rows.set(requestId, { runs: [], ends: [] });
        rows.get(requestId).ends.push({ place, status, isThere: step.cells.has(requestId) });
      }
    });
    const placeOf = (requestId) => [this.known.get(leaderOf(requestId, this.known))?.order ?? 0, sampleOf(requestId, this.known) ?? 0];
    const ids = [...rows.keys()].sort((one, other) => {
      const [a, b] = placeOf(one), [c, d] = placeOf(other);
      return a - c || b - d;
    });
    return { shown, rows: new Map(ids.map((requestId) => [requestId, rows.get(requestId)])) };
  }
}

// A cell that does what the one before it did, with the tokens that follow, makes that run longer.
function addCell(runs, place, cell) {
  const run = runs.at(-1);
  if (run && run.last === place - 1 && run.kind === cell.kind && run.numTokens === cell.numTokens && run.numAgain === cell.numAgain &&
      run.isSampled === cell.isSampled && cell.numBefore === run.numBefore + run.numTokens * (place - run.first)) run.last = place;
  else runs.push({ ...cell, first: place, last: place });
}
