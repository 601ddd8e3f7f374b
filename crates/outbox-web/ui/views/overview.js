// Overview: throughput, latency, backlog, and warnings.

import { get } from "../api.js";
import { chart, spark } from "../chart.js";
import { fill, h, setText } from "../dom.js";
import { counted, number, rate, sentence, span, task, things, when } from "../format.js";
import { onLive } from "../live.js";
import { card, head } from "../parts.js";
import { href } from "../route.js";
import { buckets, fitting, WINDOWS } from "../series.js";
import { empty, every, load } from "../state.js";
import { table } from "../table.js";
import { subscriptionStatus } from "./publishers.js";

const FLOW = [
  { key: "written", name: "Written", kind: "written" },
  { key: "delivered", name: "Delivered", kind: "delivered", area: true },
  { key: "retried", name: "Retried", kind: "retried" },
  { key: "dead", name: "Dead", kind: "dead", bars: true },
];
const LATENCY = [
  { key: "p50", name: "p50", kind: "p50" },
  { key: "p95", name: "p95", kind: "p95" },
  { key: "p99", name: "p99", kind: "p99" },
];
const AGE = [{ key: "oldest", name: "Oldest due event", kind: "age", area: true }];

let chosen = null;

export function overview({ main, signal }) {
  const numbers = headline();
  const outages = h("div");
  const charts = {
    flow: chart({ title: "Events per second", series: FLOW, format: rate, height: 240 }),
    latency: chart({ title: "Delivery latency", series: LATENCY, format: span, floor: 10, times: true }),
    age: chart({ title: "Backlog age", series: AGE, format: span, floor: 1_000, times: true }),
  };
  const types = typeTable();
  const publishers = publisherTable();
  const windows = windowSwitch(() => draw());
  let seen = { points: [] };
  let unrouted;

  fill(main, head("Overview", null, windows.el), outages, numbers.el,
    h("div.charts", null, charts.flow.el, charts.latency.el, charts.age.el),
    card("By type", types.el), card("By publisher", publishers.el));

  function draw() {
    const window = chosen ?? fitting(seen.points);
    windows.at(window);
    const part = keys => buckets(seen.points, window, keys);
    charts.flow.draw(part(["written", "delivered", "retried", "dead"]), window);
    charts.latency.draw(part(["p50", "p95", "p99"]), window);
    charts.age.draw(part(["oldest"]), window);
  }

  onLive(signal, update => {
    seen = update;
    if (document.hidden) return;
    draw();
    if (update.latest) {
      numbers.show(update.latest.overview, update.latest.relays);
      warnings(outages, { ...update.latest, unrouted });
      types.live(update.latest.types);
      publishers.live(update.points);
    }
  });
  const refresh = async () => {
    const [all, lag] = await Promise.all([get("overview", {}, signal), get("publishers/lag", {}, signal)]);
    unrouted = all.unrouted;
    numbers.show(all);
    types.show(all);
    publishers.show(lag.publishers);
  };
  load(types.el, refresh, () => {});
  every(5_000, signal, refresh);
}

const HEADLINE = [
  ["due", "Due", "Events that are due, including claimed events", { status: "pending" }],
  ["held", "Claimed", "Events claimed by a relay", { status: "pending" }],
  ["delayed", "Delayed", "Events that are due later, including retries", { status: "pending" }],
  ["retrying", "Retrying", "Events that have failed and will be retried", { status: "retry" }],
  ["dead", "Dead", "Dead-lettered events, which need an operator", { status: "dead" }],
];

function headline() {
  const values = {};
  const tiles = HEADLINE.map(([key, name, hint, query]) => {
    values[key] = h("b", null, "–");
    return h("a.tile", { href: href(key === "dead" ? "dead" : "events", key === "dead" ? {} : query), title: hint, class: key }, h("span", null, name), values[key]);
  });
  const oldest = h("b", null, "–");
  const settled = h("span", null, "–");
  const running = h("span");
  const el = h("section.tiles", { "aria-label": "Now" }, tiles,
    h("div.tile.wide", null, h("span", null, "Oldest due"), oldest, h("small", null, "last settled ", settled), h("small", null, running)));
  function show(all, relays) {
    if (!all) return;
    if (relays !== undefined) setText(running, `${things(relays, "relay")}`);
    for (const [key] of HEADLINE) {
      setText(values[key], counted(all[key]));
      values[key].title = all[key]?.more ? "Bounded count: there may be more" : "";
      values[key].parentElement.classList.toggle("some", Boolean(all[key]?.count));
    }
    setText(oldest, all.oldest_due_ms === null || all.oldest_due_ms === undefined ? "none" : span(all.oldest_due_ms));
    fill(settled, all.last_settled ? when(all.last_settled) : "never");
  }
  return { el, show };
}

/** Warnings. Replaced only when they change, so that screen readers announce them once. */
function warnings(container, { error, relays, outages, failing = [], unrouted, overview }) {
  const found = [];
  const first = new Map(outages.map(one => [one.destination, one]).reverse());
  if (error) found.push(["No current data", sentence(error), "The numbers below are from the last successful sample."]);
  else if (relays === 0 && overview.held.count === 0) found.push(["No relay is running", "Events are written, but not delivered.", "Start one with outbox relay, or with .start() in your application."]);
  for (const one of failing) {
    found.push([`${one.node} fails to ${task(one.task)}`, [" since ", when(one.since), ". ", sentence(one.error)],
      "The relay retries. Until it succeeds, its events wait."]);
  }
  for (const one of first.values()) {
    found.push([`${one.destination} is unavailable`, [" since ", when(one.since), ". ", sentence(one.reason)],
      one.types.length ? `Events of these types wait, and no attempts are counted: ${one.types.join(", ")}.` : "Its events wait, and no attempts are counted."]);
  }
  const left = error ? [] : (unrouted?.types ?? []);
  if (left.length) {
    const named = left.slice(0, 5).map(one => one.event_type).join(", ");
    found.push(["No running relay routes some events", ` ${unrouted.more ? "at least " : ""}${things(left.reduce((sum, one) => sum + one.count, 0), "pending event")} of ${things(left.length, "type")}: ${named}${left.length > 5 ? ", …" : ""}.`,
      "They stay pending until a relay with a handler or a route for them is running."]);
  }
  const state = JSON.stringify([error, relays, failing.map(one => [one.node, one.task, one.since, one.error]), [...first.values()], left]);
  if (container.dataset.state === state) return;
  container.dataset.state = state;
  fill(container, found.map(([title, what, then]) => h("section.banner.outage", { role: "alert" },
    h("div", null, h("strong", null, title), " ", what), h("p", null, then))));
}

function windowSwitch(changed) {
  const buttons = WINDOWS.map(([ms, name]) => h("button", { type: "button", onclick: () => { chosen = ms; changed(); } }, name));
  const at = window => WINDOWS.forEach(([ms], i) => buttons[i].setAttribute("aria-pressed", String(ms === window)));
  return { el: h("div.segments", { role: "group", "aria-label": "Time range" }, buttons), at };
}

function typeTable() {
  const list = table({
    caption: "By type",
    key: type => type.event_type,
    href: type => href("events", { event_type: type.event_type }),
    columns: [
      { name: "Type", wide: true, cell: type => h("span.type", null, type.event_type) },
      { name: "Pending", num: true, cell: type => counted(type.pending) },
      { name: "Oldest", num: true, cell: type => when(type.oldest) },
      { name: "Delivered/s", num: true, cell: type => rate(type.delivered_per_second) },
      { name: "Failed/s", num: true, cell: type => rate(type.failed_per_second) },
      { name: "Dead", num: true, cell: type => (type.dead?.count ? h("a.bad", { href: href("dead", { event_type: type.event_type }) }, counted(type.dead)) : "0") },
    ],
  });
  const el = h("div");
  let last = [];
  /** Rates arrive every second, counts every few seconds. */
  function live(rates) {
    if (!last.length) return;
    const now = new Map(rates.map(one => [one.event_type, one]));
    last = last.map(type => ({ ...type, delivered_per_second: now.get(type.event_type)?.delivered ?? 0, failed_per_second: now.get(type.event_type)?.failed ?? 0 }));
    list.update(last);
  }
  function show({ types }) {
    last = types;
    if (!types.length) return fill(el, empty("No pending events, and no recent deliveries.", "Types are listed here once events are written."));
    list.update(types);
    if (!list.el.isConnected) fill(el, list.el);
    return undefined;
  }
  return { el, show, live };
}

function publisherTable() {
  let behind = {};
  const id = subscription => `${subscription.topic}/${subscription.publisher}`;
  const list = table({
    caption: "By publisher",
    key: id,
    href: subscription => href("publishers", { publisher: subscription.publisher }),
    columns: [
      { name: "Publisher", wide: true, cell: subscription => [h("span.type", null, subscription.publisher), h("span.sub", null, subscription.topic)] },
      { name: "Status", cell: subscriptionStatus },
      { name: "Lag", num: true, cell: subscription => number(subscription.behind) },
      { name: "Trend", num: true, cell: subscription => spark(behind[id(subscription)] ?? [], "Recent lag") },
    ],
  });
  const el = h("div");
  let last = [];
  function show(subscriptions) {
    last = subscriptions;
    if (!subscriptions.length) return fill(el, empty("No publisher has been started.", "Publishers of the log are listed here once a relay runs them. Events of the queue need no publisher."));
    list.update(subscriptions);
    if (!list.el.isConnected) fill(el, list.el);
    return undefined;
  }
  function live(points) {
    behind = {};
    for (const point of points.filter((_, i) => i % 5 === 0).slice(-60)) {
      for (const subscription of point.publishers ?? []) (behind[id(subscription)] ??= []).push(subscription.behind);
    }
    if (last.length) list.update(last);
  }
  return { el, show, live };
}
