// Requests from the page to the server. If the server needs a key, the page asks its user for one and sends it along.
import { messagesOf } from "./sse.js";

const KEY = "mini_vllm key";

export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export class Server {
  // `askForKey(why)` resolves to a key.
  constructor(askForKey) {
    this.askForKey = askForKey;
    this.base = ""; // of the engine's paths: that of a replica, if there are several
  }

  async #fetch(path, options = {}, base = path.startsWith("/live") ? this.base : "") {
    for (;;) {
      const key = sessionStorage.getItem(KEY), headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
      const response = await fetch(base + path, { ...options, headers, cache: "no-store" });
      if (response.ok) return response;
      const message = await response.json().then((body) => body.error.message, () => response.statusText);
      if (response.status !== 401 && !(response.status === 403 && key && path.startsWith("/live"))) throw new ServerError(response.status, message);
      this.asking ??= this.askForKey(message).finally(() => { this.asking = null; }); // several requests may need it
      sessionStorage.setItem(KEY, await this.asking);
    }
  }

  async get(path, query = {}) {
    return (await this.#fetch(`${path}?${new URLSearchParams(query)}`)).json();
  }

  #post(path, body, signal) {
    return this.#fetch(path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" }, signal });
  }

  async post(path, body) {
    return (await this.#post(path, body)).json();
  }

  // The state of all replicas, or null if this is a single server.
  async replicas() {
    try {
      return await (await this.#fetch("/live/replicas", {}, "")).json();
    } catch (error) {
      if (error.status === 404) return null;
      throw error;
    }
  }

  // `meet(replica)` is called with the name of the replica that answers, or null, before the first message.
  async* stream(path, body, signal, meet) {
    const response = await this.#post(path, body, signal);
    meet(response.headers.get("x-mini-vllm-replica"));
    yield* messagesOf(response);
  }

  // Load a model that was unloaded. Returns false if that is not possible now.
  load(model) {
    return this.post("/live/model", { model }).then(() => true, () => false);
  }

  // Yield the engine's events. Whenever the stream ends, connect again; a new snapshot follows.
  async* events(model, signal, onLost) {
    while (!signal.aborted) {
      try {
        const response = await this.#fetch(`/live/events?${new URLSearchParams({ model })}`, { signal });
        yield* messagesOf(response);
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof ServerError && error.status === 404) throw error;
        if (error instanceof ServerError && error.status === 409 && await this.load(model)) continue;
        onLost(error);
        await new Promise((resolve) => { setTimeout(resolve, 1000); });
      }
    }
  }
}
