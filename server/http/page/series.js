// Arithmetic on lines: lists of {x, y} by ascending x. y: null where nothing was measured.

const kAverageSeconds = 10;

/// The minutes, followed by the seconds not yet covered by them.
export function joined(coarse, fine) {
  const end = coarse.length ? coarse[coarse.length - 1].x : 0;
  return [...coarse, ...fine.filter((point) => point.x > end)];
}

/// A series of the history as a line.
export function lineOf(names, name, points, scale) {
  const at = names.indexOf(name) + 1;
  return points.map((point) => ({ x: point[0], y: point[at] === null ? null : point[at] * scale }));
}

/// Each value replaced by the mean of those of the ten seconds before it.
export function averaged(points) {
  let first = 0, sum = 0, count = 0;
  return points.map(({ x, y }) => {
    if (y !== null) { sum += y; count++; }
    for (; points[first].x <= x - kAverageSeconds; first++) if (points[first].y !== null) { sum -= points[first].y; count--; }
    return { x, y: count ? Math.max(0, sum / count) : null };
  });
}

/// The value at a time, between the points around it; null beyond the ends.
export function valueAt(points, time) {
  const measured = points.filter((point) => point.y !== null);
  const after = measured.findIndex((point) => point.x >= time);
  if (after < 0) return null;
  const right = measured[after];
  if (right.x === time) return right.y;
  if (after === 0) return null;
  const left = measured[after - 1];
  return left.y + (right.y - left.y) * (time - left.x) / (right.x - left.x);
}

/// The mean of several lines, at each time at which one has a point. A line counts from its first point until its last one
/// is twice as old as its points are apart, so that the lines' ends make no steps.
export function meanOf(lines) {
  const kSlack = 2;
  const times = [...new Set(lines.flatMap((line) => line.map((point) => point.x)))].sort((one, other) => one - other);
  const places = lines.map((line) => {
    const points = line.filter((point) => point.y !== null), first = points[0]?.x ?? 0, last = points.at(-1)?.x ?? 0;
    return { points, next: 0, end: last + Math.max(kAverageSeconds, kSlack * (last - first) / Math.max(1, points.length - 1)) };
  });
  return times.map((x) => {
    const values = [];
    for (const place of places) {
      while (place.next < place.points.length && place.points[place.next].x <= x) place.next++;
      if (place.next > 0 && x <= place.end) values.push(place.points[place.next - 1].y);
    }
    return { x, y: values.length ? values.reduce((one, other) => one + other, 0) / values.length : null };
  });
}

/// Limits of the axis of some lines, [least, most]: they show zero where the values are near it, and are never below it
/// without need.
export function range(lines) {
  const values = lines.flatMap((line) => line.points.map((point) => point.y)).filter((value) => value !== null);
  if (!values.length) return [0, 1];
  let least = Infinity, most = -Infinity;
  for (const value of values) { least = Math.min(least, value); most = Math.max(most, value); }
  if (least >= 0 && least < 0.5 * most) return [0, most * 1.05];
  if (least === most) return least === 0 ? [0, 1] : [Math.min(0, 2 * least), Math.max(0, 2 * least)];
  const room = 0.05 * (most - least);
  return [least >= 0 ? Math.max(0, least - room) : least - room, most + room];
}
