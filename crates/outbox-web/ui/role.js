// The role of the session. The server enforces roles; the dashboard only disables buttons.

import { h } from "./dom.js";
import { attempt, toast } from "./toast.js";

const ORDER = ["read", "operate", "admin"];
let me = { role: "read" };

/** Sets the current session. */
export function signedInAs(who) {
  me = who;
}

/** Whether the session has at least this role. */
function may(role) {
  return ORDER.indexOf(me.role) >= ORDER.indexOf(role);
}

/** A button for an action; disabled, with the reason, if it cannot be used. */
export function actionButton(label, { needs = "operate", run, kind = "", hint, off } = {}) {
  const why = off || (may(needs) ? null : `Needs the role ${needs}; you have ${me.role}.`);
  return h("button", {
    type: "button",
    class: `button ${kind}`,
    title: why ?? hint,
    "aria-disabled": why ? "true" : undefined,
    onclick: async event => {
      event.stopPropagation();
      if (why) return toast(why);
      const button = event.currentTarget;
      button.setAttribute("aria-busy", "true");
      try {
        await attempt(run);
      } finally {
        button.removeAttribute("aria-busy");
      }
    },
  }, label);
}
