// What a place shows before there is something: that it loads, that there is nothing, that it failed.

import { fill, h } from "./dom.js";

/** Loads into a place. Says so only if it takes a moment; a failure can be tried again. */
export async function load(place, fetch, render) {
  place.setAttribute("aria-busy", "true");
  const slow = setTimeout(() => {
    if (!place.firstChild) fill(place, loading());
  }, 250);
  try {
    const data = await fetch();
    await render(data);
    return data;
  } catch (error) {
    if (error.name === "AbortError" || error.status === 401) return undefined;
    fill(place, failed(error, () => load(place, fetch, render)));
    return undefined;
  } finally {
    clearTimeout(slow);
    place.removeAttribute("aria-busy");
  }
}

export function loading() {
  return h("div.state.loading", { role: "status" }, h("span.spinner", { "aria-hidden": "true" }), "Loading…");
}

/** Nothing there: what that means, and what one might do. */
export function empty(title, ...advice) {
  return h("div.state.empty", null, h("strong", null, title), advice.length ? h("p", null, advice) : null);
}

/** It did not work: what happened, and once more. */
export function failed(error, again) {
  return h("div.state.failed", { role: "alert" },
    h("strong", null, error.title ?? "That did not work"),
    h("p", null, error.message),
    again && h("button.button", { type: "button", onclick: again }, "Try again"));
}

/** Calls again and again until the signal is aborted; not while nobody looks, and never two at once. */
export function every(ms, signal, run) {
  let busy = false;
  const timer = setInterval(async () => {
    if (busy || document.hidden) return;
    busy = true;
    try {
      await run();
    } catch {
      // The next round tries again; what is on the page stays.
    } finally {
      busy = false;
    }
  }, ms);
  signal.addEventListener("abort", () => clearInterval(timer));
}
