// Elements used by several views.

import { h } from "./dom.js";
import { again, href } from "./route.js";

const WORDS = {
  NEW: ["wait", "Waiting"], RETRY: ["warn", "Retrying"], DONE: ["good", "Done"], DEAD: ["bad", "Dead"],
  ACTIVE: ["good", "Active"], PAUSED: ["wait", "Paused"], FAILED: ["bad", "Failed"],
  PENDING: ["wait", "Pending"], COMPLETED: ["good", "Completed"], CANCELLED: ["off", "Cancelled"],
};

/** A status: text and shape, so that it can be read without colour. */
export function status(word, text) {
  const [kind, name] = WORDS[String(word).toUpperCase()] ?? ["off", String(word)];
  return h("span.status", { class: kind }, text ?? name);
}

/** A badge with any text and kind: `good`, `warn`, `bad`, `wait`, `off`. */
export function badge(kind, text) {
  return h("span.status", { class: kind }, text);
}

/** A link to an event, by its id or its `seq:` name. */
export function eventLink(id, text = id) {
  return h("a.mono", { href: href(["events", id]) }, text);
}

/** Header of a view: title, description, and tools. */
export function head(title, line, ...tools) {
  return h("header.view-head", null,
    h("div", null, h("h1", null, title), line && h("p.muted", null, line)),
    tools.length ? h("div.tools", null, tools) : null);
}

/** Refresh button, for lists that are not updated automatically. */
export function refreshButton() {
  return h("button.button", { type: "button", title: "Reload (r)", onclick: again }, "Refresh");
}

/** A section with a title. */
export function card(title, ...content) {
  return h("section.card", null, title && h("h2", null, title), content);
}

/** A list of names and values. Pairs without a value are left out. */
export function facts(pairs) {
  return h("dl.facts", null, pairs
    .filter(([, value]) => value !== undefined && value !== null && value !== "")
    .map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}

/** Shares of a total, as a bar with a label. */
export function bar(parts, total, label) {
  const shares = parts.map(([kind, count]) => {
    const el = h("span", { class: kind });
    el.style.width = total ? `${(100 * count) / total}%` : "0";
    return el;
  });
  return h("div.bar", { role: "img", "aria-label": label, title: label }, shares);
}

/** A button that copies a text to the clipboard. */
export function copy(text, label = "Copy") {
  const button = h("button.button.small.quiet", {
    type: "button",
    onclick: async () => {
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Not allowed";
      }
      setTimeout(() => { button.textContent = label; }, 1_500);
    },
  }, label);
  return button;
}
