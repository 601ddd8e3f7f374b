// Filter of a list: an input line, a dialog with fields, and the active filters as chips.

import { confirmDialog, field } from "./dialog.js";
import { h, setText } from "./dom.js";
import { go } from "./route.js";

/** Filter fields: name in URL and API, label, keyword in the input line. */
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

/** The filter fields of a query. */
export function filterOf(query) {
  return Object.fromEntries(FIELDS.map(([name]) => [name, query[name]]).filter(([, value]) => value));
}

/** Parses `type:order.placed tenant:"a b"` to a filter; a bare word is the id of an event. */
export function parse(text) {
  const filter = {};
  let id = null;
  for (const [, word, quoted, plain, bare] of text.matchAll(/(\w+):(?:"([^"]*)"|(\S*))|(\S+)/g)) {
    if (bare) id = bare;
    else if (WORDS[word]) filter[WORDS[word]] = quoted ?? plain;
    else throw new Error(`Unknown filter “${word}:”. Known filters: ${FIELDS.map(([, , known]) => `${known}:`).join(" ")}`);
  }
  return { filter, id };
}

/**
 * The filter bar above a list. `path` is the view, `query` its query; filters become part of the
 * URL.
 */
export function filterBar(path, query, { jump = true } = {}) {
  const active = filterOf(query);
  const rest = Object.fromEntries(Object.entries(query).filter(([name]) => !(name in active) && name !== "cursor"));
  const problem = h("span.field-error", { role: "alert" });
  const input = h("input", { type: "search", "data-filter": true, "aria-label": "Filter or event id", spellcheck: "false", autocomplete: "off",
    placeholder: jump ? "Event id, or type:order.placed tenant:acme newer:2h" : "type:order.placed tenant:acme newer:2h" });

  function submit(event) {
    event.preventDefault();
    try {
      const { filter, id } = parse(input.value.trim());
      if (id && jump && !Object.keys(filter).length) return go(["events", id]);
      if (id) throw new Error(`“${id}” is not a filter. Write type:${id}, for example.`);
      go(path, { ...rest, ...active, ...filter });
    } catch (error) {
      setText(problem, error.message);
    }
    return undefined;
  }

  const chip = ([name, label]) => active[name] && h("li", null, h("button.chip", {
    type: "button", title: "Remove this filter",
    onclick: () => go(path, { ...rest, ...active, [name]: undefined }),
  }, `${label}: `, h("b", null, active[name]), h("span", { "aria-hidden": "true" }, " ×")));

  return h("div.filter", null,
    h("form.filter-line", { role: "search", onsubmit: submit }, input,
      h("button.button", { type: "button", onclick: () => choose(path, rest, active) }, "Filters…")),
    problem,
    Object.keys(active).length > 0 && h("ul.chips", { "aria-label": "Active filters" }, FIELDS.map(chip),
      h("li", null, h("button.button.small.quiet", { type: "button", onclick: () => go(path, rest) }, "Clear all"))));
}

async function choose(path, rest, active) {
  const inputs = FIELDS.map(([name, label]) => {
    const age = name === "within" || name === "before";
    const input = h("input", { type: "text", name, value: active[name] ?? "", autocomplete: "off", spellcheck: "false", placeholder: age ? "30m, 2h, 7d" : "" });
    return { name, input, el: field(label, input) };
  });
  const chosen = await confirmDialog({
    title: "Filters", confirm: "Apply", wide: true, fields: h("div.grid-2", null, inputs.map(({ el }) => el)),
    read: () => Object.fromEntries(inputs.map(({ name, input }) => [name, input.value.trim()])),
  });
  if (chosen) go(path, { ...rest, ...chosen });
}
