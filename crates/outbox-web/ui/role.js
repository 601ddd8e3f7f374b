// Who one is, and what that allows. The server decides; here it only shows before the click.

import { h } from "./dom.js";
import { attempt, toast } from "./toast.js";

const ORDER = ["read", "operate", "admin"];
let me = { role: "read" };

/** Takes note of who is signed in. */
export function signedInAs(who) {
  me = who;
}

/** Whether this role is enough. */
function may(role) {
  return ORDER.indexOf(me.role) >= ORDER.indexOf(role);
}

/** A button that says why it cannot be used, instead of not being there. */
export function act(label, { needs = "operate", run, kind = "", hint, off } = {}) {
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
