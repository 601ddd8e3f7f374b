// Publishers of the log: position and lag in each topic, and actions.

import { get, part, post } from "../api.js";
import { confirmDialog } from "../dialog.js";
import { fill, h } from "../dom.js";
import { number, short, when } from "../format.js";
import { badge, head, status } from "../parts.js";
import { actionButton } from "../role.js";
import { href } from "../route.js";
import { empty, every, load } from "../state.js";
import { table } from "../table.js";
import { attempt } from "../toast.js";

export function publishers({ main, query, signal }) {
  const container = h("div");
  const skipped = h("div");
  fill(main, head("Publishers", "Each publisher has a position in each topic of the log: all events up to it are published.",
    query.publisher && h("a.button", { href: href("publishers") }, "Show all")), container, skipped);
  const list = table({
    caption: "Publishers and topics", key: subscription => `${subscription.topic}/${subscription.publisher}`, columns: columns(() => refresh()),
    rowClass: subscription => (subscription.status === "FAILED" ? "row-bad" : ""),
  });
  const unreadable = table({
    caption: "Events that could not be decoded", key: event => event.position, columns: unreadableColumns,
    rowClass: () => "row-bad",
  });
  const fetch = () => get("publishers", {}, signal);
  const render = found => {
    unreadable.update(found.unreadable);
    if (!found.unreadable.length) fill(skipped);
    else if (!unreadable.el.isConnected) fill(skipped, h("h2", null, "Skipped events"),
      h("p.sub", null, "Publishers could not decode these events of the log and skipped them. To publish one, repair its row and reset the publishers to the position before it."), unreadable.el);
    const subscriptions = rows(found).filter(subscription => !query.publisher || subscription.publisher === query.publisher);
    if (!subscriptions.length) return fill(container, empty("No publisher has been started.", "Publishers are listed here once a relay runs topics with publishers. Events of the queue need no publisher."));
    list.update(subscriptions);
    if (!list.el.isConnected) fill(container, list.el);
    return undefined;
  };
  const refresh = async () => render(await fetch());
  load(container, fetch, render);
  every(2_000, signal, refresh);
}

/**
 * A row per subscription, and one per unavailable publisher without a topic, which gets events of
 * the queue.
 */
function rows({ publishers: subscriptions, outages }) {
  const of = name => outages.filter(outage => outage.destination === name);
  const names = new Set(outages.map(outage => outage.destination).filter(name => !subscriptions.some(subscription => subscription.publisher === name)));
  return subscriptions.map(subscription => ({ ...subscription, outages: of(subscription.publisher) }))
    .concat([...names].map(name => ({ publisher: name, topic: null, status: "FAILED", outages: of(name) })));
}

const unreadableColumns = [
  { name: "Position", num: true, tight: true, cell: event => number(event.position) },
  { name: "First seen", tight: true, cell: event => when(event.noted_at) },
  { name: "Reason", wide: true, cell: event => h("span.error-line", { title: event.reason }, short(event.reason, 200)) },
];

function columns(refresh) {
  return [
    { name: "Publisher", wide: true, cell: subscription => [h("strong.type", null, subscription.publisher), h("span.sub", null, subscription.topic ? `topic ${subscription.topic}` : "events of the queue")] },
    { name: "Status", cell: subscriptionStatus, tight: true },
    { name: "Position", num: true, cell: subscription => (subscription.topic ? [number(subscription.position), h("span.sub", null, `of ${number(subscription.head)}`)] : "–") },
    { name: "Lag", num: true, cell: subscription => (subscription.topic ? [h("b", null, number(subscription.behind)), h("span.sub", null, "moved ", when(subscription.updated_at))] : "–") },
    { name: "Leader", cell: subscription => leader(subscription) },
    { name: "Errors", wide: true, cell: errors },
    { name: "Actions", tight: true, keep: subscription => subscription.status, cell: (subscription, latest) => (subscription.topic ? h("div.tools", null, buttons(subscription, latest, refresh)) : "–") },
  ];
}

/** Status of a subscription. One that fails is still retried. */
export function subscriptionStatus(subscription) {
  if (subscription.outages?.length) return badge("bad", "Unavailable");
  if (subscription.waits_for) return badge("warn", "Waiting");
  return status(subscription.status, subscription.status === "FAILED" ? "Failing" : undefined);
}

function leader(subscription) {
  if (!subscription.leader) return "–";
  return [h("span.mono.cut", { title: subscription.leader }, subscription.leader), subscription.remaining_ms === 0 && h("span.sub", null, "lease expired")];
}

function errors(subscription) {
  const away = subscription.outages.map(one => [h("span.error-line", { title: one.reason }, short(one.reason, 120)), h("span.sub", null, "unavailable since ", when(one.since))]);
  const own = subscription.last_error && subscription.errors > 0
    && [h("span.error-line", { title: subscription.last_error }, short(subscription.last_error, 120)), h("span.sub", null, `${number(subscription.errors)} consecutive`)];
  const open = subscription.waits_for && [h("span.error-line", null, `waits for ${openAppend(subscription.waits_for)}, which has appended to the log and is still open`),
    h("span.sub", null, subscription.waits_for.since ? ["since ", when(subscription.waits_for.since)] : "start time not visible to the database role")];
  return away.length || own || open ? [open, away, own] : "–";
}

/** Describes the open transaction that a subscription waits for. */
function openAppend({ backend, prepared, user, application }) {
  const about = [user && `role ${user}`, application && `application ${application}`].filter(Boolean).join(", ");
  const what = prepared ? `the prepared transaction ${prepared}` : `backend ${backend ?? "unknown"}`;
  return about ? `${what} (${about})` : what;
}

function buttons(subscription, latest, refresh) {
  const at = what => `publishers/${part(subscription.publisher)}/topics/${part(subscription.topic)}/${what}`;
  const run = (question, what, done) => async () => {
    const body = await confirmDialog(question(latest()));
    if (!body) return;
    await attempt(() => post(at(what), body === true ? {} : body), done);
    await refresh();
  };
  const paused = subscription.status === "PAUSED";
  const name = `${subscription.publisher} in ${subscription.topic}`;
  return [
    paused || subscription.status === "FAILED"
      ? actionButton("Resume", { kind: "small", run: run(now => ({
        title: `Resume ${name}?`,
        body: [`Publishing continues at position ${number(now.position)}, with ${number(now.behind)} positions to catch up. The error count is reset.`],
        confirm: "Resume",
      }), "resume", "Resumed.") }) : null,
    paused ? null : actionButton("Pause", { kind: "small", run: run(() => ({
      title: `Pause ${name}?`,
      body: ["A batch that is in flight is still published. The publisher keeps its position, and the log keeps its events."],
      confirm: "Pause",
    }), "pause", "Paused.") }),
    actionButton("Reset…", { kind: "small", needs: "admin", run: run(now => resetQuestion(now, name), "reset", "Reset.") }),
  ];
}

function resetQuestion(subscription, name) {
  const choice = (value, label, input) => {
    const radio = h("input", { type: "radio", name: "reset-to", value, id: `reset-${value}`, checked: value === "position" });
    input?.addEventListener("focus", () => { radio.checked = true; });
    return h("div.choice", null, radio, h("label", { for: `reset-${value}` }, label), input);
  };
  const position = h("input", { type: "number", min: 0, max: subscription.head, value: subscription.position, "aria-label": "Position" });
  const time = h("input", { type: "datetime-local", step: 1, "aria-label": "Time" });
  const choices = h("div", null,
    choice("start", "To the start: all events are published again"),
    choice("end", `To the end (${number(subscription.head)}): unpublished events are skipped`),
    choice("position", "To a position", position),
    choice("time", "To a time: events stored since then are published", time));
  return {
    title: `Reset ${name}?`,
    body: [`The position is ${number(subscription.position)} of ${number(subscription.head)}. Resetting backward publishes events again; forward skips events.`],
    fields: [choices], confirm: "Reset", danger: true,
    read: () => {
      const to = choices.querySelector("input[type=radio]:checked").value;
      if (to === "start" || to === "end") return { to };
      if (to === "position") return { position: Number(position.value) };
      if (!time.value) throw new Error("Enter a time.");
      return { time: new Date(time.value).toISOString() };
    },
  };
}
