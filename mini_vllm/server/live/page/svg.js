// Helpers for SVG, like those in mini_vllm/pictures/elements.py and canvas.py: shapes painted by name.
import { PAINTS, PREFIX } from "./palette.js";

const NAMESPACE = "http://www.w3.org/2000/svg";

export function shape(parent, name, attributes = {}, text = "", title = "") {
  const element = document.createElementNS(NAMESPACE, name);
  paint(element, attributes);
  if (title) {
    const told = document.createElementNS(NAMESPACE, "title");
    told.textContent = clean(title);
    element.append(told);
  }
  if (text) element.append(clean(text));
  parent.append(element);
  return element;
}

// `fill` and `stroke` are names of the palette, or colours in SVG's notation. A class marks paints that have another
// colour on dark paper. Attributes that are null are left out.
export function paint(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  const classes = [];
  for (const name of ["fill", "stroke"]) {
    const paintName = attributes[name], colours = PAINTS[paintName];
    if (!colours) continue;
    element.setAttribute(name, colours.light);
    if (colours.light !== colours.dark) classes.push(`${PREFIX}${name[0]}-${paintName}`);
  }
  if (classes.length) element.setAttribute("class", classes.join(" "));
}

// Replace control characters by a sign, as the pictures in files do, which cannot contain them.
function clean(text) {
  return text.replace(/[^\t\n\r\x20-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu, "\ufffd");
}

export function hatch(parent, x, y, width, height) {
  return shape(parent, "rect", { x, y, width, height, fill: "url(#mv-hatch)", "pointer-events": "none", "data-mark": "shared" });
}

export function textAt(parent, x, y, text, size, fill = "faint", more = {}, title = "") {
  return shape(parent, "text", { x, y, "font-size": size, fill, ...more }, text, title);
}

export function resize(svg, width, height, label) {
  const size = { width: Math.ceil(width), height: Math.ceil(height) };
  for (const [name, value] of Object.entries({ ...size, viewBox: `0 0 ${size.width} ${size.height}`, "aria-label": label })) {
    if (svg.getAttribute(name) !== String(value)) svg.setAttribute(name, value);
  }
}

const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]/u;

// Estimate the width of a text. Fonts differ, so the estimate is rather too large.
export function textWidth(text, size) {
  let sum = 0;
  for (const letter of text) sum += WIDE.test(letter) ? 1.7 : 1;
  return 0.61 * size * sum;
}

// Return the beginning and the end of an id: ids of one batch often differ only at the end.
export function shorten(text, most = 24) {
  const letters = [...text];
  return letters.length <= most ? text : letters.slice(0, most - 10).join("") + "…" + letters.slice(-9).join("");
}

// Measure the width of a text in the font of the drawings, which depends on the installed fonts.
const pencil = document.createElement("canvas").getContext("2d");
export function measuredWidth(text, size, isBold = false) {
  pencil.font = `${isBold ? "bold " : ""}${size}px Helvetica, Arial, sans-serif`;
  return pencil.measureText(text).width;
}

// Attributes that make a text narrower if it would be wider than its place.
export function fitted(text, size, room, isBold = false) {
  return measuredWidth(text, size, isBold) <= room ? {} : { textLength: room, lengthAdjust: "spacingAndGlyphs" };
}

// Return the beginning of a text that fits.
export function cut(text, size, room, isBold = false) {
  const letters = [...text];
  if (measuredWidth(text, size, isBold) <= room) return text;
  let number = letters.length;
  const beginning = () => letters.slice(0, number).join("").trimEnd() + "…";
  while (number > 1 && measuredWidth(beginning(), size, isBold) > room) number -= 1;
  return beginning();
}

export function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}
