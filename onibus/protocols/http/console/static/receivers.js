// What receives from an entity, who reads its log, and open claims.

import { html } from "./preact.js";
import { at, get } from "./api.js";
import { Failure, Sign, Table, ago, count, duration, number, time, useLoaded } from "./widgets.js";

const total = (values) => values.reduce((sum, one) => sum + Number(one ?? 0), 0);

function Receivers({ name }) {
  const { value, error } = useLoaded((signal) => get(at(name, "/receivers"), signal), [name], 5);
  return html`<h2>Receivers</h2><${Failure} text=${error} wait=${!value} />
    ${value && html`<p>Receives that wait for a message: ${number(value.waiting)}. Open AMQP receiver links: ${number(value.link_count)}${value.link_count > value.links.length ? `, the first ${number(value.links.length)} shown` : ""}.</p>
    ${value.links.length > 0 && html`<${Table} label="AMQP links" columns=${["Client", "Container", "Link", "Keys", ["Credit", "num"], ["Delivered", "num"], "From"]} rows=${value.links.map((one) => html`<tr key=${`${one.address} ${one.container} ${one.link}`}>
      <th scope="row">${one.address}</th><td class="clip">${one.container}</td><td class="clip">${one.link}</td><td>${one.keys.join(", ") || "–"}</td>
      <td class="num">${number(one.credit)}</td><td class="num">${number(one.delivered)}</td><td>${one.dead_letters ? "dead-letter queue" : one.session_id ? `session ${one.session_id}` : "queue"}</td></tr>`)} />`}
    <h2>Locks</h2>
    ${value.locks.length
      ? html`<${Table} label="Locks" columns=${[["Messages", "num"], ["Partition", "num"], "Held by", ["Since", "num"], "Until"]} rows=${value.locks.map((one, place) => html`<tr key=${place}>
          <td class="num">${number(one.count)}</td><td class="num">${one.partition}</td><td>${one.owner || (one.session_id ? `session ${one.session_id}` : "a receiver")}</td>
          <td class="num">${ago(one.received_ms)}</td><td>${time(one.until_ms)}</td></tr>`)} />
        ${value.lock_count > value.locks.length && html`<p class="soft">${number(value.lock_count)} receives hold messages; those with most are shown.</p>`}`
      : html`<p class="soft">No receiver holds a message.</p>`}`}`;
}

function Readers({ name }) {
  const { value, error } = useLoaded((signal) => get(at(name, "/readers"), signal), [name], 5);
  const lost = (one) => one.lost.filter(Boolean).length;
  return html`<h2>Readers</h2><${Failure} text=${error} wait=${!value} />
    ${value && (value.readers.length
      ? html`<${Table} label="Readers" columns=${["Reader", "Log", ["Rows behind", "num"], ["Rows lost", "num"], ["Last moved", "num"], "Next numbers"]} rows=${value.readers.map((one) => html`<tr key=${one.name}>
          <th scope="row">${one.name}${one.address && html`<div class="soft">${one.address}</div>`}</th><td>${one.log}</td>
          <td class="num">${number(total(one.lag))}</td><td class=${`num ${lost(one) ? "bad" : ""}`}>${lost(one) ? html`<${Sign} at="bad" />in ${count(lost(one), "partition")}` : "none"}</td>
          <td class="num">${ago(one.moved_ms)}</td><td><code>${one.positions.map(String).join(" ")}</code></td></tr>`)} />`
      : html`<p class="soft">No program reads the log under a name.</p>`)}`;
}

const stateOf = (one) => (one.committing ? "committing" : one.read ? "read" : `not read, lease until ${time(one.lease_until_ms)}`);

function Claims({ name }) {
  const { value, error } = useLoaded((signal) => get(at(name, "/claims"), signal), [name], 5);
  return html`<h2>Claims</h2><${Failure} text=${error} wait=${!value} />
    ${value && (value.claims.length
      ? html`<${Table} label="Claims" columns=${["Reader", ["Claim", "num"], ["Messages", "num"], ["Age", "num"], "State"]} rows=${value.claims.map((one) => html`<tr key=${`${one.reader} ${one.number}`}>
          <th scope="row">${one.reader}</th><td class="num">${String(one.number)}</td><td class="num">${number(one.count)}</td><td class="num">${duration(one.age_ms)}</td><td>${stateOf(one)}</td></tr>`)} />`
      : html`<p class="soft">No claim is open.</p>`)}`;
}

export function Reading({ info }) {
  return html`${info.kind !== "topic" && html`<${Receivers} name=${info.name} />`}<${Readers} name=${info.name} />${info.kind !== "topic" && html`<${Claims} name=${info.name} />`}`;
}
