// For the measurement: every event is taken in and drawn, then the frame is waited for.
async ({ snapshot, events }) => {
  const { View } = await import("/live/page/view.js");
  const view = new View((id) => document.getElementById(id)), script = [], frame = [];
  view.begin(snapshot);
  view.draw();
  const nextFrame = () => new Promise((resolve) => { requestAnimationFrame(resolve); });
  const afterPaint = () => new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = resolve;
    port2.postMessage(null);
  });
  for (const event of events) {
    await nextFrame();
    const started = performance.now();
    view.take(event);
    view.draw();
    script.push(performance.now() - started);
    view.state.forget(event);
    await afterPaint(); // its task runs once style, layout and paint of this frame are done
    frame.push(performance.now() - started);
  }
  return { script, frame, numShapes: document.querySelectorAll("svg *").length };
}
