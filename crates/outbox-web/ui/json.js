// Formats JSON token by token: numbers keep all their digits.

import { h } from "./dom.js";

const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null|[{}[\],:]/g;
const COLOURED = 200_000;

/** Indented JSON. Other text is returned unchanged. */
export function pretty(text) {
  if (!isJson(text)) return text;
  return layout(text).map(({ text: part }) => part).join("");
}

/** JSON without whitespace between tokens. */
export function compact(text) {
  return isJson(text) ? (text.match(TOKEN) ?? []).join("") : text;
}

/** Whether a text is valid JSON. */
export function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** Indented JSON as an element, with highlighted names, texts and numbers. */
export function jsonView(text) {
  if (text.length > COLOURED || !isJson(text)) return h("pre.payload", { tabindex: "0" }, pretty(text));
  return h("pre.payload", { tabindex: "0" }, layout(text).map(({ kind, text: part }) => (kind ? h("span", { class: kind }, part) : part)));
}

function layout(text) {
  const tokens = text.match(TOKEN) ?? [];
  const parts = [];
  let depth = 0;
  const line = () => parts.push({ text: `\n${"  ".repeat(depth)}` });
  tokens.forEach((token, i) => {
    if (token === "{" || token === "[") {
      parts.push({ text: token });
      if (!closes(tokens[i + 1])) {
        depth++;
        line();
      }
    } else if (closes(token)) {
      if (tokens[i - 1] !== "{" && tokens[i - 1] !== "[") {
        depth--;
        line();
      }
      parts.push({ text: token });
    } else if (token === ",") {
      parts.push({ text: token });
      line();
    } else if (token === ":") parts.push({ text: ": " });
    else parts.push({ kind: kindOf(token, tokens[i + 1]), text: token });
  });
  return parts;
}

const closes = token => token === "}" || token === "]";

function kindOf(token, next) {
  if (token.startsWith('"')) return next === ":" ? "name" : "text";
  return /^[tfn]/.test(token) ? "word" : "number";
}
