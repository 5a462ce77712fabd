// For the tests: what the page draws of a recorded run, as plain values.
async (told) => {
  const load = (name) => import(`/live/page/${name}.js`);
  const [{ EngineState }, { History }, { Strip }, { Tables }, { Tree }, { Schedule }, { WIDTH }] = await Promise.all(
    ["state", "history", "strip", "tables", "tree", "schedule", "palette"].map(load));
  const make = () => document.createElementNS("http://www.w3.org/2000/svg", "svg");
  // What the legend of the drawing must explain.
  const MARKS = ["mark", "kind", "state", "end", "part"];
  const markOf = (each) => {
    const marked = each.closest(MARKS.map((name) => `[data-${name}]`).join());
    return marked ? marked.dataset[MARKS.find((name) => name in marked.dataset)] : "";
  };
  const shapesOf = (svg) => [...svg.querySelectorAll("*")].filter((each) => each.tagName !== "title").map((each) => ({
    tag: each.tagName, text: each.tagName === "text" ? each.textContent : "", mark: markOf(each),
    panel: each.closest("[data-panel]")?.dataset.panel ?? null,
    row: each.closest("[data-request], [data-table]")?.getAttribute(each.closest("[data-request]") ? "data-request" : "data-table") ?? "",
    ...Object.fromEntries([...each.attributes].map(({ name, value }) => [name, value])) }));
  const state = new EngineState(told.header), history = new History(state), drawn = [];
  if (told.base) { state.applyBase(told.base); history.replay({ ...told.base, step: null, finished: {} }); }
  const svgs = { pool: make(), tables: make(), schedule: make(), tree: make() };
  const strip = new Strip(svgs.pool), tables = new Tables(svgs.tables), schedule = new Schedule(svgs.schedule), tree = new Tree(svgs.tree);
  told.steps.forEach((event, index) => {
    const step = event.step === undefined ? index : event.step;
    state.apply({ ...event, step });
    history.replay({ ...event, step });
    strip.draw(state, WIDTH);
    tables.draw(state, WIDTH);
    tree.draw(state);
    state.noteDrawn();
    drawn.push({ pool: shapesOf(svgs.pool), tables: shapesOf(svgs.tables), tree: shapesOf(svgs.tree), label: svgs.pool.getAttribute("aria-label") });
    state.forget(event);
  });
  schedule.draw(history, 960, told.steps.length);
  return { drawn, schedule: shapesOf(svgs.schedule), tree: shapesOf(svgs.tree) };
}
