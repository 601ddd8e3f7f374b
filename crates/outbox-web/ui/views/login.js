// Who are you? A token becomes a session; it is never kept by the page.

import { post } from "../api.js";
import { fill, h } from "../dom.js";
import { field } from "../dialog.js";
import { mark } from "../icons.js";

/** Asks for a token, or exchanges the one that came with the address. */
export function login(app, { token, done }) {
  const input = h("input", { type: "password", name: "token", autocomplete: "off", spellcheck: "false", required: true });
  const problem = h("p.field-error", { role: "alert" });
  const button = h("button.button.primary", { type: "submit" }, "Sign in");

  async function exchange(given) {
    button.setAttribute("aria-busy", "true");
    problem.textContent = "";
    try {
      done(await post("session", { token: given }));
    } catch (error) {
      input.value = "";
      problem.textContent = error.status === 401 ? "This token is not known here. It may have been changed or withdrawn." : error.message;
      input.focus();
    } finally {
      button.removeAttribute("aria-busy");
    }
  }

  fill(app, h("main.login", { id: "main" },
    h("form.card", { onsubmit: event => { event.preventDefault(); exchange(input.value.trim()); } },
      h("h1", null, mark(), "outbox"),
      h("p.muted", null, "Paste a token. Your role comes with it."),
      field("Token", input, "The settings of the relay name the tokens. The demo prints an address that signs you in."),
      problem, button)));
  document.title = "Sign in · outbox";
  if (token) exchange(token);
  else input.focus();
}
