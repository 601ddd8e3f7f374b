// Creates elements. Text always becomes a text node: contents of events, errors and names are never
// parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element: `h("a.plain", { href, onclick, "aria-label": … }, "text", child, [more])`. */
export function h(tag, props, ...children) {
  return make(name => document.createElement(name), tag, props, children);
}

/** The same for SVG elements. */
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

// Control characters (except tab and line feed), line and paragraph separators, and marks that
// change text direction.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

/**
 * Text with invisible and direction-changing characters escaped as `\u{202e}`: writers choose ids
 * and types.
 */
export function visible(text) {
  return String(text).replace(UNSEEN, c => `\\u{${c.charCodeAt(0).toString(16)}}`);
}

/** Flattens children to nodes and texts. Empty values are left out. */
export function flat(children) {
  return children
    .flat(Infinity)
    .filter(child => child !== undefined && child !== null && child !== false)
    .map(child => (child instanceof Node ? child : visible(child)));
}

/** Replaces the children of an element. */
export function fill(el, ...children) {
  el.replaceChildren(...flat(children));
  return el;
}

const filled = new WeakMap();

/** Replaces the children only if `data` has changed, so that buttons and unfolded parts stay. */
export function patch(el, data, make) {
  const text = JSON.stringify(data);
  if (filled.get(el) === text) return;
  filled.set(el, text);
  fill(el, make());
}

/**
 * A list that keeps its elements: `make(item)` returns `{ el, update(item) }`, called once per key.
 */
export function keyed(container, key, make) {
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
      if (container.children[i] !== el) container.insertBefore(el, container.children[i] ?? null);
    });
  };
}

/**
 * Sets the text of an element if it differs, so that selections and screen readers are not
 * disturbed.
 */
export function setText(el, text) {
  const next = visible(text);
  if (el.textContent !== next) el.textContent = next;
}
