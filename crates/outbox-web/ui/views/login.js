// Sign-in form. The token is exchanged for a session, and never stored by the page.

import { post } from "../api.js";
import { fill, h } from "../dom.js";
import { field } from "../dialog.js";
import { mark } from "../icons.js";

/** Shows the form, or exchanges the token from the URL. */
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
      problem.textContent = error.status === 401 ? "Invalid token. It may have been changed or revoked." : error.message;
      input.focus();
    } finally {
      button.removeAttribute("aria-busy");
    }
  }

  fill(app, h("main.login", { id: "main" },
    h("form.card", { onsubmit: event => { event.preventDefault(); exchange(input.value.trim()); } },
      h("h1", null, mark(), "outbox"),
      h("p.muted", null, "Sign in with a token. It determines your role."),
      field("Token", input, "Tokens are defined in the settings of the relay. The demo prints a link that signs you in."),
      problem, button)));
  document.title = "Sign in · outbox";
  if (token) exchange(token);
  else input.focus();
}
