// Client of the REST API: one function per method; problems become errors.

import { sentence } from "./format.js";

/** Resources that do not depend on a database. */
const EVERYWHERE = ["whoami", "session", "databases"];

// Relative to this file: the address of the page may lack the slash at the end (`/ops`).
const BASE = new URL("api/outbox/", import.meta.url);

/** URL of the API documentation. */
export const DOCS = new URL("api/docs", import.meta.url).href;

let csrf = null;
let actor = null;
let database = null;
let signedOut = () => {};

/** Error response of the API. */
export class Problem extends Error {
  constructor(status, body) {
    super(sentences(body?.detail || body?.title || `the server returned status ${status}`, body?.advice));
    this.status = status;
    this.title = body?.title || "Request failed";
    this.kind = body?.type?.split(":").pop();
  }

  /** Whether the caller is not, or no longer, signed in: a token is missing, or the application refuses. */
  get signedOut() {
    return this.status === 401 || this.kind === "no-access";
  }
}

/** Joins detail and advice. */
function sentences(detail, advice) {
  return [sentence(detail), advice].filter(Boolean).join(" ");
}

/** Sets the database of all requests; null if there is only one. */
export function useDatabase(name) {
  database = name;
}

/** Sets the caller, whose CSRF token is sent with changes. */
export function useCaller(me) {
  actor = me.actor;
  csrf = me.csrf;
}

/** Sets the callback for problems of a caller who is not signed in. */
export function onSignedOut(callback) {
  signedOut = callback;
}

/** URL of a resource, with its query. */
export function address(path, query = {}) {
  const url = new URL(path, BASE);
  const where = EVERYWHERE.includes(path) ? {} : { database };
  for (const [key, value] of Object.entries({ ...where, ...query })) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(key, value);
  }
  return url;
}

/** Encodes a path segment. */
export const part = encodeURIComponent;

export const get = (path, query, signal) => request("GET", path, { query, signal });
export const post = (path, body = {}, query) => request("POST", path, { body, query });
export const put = (path, body, query) => request("PUT", path, { body, query });
export const del = path => request("DELETE", path, {});

async function request(method, path, { query, body, signal }, isRetry = false) {
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
    throw new Problem(0, { title: "No connection", detail: "The server does not respond. Check that the relay is running." });
  }
  const text = await answer.text();
  const read = parse(text);
  if (answer.ok) return read;
  const problem = new Problem(answer.status, read);
  // The token of a user of the application is valid until a restart, or until its cookie expires.
  if (problem.kind === "csrf" && !isRetry) {
    const me = await get("whoami", {}, signal);
    // Another user has signed in meanwhile, who has not asked for this change.
    if (me.actor !== actor) location.reload();
    else {
      useCaller(me);
      return request(method, path, { query, body, signal }, true);
    }
  }
  if (problem.signedOut && path !== "session") signedOut(problem);
  throw problem;
}

function parse(text) {
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    return null;
  }
}
