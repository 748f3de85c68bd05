// How numbers read on the page.

/** A value with four significant digits, as in the reports. */
export function amount(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) {
    const [digits, power] = value.toExponential(3).split("e");
    return `${digits.replace(/\.?0+$/, "")}e${Number(power)}`;
  }
  return String(Number(value.toPrecision(4)));
}

/** A whole number with thin spaces between its thousands. */
export function whole(value) {
  return String(Math.round(value)).replace(/\B(?=(\d{3})+(?!\d))/g, "\u2009");
}

/** Seconds as `2:05`, `1:02:05` or `3d 04:00`. */
export function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  const two = (n) => String(n).padStart(2, "0");
  const [d, h, m] = [Math.floor(s / 86400), Math.floor((s % 86400) / 3600), Math.floor((s % 3600) / 60)];
  if (d) return `${d}d ${two(h)}:${two(m)}`;
  return h ? `${h}:${two(m)}:${two(s % 60)}` : `${m}:${two(s % 60)}`;
}

/** A place on an axis. */
export function place(value, axis) {
  if (axis === "time") return duration(value);
  if (axis === "epoch") return String(Number(value.toPrecision(4)));
  return whole(value);
}

/** How long ago something was, in words; empty when that is unknown. */
export function ago(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const s = Date.now() / 1000 - seconds;
  if (s < 90) return "just now";
  if (s < 5400) return `${Math.round(s / 60)} min ago`;
  if (s < 129600) return `${Math.round(s / 3600)} h ago`;
  return `${Math.round(s / 86400)} days ago`;
}
