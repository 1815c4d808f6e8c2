// Numbers, sizes, durations and times as text. A value that is not known is "–".

const UNKNOWN = "–";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const moment = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hour12: false });

/** 1234567 → "1,234,567". */
export function count(value) {
  return value === null || value === undefined ? UNKNOWN : whole.format(value);
}

/** 1234567 → "1.23 M": three digits, for charts and figures that only need a magnitude. */
export function magnitude(value) {
  if (value === null || value === undefined) return UNKNOWN;
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(value) >= size) return `${digits(value / (unit === "k" ? 1e3 : size))} ${unit}`;
  }
  return Math.abs(value) >= 100 || Number.isInteger(value) ? whole.format(value) : digits(value);
}

function digits(value) {
  return String(Number(value.toPrecision(3)));
}

/** Records per second. */
export function rate(value) {
  return value === null || value === undefined ? UNKNOWN : `${magnitude(value >= 10 ? Math.round(value) : value)}/s`;
}

/** 1536 → "1.5 KiB". */
export function size(bytes) {
  let value = bytes;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024) return `${digits(value)} ${unit}`;
    value /= 1024;
  }
  return `${digits(value)} TiB`;
}

/** 75 → "1 min 15 s": two units at most. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  if (seconds < 1) return seconds <= 0 ? "0 s" : `${Math.max(1, Math.round(seconds * 1000))} ms`;
  const total = seconds < 10 ? Math.round(seconds * 10) / 10 : Math.round(seconds);
  if (total < 60) return `${total} s`;
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([unit]) => total >= unit);
  const [unit, name] = parts[first];
  const [below, belowName] = parts[first + 1];
  const rest = Math.floor((total % unit) / below);
  return rest ? `${Math.floor(total / unit)} ${name} ${rest} ${belowName}` : `${Math.floor(total / unit)} ${name}`;
}

/** How long ago a Unix time was: "3 s ago". */
export function ago(unix, now) {
  if (unix === null || unix === undefined) return UNKNOWN;
  const age = Math.max(0, now - unix);
  return age < 1 ? "now" : `${duration(Math.floor(age))} ago`;
}

/** 340 → "340 ms", 2500 → "2.5 s". */
export function milliseconds(value) {
  return value < 1000 ? `${value} ms` : duration(value / 1000);
}

/** The local time of day of a Unix time. */
export function time(unix) {
  return unix === null || unix === undefined ? UNKNOWN : clock.format(new Date(unix * 1000));
}

/** The local date and time of a Unix time. */
export function dateTime(unix) {
  return unix === null || unix === undefined ? UNKNOWN : moment.format(new Date(unix * 1000));
}

/** 1, "mapping" → "1 mapping"; 2 → "2 mappings". */
export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}
