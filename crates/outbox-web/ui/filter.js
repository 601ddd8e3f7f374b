// Which events: a line to type in, fields for those who would rather choose, and what is in force as chips.

import { ask, field } from "./dialog.js";
import { h, say } from "./dom.js";
import { go } from "./route.js";

/** What can be filtered by: name in the address and in the API, what it is called, the short word to type. */
export const FIELDS = [
  ["event_type", "Type", "type"],
  ["aggregate_type", "Aggregate type", "aggregate"],
  ["aggregate_id", "Aggregate id", "id"],
  ["tenant_id", "Tenant", "tenant"],
  ["ordering_key", "Ordering key", "key"],
  ["correlation_id", "Correlation id", "correlation"],
  ["within", "Newer than", "newer"],
  ["before", "Older than", "older"],
];

const WORDS = Object.fromEntries(FIELDS.map(([name, , word]) => [word, name]));

/** Only what filters, of an address. */
export function filterOf(query) {
  return Object.fromEntries(FIELDS.map(([name]) => [name, query[name]]).filter(([, value]) => value));
}

/** `type:order.placed tenant:"a b"` as a filter; `id` is a bare word: an event's id. */
export function parse(text) {
  const filter = {};
  let id = null;
  for (const [, word, quoted, plain, bare] of text.matchAll(/(\w+):(?:"([^"]*)"|(\S*))|(\S+)/g)) {
    if (bare) id = bare;
    else if (WORDS[word]) filter[WORDS[word]] = quoted ?? plain;
    else throw new Error(`“${word}:” is not known. Try ${FIELDS.map(([, , known]) => `${known}:`).join(" ")}`);
  }
  return { filter, id };
}

/** The bar above a list. `path` is the view, `query` its address; what is chosen becomes the address. */
export function filterBar(path, query, { jump = true } = {}) {
  const inForce = filterOf(query);
  const rest = Object.fromEntries(Object.entries(query).filter(([name]) => !(name in inForce) && name !== "cursor"));
  const problem = h("span.field-error", { role: "alert" });
  const input = h("input", { type: "search", "data-filter": true, "aria-label": "Filter or event id", spellcheck: "false", autocomplete: "off",
    placeholder: jump ? "Event id, or type:order.placed tenant:acme newer:2h" : "type:order.placed tenant:acme newer:2h" });

  function submit(event) {
    event.preventDefault();
    try {
      const { filter, id } = parse(input.value.trim());
      if (id && jump && !Object.keys(filter).length) return go(["events", id]);
      if (id) throw new Error(`What is “${id}”? Write type:${id}, for example.`);
      go(path, { ...rest, ...inForce, ...filter });
    } catch (error) {
      say(problem, error.message);
    }
    return undefined;
  }

  const chip = ([name, label]) => inForce[name] && h("li", null, h("button.chip", {
    type: "button", title: "Remove this filter",
    onclick: () => go(path, { ...rest, ...inForce, [name]: undefined }),
  }, `${label}: `, h("b", null, inForce[name]), h("span", { "aria-hidden": "true" }, " ×")));

  return h("div.filter", null,
    h("form.filter-line", { role: "search", onsubmit: submit }, input,
      h("button.button", { type: "button", onclick: () => choose(path, rest, inForce) }, "Filters…")),
    problem,
    Object.keys(inForce).length > 0 && h("ul.chips", { "aria-label": "Filters in force" }, FIELDS.map(chip),
      h("li", null, h("button.button.small.quiet", { type: "button", onclick: () => go(path, rest) }, "Clear all"))));
}

async function choose(path, rest, inForce) {
  const inputs = FIELDS.map(([name, label]) => {
    const age = name === "within" || name === "before";
    const input = h("input", { type: "text", name, value: inForce[name] ?? "", autocomplete: "off", spellcheck: "false", placeholder: age ? "30m, 2h, 7d" : "" });
    return { name, input, el: field(label, input) };
  });
  const chosen = await ask({
    title: "Filters", confirm: "Apply", wide: true, fields: h("div.grid-2", null, inputs.map(({ el }) => el)),
    read: () => Object.fromEntries(inputs.map(({ name, input }) => [name, input.value.trim()])),
  });
  if (chosen) go(path, { ...rest, ...chosen });
}
