// The server's time. The browser's clock may be wrong by minutes, which would distort relative
// times.

let skew = 0;

/** Updates the skew from a timestamp that the server has just sent. */
export function syncClock(at) {
  const time = new Date(at).getTime();
  if (!Number.isFinite(time)) return;
  const difference = time - Date.now();
  // Differences up to two seconds may be latency, and are ignored.
  skew = Math.abs(difference) > 2_000 ? difference : 0;
}

/** Current time of the server, in milliseconds. */
export function now() {
  return Date.now() + skew;
}
