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
    caption: "Publishers and topics", key: pair => `${pair.topic}/${pair.publisher}`, columns: columns(() => refresh()),
    rowClass: pair => (pair.status === "FAILED" ? "row-bad" : ""),
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
    const pairs = rows(found).filter(pair => !query.publisher || pair.publisher === query.publisher);
    if (!pairs.length) return fill(container, empty("No publisher has been started.", "Publishers are listed here once a relay runs topics with publishers. Events of the queue need no publisher."));
    list.update(pairs);
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
function rows({ publishers: pairs, outages }) {
  const of = name => outages.filter(outage => outage.destination === name);
  const names = new Set(outages.map(outage => outage.destination).filter(name => !pairs.some(pair => pair.publisher === name)));
  return pairs.map(pair => ({ ...pair, outages: of(pair.publisher) }))
    .concat([...names].map(name => ({ publisher: name, topic: null, status: "FAILED", outages: of(name) })));
}

const unreadableColumns = [
  { name: "Position", num: true, tight: true, cell: event => number(event.position) },
  { name: "First seen", tight: true, cell: event => when(event.noted_at) },
  { name: "Reason", wide: true, cell: event => h("span.error-line", { title: event.reason }, short(event.reason, 200)) },
];

function columns(refresh) {
  return [
    { name: "Publisher", wide: true, cell: pair => [h("strong.type", null, pair.publisher), h("span.sub", null, pair.topic ? `topic ${pair.topic}` : "events of the queue")] },
    { name: "Status", cell: pairStatus, tight: true },
    { name: "Position", num: true, cell: pair => (pair.topic ? [number(pair.position), h("span.sub", null, `of ${number(pair.head)}`)] : "–") },
    { name: "Lag", num: true, cell: pair => (pair.topic ? [h("b", null, number(pair.behind)), h("span.sub", null, "moved ", when(pair.updated_at))] : "–") },
    { name: "Leader", cell: pair => leader(pair) },
    { name: "Errors", wide: true, cell: errors },
    { name: "Actions", tight: true, keep: pair => pair.status, cell: (pair, latest) => (pair.topic ? h("div.tools", null, buttons(pair, latest, refresh)) : "–") },
  ];
}

/** Status of a subscription. One that fails is still retried. */
export function pairStatus(pair) {
  if (pair.outages?.length) return badge("bad", "Unavailable");
  if (pair.waits_for) return badge("warn", "Waiting");
  return status(pair.status, pair.status === "FAILED" ? "Failing" : undefined);
}

function leader(pair) {
  if (!pair.leader) return "–";
  return [h("span.mono.cut", { title: pair.leader }, pair.leader), pair.remaining_ms === 0 && h("span.sub", null, "lease expired")];
}

function errors(pair) {
  const away = pair.outages.map(one => [h("span.error-line", { title: one.reason }, short(one.reason, 120)), h("span.sub", null, "unavailable since ", when(one.since))]);
  const own = pair.last_error && pair.errors > 0
    && [h("span.error-line", { title: pair.last_error }, short(pair.last_error, 120)), h("span.sub", null, `${number(pair.errors)} consecutive`)];
  const open = pair.waits_for && [h("span.error-line", null, `waits for ${openAppend(pair.waits_for)}, which has appended to the log and is still open`),
    h("span.sub", null, pair.waits_for.since ? ["since ", when(pair.waits_for.since)] : "start time not visible to the database role")];
  return away.length || own || open ? [open, away, own] : "–";
}

/** Describes the open transaction that a subscription waits for. */
function openAppend({ backend, prepared, user, application }) {
  const about = [user && `role ${user}`, application && `application ${application}`].filter(Boolean).join(", ");
  const what = prepared ? `the prepared transaction ${prepared}` : `backend ${backend ?? "unknown"}`;
  return about ? `${what} (${about})` : what;
}

function buttons(pair, latest, refresh) {
  const at = what => `publishers/${part(pair.publisher)}/topics/${part(pair.topic)}/${what}`;
  const run = (question, what, done) => async () => {
    const body = await confirmDialog(question(latest()));
    if (!body) return;
    await attempt(() => post(at(what), body === true ? {} : body), done);
    await refresh();
  };
  const paused = pair.status === "PAUSED";
  const name = `${pair.publisher} in ${pair.topic}`;
  return [
    paused || pair.status === "FAILED"
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

function resetQuestion(pair, name) {
  const choice = (value, label, input) => {
    const radio = h("input", { type: "radio", name: "reset-to", value, id: `reset-${value}`, checked: value === "position" });
    input?.addEventListener("focus", () => { radio.checked = true; });
    return h("div.choice", null, radio, h("label", { for: `reset-${value}` }, label), input);
  };
  const position = h("input", { type: "number", min: 0, max: pair.head, value: pair.position, "aria-label": "Position" });
  const time = h("input", { type: "datetime-local", step: 1, "aria-label": "Time" });
  const choices = h("div", null,
    choice("start", "To the start: all events are published again"),
    choice("end", `To the end (${number(pair.head)}): unpublished events are skipped`),
    choice("position", "To a position", position),
    choice("time", "To a time: events stored since then are published", time));
  return {
    title: `Reset ${name}?`,
    body: [`The position is ${number(pair.position)} of ${number(pair.head)}. Resetting backward publishes events again; forward skips events.`],
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
