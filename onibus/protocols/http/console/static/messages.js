// Messages: a filtered list that loads as it is read, one message in detail, and what to do with it.

import { html, useEffect, useRef, useState } from "./preact.js";
import { at, encode, get, indented, lines, post } from "./api.js";
import { Move, Resubmit, Send } from "./forms.js";
import { Confirm, Failure, number, time, useLoaded } from "./widgets.js";

const PAGE = 50;
const TAIL = 500;
//: A search stops by itself after this many messages found, and can be continued.
const ENOUGH = 200;

const bodyOf = (message) => {
  if (message.body !== undefined) return message.body;
  if (message.body_base64 === undefined) return "";
  return Array.from(atob(message.body_base64), (one) => one.charCodeAt(0).toString(16).padStart(2, "0")).join(" ");
};

function pretty(message, form) {
  const text = bodyOf(message);
  if (form === "hex") {
    const content = message.body_base64 ? null : new TextEncoder().encode(text);
    return content ? Array.from(content, (one) => one.toString(16).padStart(2, "0")).join(" ") : text;
  }
  return form === "json" && message.body !== undefined ? indented(text) : text;
}

function Detail({ info, message, dead, can, say, onClose }) {
  const isTopic = info.kind === "topic";
  const [form, setForm] = useState("json");
  const [dialog, setDialog] = useState("");
  const place = useRef(null);
  useEffect(() => place.current.focus(), [message.sequence_number]);
  const ask = (signal) => post(at(info.name, "/inspect"), { number: BigInt(message.sequence_number) }, signal);
  const { value: seen, error: unseen } = useLoaded(isTopic ? async () => null : ask, [info.name, message.sequence_number], 5);
  const act = (path, text) => async () => {
    await post(at(info.name, path), { numbers: [BigInt(message.sequence_number)] });
    say(text);
    onClose();
  };
  const fields = Object.entries(message).filter(([key]) => !["body", "body_base64", "properties"].includes(key));
  const shown = (key, value) => (key.endsWith("_ms") && key !== "time_to_live_ms" ? time(value) : String(value));
  return html`<aside class="detail" ref=${place} tabindex="-1" aria-label="Message">
    <div class="bar"><h2>Message ${message.sequence_number}</h2><span class="grow"></span><button onClick=${onClose}>Close</button></div>
    <div class="bar">
      ${dead && can("Manage") && html`<button class="primary" onClick=${() => setDialog("resubmit")}>Resubmit</button>`}
      ${!dead && message.state === "active" && can("Manage") && html`<button onClick=${() => setDialog("move")}>Move</button>`}
      ${info.kind !== "subscription" && can("Send") && html`<button onClick=${() => setDialog("copy")}>Edit and send a copy</button>`}
      ${message.state === "deferred" && can("Listen") && html`<button onClick=${() => setDialog("reactivate")}>Reactivate</button>`}
      ${message.state === "scheduled" && can("Send") && html`<button class="danger" onClick=${() => setDialog("cancel")}>Cancel</button>`}
    </div>
    <div class="bar" role="group" aria-label="Show the body as">
      ${["json", "text", "hex", "AMQP sections"].map((one) => html`<button key=${one} aria-pressed=${one === form} onClick=${() => setForm(one)}>${one}</button>`)}
    </div>
    ${form === "AMQP sections"
      ? seen && html`<div aria-label="AMQP sections" role="group">${seen.sections.map((one, place) => html`<div key=${place}><h3>${one.name}</h3><pre tabindex="0" aria-label=${one.name}>${typeof one.value === "string" ? one.value : encode(one.value, 2)}</pre></div>`)}</div>`
      : html`<pre class="body" tabindex="0" aria-label="Body">${pretty(message, form)}</pre>`}
    <${Failure} text=${unseen} />
    ${seen && html`<h3>Life so far</h3><ol class="life">${seen.life.map((one, place) => html`<li key=${place}><b>${one.what}</b>${one.at_ms ? ` ${time(one.at_ms)}` : ""}${one.detail ? html` <span class="soft">${one.detail}</span>` : ""}</li>`)}</ol>`}
    ${message.properties && html`<h3>Properties</h3><table><tbody>${Object.entries(message.properties).map(([key, value]) => html`<tr key=${key}><th scope="row">${key}</th><td>${typeof value === "object" ? encode(value) : String(value)}</td></tr>`)}</tbody></table>`}
    <h3>Fields</h3>
    <table><tbody>${fields.map(([key, value]) => html`<tr key=${key}><th scope="row">${key}</th><td>${shown(key, value)}</td></tr>`)}</tbody></table>
    ${dialog === "cancel" && html`<${Confirm} title="Cancel a scheduled message" text=${`This deletes message ${message.sequence_number}. You cannot undo it.`} submit="Cancel the message" onSubmit=${act("/cancel-scheduled", "cancelled")} onClose=${() => setDialog("")} />`}
    ${dialog === "reactivate" && html`<${Confirm} title="Reactivate a deferred message" text=${`Receivers get message ${message.sequence_number} again.`} submit="Reactivate it" onSubmit=${act("/undefer", "reactivated")} onClose=${() => setDialog("")} />`}
    ${dialog === "copy" && html`<${Send} info=${info} message=${{ ...message, message_id: "" }} onClose=${() => setDialog("")} onDone=${say} />`}
    ${dialog === "move" && html`<${Move} info=${info} numbers=${[message.sequence_number]} onClose=${() => setDialog("")} onDone=${(text) => { say(text); onClose(); }} />`}
    ${dialog === "resubmit" && html`<${Resubmit} info=${info} numbers=${[message.sequence_number]} count=${1} onClose=${() => setDialog("")} onDone=${(text) => { say(text); onClose(); }} />`}
  </aside>`;
}

function Reasons({ info, can, say, chosen, onChoose, total }) {
  const { value, error } = useLoaded((signal) => get(at(info.name, "/dead-letters/reasons"), signal), [info.name, total]);
  const [asked, setAsked] = useState(null);
  if (!value) return html`<${Failure} text=${error} />`;
  if (!value.reasons.length) return null;
  return html`<table class="reasons">
    <thead><tr><th scope="col">Reason</th><th scope="col" class="num">Messages</th><th><span class="hidden">Actions</span></th></tr></thead>
    <tbody>${value.reasons.map((one) => html`<tr key=${one.reason} aria-selected=${one.reason === chosen}>
      <th scope="row"><button class="plain" onClick=${() => onChoose(one.reason === chosen ? undefined : one.reason)}>${one.reason || "(none)"}</button></th>
      <td class="num">${number(one.count)}</td>
      <td>${can("Manage") && html`<button onClick=${() => setAsked(one)}>Resubmit these ${number(one.count)}</button>`}</td></tr>`)}</tbody>
  </table>
  ${value.others > 0 && html`<p class="soft">${number(value.others)} messages have other reasons.</p>`}
  ${!value.complete && html`<p class="soft">Only the first messages were counted.</p>`}
  ${asked && html`<${Resubmit} info=${info} reason=${asked.reason} count=${asked.count} onClose=${() => setAsked(null)} onDone=${say} />`}`;
}

/** Search in bounded steps; return what was found so far, and how to stop and continue. */
function useSearch(name, dead, where) {
  const [state, setState] = useState({ messages: [], next: 0, looked: 0, busy: false, error: "" });
  const stop = useRef(null);
  const run = async (from, before) => {
    stop.current?.abort();
    const control = (stop.current = new AbortController());
    let found = from ? before : { messages: [], looked: 0 };
    let next = from;
    let target = found.messages.length + PAGE;
    try {
      do {
        setState({ ...found, next, busy: true, error: "" });
        const page = await post(at(name, "/search"), { start: BigInt(next), limit: PAGE, dead_letters: dead, where }, control.signal);
        found = { messages: [...found.messages, ...page.messages], looked: found.looked + page.looked };
        next = page.next;
      } while (next !== null && found.messages.length < target && found.messages.length < ENOUGH * 50);
      setState({ ...found, next, busy: false, error: "" });
    } catch (problem) {
      if (!control.signal.aborted) setState({ ...found, next, busy: false, error: problem.message });
    }
  };
  const key = encode([name, dead, where]);
  useEffect(() => {
    run(0, null);
    return () => stop.current?.abort();
  }, [key]);
  return {
    ...state,
    more: () => run(state.next, state),
    again: () => run(0, null),
    halt: () => {
      stop.current?.abort();
      setState((before) => ({ ...before, busy: false }));
    },
  };
}

/** Follow arriving messages while it is on; the newest come first. */
function useTail(name, where) {
  const [on, setOn] = useState(false);
  const [arrived, setArrived] = useState([]);
  const [error, setError] = useState("");
  const key = encode([name, where]);
  useEffect(() => {
    setArrived([]);
    if (!on) return undefined;
    setError("");
    const ended = (text) => {
      setError(text);
      setOn(false);
    };
    const stop = new AbortController();
    lines(at(name, "/tail"), { where }, (message) => {
      setArrived((before) => [message, ...before].slice(0, TAIL));
    }, stop.signal)
      .then(() => ended("the server ended the stream: the server stopped, the entity was deleted, or the key is no longer valid"))
      .catch((problem) => stop.signal.aborted || ended(problem.message));
    return () => stop.abort();
  }, [key, on]);
  return { on, setOn, arrived, error };
}

//: Messages that this page holds, by entity: a change of view must not lose their tokens.
const kept = new Map();

function Held({ info, can, say }) {
  const [held, show] = useState(kept.get(info.name) || []);
  const setHeld = (change) => {
    const now = change(kept.get(info.name) || []);
    kept.set(info.name, now);
    show(now);
  };
  const [error, setError] = useState("");
  const take = async () => {
    try {
      const found = await post(at(info.name, "/receive"), { limit: 1, wait_ms: 0 });
      setError(found.messages.length ? "" : "no message is available");
      setHeld((before) => [...before, ...found.messages]);
    } catch (problem) {
      setError(problem.message);
    }
  };
  const settle = async (message, verb) => {
    const named = verb === "complete" ? { tokens: [message.token] } : { token: message.token };
    try {
      await post(at(info.name, `/${verb}`), verb === "dead-letter" ? { ...named, reason: "console" } : named);
      setHeld((before) => before.filter((one) => one !== message));
      say(`${verb}: message ${message.sequence_number}`);
    } catch (problem) {
      setError(problem.message);
    }
  };
  if (!can("Listen") || info.settings.requires_session || info.kind === "topic") return null;
  return html`<details open=${held.length > 0}><summary>Receive with a lock</summary>
    <p class="soft">Receiving takes a message from other receivers until you settle it or its lock expires. Complete deletes it. Abandon releases it. Defer sets it aside until you reactivate it. Dead-letter moves it to the dead-letter queue.</p>
    <button onClick=${take}>Receive the next message</button>
    <${Failure} text=${error} />
    ${held.map((message) => html`<div class="bar held" key=${message.token}>
      <b>${message.sequence_number}</b> <span class="clip">${bodyOf(message).slice(0, 200)}</span> <span class="soft">until ${time(message.locked_until_ms)}</span><span class="grow"></span>
      ${["complete", "abandon", "defer", "dead-letter"].map((verb) => html`<button key=${verb} onClick=${() => settle(message, verb)}>${verb}</button>`)}
    </div>`)}
  </details>`;
}

export function Messages({ info, dead, can, say }) {
  const [where, setWhere] = useState({ state: info.kind === "topic" ? "scheduled" : undefined });
  const [chosen, setChosen] = useState(null);
  const [picked, setPicked] = useState([]);
  const [dialog, setDialog] = useState("");
  const search = useSearch(info.name, dead, where);
  const tail = useTail(info.name, where);
  const rows = tail.on ? tail.arrived : search.messages;
  const filter = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const value = (key) => form.get(key) || undefined;
    setWhere((before) => ({
      state: value("state"),
      sql: value("sql"),
      body_contains: value("text"),
      body_path: value("path"),
      body_equals: value("equals"),
      session_id: value("session"),
      message_id: value("id"),
      enqueued_from_ms: value("from") ? new Date(value("from")).getTime() : undefined,
      enqueued_before_ms: value("before") ? new Date(value("before")).getTime() : undefined,
      dead_letter_reason: before.dead_letter_reason,
    }));
  };
  const done = (text) => {
    setPicked([]);
    say(text);
    search.again();
  };
  const pick = (key) => setPicked((before) => (before.includes(key) ? before.filter((one) => one !== key) : [...before, key]));
  return html`
    ${dead && html`<${Reasons} info=${info} can=${can} say=${done} total=${info.dead_lettered_count} chosen=${where.dead_letter_reason} onChoose=${(reason) => setWhere({ ...where, dead_letter_reason: reason })} />`}
    ${!dead && html`<${Held} info=${info} can=${can} say=${done} />`}
    <form class="filter" onSubmit=${filter}>
      ${!dead && info.kind !== "topic" && html`<label>State <select name="state"><option value="">any</option><option value="active">active</option><option value="deferred">deferred</option><option value="scheduled">scheduled</option></select></label>`}
      ${info.kind === "topic" && html`<input type="hidden" name="state" value="scheduled" />`}
      <label>Body contains <input name="text" /></label>
      <label>JSON field <input name="path" placeholder="customer.id" spellcheck=${false} /></label>
      <label>equals <input name="equals" /></label>
      <label>SQL filter <input name="sql" placeholder="priority > 3" spellcheck=${false} /></label>
      <label>Message id <input name="id" /></label>
      <label>Session <input name="session" /></label>
      <label>From <input name="from" type="datetime-local" step="1" /></label>
      <label>Before <input name="before" type="datetime-local" step="1" /></label>
      <button class="primary">Search</button>
      <button type="button" onClick=${search.again}>Refresh</button>
      ${!dead && info.kind !== "topic" && html`<button type="button" aria-pressed=${tail.on} onClick=${() => tail.setOn(!tail.on)}>Follow</button>`}
    </form>
    ${!dead && info.kind !== "topic" && can("Manage") && html`<div class="bar"><button onClick=${() => setDialog("move")}>Move messages that match</button></div>`}
    <${Failure} text=${search.error || tail.error} />
    ${tail.on && html`<p class="soft" role="status">Messages appear here as they arrive, the newest first.</p>`}
    ${dead && can("Manage") && picked.length > 0 && html`<div class="bar"><button class="primary" onClick=${() => setDialog("resubmit")}>Resubmit ${number(picked.length)} selected</button></div>`}
    <div class=${chosen ? "split" : ""}>
      <div class="scroll" tabindex="0" role="region" aria-label="Messages"><table class="messages">
        <thead><tr>${dead && html`<th scope="col"><span class="hidden">Select</span></th>`}<th scope="col" class="num">Number</th><th scope="col">Enqueued</th><th scope="col">State</th><th scope="col">Id</th><th scope="col">Session</th>${dead && html`<th scope="col">Reason</th>`}<th scope="col" class="num">Deliveries</th><th scope="col">Body</th></tr></thead>
        <tbody>${rows.map((one) => html`<tr key=${one.sequence_number} aria-selected=${chosen?.sequence_number === one.sequence_number}>
          ${dead && html`<td><input type="checkbox" aria-label=${`Select message ${one.sequence_number}`} checked=${picked.includes(one.sequence_number)} onChange=${() => pick(one.sequence_number)} /></td>`}
          <td class="num"><button class="plain" onClick=${() => setChosen(one)}>${one.sequence_number}</button></td>
          <td>${time(one.enqueued_time_ms)}</td><td>${one.state}</td><td class="clip">${one.message_id ?? "–"}</td><td class="clip">${one.session_id ?? "–"}</td>
          ${dead && html`<td class="clip">${one.dead_letter_reason ?? "–"}</td>`}<td class="num">${one.delivery_count ?? 0}</td><td class="clip body-cell">${bodyOf(one).slice(0, 200)}</td>
        </tr>`)}</tbody>
      </table>
      ${!tail.on && html`<div class="bar">
        <span class="soft" role="status">${number(search.messages.length)} found${search.looked > search.messages.length ? `, ${number(search.looked)} looked at` : ""}</span>
        ${search.busy && html`<progress></progress><button onClick=${search.halt}>Stop</button>`}
        ${!search.busy && search.next !== null && search.next !== 0 && html`<button onClick=${search.more}>Load more</button>`}
      </div>`}</div>
      ${chosen && html`<${Detail} info=${info} message=${chosen} dead=${dead} can=${can} say=${done} onClose=${() => setChosen(null)} />`}
    </div>
    ${dialog === "move" && html`<${Move} info=${info} where=${where} onClose=${() => setDialog("")} onDone=${done} />`}
    ${dialog === "resubmit" && html`<${Resubmit} info=${info} numbers=${picked} count=${picked.length} onClose=${() => setDialog("")} onDone=${done} />`}`;
}
