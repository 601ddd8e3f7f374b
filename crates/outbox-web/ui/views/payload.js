// The payload of an event: hidden until requested, since it may contain confidential data. Every
// read has an audit entry.

import { get, part } from "../api.js";
import { fill, h } from "../dom.js";
import { bytes } from "../format.js";
import { isJson, jsonView } from "../json.js";
import { copy, facts } from "../parts.js";
import { actionButton } from "../role.js";
import { attempt } from "../toast.js";

/** The section of the payload. Kept while the rest of the page is updated. */
export function payload(id) {
  const body = h("div");
  const hide = () => fill(body,
    h("p.muted.spaced", null, "Hidden. Every read has an audit entry."),
    actionButton("Show payload", { run: show, hint: "Read the payload" }));

  async function show() {
    const found = await attempt(() => get(`events/${part(id)}/payload`));
    if (found) fill(body, shown(found, hide));
  }
  hide();
  return [h("h2", null, "Payload"), body];
}

function shown(found, hide) {
  const text = found.text;
  const container = h("div");
  const headers = Object.entries(found.headers);
  const formatted = text !== null && isJson(text);
  let raw = !formatted;
  const draw = () => {
    toggle.textContent = raw ? "Formatted" : "Raw";
    fill(container, raw ? h("pre.payload", { tabindex: "0" }, text ?? found.base64) : jsonView(text));
  };
  const toggle = h("button.button.small", { type: "button", onclick: () => { raw = !raw; draw(); } });
  draw();
  return [
    h("div.payload-tools", null,
      h("span.muted", null, `${bytes(found.size)}, ${found.content_type ?? "unknown type"}${text === null ? ", shown as base64" : ""}`),
      formatted && toggle, copy(text ?? found.base64),
      h("button.button.small", { type: "button", onclick: hide }, "Hide")),
    container,
    headers.length > 0 && [h("h3", null, "Headers"), facts(headers)],
  ];
}
