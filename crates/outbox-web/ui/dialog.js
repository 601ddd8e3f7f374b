// Dialogs. Native dialog elements: Esc closes, and focus is trapped and restored.

import { h, setText } from "./dom.js";

/**
 * Asks for confirmation. Resolves to false if cancelled, else to the result of `read` (true by
 * default). `word` has to be typed to confirm. `fields`: further content; `read` may throw an error
 * to show.
 */
export function confirmDialog({ title, body = [], fields = [], confirm, danger = false, word, read = () => true, wide = false }) {
  return new Promise(resolve => {
    const problem = h("p.field-error", { role: "alert" });
    const typed = word && h("input", { type: "text", autocomplete: "off", spellcheck: "false", id: "ask-word" });
    const yes = h("button.button", { type: "submit", class: danger ? "danger" : "primary" }, confirm);
    const no = h("button.button", { type: "button", onclick: () => close(false) }, "Cancel");
    const form = h("form", { method: "dialog", onsubmit: submit },
      h("h2", { id: "ask-title" }, title),
      h("div.dialog-body", null, body.map(line => (line instanceof Node ? line : h("p", null, line))), fields,
        word && h("p.field", null, h("label", { for: "ask-word" }, "Type ", h("kbd", null, word), " to confirm"), typed)),
      problem,
      h("div.dialog-actions", null, no, yes));
    const dialog = h("dialog", { "aria-labelledby": "ask-title", class: wide ? "wide" : "", onclose: () => done(false) }, form);
    let answer = false;

    if (typed) {
      const match = () => { yes.disabled = typed.value.trim() !== word; };
      typed.addEventListener("input", match);
      match();
    }
    function submit(event) {
      event.preventDefault();
      try {
        answer = read();
      } catch (error) {
        setText(problem, error.message);
        return;
      }
      close(answer);
    }
    function close(result) {
      answer = result;
      dialog.close();
    }
    function done() {
      dialog.remove();
      resolve(answer);
    }
    document.body.append(dialog);
    dialog.showModal();
    (typed ?? form.querySelector("input, textarea, select") ?? (danger ? no : yes)).focus();
  });
}

/** Shows content to read. */
export function show(title, ...content) {
  const close = h("button.button.primary", { type: "submit" }, "Close");
  const dialog = h("dialog", { "aria-labelledby": "show-title", onclose: () => dialog.remove() },
    h("form", { method: "dialog" },
      h("h2", { id: "show-title" }, title),
      h("div.dialog-body", null, content),
      h("div.dialog-actions", null, close)));
  document.body.append(dialog);
  dialog.showModal();
  close.focus();
}

/** A labelled field of a dialog or form. */
export function field(label, input, hint) {
  input.id ||= `field-${++fields}`;
  const note = hint && h("span.hint", { id: `${input.id}-hint` }, hint);
  if (note) input.setAttribute("aria-describedby", note.id);
  return h("p.field", null, h("label", { for: input.id }, label), input, note);
}

let fields = 0;
