// One pane: a prompt, its settings and its output. It uses /v1 like any other client.
import { button, chip, make } from "./dom.js";
import { count } from "./svg.js";

const PRIORITIES = ["high", "normal", "low"];
// Endings for a prompt that is sent again with the same beginning.
const ENDINGS = [" But one day a fox", " Now the youngest daughter", " Then an old woman came", " In the forest there", " And the king said"];
const QUESTIONS = ["Say it in other words.", "Tell me more about it.", "Why is that so?", "Give an example."];

export class Pane {
  // `desk` has server, model (a description), state, and openPane(settings).
  constructor(desk, settings = {}) {
    this.desk = desk;
    this.number = 1 + Math.max(0, ...desk.panes.map((pane) => pane.number));
    this.messages = settings.messages ?? [];
    this.runs = new Set();
    this.numEndings = 0;
    this.#build({ priority: "normal", maxTokens: 64, n: 1, again: false, prompt: "", mustMatch: "", ...settings });
  }

  #build(settings) {
    const isChat = this.desk.model.has_chat_template, name = `pane-${this.number}`;
    this.prompt = make("textarea", { id: `${name}-prompt`, rows: 3, value: settings.prompt, spellcheck: false });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.send(); }
    });
    this.priority = make("select", { id: `${name}-priority` }, ...PRIORITIES.map((each) => make("option", { value: each, textContent: each })));
    this.priority.value = settings.priority;
    this.maxTokens = make("input", { id: `${name}-tokens`, type: "number", min: 1, max: this.desk.model.sizes.max_model_len, value: settings.maxTokens });
    this.again = make("input", { id: `${name}-again`, type: "checkbox", checked: settings.again });
    this.mustMatch = make("input", { id: `${name}-match`, type: "text", value: settings.mustMatch, placeholder: "\\d{4}-\\d\\d-\\d\\d", spellcheck: false, autocomplete: "off" });
    this.mustMatch.title = "Optional: a regular expression that the whole output must match";
    this.output = make("div", { className: "output", role: "region", tabIndex: 0 });
    this.output.setAttribute("aria-label", `Output of pane ${this.number}`);
    this.note = make("p", { className: "note", role: "status" });
    this.stopButton = button("Stop", () => this.stop(), { disabled: true });
    this.element = make("article", { className: "pane", id: name },
      make("div", { className: "pane-head" }, make("h3", { textContent: `Pane ${this.number}` }),
        button("×", () => this.close(), { ariaLabel: `Close pane ${this.number}`, className: "quiet" })),
      make("label", { htmlFor: this.prompt.id, textContent: isChat ? "Message" : "Text to continue" }), this.prompt,
      make("div", { className: "row" },
        make("label", { htmlFor: this.priority.id, textContent: "Priority" }), this.priority,
        make("label", { htmlFor: this.maxTokens.id, textContent: "Max tokens" }), this.maxTokens,
        make("label", { htmlFor: this.again.id, textContent: "Repeat" }), this.again),
      make("div", { className: "row" }, make("label", { htmlFor: this.mustMatch.id, textContent: "Must match" }), this.mustMatch),
      make("div", { className: "row" },
        button("Send", () => this.send(), { className: "main" }),
        button("Fork (n = 4)", () => this.send(4), { title: "Asks for four samples of this prompt. They share its blocks, and copy a shared block before they write into it." }),
        button("Same prefix again", () => this.samePrefix(), { title: "Sends the same beginning with another ending, in a new pane" }),
        this.stopButton),
      this.output, this.note);
    this.defaultN = settings.n;
  }

  close() {
    this.again.checked = false;
    this.stop();
    this.desk.closePane(this);
  }

  stop() {
    this.again.checked = false;
    for (const run of this.runs) run.abort();
  }

  // Open a new pane with the same beginning: its cached blocks are found, and blocks in use are shared.
  samePrefix() {
    const { priority, maxTokens, messages, mustMatch } = this;
    const base = { priority: priority.value, maxTokens: Number(maxTokens.value), mustMatch: mustMatch.value };
    const text = this.prompt.value.trimEnd() || this.lastPrompt || "", number = this.numEndings += 1;
    const isChat = this.desk.model.has_chat_template;
    const pane = this.desk.openPane(isChat ? { ...base, messages: [...messages], prompt: QUESTIONS[number % QUESTIONS.length] }
      : { ...base, prompt: text + ENDINGS[number % ENDINGS.length] });
    pane.send();
  }

  async send(n = this.defaultN) {
    const prompt = this.prompt.value, isChat = this.desk.model.has_chat_template;
    if (!prompt.trim()) { this.note.textContent = isChat ? "Write a message first." : "Write a text first."; return; }
    const run = new AbortController();
    this.runs.add(run);
    this.stopButton.disabled = false;
    try {
      do await this.#sendOnce(prompt, n, run.signal); while (this.again.checked && !run.signal.aborted);
    } catch (error) {
      this.note.textContent = run.signal.aborted ? "Stopped. The blocks of the request are free again." : error.message;
    } finally {
      this.runs.delete(run);
      this.stopButton.disabled = !this.runs.size;
    }
  }

  async #sendOnce(prompt, n, signal) {
    const { model, server } = this.desk, isChat = model.has_chat_template;
    this.lastPrompt = prompt;
    const body = { model: model.model, n, stream: true, stream_options: { include_usage: true }, priority: this.priority.value,
      max_tokens: Number(this.maxTokens.value) || 64, temperature: 0.8, ignore_eos: !isChat };
    if (this.mustMatch.value) Object.assign(body, { structured_outputs: { regex: this.mustMatch.value }, ignore_eos: false });
    if (isChat) this.messages.push({ role: "user", content: prompt });
    Object.assign(body, isChat ? { messages: this.messages } : { prompt });
    const texts = this.#begin(prompt, n);
    let reply = "", usage = null, served = "";
    const meet = (replica) => {
      served = replica ? `served by ${replica}` : "";
      this.note.textContent = replica ? `Sent to ${replica}.` : "";
    };
    for await (const chunk of server.stream(isChat ? "/v1/chat/completions" : "/v1/completions", body, signal, meet)) {
      if (chunk.error) throw new Error(chunk.error.message);
      usage = chunk.usage ?? usage;
      for (const choice of chunk.choices) {
        const text = (isChat ? choice.delta.content : choice.text) ?? "";
        texts[choice.index].meet(n > 1 ? `${chunk.id}#${choice.index}` : chunk.id);
        texts[choice.index].add(text);
        if (choice.index === 0) reply += text;
      }
    }
    if (isChat) { this.messages.push({ role: "assistant", content: reply }); this.prompt.value = ""; }
    if (usage) this.note.textContent = [tellUsage(usage), served].filter(Boolean).join(", ");
  }

  // Add a line for each sample. Its letter follows when the engine reports the request.
  #begin(prompt, n) {
    this.note.textContent = "";
    if (this.desk.model.has_chat_template) this.output.append(make("p", { className: "asked", textContent: prompt }));
    else this.output.replaceChildren();
    this.texts = Array.from({ length: n }, () => {
      const span = make("span"), line = make("p", { className: "continued" }, span);
      this.output.append(line);
      const text = { requestId: null, isMet: false, line, meet(requestId) { this.requestId = requestId; },
        add(more) { span.textContent += more; }, forget() { if (this.isMet) line.replaceChildren(span); this.isMet = false; } };
      return text;
    });
    return this.texts;
  }

  // Remove the letters: another engine is shown now.
  forgetLetters() {
    for (const text of this.texts ?? []) text.forget();
  }

  // Add the letters of the requests that the engine has reported.
  refresh(state) {
    for (const text of this.texts ?? []) {
      if (text.isMet || !text.requestId || !state.cast.numbers.has(text.requestId)) continue;
      text.isMet = true;
      text.line.prepend(chip(state.cast.letter(text.requestId), state.cast.paint(text.requestId)), " ");
    }
  }
}

function tellUsage({ prompt_tokens: numPrompt, completion_tokens: numNew, prompt_tokens_details: details, completion_tokens_details: drafts }) {
  const numFound = details?.cached_tokens ?? 0, numAccepted = drafts?.accepted_prediction_tokens ?? 0;
  const numDrafted = numAccepted + (drafts?.rejected_prediction_tokens ?? 0);
  return `${count(numPrompt, "prompt token")} (${numFound} found in the cache), ${count(numNew, "new token")}` +
    (numDrafted ? `, ${numAccepted} of ${count(numDrafted, "drafted token")} accepted` : "");
}
