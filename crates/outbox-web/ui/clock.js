// The server's time: a browser's clock may be wrong by minutes, and "3 s ago" must not be.

let ahead = 0;

/** Takes note of the time that the server gave just now. */
export function heard(at) {
  const time = new Date(at).getTime();
  if (!Number.isFinite(time)) return;
  const skew = time - Date.now();
  // The way here takes time too: what is within two seconds is no skew.
  ahead = Math.abs(skew) > 2_000 ? skew : 0;
}

/** Now, in milliseconds, by the server's clock. */
export function now() {
  return Date.now() + ahead;
}
