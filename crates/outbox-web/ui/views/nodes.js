// The relays that say that they run.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { number, rate, span, when } from "../format.js";
import { badge, card, head } from "../parts.js";
import { empty, every, load } from "../state.js";
import { table } from "../table.js";

export function nodes({ main, signal }) {
  const relays = h("div");
  const leases = h("div");
  fill(main, head("Nodes", "Every relay says what it is doing, every 2 to 20 seconds."), card("Relays", relays), card("Leases", leases));
  const list = table({ caption: "Relays", key: node => node.node, columns: [
    { name: "Node", wide: true, cell: node => h("span.mono.break", null, node.node) },
    { name: "State", tight: true, cell: node => [state(node), h("span.sub", { title: `Dead events ${node.on_dead} their key` }, `${node.mode}, ${node.version}`)] },
    { name: "Started", num: true, cell: node => when(node.started_at) },
    { name: "Seen", num: true, cell: node => `${span(node.seen_ms)} ago` },
    { name: "Delivered/s", num: true, cell: node => rate(node.delivered_per_second) },
    { name: "Delivered", num: true, cell: node => number(node.counts.delivered) },
    { name: "Failed", num: true, cell: node => number(node.counts.failed) },
    { name: "Dead", num: true, cell: node => number(node.counts.dead) },
    { name: "Not available", wide: true, cell: outages },
  ] });
  const held = table({ caption: "Leases", key: lease => `${lease.holder}/${lease.what}`, columns: [
    { name: "Held by", wide: true, cell: lease => h("span.mono.break", null, lease.holder) },
    { name: "What", cell: lease => lease.what },
    { name: "Events", num: true, cell: lease => number(lease.events) },
    { name: "Until", num: true, cell: lease => when(lease.until) },
  ] });
  const render = found => {
    list.update(found.nodes);
    held.update(found.leases ?? []);
    if (!found.nodes.length) fill(relays, empty("No relay says that it runs.", "Start one: outbox relay, or .start() in your program. Until then events only wait."));
    else if (!list.el.isConnected) fill(relays, list.el);
    if (!found.leases?.length) fill(leases, empty("Nobody holds anything right now."));
    else if (!held.el.isConnected) fill(leases, held.el);
  };
  const fetch = () => get("nodes", {}, signal);
  load(relays, fetch, render);
  every(2_000, signal, async () => render(await fetch()));
}

function state(node) {
  if (!node.running) return badge("bad", "Vanished");
  return node.active ? badge("good", "Active") : badge("wait", "Stands by");
}

function outages(node) {
  if (!node.outages.length) return "–";
  return node.outages.map(one => h("span.error-line", { title: one.reason }, `${one.destination}: ${one.reason}`));
}
