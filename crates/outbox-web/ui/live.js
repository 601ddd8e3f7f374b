// What happens right now, by server-sent events: the last quarter of an hour, and who wants to hear of it.

import { address, get } from "./api.js";
import { heard } from "./clock.js";

const KEPT_MS = 15 * 60_000;
const SILENT_MS = 12_000;
const UNSEEN_MS = 60_000;

let source = null;
let lastWord = 0;
let retry = 0;
let unseen = 0;
let state = "off";
let points = [];
let latest = null;
const listeners = new Set();

/** Hears of every message until the signal is aborted: `fn({ points, latest, state })`. Called once at once. */
export function onLive(signal, fn) {
  listeners.add(fn);
  signal.addEventListener("abort", () => listeners.delete(fn));
  fn({ points, latest, state });
}

/** Connects, forgetting what was heard of another database. */
export function connect() {
  disconnect();
  points = [];
  latest = null;
  open();
}

/** Ends it: signed out. */
export function disconnect() {
  if (source instanceof EventSource) source.close();
  source = null;
  clearTimeout(retry);
  turn("off");
}

/** Tries at once instead of waiting for the next time. */
export function reconnect() {
  if (source instanceof EventSource) source.close();
  open();
}

function open() {
  clearTimeout(retry);
  lastWord = Date.now();
  turn(state === "lost" ? "lost" : "connecting");
  const stream = new EventSource(address("live"));
  source = stream;
  stream.addEventListener("history", event => receive(() => { points = JSON.parse(event.data).map(point); }));
  stream.addEventListener("tick", event => receive(() => add(JSON.parse(event.data))));
  stream.onerror = () => {
    if (source !== stream) return;
    turn("lost");
    // A browser gives up on an answer that is no stream: a relay that restarts, a proxy that says 502.
    if (stream.readyState === EventSource.CLOSED) later();
  };
}

/** In a moment, if the server still knows who asks: a stream cannot say that it does not. */
function later() {
  clearTimeout(retry);
  retry = setTimeout(() => get("whoami").then(open, error => { if (error.status !== 401) later(); }), 3_000);
}

function receive(take) {
  lastWord = Date.now();
  take();
  state = "live";
  tell();
}

function add(message) {
  heard(message.at);
  latest = message;
  points.push(point(message));
  const oldest = points.at(-1).at - KEPT_MS;
  while (points.length && points[0].at < oldest) points.shift();
}

function point(message) {
  const { at, written, delivered, retried, dead, p50, p95, p99, oldest, publishers } = message;
  return { at: new Date(at).getTime(), written, delivered, retried, dead, p50, p95, p99, oldest, publishers };
}

function turn(next) {
  if (state === next) return;
  state = next;
  tell();
}

function tell() {
  for (const fn of [...listeners]) fn({ points, latest, state });
}

// A connection that says nothing is as good as none: a sleeping laptop or a proxy does not end it.
setInterval(() => {
  if (source instanceof EventSource && state === "live" && Date.now() - lastWord > SILENT_MS) {
    turn("lost");
    reconnect();
  }
}, 2_000);

// A page that nobody looks at lets go of its connection after a minute.
document.addEventListener("visibilitychange", () => {
  clearTimeout(unseen);
  if (document.hidden) {
    unseen = setTimeout(() => {
      if (source instanceof EventSource) {
        source.close();
        source = "resting";
      }
    }, UNSEEN_MS);
  } else if (source === "resting") {
    open();
  }
});
