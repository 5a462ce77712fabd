// The lessons on the page: what to do, a button that sets it up, what to look at, and whether it was done.
import { button, make } from "./dom.js";
import { LESSONS } from "./lessons.js";

const KEPT = "mini_vllm lessons";

export class LessonList {
  // `setUp(lesson)` restarts the engine with the lesson's sizes, and lays out its panes.
  constructor(list, setUp) {
    this.done = recall();
    this.items = LESSONS.map((lesson, number) => this.#item(list, lesson, number, setUp));
    this.#openNext();
  }

  #item(list, lesson, number, setUp) {
    const mark = make("span", { className: "mark", textContent: String(number + 1) });
    const progress = make("p", { className: "progress", role: "status" });
    const start = button("Set it up", async () => {
      start.disabled = true;
      this.#forget(item); // done by the way, perhaps; now it is looked at
      try { await setUp(lesson); } finally { start.disabled = false; }
    }, { className: "main" });
    const details = make("details", { className: "lesson", id: `lesson-${lesson.id}`, name: "lesson" },
      make("summary", {}, mark, " ", make("span", { textContent: lesson.title })),
      make("p", { textContent: lesson.why }),
      make("p", {}, make("strong", { textContent: "Do: " }), lesson.todo), start,
      make("p", {}, make("strong", { textContent: "Look at: " }), lesson.look), progress);
    list.append(details);
    const item = { lesson, details, mark, progress, watch: lesson.make() };
    if (this.done[lesson.id]) this.#show(item, this.done[lesson.id]);
    return item;
  }

  // Whoever joins in the middle, or begins again with another engine, has seen nothing yet.
  reset() {
    for (const item of this.items) item.watch = item.lesson.make();
  }

  notice(moment) {
    for (const item of this.items) {
      if (this.done[item.lesson.id]) continue;
      const told = item.watch.notice(moment);
      if (told?.done) this.#finish(item, told.done);
      else if (typeof told === "string" && item.progress.textContent !== told) item.progress.textContent = told;
    }
  }

  #finish(item, proof) {
    this.done[item.lesson.id] = proof;
    try { localStorage.setItem(KEPT, JSON.stringify(this.done)); } catch { /* it is forgotten with the page */ }
    this.#show(item, proof);
  }

  #show(item, proof) {
    item.details.classList.add("done");
    item.mark.textContent = "✓";
    item.mark.setAttribute("aria-label", "done");
    item.progress.replaceChildren(make("strong", { textContent: "Done. " }), proof);
  }

  #openNext() {
    const next = this.items.find((item) => !this.done[item.lesson.id]);
    if (next) next.details.open = true;
  }

  startOver() {
    try { localStorage.removeItem(KEPT); } catch { /* nothing was kept */ }
    for (const item of this.items) this.#forget(item);
    this.#openNext();
  }

  #forget(item) {
    delete this.done[item.lesson.id];
    item.watch = item.lesson.make();
    item.details.classList.remove("done");
    item.mark.textContent = String(LESSONS.indexOf(item.lesson) + 1);
    item.mark.removeAttribute("aria-label");
    item.progress.textContent = "";
  }
}

function recall() {
  try { return JSON.parse(localStorage.getItem(KEPT)) ?? {}; } catch { return {}; }
}
