// Makes elements. Text only ever becomes a text node: whatever an event, an error or a name holds, it is shown and never parsed.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element: `h("a.plain", { href, onclick, "aria-label": … }, "text", child, [more])`. */
export function h(tag, props, ...children) {
  return make(name => document.createElement(name), tag, props, children);
}

/** The same in SVG. */
export function s(tag, props, ...children) {
  return make(name => document.createElementNS(SVG, name), tag, props, children);
}

function make(create, tag, props, children) {
  const [name, ...classes] = tag.split(".");
  const el = create(name);
  if (classes.length) el.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(props ?? {})) set(el, key, value);
  el.append(...flat(children));
  return el;
}

function set(el, key, value) {
  if (value === undefined || value === null || value === false) return;
  if (key.startsWith("on")) el.addEventListener(key.slice(2), value);
  else if (key === "class") value.split(" ").filter(Boolean).forEach(name => el.classList.add(name));
  else if (key === "value" || key === "checked" || key === "selected") el[key] = value;
  else if (key === "title" || key === "aria-label") el.setAttribute(key, visible(value));
  else el.setAttribute(key, value === true ? "" : String(value));
}

// Controls (but for tabs and line feeds), line and paragraph separators, and marks that turn the direction of the text around them.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

/** A text with what cannot be seen, or makes other text look different, as `\u{202e}` and the like: writers choose ids and types. */
export function visible(text) {
  return String(text).replace(UNSEEN, c => `\\u{${c.charCodeAt(0).toString(16)}}`);
}

/** What can be a child: nodes and texts, in lists of lists; nothing stands for nothing. */
export function flat(children) {
  return children
    .flat(Infinity)
    .filter(child => child !== undefined && child !== null && child !== false)
    .map(child => (child instanceof Node ? child : visible(child)));
}

/** Puts these in, instead of what was there. */
export function fill(el, ...children) {
  el.replaceChildren(...flat(children));
  return el;
}

const filled = new WeakMap();

/** The same, if what it is made of differs from the last time: a button stays under the pointer, what is unfolded stays so. */
export function patch(el, data, make) {
  const text = JSON.stringify(data);
  if (filled.get(el) === text) return;
  filled.set(el, text);
  fill(el, make());
}

/** A list whose elements stay: `make(item)` gives `{ el, update(item) }`, once for each key. */
export function keyed(place, key, make) {
  const known = new Map();
  return items => {
    const now = new Set(items.map(key));
    for (const [id, { el }] of known) {
      if (now.has(id)) continue;
      el.remove();
      known.delete(id);
    }
    items.forEach((item, i) => {
      const id = key(item);
      if (!known.has(id)) known.set(id, make(item));
      const { el, update } = known.get(id);
      update(item);
      if (place.children[i] !== el) place.insertBefore(el, place.children[i] ?? null);
    });
  };
}

/** Sets a text, and touches nothing if it is there already: a selection or a screen reader stays where it is. */
export function say(el, text) {
  const next = visible(text);
  if (el.textContent !== next) el.textContent = next;
}
