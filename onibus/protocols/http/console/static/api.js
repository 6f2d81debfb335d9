// Calls of the public HTTP API: signed requests, exact numbers, streams of lines.

const session = { login: "key", name: "", key: "", entity: "", token: null, until: 0 };
//: Called when the server no longer accepts the key; milliseconds that its clock is ahead of ours.
const shared = { rejected: () => {}, ahead: 0 };
const encoder = new TextEncoder();
const RIGHTS = "/v1/rights";
//: Calls that only look, as those with `dry_run` do.
const LOOKS = /\/(search|inspect|tail|watch|page)$/;
const DEVELOPMENT = { name: "RootManageSharedAccessKey", key: "SAS_KEY_VALUE" };

/** An error response of the server: what happened, and whether anything changed. */
export class Problem extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `the server responded with status ${status}`);
    this.status = status;
    this.outcome = problem.outcome || "unknown";
  }
}

/** No response: the server is stopped, or the network is down. */
export class Unreachable extends Error {}

/** Other tabs of this browser have all the streams that it should open. */
export class Crowded extends Error {}

//: Streams of each kind in all tabs together. A browser opens at most six connections to a server:
//: more streams would leave none for calls.
const STREAMS = 2;
//: A clock that differs by more milliseconds than this was changed.
const CLOCK_CHANGE = 60_000;

// Sequence numbers exceed 2^53: long integers become BigInt, all other tokens stay as they are.
const NUMBERS = /-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?/g;
const LONG = /^-?\d{16,}$/;

/** Return where the string that begins at a quote ends. */
function endOfString(text, open) {
  for (let close = open + 1; ; close += 1) {
    close = text.indexOf('"', close);
    if (close < 0) return text.length;
    let slashes = 0;
    while (text[close - 1 - slashes] === "\\") slashes += 1;
    if (slashes % 2 === 0) return close + 1;
  }
}

/** Call back with each part of a JSON text: strings, and what is between them. */
function eachPart(text, onString, onRest) {
  for (let at = 0; at < text.length; ) {
    const open = text.indexOf('"', at);
    if (open !== at) onRest(text.slice(at, open < 0 ? text.length : open));
    if (open < 0) return;
    at = endOfString(text, open);
    onString(text.slice(open, at));
  }
}

export function parse(text) {
  // Most texts have no long integer; their parts would be a second copy of them.
  if (!/\d{16}/.test(text)) return JSON.parse(text);
  const mark = crypto.randomUUID();
  const parts = [];
  eachPart(text, (one) => parts.push(one), (rest) => {
    parts.push(rest.replace(NUMBERS, (token) => (LONG.test(token) ? `"${mark}${token}"` : token)));
  });
  return JSON.parse(parts.join(""), (_, one) =>
    typeof one === "string" && one.startsWith(mark) ? BigInt(one.slice(mark.length)) : one,
  );
}

/** Encode a value; a BigInt becomes a plain number of any length. */
export function encode(value, indent) {
  const mark = crypto.randomUUID();
  const marked = (_, one) => (typeof one === "bigint" ? mark + one : one);
  return JSON.stringify(value, marked, indent).replaceAll(new RegExp(`"${mark}(-?\\d+)"`, "g"), "$1");
}

//: Levels that are indented. The spaces of deeper ones would grow with the square of the size.
const LEVELS = 20;

/** Indent a JSON text without a change to its values; other texts stay as they are. */
export function indented(text) {
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  let depth = 0;
  let empty = false;
  const out = [];
  // A line at a level, unless its brackets are too deep.
  const line = (level) => (depth > LEVELS ? "" : `\n${"  ".repeat(level)}`);
  const put = (part) => {
    out.push(empty ? line(depth) + part : part);
    empty = false;
  };
  eachPart(text, put, (rest) => {
    for (const sign of rest.replace(/\s+/g, "")) {
      if (sign === "{" || sign === "[") {
        put(sign);
        depth += 1;
        empty = true;
      } else if (sign === "}" || sign === "]") {
        out.push(empty ? sign : line(depth - 1) + sign);
        depth -= 1;
        empty = false;
      } else if (sign === ",") out.push(sign + line(depth));
      else put(sign === ":" ? ": " : sign);
    }
  });
  return out.join("");
}

/** The time of the server: its messages have its stamps. */
export const now = () => Date.now() + shared.ahead;

export const onRejected = (callback) => {
  shared.rejected = callback;
};

/** Compare the clocks of server and browser; return whether they differ more than was known. */
function learnClock(response, least = CLOCK_CHANGE) {
  const stamp = Date.parse(response.headers.get("date"));
  if (!(Math.abs(stamp - now()) > least)) return false;
  shared.ahead = stamp - Date.now();
  session.token = null;
  return true;
}

export async function about() {
  const response = await reach("about.json", {});
  // The header has whole seconds, and took some time: a small difference says nothing.
  learnClock(response, 3000);
  if (!response.ok) throw new Problem(response.status, await problemOf(response));
  const found = await response.json();
  session.login = found.login;
  if (found.login === "development") Object.assign(session, DEVELOPMENT);
  return found;
}

/** Sign in with a connection string, or with a key's name and the key. */
export async function signIn(text, key) {
  const parts = Object.fromEntries(
    text.split(";").filter(Boolean).map((part) => {
      const at = part.indexOf("=");
      return [part.slice(0, at).trim().toLowerCase(), part.slice(at + 1).trim()];
    }),
  );
  session.name = parts.sharedaccesskeyname || (key ? text.trim() : "");
  session.key = parts.sharedaccesskey || key || "";
  session.entity = parts.entitypath || "";
  session.token = null;
  if (!session.name || !session.key) {
    throw new Error("paste a connection string with SharedAccessKeyName and SharedAccessKey");
  }
  if (!crypto.subtle) {
    throw new Error("the browser signs only on localhost or over TLS: use an https address");
  }
  return rights();
}

/** Return what the key allows. */
export const rights = () => get(RIGHTS);

export function signOut() {
  Object.assign(session, { name: "", key: "", entity: "", token: null });
}

async function token() {
  const seconds = Math.floor(now() / 1000);
  if (session.token && session.until > seconds + 60) return session.token;
  const resource = encodeURIComponent(`sb://${location.hostname}/${session.entity}`);
  const until = seconds + 3600;
  const key = await crypto.subtle.importKey(
    "raw", encoder.encode(session.key), { name: "HMAC", hash: "SHA-256" }, false, ["sign"],
  );
  const signed = await crypto.subtle.sign("HMAC", key, encoder.encode(`${resource}\n${until}`));
  const signature = encodeURIComponent(btoa(String.fromCharCode(...new Uint8Array(signed))));
  session.token =
    `SharedAccessSignature sr=${resource}&sig=${signature}&se=${until}` +
    `&skn=${encodeURIComponent(session.name)}`;
  session.until = until;
  return session.token;
}

async function problemOf(response) {
  try {
    return await response.json();
  } catch {
    return {};
  }
}

async function reach(path, options, changes = false) {
  try {
    return await fetch(path, { ...options, credentials: "omit" });
  } catch (problem) {
    if (options.signal?.aborted) throw problem;
    const unknown = changes ? ". It may have done this: look before you try again" : "";
    throw new Unreachable(`the server does not respond: check that it runs${unknown}`);
  }
}

async function request(method, path, body, signal) {
  const headers = {};
  const signed = session.login !== "none";
  if (signed) headers.authorization = await token();
  if (body !== undefined) headers["content-type"] = "application/json";
  const content = body === undefined ? undefined : encode(body);
  const changes = method !== "GET" && !LOOKS.test(path) && !body?.dry_run;
  const options = { method, headers, signal, body: content };
  let response = await reach(path, options, changes);
  if (learnClock(response) && response.status === 401 && signed) {
    // The clock of the browser was changed: what it signed seemed to be expired.
    headers.authorization = await token();
    response = await reach(path, options, changes);
  }
  if (response.ok) return response;
  const problem = new Problem(response.status, await problemOf(response));
  if (response.status === 401 && signed && path !== RIGHTS) shared.rejected(problem.message);
  throw problem;
}

/** Return bytes as a file: the browser keeps a large one outside of the page's memory. */
export const file = async (path) => (await request("GET", path)).blob();

async function call(method, path, body, signal) {
  const response = await request(method, path, body, signal);
  return response.status === 204 ? null : parse(await response.text());
}

export const get = (path, signal) => call("GET", path, undefined, signal);
export const post = (path, body, signal) => call("POST", path, body, signal);
export const put = (path, body) => call("PUT", path, body);
export const patch = (path, body) => call("PATCH", path, body);
export const remove = (path) => call("DELETE", path);

/** The path of a call about an entity. */
export const at = (name, rest = "") => `/v1/entities/${encodeURIComponent(name)}${rest}`;
export const admin = (kind, name) => `/v1/${kind}s/${encodeURIComponent(name)}`;

/** Run something while this tab has one of the places for streams of a kind. */
async function inPlace(kind, run) {
  // Only loopback and TLS have locks.
  if (!navigator.locks) return run();
  for (let place = 0; place < STREAMS; place += 1) {
    let taken = false;
    await navigator.locks.request(`${kind} ${place}`, { ifAvailable: true }, (lock) => {
      taken = lock !== null;
      return taken ? run() : undefined;
    });
    if (taken) return undefined;
  }
  throw new Crowded("other tabs follow messages already: stop one of them");
}

/** Read a stream of JSON lines until it ends or the signal aborts it. */
export const stream = (kind, path, body, onLine, signal) => inPlace(kind, () => read(path, body, onLine, signal));

async function read(path, body, onLine, signal) {
  const response = await request("POST", path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((problem) => {
      throw signal?.aborted ? problem : new Unreachable("the connection to the server was lost");
    });
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) if (part) onLine(parse(part));
  }
}
