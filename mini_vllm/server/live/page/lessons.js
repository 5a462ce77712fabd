// Five lessons, in each of which the engine shows one behaviour. A lesson watches the engine's events and notices it.
import { leaderOf } from "./cast.js";
import { count } from "./svg.js";

const TALE = "Once upon a time there was a king who had three sons, and the youngest of them was so kind that all the birds in the forest knew his name.";
const STORIES = ["Once upon a time there was a king who had three sons", "A fox and a wolf lived together in the deep dark forest",
  "There was once a poor miller whose daughter was clever", "Long ago an old woman found a golden ring in the river"];
const SMALL = { block_size: 16, max_num_seqs: 8, max_num_batched_tokens: 64, aging_rate: 0.1 };
const HIGH = 0, LOW = 2, MIN_OVERTAKEN = 3;

const letters = (state, ids) => ids.map((each) => state.cast.letter(each)).join(", ");

export const LESSONS = [
  { id: "preempt", title: "Make it preempt",
    why: "A running request needs one more block, and none is free. The request that would be served last loses all its blocks, waits, and computes its tokens again later.",
    todo: "Set it up: a pool of 24 blocks and four long texts. Then send all four.",
    look: "The pool fills up. A red cross in the schedule is a request that loses its blocks. Later it computes its tokens again, underlined in red.",
    sizes: { ...SMALL, num_blocks: 25 }, speed: 20, panes: STORIES.map((prompt) => ({ prompt, maxTokens: 128 })),
    make: () => new Preempt() },
  { id: "share", title: "Make it share",
    why: "Two prompts with the same beginning need the same keys and values for it. The engine computes them once, and both block tables name the same blocks.",
    todo: "Set it up: two panes with the same beginning and different endings. Then send both.",
    look: "Hatched blocks in the pool have two owners (×2). In the prefix tree, the two requests branch where their texts differ.",
    sizes: { ...SMALL, num_blocks: 48 }, speed: 5,
    panes: [" One day a fox", " One day a wolf"].map((end) => ({ prompt: TALE + end, maxTokens: 96 })),
    make: () => new Share() },
  { id: "copy", title: "Make it copy on write",
    why: "The samples of a fork share every block of their prompt, including the last one, which is only partly full. Before a sample writes into a shared block, it gets a copy.",
    todo: "Set it up: one pane that asks for four samples. Then send it. The “Fork” button of any pane does the same.",
    look: "For one step, red arrows in the pool lead from the shared block to its copies. To catch that step, pause before you send, then press “Step”.",
    sizes: { ...SMALL, num_blocks: 48 }, speed: 5, panes: [{ prompt: `${TALE} Then one day`, maxTokens: 48, n: 4 }],
    make: () => new Copy() },
  { id: "evict", title: "Make it evict",
    why: "When a request ends, its blocks are free, but their contents stay cached. They are lost only when a block is handed out again. The block that has been free longest is handed out first.",
    todo: "Set it up: a pool of 16 blocks, one running request at a time, four different stories. Then send all four.",
    look: "Blocks with # and a dashed border are free and still cached. Watch one take the colour of a new request: its old contents are gone and leave the prefix tree.",
    sizes: { ...SMALL, num_blocks: 17, max_num_seqs: 1 }, speed: 20, panes: STORIES.map((prompt) => ({ prompt, maxTokens: 72 })),
    make: () => new Evict() },
  { id: "starve", title: "Starve low priority, then let aging save it",
    why: "High-priority requests that arrive later go first, so a low-priority one could wait forever. But waiting counts: the queue is sorted by priority − seconds waited × aging rate. In the end the low-priority request is ahead of every new one.",
    todo: "Set it up: one running request at a time; three panes that repeat at high priority, and one at low priority. Then send all.",
    look: "In the queue, the number of the low-priority request falls as it waits. Below 0, it goes ahead of high-priority requests that have just arrived.",
    sizes: { ...SMALL, num_blocks: 48, max_num_seqs: 1, aging_rate: 0.25 }, speed: 0,
    panes: [...STORIES.slice(0, 3).map((prompt) => ({ prompt, priority: "high", maxTokens: 48, again: true })),
      { prompt: STORIES[3], priority: "low", maxTokens: 32 }],
    make: () => new Starve() },
];

// Each has notice({event, changes, state, history}), which returns the progress so far as text, or {done} with the proof.
class Preempt {
  constructor() { this.victims = new Map(); }

  notice({ event, changes, state }) {
    for (const requestId of event.preempted) {
      const numBlocks = changes.filter(({ block, before }) => before.owners.includes(requestId) && !block.owners.includes(requestId)).length;
      this.victims.set(requestId, { step: event.step, numBlocks, numTokens: state.requests.get(requestId)?.mostComputed ?? 0 });
    }
    for (const [requestId, [numBefore]] of Object.entries(event.tokens)) {
      const lost = this.victims.get(requestId);
      if (!lost || lost.step === event.step) continue;
      const letter = state.cast.letter(requestId);
      return { done: `In step ${lost.step}, ${letter} lost its ${count(lost.numBlocks, "block")}. In step ${event.step} it was admitted again: ` +
        `${numBefore} of its ${lost.numTokens} tokens were still cached, ${lost.numTokens - numBefore} had to be computed again.` };
    }
    const [last] = [...this.victims].slice(-1);
    return last ? `${state.cast.letter(last[0])} was preempted in step ${last[1].step}. Wait until it is admitted again.` : null;
  }
}

class Share {
  notice({ changes, state, history }) {
    for (const { block } of changes) {
      const leaders = new Set(block.owners.map((each) => leaderOf(each, history.known)));
      if (leaders.size < 2) continue;
      const shared = state.blocks.filter((each) => each.owners.length > 1), [first, second] = block.owners;
      const request = state.requests.get(second);
      return { done: `${letters(state, block.owners)} share ${shared.length === 1 ? "block" : "blocks"} ${shared.map(({ id }) => id).join(", ")}: ref_cnt is ${block.refCnt}. ` +
        `${request?.found ?? "?"} of the ${request?.prompt ?? "?"} prompt tokens of ${state.cast.letter(second)} were in blocks of ${state.cast.letter(first)}.` };
    }
    return null;
  }
}

class Copy {
  notice({ event, state }) {
    if (!event.copies.length) return null;
    const [source] = event.copies[0], targets = event.copies.filter(([each]) => each === source).map(([, copy]) => copy);
    const numOwners = state.blocks[source].refCnt + targets.length; // samples with a copy no longer own it
    return { done: `Before step ${event.step}, block ${source} had ${count(numOwners, "owner")}. The step copied it into ` +
      `${targets.length === 1 ? "block" : "blocks"} ${targets.join(", ")}, where ${letters(state, targets.flatMap((id) => state.blocks[id].owners))} ` +
      `can write. Copies so far: ${state.totals.num_forks}.` };
  }
}

class Evict {
  notice({ event, changes, state }) {
    const lost = changes.filter(({ block, before }) => before.refCnt === 0 && before.isCached && block.refCnt > 0 && block.key !== before.key);
    if (!lost.length) return null;
    const { block, before } = lost[0];
    return { done: `Before step ${event.step}, block ${block.id} was free, and “${before.text}” was cached in it. The step handed it to ${letters(state, block.owners)}, ` +
      `so that text is no longer cached. Evicted so far: ${count(state.totals.num_evictions, "block")}; still cached: ${state.numOf("cached")}.` };
  }
}

class Starve {
  constructor() { this.overtaken = new Map(); }

  notice({ event, state, history }) {
    const low = state.waiting.filter((each) => state.requests.get(each)?.priority === LOW);
    for (const requestId of Object.keys(event.tokens)) {
      const request = history.known.get(requestId);
      if (!request) continue;
      for (const each of low) {
        if (request.priority === HIGH && request.order > state.requests.get(each).order) this.#note(each).add(requestId);
      }
      const passed = this.overtaken.get(requestId)?.size ?? 0;
      const later = state.waiting.filter((each) => state.requests.get(each)?.priority === HIGH && state.requests.get(each).order > request.order);
      if (request.priority !== LOW || passed < MIN_OVERTAKEN || !later.length) continue;
      const waitedS = (event.start_s - request.arrivedS).toFixed(1), rate = state.header.aging_rate;
      return { done: `${count(passed, "high-priority request")} that arrived after ${state.cast.letter(requestId)} (low priority) went ahead of it. After ${waitedS} s its number was ` +
        `2 − ${waitedS} × ${rate} = ${(2 - waitedS * rate).toFixed(1)}. So it went ahead of ${letters(state, later)} (high priority), still waiting.` };
    }
    const [best] = [...this.overtaken].sort(([, one], [, other]) => other.size - one.size);
    if (!best || !low.includes(best[0])) return null;
    return `${count(best[1].size, "high-priority request")} that arrived after ${state.cast.letter(best[0])} (low priority) went ahead of it. Let the panes continue.`;
  }

  #note(requestId) {
    if (!this.overtaken.has(requestId)) this.overtaken.set(requestId, new Set());
    return this.overtaken.get(requestId);
  }
}
