// Settings, rules and keys of an entity: shown, created and changed. The server checks every value.

import { html, useEffect, useState } from "./preact.js";
import { admin, at, encode, get, parse, patch, post, put, remove } from "./api.js";
import { Confirm, Dialog, Failure, Field, Table, count, number, preview, useLoaded } from "./widgets.js";

const BETWEEN = "/subscriptions/";
const SCHEMAS = { queue: "QueueSettings", topic: "TopicSettings", subscription: "SubscriptionSettings" };
//: Fixed when the entity is created.
const FIXED = ["requires_duplicate_detection", "requires_session", "enable_partitioning", "fifo"];
//: Shown first; the others are behind "More settings".
const COMMON = [
  ...FIXED, "lock_duration_ms", "max_delivery_count", "default_time_to_live_ms", "dead_letter_on_expiration",
  "duplicate_detection_window_ms", "forward_to", "forward_dead_letters_to",
];
const CHOICES = {
  status: ["active", "send-disabled", "receive-disabled", "disabled"],
  deduplication_scope: ["queue", "messageGroup"],
};

// Durations: people write "5 min", the API has milliseconds.
const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1000], ["ms", 1]];

export function written(ms) {
  if (ms === null || ms === undefined) return "";
  const [unit, size] = UNITS.find(([, one]) => Number(ms) % one === 0) || ["ms", 1];
  return Number(ms) === 0 ? "0 s" : `${Number(ms) / size} ${unit}`;
}

export function milliseconds(text, name) {
  const found = /^\s*(\d+(?:\.\d+)?)\s*(ms|s|min|h|d)\s*$/.exec(text);
  if (!found) throw new Error(`${name}: write a number and ms, s, min, h or d, such as 5 min`);
  return Math.round(Number(found[1]) * UNITS.find(([unit]) => unit === found[2])[1]);
}

const label = (name) => name.replace(/_ms(_max)?$/, "$1").replaceAll("_", " ");

//: The description of the API, loaded when a form needs it first.
let described = null;

async function schemaOf(kind) {
  described = described || get("/openapi.json").catch((problem) => {
    described = null;
    throw problem;
  });
  const { properties } = (await described).components.schemas[SCHEMAS[kind]];
  return Object.entries(properties).map(([name, one]) => {
    const types = (one.anyOf || [one]).map((type) => type.type);
    const text = { name, type: types.find((type) => type !== "null"), nullable: types.includes("null"), initial: one.default ?? null };
    return { ...text, type: name in CHOICES ? "choice" : /_ms(_max)?$/.test(name) ? "duration" : text.type };
  });
}

/** Return what a form has for a setting. */
function valueOf(one, form) {
  if (one.type === "boolean") return form.get(one.name) === "on";
  const text = (form.get(one.name) ?? "").trim();
  if (!text && one.nullable) return null;
  if (one.type === "duration") return milliseconds(text, label(one.name));
  if (one.type === "integer") {
    if (!/^\d+$/.test(text)) throw new Error(`${label(one.name)}: write a whole number`);
    return BigInt(text);
  }
  return one.type === "object" ? parse(text || "{}") : text;
}

const same = (one, other) => encode([one]) === encode([typeof other === "number" ? BigInt(other) : other]);

/** Return the settings of a form that differ from the given ones. */
function changed(schema, form, before) {
  const found = {};
  for (const one of schema) {
    if (!form.has(one.name) && one.type !== "boolean") continue;
    const value = valueOf(one, form);
    const plain = typeof value === "number" ? BigInt(value) : value;
    if (!same(plain, before[one.name])) found[one.name] = value;
  }
  return found;
}

function Setting({ one, value, fixed }) {
  const name = label(one.name);
  if (one.type === "boolean") {
    return html`<label class="check"><input type="checkbox" name=${one.name} defaultChecked=${value} disabled=${fixed} /> ${name}${fixed && html` <small class="soft">fixed at creation</small>`}</label>`;
  }
  if (one.type === "choice") {
    return html`<${Field} label=${name}><select name=${one.name}>${CHOICES[one.name].map((choice) => html`<option key=${choice} value=${choice} selected=${choice === value}>${choice}</option>`)}</select><//>`;
  }
  if (one.type === "object") return html`<${Field} label=${name} hint="a JSON object"><textarea name=${one.name} rows="2" spellcheck=${false} defaultValue=${encode(value ?? {})}></textarea><//>`;
  const shown = one.type === "duration" ? written(value) : value === null ? "" : String(value);
  const hint = [one.type === "duration" && "such as 30 s, 5 min or 2 d", one.nullable && "empty: none"].filter(Boolean).join("; ");
  return html`<${Field} label=${name} hint=${hint}><input name=${one.name} autocomplete="off" spellcheck=${false} defaultValue=${shown} /><//>`;
}

/** The fields of all settings, the usual ones first. */
function SettingFields({ schema, values, changing }) {
  const field = (one) => html`<${Setting} key=${one.name} one=${one} value=${values[one.name]} fixed=${changing && FIXED.includes(one.name)} />`;
  return html`
    <div class="two">${schema.filter((one) => COMMON.includes(one.name)).map(field)}</div>
    <details><summary>More settings</summary><div class="two">${schema.filter((one) => !COMMON.includes(one.name)).map(field)}</div></details>`;
}

export function NewEntity({ onClose, onDone }) {
  const [kind, setKind] = useState("queue");
  const { value: schema, error } = useLoaded(() => schemaOf(kind), [kind]);
  const submit = async (form) => {
    const name = form.get("name").trim();
    if (kind === "subscription" && !name.includes(BETWEEN)) throw new Error("name a subscription topic/subscriptions/name");
    const initial = Object.fromEntries(schema.map((one) => [one.name, one.initial]));
    await put(admin(kind, name), changed(schema, form, initial));
    onDone(name);
  };
  const initial = Object.fromEntries((schema || []).map((one) => [one.name, one.initial]));
  return html`<${Dialog} title="New entity" submit=${schema && "Create"} onSubmit=${submit} onClose=${onClose}>
    <${Field} label="Kind"><select value=${kind} onChange=${(event) => setKind(event.target.value)}>${Object.keys(SCHEMAS).map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select><//>
    <${Field} label="Name" hint=${kind === "subscription" ? "topic/subscriptions/name" : "letters, digits and . - _ ~ /"}><input name="name" required autocomplete="off" spellcheck=${false} /><//>
    <${Failure} text=${error} />
    ${schema && html`<${SettingFields} key=${kind} schema=${schema} values=${initial} />`}
  <//>`;
}

function ChangeSettings({ info, onClose, onDone }) {
  // The values at the time of opening: a view that loads again must not undo what was typed.
  const [values] = useState(info.settings);
  const { value: schema, error } = useLoaded(() => schemaOf(info.kind), [info.kind]);
  const submit = async (form) => {
    const changes = changed(schema.filter((one) => !FIXED.includes(one.name)), form, values);
    if (!Object.keys(changes).length) throw new Error("nothing changed");
    await patch(admin(info.kind, info.name), changes);
    onDone(Object.keys(changes).map(label).join(", "));
  };
  return html`<${Dialog} title=${`Settings of ${info.name}`} submit=${schema && "Save"} onSubmit=${submit} onClose=${onClose}>
    <p>The server checks the values. They apply at once, without a restart.</p>
    <${Failure} text=${error} />
    ${schema && html`<${SettingFields} schema=${schema} values=${values} changing />`}
  <//>`;
}

const FIELDS = ["correlation_id", "message_id", "to", "reply_to", "subject", "session_id", "reply_to_session_id", "content_type"];

/** A filter in words. */
function filterText(filter) {
  if (filter.type === "sql") return `${filter.expression}${Object.keys(filter.parameters || {}).length ? ` with ${encode(filter.parameters)}` : ""}`;
  if (filter.type === "correlation") {
    const named = FIELDS.filter((one) => filter[one] !== undefined && filter[one] !== null).map((one) => `${one} = ${filter[one]}`);
    return [...named, ...Object.entries(filter.properties || {}).map(([key, one]) => `${key} = ${encode(one)}`)].join(" and ");
  }
  return filter.type === "true" ? "every message" : "no message";
}

/** Try an SQL filter on messages that wait in a subscription of the topic. */
function TestFilter({ name, sql, parameters }) {
  const topic = name.split(BETWEEN)[0];
  const { value: siblings } = useLoaded((signal) => get(admin("topic", topic), signal), [topic]);
  const [chosen, setChosen] = useState(name);
  const [tested, setTested] = useState(null);
  useEffect(() => setTested(null), [sql, chosen]);
  const test = async () => {
    try {
      const where = { sql, state: "active", sql_parameters: parse(parameters || "{}") };
      setTested(await post(at(chosen, "/search"), { limit: 100, looks: 5000, where, body_limit: 200 }));
    } catch (problem) {
      setTested({ error: problem.message });
    }
  };
  return html`<fieldset><legend>Test</legend>
    <label>Messages of <select value=${chosen} onChange=${(event) => setChosen(event.target.value)}>${(siblings?.subscriptions || [name]).map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select></label>
    <button type="button" onClick=${test} disabled=${!sql}>Test against waiting messages</button>
    <p role="status">${tested && !tested.error && `matches ${number(tested.messages.length)}${tested.next === null ? "" : " or more"} of the first ${count(tested.looked, "message")}`}</p>
    <${Failure} text=${tested?.error} />
    ${tested?.messages?.length > 0 && html`<ul class="clips">${tested.messages.slice(0, 5).map((one) => html`<li key=${one.sequence_number}>${String(one.sequence_number)}: ${preview(one)}</li>`)}</ul>`}
  </fieldset>`;
}

function EditRule({ name, rule, onClose, onDone }) {
  const fresh = !rule.name;
  const filter = rule.filter || { type: "sql", expression: "" };
  const [kind, setKind] = useState(filter.type);
  const [sql, setSql] = useState(filter.expression || "");
  const [parameters, setParameters] = useState(Object.keys(filter.parameters || {}).length ? encode(filter.parameters) : "");
  const filterOf = (form) => {
    if (kind === "sql") return { type: "sql", expression: sql, parameters: parse(parameters || "{}") };
    if (kind !== "correlation") return { type: kind };
    const named = FIELDS.filter((one) => form.get(one)).map((one) => [one, form.get(one)]);
    return { type: "correlation", ...Object.fromEntries(named), properties: parse(form.get("properties") || "{}") };
  };
  const submit = async (form) => {
    const made = { name: fresh ? form.get("name").trim() : rule.name, filter: filterOf(form) };
    const action = form.get("action").trim();
    if (action) made.action = { expression: action, parameters: rule.action?.parameters || {} };
    const path = `${admin("subscription", name)}/rules`;
    if (fresh) await post(path, made);
    else await put(`${path}/${encodeURIComponent(rule.name)}`, made);
    onDone(fresh ? "rule added" : "rule changed");
  };
  const values = filter.type === "correlation" ? filter : {};
  return html`<${Dialog} title=${fresh ? `Add a rule to ${name}` : `Change rule ${rule.name}`} submit=${fresh ? "Add" : "Save"} onSubmit=${submit} onClose=${onClose}>
    <p>A rule selects messages that the topic receives from now on. Messages that are already in the subscription stay.</p>
    ${fresh && html`<${Field} label="Name"><input name="name" required autocomplete="off" /><//>`}
    <${Field} label="Filter"><select name="kind" value=${kind} onChange=${(event) => setKind(event.target.value)}>
      <option value="sql">SQL filter</option><option value="correlation">correlation filter</option><option value="true">every message</option><option value="false">no message</option></select><//>
    ${kind === "sql" && html`
      <${Field} label="SQL filter" hint="such as region = 'eu' AND priority > 3"><textarea rows="2" required spellcheck=${false} defaultValue=${sql} onInput=${(event) => setSql(event.target.value)}></textarea><//>
      <${Field} label="Parameters" hint='a JSON object, such as {"@low": 3}; empty: none'><input spellcheck=${false} defaultValue=${parameters} onInput=${(event) => setParameters(event.target.value)} /><//>
      <${TestFilter} name=${name} sql=${sql} parameters=${parameters} />`}
    ${kind === "correlation" && html`<div class="two">${FIELDS.map((one) => html`<${Field} key=${one} label=${label(one)}><input name=${one} defaultValue=${values[one] || ""} /><//>`)}</div>
      <${Field} label="Properties" hint="a JSON object; all must be equal"><textarea name="properties" rows="2" spellcheck=${false} defaultValue=${values.properties ? encode(values.properties) : ""}></textarea><//>`}
    <${Field} label="SQL action" hint="Changes properties, such as SET region = 'eu'; empty: none."><input name="action" spellcheck=${false} defaultValue=${rule.action?.expression || ""} /><//>
  <//>`;
}

function Rules({ info, can, onDone }) {
  const [rule, setRule] = useState(null);
  const [dropped, setDropped] = useState(null);
  const drop = async () => {
    await remove(`${admin("subscription", info.name)}/rules/${encodeURIComponent(dropped.name)}`);
    onDone(`deleted rule ${dropped.name}`);
  };
  return html`
    <div class="bar"><h2>Rules</h2><span class="grow"></span>${can("Manage") && html`<button onClick=${() => setRule({})}>Add rule</button>`}</div>
    ${!info.rules.length && html`<p><b>This subscription has no rule, so it gets no message.</b></p>`}
    <${Table} label="Rules" columns=${["Rule", "Filter", "Action", ["Actions", "hidden"]]} rows=${info.rules.map((one) => html`<tr key=${one.name}>
      <th scope="row">${one.name}</th><td><code>${filterText(one.filter)}</code></td><td><code>${one.action ? one.action.expression : "–"}</code></td>
      <td>${can("Manage") && html`<button aria-label=${`Change rule ${one.name}`} onClick=${() => setRule(one)}>Change</button> <button class="danger" aria-label=${`Delete rule ${one.name}`} onClick=${() => setDropped(one)}>Delete</button>`}</td></tr>`)} />
    ${dropped && html`<${Confirm} title=${`Delete rule ${dropped.name}`} text="Messages that only this rule selects no longer reach the subscription. You cannot undo it." submit="Delete rule" onSubmit=${drop} onClose=${() => setDropped(null)} />`}
    ${rule && html`<${EditRule} name=${info.name} rule=${rule} onClose=${() => setRule(null)} onDone=${onDone} />`}`;
}

function Keys({ name }) {
  const { value, error } = useLoaded((signal) => get("/v1/keys", signal), [name]);
  if (!value) return error ? html`<h2>Keys</h2><p class="soft">${error}</p>` : null;
  const topic = name.split(BETWEEN)[0];
  const keys = value.keys.filter((one) => !one.entity || [name, topic].includes(one.entity));
  return html`<h2>Keys</h2><${Table} label="Keys" columns=${["Key", "Scope", "Rights"]} rows=${keys.map((one) => html`<tr key=${`${one.entity} ${one.name}`}><th scope="row">${one.name}</th><td>${one.entity || "all entities"}</td><td>${one.rights.join(", ")}</td></tr>`)} />`;
}

const shown = (key, value) => {
  if (value === null) return "–";
  if (/_ms(_max)?$/.test(key)) return written(value);
  return typeof value === "object" ? encode(value) : String(value);
};

export function Settings({ info, can, say, again }) {
  const [editing, setEditing] = useState(false);
  const done = (text) => {
    say(text);
    again();
  };
  return html`
    <div class="bar"><h2>Settings</h2><span class="grow"></span>${can("Manage") && html`<button onClick=${() => setEditing(true)}>Change settings</button>`}</div>
    <${Table} label="Settings" columns=${["Setting", "Value"]} rows=${Object.entries(info.settings).map(([key, value]) => html`<tr key=${key}><th scope="row">${key}</th><td>${shown(key, value)}</td></tr>`)} />
    ${info.rules && html`<${Rules} info=${info} can=${can} onDone=${done} />`}
    <${Keys} name=${info.name} />
    ${editing && html`<${ChangeSettings} info=${info} onClose=${() => setEditing(false)} onDone=${(names) => done(`changed ${names}`)} />`}`;
}

const PAUSES = {
  disabled: "The broker rejects sends and receives.",
  "send-disabled": "The broker rejects sends. Receivers continue.",
  "receive-disabled": "The broker rejects receives. Senders continue.",
};

/** Pause sends, receives or both; or resume. */
export function Pause({ info, onClose, onDone }) {
  const paused = info.settings.status !== "active";
  const submit = async (form) => {
    const status = paused ? "active" : form.get("status");
    await patch(admin(info.kind, info.name), { status });
    onDone(paused ? "resumed" : `paused: ${status}`);
  };
  return html`<${Dialog} title=${`${paused ? "Resume" : "Pause"} ${info.name}`} submit=${paused ? "Resume now" : "Pause now"} danger=${!paused} onSubmit=${submit} onClose=${onClose}>
    ${paused
      ? html`<p>The broker accepts and delivers messages again.</p>`
      : html`<fieldset><legend>Until you resume</legend>${Object.entries(PAUSES).map(([status, text]) => html`<label key=${status} class="check"><input type="radio" name="status" value=${status} defaultChecked=${status === "disabled"} /> ${text}</label>`)}</fieldset>`}
    <p>${count(info.active_count, "active message")} in it.</p>
  <//>`;
}

/** Delete an entity after its name was typed. */
export function Delete({ info, onClose }) {
  const held = info.active_count + info.deferred_count + info.scheduled_count + info.dead_lettered_count;
  const submit = async (form) => {
    if (form.get("name") !== info.name) throw new Error("type the name exactly as shown");
    await remove(admin(info.kind, info.name));
    location.hash = "#/";
  };
  return html`<${Dialog} title=${`Delete ${info.kind} ${info.name}`} submit="Delete" danger onSubmit=${submit} onClose=${onClose}>
    <p>This deletes the ${info.kind} with ${count(held, "message")}${info.subscriptions?.length ? ` and ${count(info.subscriptions.length, "subscription")}` : ""}. You cannot undo it.</p>
    <label class="field"><span>Type <b>${info.name}</b> to confirm</span><input name="name" autocomplete="off" spellcheck=${false} /></label>
  <//>`;
}
