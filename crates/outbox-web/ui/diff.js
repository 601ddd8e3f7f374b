// Word-by-word difference of two texts.

import { h } from "./dom.js";

const MOST = 400;

/** Parts in order: `{ kind: "same" | "gone" | "new", text }`. */
export function diff(before, after) {
  const [a, b] = [words(before), words(after)];
  if (a.length > MOST || b.length > MOST) return before === after ? [{ kind: "same", text: after }] : [{ kind: "gone", text: before }, { kind: "new", text: after }];
  const common = lengths(a, b);
  const parts = [];
  const push = (kind, text) => {
    if (parts.at(-1)?.kind === kind) parts.at(-1).text += text;
    else parts.push({ kind, text });
  };
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      push("same", a[i]);
      i++;
      j++;
    } else if (i < a.length && (j === b.length || common[i + 1][j] >= common[i][j + 1])) push("gone", a[i++]);
    else push("new", b[j++]);
  }
  return parts;
}

function words(text) {
  return text.match(/[\p{L}\p{N}_]+|\s+|[^\p{L}\p{N}_\s]/gu) ?? [];
}

/** `[i][j]`: length of the longest common subsequence of `a[i..]` and `b[j..]`. */
function lengths(a, b) {
  const table = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      table[i][j] = a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
    }
  }
  return table;
}

/** An error with its difference from the previous error: common text is dimmed. */
export function errorDiff(before, error) {
  if (!before || before === error) return h("pre.error-text", { class: before ? "same" : "" }, before ? "Same error as before." : error);
  const elements = { same: text => h("span.same", null, text), gone: text => h("del", null, text), new: text => h("ins", null, text) };
  return h("pre.error-text", null, diff(before, error).map(({ kind, text }) => elements[kind](text)));
}
