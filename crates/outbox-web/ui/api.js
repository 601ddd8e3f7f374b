// The REST API: one function a verb, problems as errors that say what happened.

import { sentence } from "./format.js";

/** What is not about one database. */
const EVERYWHERE = ["whoami", "session", "databases"];

const BASE = new URL("api/outbox/", document.baseURI);

/** Where links to the API's own pages go. */
export const DOCS = new URL("api/docs", document.baseURI).href;

let csrf = null;
let database = null;
let signedOut = () => {};

/** What the API answered when it did not do what it was asked. */
export class Problem extends Error {
  constructor(status, body) {
    super(sentences(body?.detail || body?.title || `the server answered ${status}`, body?.advice));
    this.status = status;
    this.title = body?.title || "That did not work";
  }
}

/** What happened, and what to do about it. */
function sentences(detail, advice) {
  return [sentence(detail), advice].filter(Boolean).join(" ");
}

/** Which database all questions are about; null where there is one. */
export function useDatabase(name) {
  database = name;
}

/** What to send along with changes, so that no other page can make them with this one's cookie. */
export function useCsrf(token) {
  csrf = token ?? csrf;
}

/** Called when the server no longer knows who asks. */
export function onSignedOut(callback) {
  signedOut = callback;
}

/** The address of a resource, with what is asked of it. */
export function address(path, query = {}) {
  const url = new URL(path, BASE);
  const where = EVERYWHERE.includes(path) ? {} : { database };
  for (const [key, value] of Object.entries({ ...where, ...query })) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(key, value);
  }
  return url;
}

/** A part of a path that may hold anything. */
export const part = encodeURIComponent;

export const get = (path, query, signal) => ask("GET", path, { query, signal });
export const post = (path, body = {}, query) => ask("POST", path, { body, query });
export const put = (path, body, query) => ask("PUT", path, { body, query });
export const del = path => ask("DELETE", path, {});

async function ask(method, path, { query, body, signal }) {
  const headers = { accept: "application/json" };
  if (body !== undefined) headers["content-type"] = "application/json";
  if (method !== "GET" && csrf) headers["x-csrf-token"] = csrf;
  let answer;
  try {
    answer = await fetch(address(path, query), {
      method, headers, signal, credentials: "same-origin", cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { title: "No connection", detail: "The server does not answer. Is the relay running?" });
  }
  const text = await answer.text();
  const read = parse(text);
  if (answer.ok) return read;
  if (answer.status === 401 && path !== "session") signedOut();
  throw new Problem(answer.status, read);
}

function parse(text) {
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    return null;
  }
}
