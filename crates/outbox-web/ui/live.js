// Live samples by server-sent events: keeps the last 15 minutes, and notifies listeners.

import { address, get } from "./api.js";
import { syncClock } from "./clock.js";

const KEPT_MS = 15 * 60_000;
const TIMEOUT_MS = 12_000;
const HIDDEN_MS = 60_000;

let source = null;
let lastMessageAt = 0;
let retry = 0;
let hiddenTimer = 0;
let state = "off";
let points = [];
let latest = null;
const listeners = new Set();

/** Calls `fn({ points, latest, state })` now and on every message, until the signal is aborted. */
export function onLive(signal, fn) {
  listeners.add(fn);
  signal.addEventListener("abort", () => listeners.delete(fn));
  fn({ points, latest, state });
}

/** Connects, and discards the samples of another database. */
export function connect() {
  disconnect();
  points = [];
  latest = null;
  open();
}

/** Disconnects, on sign-out. */
export function disconnect() {
  if (source instanceof EventSource) source.close();
  source = null;
  clearTimeout(retry);
  setState("off");
}

/** Reconnects at once instead of waiting for the next retry. */
export function reconnect() {
  if (source instanceof EventSource) source.close();
  open();
}

function open() {
  clearTimeout(retry);
  lastMessageAt = Date.now();
  setState(state === "lost" ? "lost" : "connecting");
  const stream = new EventSource(address("live"));
  source = stream;
  stream.addEventListener("history", event => receive(() => { points = JSON.parse(event.data).map(point); }));
  stream.addEventListener("tick", event => receive(() => add(JSON.parse(event.data))));
  stream.addEventListener("renew", () => { if (source === stream) reconnect(); });
  stream.onerror = () => {
    if (source !== stream) return;
    setState("lost");
    // A browser does not reconnect after a response that is not a stream, such as a 502 of a proxy.
    if (stream.readyState === EventSource.CLOSED) retryLater();
  };
}

/** Retries in 3 s, unless the caller is signed out: a stream cannot report that. */
function retryLater() {
  clearTimeout(retry);
  retry = setTimeout(() => get("whoami").then(open, error => { if (!error.signedOut) retryLater(); }), 3_000);
}

function receive(apply) {
  lastMessageAt = Date.now();
  apply();
  state = "live";
  notify();
}

function add(message) {
  syncClock(message.at);
  latest = message;
  points.push(point(message));
  const oldest = points.at(-1).at - KEPT_MS;
  while (points.length && points[0].at < oldest) points.shift();
}

function point(message) {
  const { at, written, delivered, retried, dead, p50, p95, p99, oldest, publishers } = message;
  return { at: new Date(at).getTime(), written, delivered, retried, dead, p50, p95, p99, oldest, publishers };
}

function setState(next) {
  if (state === next) return;
  state = next;
  notify();
}

function notify() {
  for (const fn of [...listeners]) fn({ points, latest, state });
}

// A connection without messages counts as lost: suspend or a proxy may leave it open.
setInterval(() => {
  if (source instanceof EventSource && state === "live" && Date.now() - lastMessageAt > TIMEOUT_MS) {
    setState("lost");
    reconnect();
  }
}, 2_000);

// A hidden page closes its connection after a minute.
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiddenTimer);
  if (document.hidden) {
    hiddenTimer = setTimeout(() => {
      if (source instanceof EventSource) {
        source.close();
        source = "suspended";
      }
    }, HIDDEN_MS);
  } else if (source === "suspended") {
    open();
  }
});
