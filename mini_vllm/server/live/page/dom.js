// Short functions that create elements of the page.
import { PAINTS } from "./palette.js";

export function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in element && key !== "list" && key !== "form") element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

export function button(text, onclick, properties = {}) {
  return make("button", { type: "button", textContent: text, onclick, ...properties });
}

// The letter of a request on its colour.
export function chip(letter, paint) {
  const made = make("span", { className: "chip", textContent: letter });
  made.style.backgroundColor = PAINTS[paint].light;
  return made;
}
