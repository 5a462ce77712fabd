// Outputs that must match: what each must match, its automaton with the current state, and how many tokens were allowed.
import { chip, make } from "./dom.js";
import { ON_COLOUR, PAINTS } from "./palette.js";
import { count, measuredWidth, resize, shape, textAt } from "./svg.js";

// The number of tokens of a request that are drawn, and the sizes of a bar.
const MAX_BARS = 48, BAR = 16, HEIGHT = 44, TOP = 14, BOTTOM = 16, SIZE = 10;
const KINDS = { regex: "the expression", choice: "one of", json: "the JSON schema", json_object: "", grammar: "the grammar" };

export class Matches {
  constructor(section, list) {
    Object.assign(this, { section, list, shown: new Map() });
  }

  draw(state) {
    if (this.state !== state) { this.shown.clear(); this.list.replaceChildren(); this.state = state; }
    this.section.hidden = !state.bound.size;
    for (const [requestId, { element }] of this.shown) {
      if (state.bound.has(requestId)) continue;
      element.remove();
      this.shown.delete(requestId);
    }
    for (const [requestId, bound] of state.bound) {
      if (!this.shown.has(requestId)) this.#show(requestId, bound, state);
      const shown = this.shown.get(requestId);
      if (shown.numDrawn === bound.numDrawn && shown.end === bound.end) continue;
      Object.assign(shown, { numDrawn: bound.numDrawn, end: bound.end });
      shown.sentence.textContent = describe(bound, state.header.vocab_size);
      drawBars(shown.bars, bound, state.header.vocab_size, state.cast.paint(requestId));
      markState(shown, bound.state, PAINTS[state.cast.paint(requestId)].light);
    }
  }

  // The newest request is first.
  #show(requestId, { structure }, state) {
    const sentence = make("p", { className: "sentence" }), bars = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    bars.setAttribute("role", "img");
    const element = make("article", { className: "match" },
      make("p", {}, chip(state.cast.letter(requestId), state.cast.paint(requestId)), ` must match ${KINDS[structure.kind]} `, make("code", { textContent: structure.text })),
      sentence, make("div", { className: "picture" }, bars));
    const automaton = structure.svg ? readPicture(structure.svg) : null;
    if (automaton) element.append(make("div", { className: "picture wide automaton" }, automaton));
    this.list.prepend(element);
    this.shown.set(requestId, { element, sentence, bars, automaton, marked: [], numDrawn: -1 });
  }
}

// The picture that the server drew. Its colours for dark paper are in palette.css.
function readPicture(text) {
  return document.importNode(new DOMParser().parseFromString(text, "image/svg+xml").documentElement, true);
}

// Return the sentence about the last token.
function describe({ structure, draws, state, numDrawn, end }, numTokens) {
  const { text, numAllowed } = draws.at(-1);
  const place = state === null ? "" : ` Now in state ${state}, of ${count(structure.num_states, "state")}.`;
  return `Token ${numDrawn}, “${text}”: ${numAllowed.toLocaleString("en")} of ${numTokens.toLocaleString("en")} tokens were allowed.${place}${end ? ` The output has ended (${end}).` : ""}`;
}

function drawBars(svg, { draws }, numTokens, paint) {
  svg.replaceChildren();
  let x = 2;
  for (const { text, numAllowed } of draws) {
    const width = Math.max(BAR, measuredWidth(text, SIZE) + 4, measuredWidth(String(numAllowed), SIZE) + 4);
    const height = HEIGHT * Math.max(Math.log(numAllowed + 1) / Math.log(numTokens + 1), 0.02), told = `“${text}”: ${numAllowed} of ${numTokens} tokens were allowed`;
    shape(svg, "rect", { x, y: TOP, width: width - 2, height: HEIGHT, fill: "null" });
    shape(svg, "rect", { x, y: TOP + HEIGHT - height, width: width - 2, height, fill: paint, "data-allowed": numAllowed }, "", told);
    textAt(svg, x + width / 2 - 1, TOP - 4, String(numAllowed), SIZE, "ink", { "text-anchor": "middle" });
    textAt(svg, x + width / 2 - 1, TOP + HEIGHT + 11, text.replace(/\n/gu, "↵"), SIZE, "faint", { "text-anchor": "middle" });
    x += width;
  }
  resize(svg, x, TOP + HEIGHT + BOTTOM, `Allowed tokens: ${draws.map(({ numAllowed }) => numAllowed).join(", ")}`);
}

// Fill the current state. A state inside of a character is not in the picture.
function markState(shown, state, colour) {
  for (const element of shown.marked) element.style.fill = "";
  const circle = shown.automaton?.querySelector(`circle[data-state="${state}"]`);
  shown.marked = circle ? [circle, circle.nextElementSibling] : [];
  if (!circle) return;
  circle.style.fill = colour;
  circle.nextElementSibling.style.fill = PAINTS[ON_COLOUR].light;
}

// Note the tokens of an event in `bound`: request id → {structure, draws, numDrawn, state, end}. Keep the latest requests.
export function noteDraws(bound, event, most = 3) {
  for (const [requestId, structure] of Object.entries(event.structures ?? {})) {
    bound.delete(requestId); // another request may have had this id
    bound.set(requestId, { structure, draws: [], numDrawn: 0, state: null, end: null });
  }
  for (const [requestId, drawn] of Object.entries(event.drawn ?? {})) {
    const request = bound.get(requestId);
    if (!request) continue;
    drawn.forEach(([text, state], place) => {
      request.draws.push({ text, numAllowed: event.allowed?.[requestId]?.[place]?.[0] ?? 0 });
      Object.assign(request, { numDrawn: request.numDrawn + 1, state });
    });
    request.draws.splice(0, request.draws.length - MAX_BARS);
  }
  for (const [requestId, status] of Object.entries(event.finished ?? {})) if (bound.has(requestId)) bound.get(requestId).end = status;
  for (const [requestId, { end }] of [...bound]) if (bound.size > most && end) bound.delete(requestId);
}
