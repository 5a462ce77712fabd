// Five things to make the engine do. Each lesson listens to the engine's events, and notices by itself when it was done.
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
    why: "A running request needs one more block, and none is free. So the request that would be served last loses all its blocks, waits, and computes its tokens again later.",
    todo: "Set it up: a pool of 24 blocks and four long texts. Then send all four.",
    look: "The pool fills up; a red cross in the schedule is a request that loses its blocks. Later its tokens come again, underlined in red.",
    sizes: { ...SMALL, num_blocks: 25 }, speed: 20, panes: STORIES.map((prompt) => ({ prompt, maxTokens: 128 })),
    make: () => new Preempt() },
  { id: "share", title: "Make it share",
    why: "Two prompts that begin alike need the same K/V for that beginning. It is computed once; both tables name the same blocks.",
    todo: "Set it up: two panes with the same beginning and different endings. Then send both.",
    look: "Hatched blocks in the pool have two owners, ×2. In the prefix tree the two requests part where their texts part.",
    sizes: { ...SMALL, num_blocks: 48 }, speed: 5,
    panes: [" One day a fox", " One day a wolf"].map((end) => ({ prompt: TALE + end, maxTokens: 96 })),
    make: () => new Share() },
  { id: "copy", title: "Make it copy on write",
    why: "A fork shares every block of its prompt, the last, half-filled one too. Whoever writes into a shared block first must have a copy of its own.",
    todo: "Set it up: one pane that asks for four continuations. Then send it. Or press “Fork” in any pane.",
    look: "For one step, arrows in the pool run from the shared block to its copies. Pause first, and step, to catch it.",
    sizes: { ...SMALL, num_blocks: 48 }, speed: 5, panes: [{ prompt: `${TALE} Then one day`, maxTokens: 48, n: 4 }],
    make: () => new Copy() },
  { id: "evict", title: "Make it evict",
    why: "A request that ends leaves its blocks free, but what they hold can still be found. It is lost only when a block is given out again: the one that has been free longest.",
    todo: "Set it up: a pool of 16 blocks, one seat, four different stories. Then send all four: they run one after the other.",
    look: "Pale blocks with # are free and still found. Watch one turn into the colour of a new request: its content is gone, and leaves the tree.",
    sizes: { ...SMALL, num_blocks: 17, max_num_seqs: 1 }, speed: 20, panes: STORIES.map((prompt) => ({ prompt, maxTokens: 72 })),
    make: () => new Evict() },
  { id: "starve", title: "Starve low priority, then let aging save it",
    why: "High requests that come later go first, so a low one could wait for ever. Waiting counts, too: priority − waited × rate. In the end it stands before every fresh high one.",
    todo: "Set it up: one seat; three panes that keep sending at high priority, and one low. Then send all.",
    look: "In the queue, the low request's number falls as it waits. When it is below 0, it goes before high ones that have just come.",
    sizes: { ...SMALL, num_blocks: 48, max_num_seqs: 1, aging_rate: 0.25 }, speed: 0,
    panes: [...STORIES.slice(0, 3).map((prompt) => ({ prompt, priority: "high", maxTokens: 48, again: true })),
      { prompt: STORIES[3], priority: "low", maxTokens: 32 }],
    make: () => new Starve() },
];

// Each has notice({event, changes, state, history}), which returns what is to be told so far, or {done} with the proof.
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
        `of ${lost.numTokens} tokens ${numBefore} were still in the cache, ${lost.numTokens - numBefore} are computed again.` };
    }
    const [last] = [...this.victims].slice(-1);
    return last ? `${state.cast.letter(last[0])} was preempted in step ${last[1].step}. Now wait until it is admitted again.` : null;
  }
}

class Share {
  notice({ changes, state, history }) {
    for (const { block } of changes) {
      const leaders = new Set(block.owners.map((each) => leaderOf(each, history.known)));
      if (leaders.size < 2) continue;
      const shared = state.blocks.filter((each) => each.owners.length > 1), [first, second] = block.owners;
      const request = state.requests.get(second);
      return { done: `Blocks ${shared.map(({ id }) => id).join(", ")} are held by ${letters(state, block.owners)}: ref_cnt ${block.refCnt}. ` +
        `${state.cast.letter(second)} has ${request?.prompt ?? "?"} prompt tokens, and found ${request?.found ?? "?"} of them with ${state.cast.letter(first)}.` };
    }
    return null;
  }
}

class Copy {
  notice({ event, state }) {
    if (!event.copies.length) return null;
    const [source] = event.copies[0], targets = event.copies.filter(([each]) => each === source).map(([, copy]) => copy);
    const numOwners = state.blocks[source].refCnt + targets.length; // those who got a copy have left it
    return { done: `In step ${event.step}, block ${source} had ${count(numOwners, "owner")}. It was copied into ` +
      `${targets.length === 1 ? "block" : "blocks"} ${targets.join(", ")}, because ${letters(state, targets.flatMap((id) => state.blocks[id].owners))} ` +
      `write their own tokens; ${state.totals.num_forks} copied so far.` };
  }
}

class Evict {
  notice({ event, changes, state }) {
    const lost = changes.filter(({ block, before }) => before.refCnt === 0 && before.isCached && block.refCnt > 0 && block.key !== before.key);
    if (!lost.length) return null;
    const { block, before } = lost[0];
    return { done: `In step ${event.step}, block ${block.id} was free and held “${before.text}”. It was given to ${letters(state, block.owners)}, so nobody finds ` +
      `that any more; ${count(state.totals.num_evictions, "block")} evicted so far, ${state.numOf("cached")} still cached.` };
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
      return { done: `${state.cast.letter(requestId)}, low, was overtaken by ${passed} high requests that came after it. After ${waitedS} s it stood at ` +
        `2 − ${waitedS} × ${rate} = ${(2 - waitedS * rate).toFixed(1)}, and went before ${letters(state, later)}, high, which came later and still wait${later.length === 1 ? "s" : ""}.` };
    }
    const [best] = [...this.overtaken].sort(([, one], [, other]) => other.size - one.size);
    if (!best || !low.includes(best[0])) return null;
    return `${state.cast.letter(best[0])}, low, has been overtaken by ${count(best[1].size, "high request")} that came after it. Keep them coming.`;
  }

  #note(requestId) {
    if (!this.overtaken.has(requestId)) this.overtaken.set(requestId, new Set());
    return this.overtaken.get(requestId);
  }
}
