// Formats numbers and durations like `psd status`.

export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && size < 0.001) return value.toExponential(1);
  if (size >= 1e6) return (value / 1e6).toFixed(size >= 1e8 ? 0 : 1) + " M";
  if (size >= 1e4) return Math.round(value).toLocaleString("en");
  if (size >= 100 || Number.isInteger(value)) return value.toFixed(0);
  return value.toPrecision(3).replace(/\.?0+$/, "");
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit++; }
  return (unit === 0 || value >= 100 ? value.toFixed(0) : value.toFixed(1)) + " " + units[unit];
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1e-3) return (seconds * 1e6).toFixed(0) + " µs";
  if (seconds < 1) return (seconds * 1e3).toFixed(seconds < 0.1 ? 1 : 0) + " ms";
  if (seconds < 60) return seconds.toFixed(1) + " s";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds % 3600 / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor(seconds % 86400 / 3600)} h`;
}

export function clock(unixSeconds, withSeconds = true) {
  const time = new Date(unixSeconds * 1000), two = (n) => String(n).padStart(2, "0");
  return `${two(time.getHours())}:${two(time.getMinutes())}` + (withSeconds ? `:${two(time.getSeconds())}` : "");
}

/// A time in ISO 8601, in the browser's zone: "11-28 14:03:07".
export function localTime(text) {
  const time = new Date(text), two = (n) => String(n).padStart(2, "0");
  return `${two(time.getMonth() + 1)}-${two(time.getDate())} ${clock(time.getTime() / 1000)}`;
}

/// A row of /api/daemons.json in a sentence.
export const daemonName = (daemon) => `daemon ${daemon.partition} at ${daemon.address}`;

export function plural(count, one, many) { return `${count} ${count === 1 ? one : many ?? one + "s"}`; }
