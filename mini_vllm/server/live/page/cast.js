// Each request's letter and colour, in the order of appearance; they are never reused (pictures/request_colours.py).
import { LETTERS, NUM_REQUEST_COLOURS } from "./palette.js";

export class Cast {
  constructor() {
    this.numbers = new Map();
  }

  number(requestId) {
    if (!this.numbers.has(requestId)) this.numbers.set(requestId, this.numbers.size);
    return this.numbers.get(requestId);
  }

  paint(requestId) {
    return `request-${this.number(requestId) % NUM_REQUEST_COLOURS}`;
  }

  letter(requestId) {
    const number = this.number(requestId);
    if (requestId.length <= 2) return requestId;
    if (requestId.length === 3 && requestId[1] === "#") return requestId[0] + requestId[2];
    const turn = Math.floor(number / LETTERS.length);
    return LETTERS[number % LETTERS.length] + (turn ? String(turn + 1) : "");
  }
}

// Return the number of a sample among the samples of its prompt, from 0 on; null if it is the only one.
export function sampleOf(requestId, requests) {
  const match = /^(.*)#(\d+)$/su.exec(requestId);
  return match && requests.has(`${match[1]}#0`) ? Number(match[2]) : null;
}

// Return the sample that computes the prompt for its siblings; without siblings, the request itself.
export function leaderOf(requestId, requests) {
  return sampleOf(requestId, requests) === null ? requestId : requestId.replace(/#\d+$/su, "#0");
}
