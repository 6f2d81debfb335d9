// Calls of the public HTTP API: signed requests, exact numbers, streams of lines.

const session = { login: "key", name: "", key: "", entity: "", token: null, until: 0 };
const encoder = new TextEncoder();
const DEVELOPMENT = { name: "RootManageSharedAccessKey", key: "SAS_KEY_VALUE" };

/** An error response of the server: what happened, and whether anything changed. */
export class Problem extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `the server responded with status ${status}`);
    this.status = status;
    this.outcome = problem.outcome || "unknown";
  }
}

// Sequence numbers exceed 2^53: long integers become strings, all other tokens stay as they are.
const TOKENS = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?/g;
const LONG = /^-?\d{16,}$/;

export function parse(text) {
  return JSON.parse(text.replace(TOKENS, (token) => (LONG.test(token) ? `"${token}"` : token)));
}

/** Encode a value; a BigInt becomes a plain number of any length. */
export function encode(value) {
  const mark = crypto.randomUUID();
  const text = JSON.stringify(value, (_, one) => (typeof one === "bigint" ? mark + one : one));
  return text.replaceAll(new RegExp(`"${mark}(-?\\d+)"`, "g"), "$1");
}

export async function about() {
  const response = await fetch("about.json");
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
  return get("/v1/rights");
}

export function signOut() {
  Object.assign(session, { name: "", key: "", entity: "", token: null });
}

async function token() {
  const now = Math.floor(Date.now() / 1000);
  if (session.token && session.until > now + 60) return session.token;
  const resource = encodeURIComponent(`sb://${location.hostname}/${session.entity}`);
  const until = now + 3600;
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

async function request(method, path, body, signal) {
  const headers = {};
  if (session.login !== "none") headers.authorization = await token();
  if (body !== undefined) headers["content-type"] = "application/json";
  const response = await fetch(path, {
    method,
    headers,
    signal,
    body: body === undefined ? undefined : encode(body),
    credentials: "omit",
  });
  if (!response.ok) throw new Problem(response.status, await problemOf(response));
  return response;
}

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

/** Read a stream of JSON lines until it ends or the signal aborts it. */
export async function lines(path, body, onLine, signal) {
  const response = await request("POST", path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) if (part) onLine(parse(part));
  }
}
