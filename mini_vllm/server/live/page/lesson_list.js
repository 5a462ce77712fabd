// The lessons on the page: what to do, a button that sets up the lesson, what to look at, and whether it is done.
import { button, make } from "./dom.js";
import { LESSONS } from "./lessons.js";

const KEPT = "mini_vllm lessons";

export class LessonList {
  // `setUp(lesson)` restarts the engine with the lesson's sizes, lays out its panes, and returns whether that worked.
  constructor(list, setUp) {
    this.done = recall();
    this.active = null; // the lesson that is set up; only this lesson can be completed, and only while it is open
    this.items = LESSONS.map((lesson, number) => this.#item(list, lesson, number, setUp));
    this.#openNext();
  }

  #item(list, lesson, number, setUp) {
    const mark = make("span", { className: "mark", textContent: String(number + 1) });
    const progress = make("p", { className: "progress", role: "status" });
    const start = button("Set it up", async () => {
      start.disabled = true;
      try { if (await setUp(lesson)) this.#activate(item); } finally { start.disabled = false; }
    }, { className: "main" });
    const details = make("details", { className: "lesson", id: `lesson-${lesson.id}`, name: "lesson" },
      make("summary", {}, mark, " ", make("span", { textContent: lesson.title })),
      make("p", { textContent: lesson.why }),
      make("p", {}, make("strong", { textContent: "Do: " }), lesson.todo), start,
      make("p", {}, make("strong", { textContent: "Look at: " }), lesson.look), progress);
    list.append(details);
    const item = { lesson, details, mark, progress, watch: null };
    if (this.done[lesson.id]) this.#show(item, this.done[lesson.id]);
    return item;
  }

  #activate(item) {
    this.leave();
    this.active = item;
    item.watch = item.lesson.make();
    if (!this.done[item.lesson.id]) item.progress.textContent = "Set up. The engine has not done this yet.";
  }

  // The engine or the model has been replaced, so no lesson is set up.
  leave() {
    if (this.active && !this.done[this.active.lesson.id]) this.active.progress.textContent = "";
    this.active = null;
  }

  // After a gap in the events, the active lesson watches from the beginning.
  reset() {
    if (this.active?.watch) this.active.watch = this.active.lesson.make();
  }

  notice(moment) {
    const item = this.active;
    if (!item?.watch || !item.details.open) return;
    const told = item.watch.notice(moment);
    if (told?.done) this.#finish(item, told.done);
    else if (typeof told === "string" && !this.done[item.lesson.id] && item.progress.textContent !== told) item.progress.textContent = told;
  }

  // The lesson keeps this proof until it is set up again.
  #finish(item, proof) {
    item.watch = null;
    this.done[item.lesson.id] = proof;
    try { localStorage.setItem(KEPT, JSON.stringify(this.done)); } catch { /* lost when the page is closed */ }
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
    this.leave();
    for (const item of this.items) this.#forget(item);
    this.#openNext();
  }

  #forget(item) {
    delete this.done[item.lesson.id];
    item.details.classList.remove("done");
    item.mark.textContent = String(LESSONS.indexOf(item.lesson) + 1);
    item.mark.removeAttribute("aria-label");
    item.progress.textContent = "";
  }
}

function recall() {
  try { return JSON.parse(localStorage.getItem(KEPT)) ?? {}; } catch { return {}; }
}
