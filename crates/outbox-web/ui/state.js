// States of an element without data: loading, empty, failed.

import { fill, h } from "./dom.js";

/** Loads data into an element. Shows a spinner after a moment; a failure can be retried. */
export async function load(container, fetch, render) {
  container.setAttribute("aria-busy", "true");
  const slow = setTimeout(() => {
    if (!container.firstChild) fill(container, loading());
  }, 250);
  try {
    const data = await fetch();
    await render(data);
    return data;
  } catch (error) {
    if (error.name === "AbortError" || error.signedOut) return undefined;
    fill(container, failed(error, () => load(container, fetch, render)));
    return undefined;
  } finally {
    clearTimeout(slow);
    container.removeAttribute("aria-busy");
  }
}

export function loading() {
  return h("div.state.loading", { role: "status" }, h("span.spinner", { "aria-hidden": "true" }), "Loading…");
}

/** Empty state: its meaning, and advice. */
export function empty(title, ...advice) {
  return h("div.state.empty", null, h("strong", null, title), advice.length ? h("p", null, advice) : null);
}

/** Failure, with a button to retry. */
export function failed(error, again) {
  return h("div.state.failed", { role: "alert" },
    h("strong", null, error.title ?? "Request failed"),
    h("p", null, error.message),
    again && h("button.button", { type: "button", onclick: again }, "Try again"));
}

/**
 * Calls `run` periodically until the signal is aborted; not while the page is hidden, and never
 * concurrently.
 */
export function every(ms, signal, run) {
  let busy = false;
  const timer = setInterval(async () => {
    if (busy || document.hidden) return;
    busy = true;
    try {
      await run();
    } catch {
      // The next call retries; the page keeps its content.
    } finally {
      busy = false;
    }
  }, ms);
  signal.addEventListener("abort", () => clearInterval(timer));
}
