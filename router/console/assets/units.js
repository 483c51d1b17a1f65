// Figures with their units, as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(n) {
  return whole.format(n);
}

/** Singular or plural: counted(1, "request") is "1 request". */
export function counted(n, noun) {
  return `${count(n)} ${noun}${n === 1 ? "" : "s"}`;
}

/** Seconds, with three digits that matter. */
export function seconds(s) {
  if (s === null || s === undefined) return "–";
  if (s === 0) return "0 s";
  if (s < 0.0995) return `${Math.max(Math.round(s * 1000), 1)} ms`;
  if (s < 0.9995) return `${(s * 1000).toFixed(0)} ms`;
  if (s < 9.995) return `${s.toFixed(2)} s`;
  if (s < 99.95) return `${s.toFixed(1)} s`;
  return duration(s);
}

/** A longer time: 45 s, 12 min, 3 h 05 min, 2 d 4 h. */
export function duration(s) {
  s = Math.max(Math.round(s), 0);
  if (s < 120) return `${s} s`;
  const minutes = Math.floor(s / 60);
  if (minutes < 120) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function percent(ratio) {
  if (ratio === null || ratio === undefined) return "–";
  return `${(ratio * 100).toFixed(ratio > 0 && ratio < 0.0995 ? 1 : 0)} %`;
}

export function rate(perS) {
  if (perS === null || perS === undefined) return "–";
  if (perS === 0) return "0/s";
  return perS < 9.95 ? `${perS.toFixed(perS < 0.095 ? 2 : 1)}/s` : `${whole.format(perS)}/s`;
}

const KIBI = ["", "K", "M", "G"];

/** Tokens: 512, 8.2K, 1.6M. */
export function tokens(n) {
  if (n === null || n === undefined) return "–";
  let unit = 0;
  while (Math.abs(n) >= 999.5 && unit < KIBI.length - 1) {
    n /= 1000;
    unit += 1;
  }
  return `${unit && Math.abs(n) < 9.95 ? n.toFixed(1) : whole.format(n)}${KIBI[unit]}`;
}

/** Bits per second, as links are sold, from bytes per second. */
export function bandwidth(bytesPerS) {
  if (bytesPerS === null || bytesPerS === undefined) return "–";
  const gbit = (bytesPerS * 8) / 1e9;
  return gbit >= 0.9995 ? `${gbit.toFixed(gbit < 9.95 ? 1 : 0)} Gbit/s` : `${(gbit * 1000).toFixed(0)} Mbit/s`;
}

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  return n >= 1e9 ? `${(n / 1e9).toFixed(1)} GB` : `${(n / 1e6).toFixed(0)} MB`;
}

const clockFormat = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** Time of day here, of Unix seconds. */
export function clock(unixS) {
  return clockFormat.format(new Date(unixS * 1000));
}

const momentFormat = new Intl.DateTimeFormat("en-GB", {
  day: "numeric",
  month: "short",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
});

/** Day and time here, of Unix seconds: for times that may be older than today. */
export function moment(unixS) {
  return momentFormat.format(new Date(unixS * 1000));
}
