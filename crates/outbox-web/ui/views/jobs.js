// Jobs: their progress, and stopping them.

import { get, part, post } from "../api.js";
import { now } from "../clock.js";
import { h, keyed, patch } from "../dom.js";
import { number, when } from "../format.js";
import { badge, bar } from "../parts.js";
import { actionButton } from "../role.js";
import { every } from "../state.js";
import { attempt } from "../toast.js";

/** How long an ended job is shown. */
const SHOWN_MS = 10 * 60_000;

const WORDS = { running: ["wait", "Running"], done: ["good", "Finished"], stopped: ["off", "Stopped"], failed: ["bad", "Failed"] };

/** A list of jobs that updates itself. */
export function jobs(signal) {
  const el = h("div.jobs", { "aria-live": "polite" });
  const show = keyed(el, job => job.id, job => card(job, () => refresh()));
  let finished = () => {};
  let ran = false;

  async function refresh() {
    const found = await get("jobs", {}, signal);
    const lately = job => job.state === "running" || now() - Date.parse(job.finished_at) < SHOWN_MS;
    const shown = found.jobs.filter(lately).slice(0, 4);
    show(shown);
    const runs = shown.some(job => job.state === "running");
    if (ran && !runs) finished();
    ran = runs;
  }
  refresh().catch(() => {});
  every(1_000, signal, refresh);
  return { el, refresh, whenDone: run => { finished = run; } };
}

function card({ id }, refresh) {
  const parts = { state: h("span"), progress: h("span"), who: h("span.muted"), stop: h("span.stop"), bar: h("div"), error: h("div") };
  const el = h("section.card.job", { "aria-label": `Job ${id}` },
    h("div.job-line", null, parts.state, parts.progress, parts.who, parts.stop), parts.bar, parts.error);
  const stop = async () => {
    await attempt(() => post(`jobs/${part(id)}/stop`), "Stopping. Changes made so far remain.");
    await refresh();
  };

  function update(job) {
    const [kind, word] = WORDS[job.state] ?? ["off", job.state];
    const total = Math.max(job.total ?? job.done, job.done);
    const verb = job.kind === "purge" ? "purged" : "replayed";
    const label = job.total === null ? `${number(job.done)} ${verb}` : `${number(job.done)} of ${number(total)}${job.more ? "+" : ""} ${verb}`;
    patch(parts.state, job.state, () => badge(kind, word));
    patch(parts.progress, label, () => label);
    patch(parts.who, job.id, () => [job.actor, ", ", when(job.started_at), job.rate && `, at most ${number(job.rate)} per second`]);
    patch(parts.stop, job.state, () => job.state === "running" && actionButton("Stop", { kind: "small", run: stop }));
    patch(parts.bar, [job.done, total, kind], () => bar([[kind === "bad" ? "bad" : "good", job.done]], total, label));
    patch(parts.error, job.error, () => job.error && h("p.error-line", null, job.error));
  }
  return { el, update };
}
