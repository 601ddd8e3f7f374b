// Short notifications, announced by screen readers.

import { h } from "./dom.js";

/** Shows a notification: `toast("Event replayed", "good")`. */
export function toast(text, kind = "") {
  const box = document.getElementById("toasts");
  const close = h("button.icon", { type: "button", "aria-label": "Close message", onclick: () => el.remove() }, "×");
  const el = h("div.toast", { class: kind, role: kind === "bad" ? "alert" : undefined }, h("span", null, text), close);
  box.append(el);
  while (box.children.length > 4) box.firstElementChild.remove();
  setTimeout(() => el.remove(), kind === "bad" ? 12_000 : 6_000);
}

/** Runs an operation, and shows its error if it fails. Returns its result, or undefined. */
export async function attempt(run, done) {
  try {
    const result = await run();
    if (done) toast(typeof done === "function" ? done(result) : done, "good");
    return result ?? true;
  } catch (error) {
    if (error.name !== "AbortError" && !error.signedOut) toast(error.message, "bad");
    return undefined;
  }
}
