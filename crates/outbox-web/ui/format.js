// Formats numbers, times and sizes.

import { h } from "./dom.js";
import { now } from "./clock.js";

const whole = new Intl.NumberFormat("en-US");
const absolute = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

/** `12,345`; a dash for an unknown value. */
export function number(n) {
  return n === undefined || n === null ? "–" : whole.format(n);
}

/** A bounded count: `10,000+`. */
export function counted(c) {
  if (c === undefined || c === null) return "–";
  if (typeof c === "number") return number(c);
  return number(c.count) + (c.more ? "+" : "");
}

/** A bounded count in short form: `1.2k`, `10k+`. */
export function brief(c) {
  if (c.count < 1_000) return counted(c);
  return `${Number((c.count / 1_000).toFixed(c.count < 10_000 ? 1 : 0))}k${c.more ? "+" : ""}`;
}

/** `1 event`, `2 events`; also for a bounded count. */
export function things(c, one, many = `${one}s`) {
  const single = c === 1 || (c?.count === 1 && !c.more);
  return `${counted(c)} ${single ? one : many}`;
}

/** Events per second, with few digits. */
export function rate(perSecond) {
  if (perSecond === undefined || perSecond === null) return "–";
  if (perSecond === 0) return "0";
  if (perSecond < 0.05) return "<0.1";
  return perSecond < 9.95 ? perSecond.toFixed(1) : whole.format(Math.round(perSecond));
}

/** A duration in milliseconds, in a suitable unit. */
export function span(ms) {
  if (ms === undefined || ms === null) return "–";
  if (ms < 10) return `${Number(ms.toFixed(1))} ms`;
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1_000;
  if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7_200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.round(seconds / 3_600)} h`;
  return `${whole.format(Math.round(seconds / 86_400))} days`;
}

/** Time relative to now. */
function relative(at) {
  const past = now() - new Date(at).getTime();
  if (Math.abs(past) < 1_500) return "just now";
  return past > 0 ? `${span(past)} ago` : `in ${span(-past)}`;
}

/** The full time, in the local time zone and in UTC. */
function exact(at) {
  const date = new Date(at);
  return `${absolute.format(date)} (${date.toISOString()})`;
}

/** A relative time, updated by `keepTimes`; the full time is in its title. */
export function when(at) {
  if (!at) return "–";
  return h("time", { datetime: at, title: exact(at), "data-relative": true }, relative(at));
}

/** Updates relative times every second. */
export function keepTimes() {
  setInterval(() => {
    if (document.hidden) return;
    for (const el of document.querySelectorAll("time[data-relative]")) {
      const text = relative(el.getAttribute("datetime"));
      if (el.textContent !== text) el.textContent = text;
    }
  }, 1_000);
}

/** `1.2 kB`. */
export function bytes(n) {
  if (n === undefined || n === null) return "–";
  if (n < 1_000) return `${n} B`;
  if (n < 1_000_000) return `${(n / 1_000).toFixed(1)} kB`;
  return `${(n / 1_000_000).toFixed(1)} MB`;
}

/** The first line, shortened to this length. */
export function short(text, most = 120) {
  if (!text) return "";
  const [line, ...rest] = text.split("\n");
  return line.length > most || rest.length ? `${line.slice(0, most - 1)}…` : line;
}

/** Capitalizes a text and ends it with a full stop. */
export function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1).replace(/\.?$/, ".");
}

/** `order 42`; leaves out the placeholder for events without an aggregate. */
export function aggregate(event) {
  const type = event.aggregate_type === "__GLOBAL__" ? null : event.aggregate_type;
  return [type, event.aggregate_id].filter(Boolean).join(" ") || "–";
}

const TASKS = {
  take: "take events", settle: "settle events", renew: "renew its leases", dispatch: "dispatch events", log_relay: "publish the log",
  watch: "listen for new events", log_watch: "listen for appends to the log", announce: "announce itself",
  takeover: "release leases of vanished relays", purge: "purge old rows",
};

/** Description of a relay's task, for errors. */
export function task(name) {
  return TASKS[name] ?? `run ${name}`;
}
