// One message in detail: its body in several forms, its life so far, and what to do with it.

import { html, useEffect, useRef, useState } from "./preact.js";
import { at, encode, file, indented, post } from "./api.js";
import { Move, Resubmit, Send } from "./forms.js";
import { Confirm, Failure, Table, bytes, bytesOf, focusAgain, hexDump, number, time, useLoaded } from "./widgets.js";

//: Bytes of a body that are shown before the operator asks for all.
const SHOWN = 64_000;
//: Bytes of a body that are loaded; more would not help a reader, and need much memory.
const LOADED = 1 << 20;
const FORMS = ["json", "text", "hex", "AMQP sections"];
const HIDDEN = ["body", "body_base64", "body_size", "properties", "property_count"];

/** Save the whole body of a message as a file. */
async function download(name, number) {
  const address = URL.createObjectURL(await file(at(name, `/messages/${number}/body`)));
  const anchor = document.createElement("a");
  Object.assign(anchor, { href: address, download: `message-${number}` });
  anchor.click();
  URL.revokeObjectURL(address);
}

/** The body in the chosen form, as text. */
function pretty(message, form) {
  const content = bytesOf(message);
  if (form === "hex") return hexDump(content.subarray(0, SHOWN / 4));
  if (message.format === "amqp") return "The body is an AMQP value, a sequence or several data sections: choose AMQP sections.";
  if (message.body === undefined) return "The body is not a string in UTF-8: choose hex.";
  return form === "json" ? indented(message.body) : message.body;
}

/** A long string, cut until the operator asks for all of it. */
function Long({ text, label, kind }) {
  const [all, setAll] = useState(false);
  const cut = !all && text.length > SHOWN;
  return html`<pre class=${kind} tabindex="0" aria-label=${label}>${cut ? text.slice(0, SHOWN) : text}</pre>
    ${cut && html`<button class="plain" onClick=${() => setAll(true)}>Show all ${number(text.length)} characters</button>`}`;
}

function Body({ seen, form }) {
  if (form === "AMQP sections") {
    return html`<div aria-label="AMQP sections" role="group">${seen.sections.map((one, place) => html`<div key=${place}><h3>${one.name}</h3><${Long} label=${one.name} text=${typeof one.value === "string" ? one.value : encode(one.value, 2)} /></div>`)}</div>`;
  }
  const { body_size: whole } = seen.message;
  const size = whole ?? bytesOf(seen.message).length;
  return html`${whole && form !== "hex" && html`<p class="soft">The first ${bytes(LOADED)} of ${bytes(whole)}. Save body to see all of it.</p>`}
    <${Long} key=${form} kind=${form === "hex" ? "body hex" : "body"} label="Body" text=${pretty(seen.message, form)} />
    ${form === "hex" && size > SHOWN / 4 && html`<p class="soft">The first ${bytes(SHOWN / 4)} of ${bytes(size)}.</p>`}`;
}

const shown = (key, value) => (key.endsWith("_ms") && key !== "time_to_live_ms" ? time(value) : String(value));

/** Load the whole message once, and its life every few seconds. */
function useMessage(info, chosen) {
  const number = BigInt(chosen.sequence_number);
  const ask = (whole) => (signal) => post(at(info.name, "/inspect"), { number, whole, body_limit: LOADED }, signal);
  const { value: seen, error } = useLoaded(ask(true), [info.name, number]);
  const { value: later, error: gone } = useLoaded(ask(false), [info.name, number], 5);
  // Its body and sections do not change, its state and its life do.
  const { body, body_base64, body_size, properties, property_count, ...now } = later?.message || {};
  return { seen: seen && { ...seen, message: { ...seen.message, ...now } }, life: later?.life || seen?.life || [], error: gone || error };
}

export function Detail({ info, chosen, dead, can, say, onClose, onStep }) {
  const [form, setForm] = useState("json");
  const [dialog, setDialog] = useState("");
  const place = useRef(null);
  const { seen, life, error } = useMessage(info, chosen);
  useEffect(() => {
    const opener = document.activeElement;
    return () => focusAgain(opener);
  }, []);
  useEffect(() => place.current.focus(), [chosen.sequence_number]);
  const message = seen?.message || chosen;
  const numbers = [BigInt(chosen.sequence_number)];
  // The HTTP API sends plain bytes: a copy of AMQP sections would be another message.
  const copies = message.format !== "amqp";
  const { body_size, property_count } = seen?.message || {};
  const isCut = Boolean(body_size || property_count);
  const act = (path, text) => async () => {
    await post(at(info.name, path), { numbers });
    say(text);
    onClose();
  };
  const purge = async () => {
    const where = { state: dead ? "dead-lettered" : message.state, sql: `sys.SequenceNumber = ${chosen.sequence_number}` };
    const { count } = await post(at(info.name, "/purge"), { where });
    if (!count) throw new Error("no message was deleted: it is held, settled or in another state");
    say(`deleted message ${chosen.sequence_number}`);
    onClose();
  };
  const pressed = (event) => {
    if (event.key !== "Escape" || event.target.closest("dialog")) return;
    event.preventDefault();
    onClose();
  };
  const close = () => setDialog("");
  const done = (text) => {
    say(text);
    onClose();
  };
  const fields = Object.entries(message).filter(([key]) => !HIDDEN.includes(key));
  const properties = Object.entries(message.properties || {});
  return html`<aside class="detail" ref=${place} tabindex="-1" aria-label="Message" onKeyDown=${pressed}>
    <div class="bar"><h2>Message ${String(chosen.sequence_number)}</h2><span class="grow"></span>
      <button onClick=${() => onStep(-1)} aria-label="Previous message">↑</button><button onClick=${() => onStep(1)} aria-label="Next message">↓</button><button onClick=${onClose}>Close</button></div>
    <div class="bar">
      ${dead && can("Manage") && html`<button class="primary" onClick=${() => setDialog("resubmit")}>Resubmit</button>`}
      ${!dead && message.state === "active" && can("Manage") && html`<button onClick=${() => setDialog("move")}>Move</button>`}
      ${seen && copies && !isCut && can("Send") && html`<button onClick=${() => setDialog("copy")}>Edit and send a copy</button>`}
      ${message.state === "deferred" && can("Listen") && html`<button onClick=${() => setDialog("reactivate")}>Reactivate</button>`}
      ${message.state === "scheduled" && can("Send") && html`<button class="danger" onClick=${() => setDialog("cancel")}>Cancel</button>`}
      ${message.state !== "scheduled" && can("Manage") && html`<button class="danger" onClick=${() => setDialog("delete")}>Delete message</button>`}
    </div>
    ${isCut && html`<p class="soft">The ${body_size ? "body is" : "properties are"} too large to edit: to keep it, ${dead ? "resubmit" : "move"} the message.</p>`}
    ${seen && !copies && html`<p class="soft">Only AMQP clients can send such a body: to keep it, ${dead ? "resubmit" : "move"} the message.</p>`}
    <${Failure} text=${error} wait=${!seen} />
    <div class="bar" role="group" aria-label="Show the body as">
      ${FORMS.map((one) => html`<button key=${one} aria-pressed=${one === form} onClick=${() => setForm(one)}>${one}</button>`)}
      ${seen && html`<button onClick=${() => download(info.name, numbers[0]).catch((problem) => say(problem.message))}>Save body</button>`}
    </div>
    ${seen && html`<${Body} seen=${seen} form=${form} />`}
    ${life.length > 0 && html`<h3>Life so far</h3><ol class="life">${life.map((one, index) => html`<li key=${index}><b>${one.what}</b>${one.at_ms ? ` ${time(one.at_ms)}` : ""}${one.detail ? html` <span class="soft">${one.detail}</span>` : ""}</li>`)}</ol>`}
    ${(properties.length > 0 || property_count) && html`<h3>Properties</h3>${property_count && html`<p class="soft">The first ${number(properties.length)} of ${number(property_count)}.</p>`}<${Table} label="Properties" columns=${["Name", "Value"]} rows=${properties.map(([key, value]) => html`<tr key=${key}><th scope="row">${key}</th><td>${typeof value === "object" ? encode(value) : String(value)}</td></tr>`)} />`}
    <h3>Fields</h3>
    <${Table} label="Fields" columns=${["Name", "Value"]} rows=${fields.map(([key, value]) => html`<tr key=${key}><th scope="row">${key}</th><td>${shown(key, value)}</td></tr>`)} />
    ${dialog === "cancel" && html`<${Confirm} title="Cancel a scheduled message" text=${`This deletes message ${chosen.sequence_number}. You cannot undo it.`} submit="Cancel the message" onSubmit=${act("/cancel-scheduled", "cancelled")} onClose=${close} />`}
    ${dialog === "reactivate" && html`<${Confirm} title="Reactivate a deferred message" text=${`Receivers get message ${chosen.sequence_number} again.`} submit="Reactivate it" onSubmit=${act("/undefer", "reactivated")} onClose=${close} />`}
    ${dialog === "delete" && html`<${Confirm} title="Delete one message" text=${`This deletes message ${chosen.sequence_number}, unless a receiver holds it. You cannot undo it.`} submit="Delete it" onSubmit=${purge} onClose=${close} />`}
    ${dialog === "copy" && html`<${Send} info=${info} message=${{ ...message, message_id: "" }} original=${dead} onClose=${close} onDone=${say} />`}
    ${dialog === "move" && html`<${Move} info=${info} numbers=${numbers} onClose=${close} onDone=${done} />`}
    ${dialog === "resubmit" && html`<${Resubmit} info=${info} numbers=${numbers} known=${1} onClose=${close} onDone=${done} />`}
  </aside>`;
}
