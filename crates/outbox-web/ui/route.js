// Routes in the fragment: `#/events?status=dead`. If there are several databases, every link names
// the database.

let database = null;

/** Sets the database of all further links. */
export function linkDatabase(name) {
  database = name;
}

/** `{ path: ["events", "01J…"], query: { status: "dead" } }` */
export function current() {
  const hash = location.hash.replace(/^#\/?/, "");
  const [path, search = ""] = hash.split("?");
  const parts = path.split("/").filter(Boolean).map(decode);
  return { path: parts.length ? parts : ["overview"], query: Object.fromEntries(new URLSearchParams(search)) };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** URL of a view: `href("events", id)` or `href(["events"], { status: "dead" })`. */
export function href(path, query = {}) {
  const parts = [path].flat().map(encodeURIComponent).join("/");
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries({ ...query, database })) {
    if (value !== undefined && value !== null && value !== "") search.set(key, value);
  }
  return `#/${parts}${search.size ? `?${search}` : ""}`;
}

/**
 * Whether an id can name its event in a path. It cannot if a URL would normalize it away, if it has
 * the form `seq:N`, or if U+FFFD stands for an id that cannot be decoded.
 */
export const isName = id => !/^(\.{0,2}|\ufffd|seq:[^]*)$/.test(id);

/**
 * The name of an event in a path: its id, or `seq:` and its sequence number if the id cannot be
 * used.
 */
export const named = event => (isName(event.id) ? event.id : `seq:${event.seq}`);

/** Reloads the current view. */
export function again() {
  dispatchEvent(new HashChangeEvent("hashchange"));
}

/** Opens a view. */
export function go(path, query) {
  location.hash = href(path, query);
}
