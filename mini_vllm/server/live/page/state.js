// The state of the engine, replayed from its events: blocks, block tables, keys, requests (pictures/pool_state.py).
import { Cast } from "./cast.js";
import { noteDraws } from "./matches.js";

// [drafted tokens, accepted tokens] of a request in a step.
export const draftOf = (event, requestId) => event.drafts?.[requestId] ?? [0, 0];

export class EngineState {
  constructor(header) {
    this.header = header;
    this.cast = new Cast();
    // A block: its id, reference count, whether its contents are cached, its key and its parent's, its text, and the
    // requests whose tables name it. `kind` is how it is painted.
    this.blocks = Array.from({ length: header.num_blocks }, (_, id) => (
      { id, refCnt: 0, isCached: false, key: null, parent: null, text: "", owners: [], isKept: false, kind: id ? "empty" : "null" }));
    this.counts = { null: 1, empty: header.num_blocks - 1, used: 0, shared: 0, cached: 0, kept: 0 };
    this.tables = new Map();
    this.numTokens = new Map();
    this.copies = [];
    this.requests = new Map(); // live ones: {prompt, name, priority, arrivedS, mostComputed, found, firstStep}
    this.bound = new Map(); // outputs that must match, also some that have ended
    this.waiting = [];
    this.totals = { num_query_tokens: 0, num_hit_tokens: 0, num_evictions: 0, num_forks: 0, num_preemptions: 0,
      num_drafted_tokens: 0, num_accepted_tokens: 0 };
    this.nowS = 0;
    this.step = null;
    this.treeVersion = 0;
    // The changes since the last drawing: ids of blocks, and the requests of tables.
    this.changedBlocks = new Set();
    this.changedTables = new Set();
  }

  // Call this when everything has been drawn.
  noteDrawn() {
    this.changedBlocks.clear();
    this.changedTables.clear();
  }

  // Take over a snapshot, the state before the events that follow.
  applyBase(base) {
    this.apply({ tokens: {}, sampled: [], waiting: [], preempted: [], finished: {}, copies: [], step: null, ...base });
    for (const [requestId, [most, found]] of Object.entries(base.computed ?? {})) {
      const request = this.requests.get(requestId);
      if (request) Object.assign(request, { mostComputed: most, found });
      this.numTokens.set(requestId, most);
    }
  }

  // Process one event. Returns the blocks that changed, each with its former state: [{block, before}].
  apply(event) {
    const touched = new Map();
    const touch = (block) => {
      if (!touched.has(block.id)) touched.set(block.id, { block, before: { ...block, owners: [...block.owners] } });
      return block;
    };
    this.nowS = event.now_s ?? event.end_s ?? this.nowS;
    if (event.step !== null && event.step !== undefined) this.step = event.step;
    this.#meet(event);
    for (const [source, copy] of this.copies) { touch(this.blocks[source]); touch(this.blocks[copy]); }
    for (const [id, refCnt, isCached] of event.blocks) Object.assign(touch(this.blocks[id]), { refCnt, isCached: Boolean(isCached) });
    for (const [id, key, parent, text] of event.keys ?? []) Object.assign(touch(this.blocks[id]), { key, parent, text });
    for (const [requestId, table] of Object.entries(event.tables)) this.#changeTable(requestId, table, touch);
    for (const [requestId, [before, number]] of Object.entries(event.tokens)) this.numTokens.set(requestId, before + number + draftOf(event, requestId)[1]);
    this.copies = event.copies;
    for (const [source, copy] of this.copies) { touch(this.blocks[source]); touch(this.blocks[copy]); }
    for (const { block } of touched.values()) {
      this.#judge(block);
      this.changedBlocks.add(block.id);
      for (const owner of block.owners) this.changedTables.add(owner);
    }
    const changes = [...touched.values()];
    if (changes.some(({ block, before }) => block.key !== before.key || (block.key !== null &&
      (block.refCnt !== before.refCnt || block.owners.join() !== before.owners.join())))) this.treeVersion += 1;
    this.waiting = event.waiting ?? [];
    noteDraws(this.bound, event);
    Object.assign(this.totals, event.totals ?? {});
    return changes;
  }

  // Call this when an event has been drawn and noticed: it forgets the requests that have ended.
  forget(event) {
    for (const requestId of Object.keys(event.finished)) {
      this.requests.delete(requestId);
      this.numTokens.delete(requestId);
      if (!this.tables.get(requestId)?.length) this.tables.delete(requestId);
    }
  }

  #meet(event) {
    for (const [requestId, prompt] of Object.entries(event.prompts)) {
      const [priority, waitedS] = event.arrived?.[requestId] ?? [1, 0];
      this.cast.number(requestId);
      this.requests.set(requestId, { requestId, prompt, name: event.names?.[requestId] ?? "", priority,
        arrivedS: this.nowS - waitedS, order: this.cast.number(requestId), mostComputed: null, found: null, firstStep: null });
    }
  }

  #changeTable(requestId, table, touch) {
    const before = new Set(this.tables.get(requestId) ?? []), after = new Set(table);
    this.tables.set(requestId, table);
    this.changedTables.add(requestId);
    for (const id of before) if (!after.has(id)) touch(this.blocks[id]);
    for (const id of after) if (!before.has(id)) touch(this.blocks[id]);
    const order = [...this.tables.keys()];
    for (const id of new Set([...before, ...after])) {
      const { owners } = this.blocks[id];
      if (!after.has(id)) owners.splice(owners.indexOf(requestId), 1);
      else if (!before.has(id)) {
        owners.push(requestId);
        if (owners.length > 1) owners.sort((one, other) => order.indexOf(one) - order.indexOf(other));
      }
    }
    if (!table.length && !this.requests.has(requestId)) this.tables.delete(requestId);
  }

  #judge(block) {
    const isCopied = this.copies.some((pair) => pair.includes(block.id));
    block.isKept = isCopied && !block.owners.length;
    this.counts[block.kind] -= 1;
    block.kind = block.refCnt === 0 ? (block.isCached ? "cached" : "empty")
      : block.isKept ? "kept" : block.refCnt > 1 ? "shared" : "used";
    this.counts[block.kind] += 1;
  }

  numOf(...kinds) {
    return kinds.reduce((sum, kind) => sum + this.counts[kind], 0);
  }

  // Return the sentence above the pool.
  describe() {
    const kept = this.numOf("kept"), shared = this.numOf("shared"), cached = this.numOf("cached");
    const parts = [`${this.numOf("used", "shared")} in use`];
    if (shared) parts.push(`${shared} of them shared`);
    if (kept) parts.push(`${kept} held for a copy`);
    if (cached) parts.push(`${cached} free and still cached`);
    parts.push(`${this.numOf("empty")} free`);
    const number = this.blocks.length - 1;
    const copies = this.copies.map(([source, copy]) => `${source} → ${copy}`).join(", ");
    return `${number} block${number === 1 ? "" : "s"} of ${this.header.block_size} tokens: ${parts.join(", ")}` +
      (copies ? `; to be copied: ${copies}` : "");
  }
}
