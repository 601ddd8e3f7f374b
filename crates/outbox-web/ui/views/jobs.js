// Work that takes long: how far it is, and stopping it.

import { get, part, post } from "../api.js";
import { now } from "../clock.js";
import { fill, h } from "../dom.js";
import { number, when } from "../format.js";
import { badge, bar } from "../parts.js";
import { act } from "../role.js";
import { every } from "../state.js";
import { attempt } from "../toast.js";

const SHOWN_MS = 10 * 60_000;

const WORDS = { running: ["wait", "Running"], done: ["good", "Finished"], stopped: ["off", "Stopped"], failed: ["bad", "Failed"] };

/** A list of jobs that keeps itself up to date. */
export function jobs(signal) {
  const el = h("div.jobs", { "aria-live": "polite" });
  let finished = () => {};
  let ran = false;

  async function refresh() {
    const found = await get("jobs", {}, signal);
    const shown = found.jobs.filter(job => job.state === "running" || now() - Date.parse(job.finished_at) < SHOWN_MS).slice(0, 4);
    fill(el, shown.map(job => line(job, refresh)));
    const runs = shown.some(job => job.state === "running");
    if (ran && !runs) finished();
    ran = runs;
  }
  refresh().catch(() => {});
  every(1_000, signal, refresh);
  return { el, refresh, whenDone: run => { finished = run; } };
}

function line(job, refresh) {
  const [kind, word] = WORDS[job.state] ?? ["off", job.state];
  const total = Math.max(job.total ?? job.done, job.done);
  const verb = job.kind === "purge" ? "purged" : "replayed";
  const label = job.total === null ? `${number(job.done)} ${verb}` : `${number(job.done)} of ${number(total)}${job.more ? "+" : ""} ${verb}`;
  return h("section.card.job", { "aria-label": `Job ${job.id}` },
    h("div.job-line", null, badge(kind, word), h("span", null, label), h("span.muted", null, job.actor, ", ", when(job.started_at), job.rate && `, at most ${number(job.rate)} a second`),
      job.state === "running" && act("Stop", { kind: "small", run: async () => {
        await attempt(() => post(`jobs/${part(job.id)}/stop`), "Stopping. What is done stays done.");
        await refresh();
      } })),
    bar([[kind === "bad" ? "bad" : "good", job.done]], total, label),
    job.error && h("p.error-line", null, job.error));
}
