// Elements and texts. Names from Kafka and from users are only added to the page as text.

/** Attributes that are shown or read aloud, and may contain a name from Kafka or from a user. */
const TOLD = new Set(["title", "aria-label"]);

/** Create an element. Attributes that are `undefined`, `null` or `false` are left out; `on…` are listeners. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : TOLD.has(name) ? printable(value) : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined).map(text));
  return element;
}

const UNPRINTABLE = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\u2028\u2029]/gu;

/** Escape the characters of a name that are invisible or that change the text around them. */
export const printable = (text) =>
  String(text).replace(UNPRINTABLE, (found) => `\\u{${found.codePointAt(0).toString(16)}}`);

const text = (child) => (typeof child === "string" ? child.split("\n").map(printable).join("\n") : child);

/** Show a name from Kafka or from a user safely. */
export const name = (text) => h("bdi", { class: "name" }, printable(text));

/** Join at most `limit` names by commas. */
export function names(texts, limit = 5) {
  const shown = texts.slice(0, limit).flatMap((text, index) => (index ? [", ", name(text)] : [name(text)]));
  if (texts.length > limit) shown.push(` and ${count(texts.length - limit)} more`);
  return shown;
}

/** Show a placeholder for a value that is being read. */
export const skeleton = () => h("span", { class: "skeleton" }, h("span", { class: "unseen" }, "being read"));

export const NONE = "–";
const NUMBER = new Intl.NumberFormat("en");
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => (value === null || value === undefined ? NONE : NUMBER.format(value));
export const compact = (value) => (value === null || value === undefined ? NONE : COMPACT.format(value));
export const plural = (value, one) => `${count(value)} ${value === 1 ? one : `${one}s`}`;

const UNITS = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];

/** Return a number of seconds with its two largest units, such as `6 d 4 h`. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 1) return seconds > 0 ? "< 1 s" : "0 s";
  const first = UNITS.findIndex(([, size]) => seconds >= size);
  let [unit, size] = UNITS[first];
  if (unit === "s") return `${seconds < 10 ? Number(seconds.toFixed(1)) : Math.round(seconds)} s`;
  const [small, part] = UNITS[first + 1];
  const parts = Math.round(seconds / part);
  const rest = parts % (size / part);
  const whole = Math.floor(parts / (size / part));
  return rest ? `${whole} ${unit} ${rest} ${small}` : `${whole} ${unit}`;
}

/** Return a number of seconds in one unit, for an axis. */
export function shortDuration(seconds) {
  const [unit, size] = UNITS.find(([, each]) => seconds >= each) ?? ["s", 1];
  return `${Number((seconds / size).toFixed(1))} ${unit}`;
}

/** The user's time zone, which Airflow keeps in the browser's storage. */
export const timeZone = (() => {
  try {
    const chosen = (localStorage.getItem("timezone") ?? "").replaceAll('"', "");
    return new Intl.DateTimeFormat("en", chosen ? { timeZone: chosen } : {}).resolvedOptions().timeZone;
  } catch {
    return new Intl.DateTimeFormat("en").resolvedOptions().timeZone;
  }
})();

const CLOCK = new Intl.DateTimeFormat("sv", { dateStyle: "short", timeStyle: "medium", timeZone });

/** Return a time, which is ISO 8601 text, in the user's time zone. */
export function clock(moment) {
  const date = new Date(moment ?? NaN);
  return Number.isNaN(date.getTime()) ? NONE : CLOCK.format(date);
}

export function time(moment) {
  const text = clock(moment);
  return text === NONE ? text : h("time", { datetime: moment, title: `${moment} (shown in ${timeZone})` }, text);
}

/** Return how long ago a time was. */
export function ago(moment) {
  const seconds = (Date.now() - Date.parse(moment)) / 1000;
  if (Number.isNaN(seconds)) return NONE;
  return seconds < 1 ? "just now" : `${duration(Math.floor(seconds)).split(" ").slice(0, 2).join(" ")} ago`;
}

/** Show a text as a notice; screen readers read `bad` notices at once. */
export function notice(kind, ...children) {
  return h("p", { class: `notice ${kind}`, role: kind === "bad" ? "alert" : "status" }, ...children);
}

const LONGEST = 300;

/** Show an object with one line for each key. */
function pairs(object) {
  const write = (value) => {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    return text.length > LONGEST ? `${text.slice(0, LONGEST)} …` : text;
  };
  return Object.entries(object).flatMap(([key, value], index) =>
    [index ? h("br") : "", name(`${key}: ${write(value)}`)]);
}

/** Show facts as pairs without those that have no value; an object has one line for each key. */
export function facts(entries) {
  const list = h("dl", { class: "facts" });
  for (const [label, value] of entries) {
    if (value === null || value === undefined || value === "" || value.length === 0) continue;
    const nested = typeof value === "object" && !(value instanceof Node) && !Array.isArray(value);
    const shown = nested ? pairs(value) : value;
    const children = Array.isArray(shown) ? shown : [shown instanceof Node ? shown : String(shown)];
    list.append(h("div", {}, h("dt", {}, label), h("dd", {}, ...children)));
  }
  return list;
}
