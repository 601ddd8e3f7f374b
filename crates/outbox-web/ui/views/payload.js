// A payload: hidden until somebody asks, since it may hold what not everybody should see. Asking is noted in the audit.

import { get, part } from "../api.js";
import { fill, h } from "../dom.js";
import { bytes } from "../format.js";
import { isJson, jsonView } from "../json.js";
import { copy, facts } from "../parts.js";
import { act } from "../role.js";
import { attempt } from "../toast.js";

/** The block of an event's payload. Stays as it is while the rest of the page is made anew. */
export function payload(id) {
  const body = h("div");
  const hide = () => fill(body,
    h("p.muted.spaced", null, "Hidden. Who looks at it is noted in the audit."),
    act("Show payload", { run: show, hint: "Reads the payload" }));

  async function show() {
    const found = await attempt(() => get(`events/${part(id)}/payload`));
    if (found) fill(body, shown(found, hide));
  }
  hide();
  return [h("h2", null, "Payload"), body];
}

function shown(found, hide) {
  const text = found.text;
  const place = h("div");
  const headers = Object.entries(found.headers);
  const laidOut = text !== null && isJson(text);
  let raw = !laidOut;
  const draw = () => {
    toggle.textContent = raw ? "Laid out" : "As it is stored";
    fill(place, raw ? h("pre.payload", { tabindex: "0" }, text ?? found.base64) : jsonView(text));
  };
  const toggle = h("button.button.small", { type: "button", onclick: () => { raw = !raw; draw(); } });
  draw();
  return [
    h("div.payload-tools", null,
      h("span.muted", null, `${bytes(found.size)}, ${found.content_type ?? "unknown type"}${text === null ? ", shown as base64" : ""}`),
      laidOut && toggle, copy(text ?? found.base64),
      h("button.button.small", { type: "button", onclick: hide }, "Hide")),
    place,
    headers.length > 0 && [h("h3", null, "Headers"), facts(headers)],
  ];
}
