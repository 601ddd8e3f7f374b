// Aggregates samples to points of a chart.

const BUCKET_MS = { 120_000: 2_000, 300_000: 3_000, 900_000: 5_000 };

/** Time ranges in milliseconds, with their labels. */
export const WINDOWS = [[120_000, "2 min"], [300_000, "5 min"], [900_000, "15 min"]];

/** The smallest range that contains all points. */
export function fitting(points) {
  const age = points.length ? points.at(-1).at - points[0].at : 0;
  return (WINDOWS.find(([ms]) => age <= ms * 1.05) ?? WINDOWS.at(-1))[0];
}

/**
 * Means of these keys over a few seconds each. Missing values are left out; a gap in time remains a
 * gap.
 */
export function buckets(points, window, keys) {
  const size = BUCKET_MS[window];
  const found = [];
  let last = null;
  for (const point of points) {
    const slot = Math.floor(point.at / size);
    if (!last || last.slot !== slot) {
      if (last && slot - last.slot > 3) found.push({ at: (last.slot + 1) * size });
      last = { slot, at: (slot + 0.5) * size, sums: {}, counts: {} };
      found.push(last);
    }
    last.at = Math.min((slot + 0.5) * size, points.at(-1).at);
    for (const key of keys) {
      if (point[key] === undefined || point[key] === null) continue;
      last.sums[key] = (last.sums[key] ?? 0) + point[key];
      last.counts[key] = (last.counts[key] ?? 0) + 1;
    }
  }
  return found.map(({ at, sums = {}, counts = {} }) => {
    const point = { at };
    for (const key of Object.keys(sums)) point[key] = sums[key] / counts[key];
    return point;
  });
}
