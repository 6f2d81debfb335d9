// Dialogs that send, delete or move messages. Each says what it will do before it does it.

import { html, useRef, useState } from "./preact.js";
import { at, encode, now, parse, post } from "./api.js";
import { Dialog, Field, bytes, count, number } from "./widgets.js";

//: Messages, and characters, of one batch from a file.
const BATCH = 1000;
const BATCH_LENGTH = 500_000;
//: Messages that one call moves or rejects at most.
const MOVES = 20_000;
const optional = (form, name) => form.get(name) || undefined;

/** Read properties written as JSON; an empty field has none. */
function properties(text) {
  if (!text.trim()) return {};
  const found = parse(text);
  if (typeof found !== "object" || found === null || Array.isArray(found)) {
    throw new Error("properties must be a JSON object");
  }
  return found;
}

/** Yield the lines of a file that are not empty, without reading it whole. */
async function* linesOf(file) {
  // Bytes that are not UTF-8 are an error: the server must not get other ones instead.
  const reader = file.stream().pipeThrough(new TextDecoderStream("utf-8", { fatal: true })).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch(() => {
      throw new Error("cannot read the file: choose one in UTF-8 that exists");
    });
    const parts = (rest + (value ?? "")).split(/\r?\n/);
    rest = done ? "" : parts.pop();
    for (const part of parts) if (part.trim()) yield part;
    if (done) return;
  }
}

/** A line of a file as a message: a JSON object with a body, or the body itself. */
function messageOf(line) {
  try {
    const found = parse(line);
    if (found && typeof found === "object" && ("body" in found || "body_base64" in found)) return found;
  } catch {
    // A line that is not JSON is a body.
  }
  return { body: line };
}

async function sendFile(name, file, count, onProgress, stopped) {
  let sent = 0;
  let batch = [];
  let length = 0;
  const flush = async () => {
    try {
      await post(at(name, "/batch"), { messages: batch });
    } catch (problem) {
      throw new Error(`sent the first ${number(sent)} of ${number(count)} messages, then: ${problem.message}`);
    }
    sent += batch.length;
    [batch, length] = [[], 0];
    onProgress(sent);
  };
  for await (const line of linesOf(file)) {
    if (stopped()) return sent;
    if (batch.length === BATCH || (batch.length && length + line.length > BATCH_LENGTH)) await flush();
    batch.push(messageOf(line));
    length += line.length;
  }
  if (batch.length) await flush();
  return sent;
}

/** The fields of one message. Defaults, not values: a view that loads again must not undo typing. */
function MessageFields({ info, message, binary }) {
  return html`
    ${binary
      ? html`<p>The binary body is copied unchanged.</p>`
      : html`<${Field} label="Body"><textarea name="body" rows="6" spellcheck=${false} defaultValue=${message.body || ""}></textarea><//>`}
    <div class="two">
      <${Field} label="Message id"><input name="message_id" defaultValue=${message.message_id || ""} /><//>
      <${Field} label=${info.settings.requires_session ? "Session id (required)" : "Session id"}><input name="session_id" defaultValue=${message.session_id || ""} /><//>
      <${Field} label="Partition key"><input name="partition_key" defaultValue=${message.partition_key || ""} /><//>
      <${Field} label="Subject"><input name="subject" defaultValue=${message.subject || ""} /><//>
      <${Field} label="Content type"><input name="content_type" defaultValue=${message.content_type || ""} /><//>
      <${Field} label="Correlation id"><input name="correlation_id" defaultValue=${message.correlation_id || ""} /><//>
      <${Field} label="Time to live, seconds"><input name="ttl" type="number" min="0" step="any" /><//>
      <${Field} label="Enqueue at" hint="your local time; empty: now"><input name="due" type="datetime-local" step="1" /><//>
    </div>
    <${Field} label="Properties" hint="a JSON object"><textarea name="properties" rows="2" spellcheck=${false} defaultValue=${Object.keys(message.properties || {}).length ? encode(message.properties) : ""}></textarea><//>`;
}

function messageFrom(form, message, binary) {
  const given = {
    ...(binary ? { body_base64: message.body_base64 } : { body: form.get("body") }),
    message_id: optional(form, "message_id"),
    session_id: optional(form, "session_id"),
    partition_key: optional(form, "partition_key"),
    subject: optional(form, "subject"),
    content_type: optional(form, "content_type"),
    correlation_id: optional(form, "correlation_id"),
    to: message.to,
    reply_to: message.reply_to,
    reply_to_session_id: message.reply_to_session_id,
    properties: properties(form.get("properties")),
  };
  const seconds = Number(form.get("ttl"));
  if (seconds) given.time_to_live_ms = Math.round(seconds * 1000);
  return given;
}

/** Send one message, many from a file, or a copy; `original`: the dead-lettered one can go. */
export function Send({ info, message = {}, original = false, onClose, onDone }) {
  const binary = message.body_base64 !== undefined;
  const isCopy = message.sequence_number !== undefined;
  // A subscription gets messages through its topic.
  const [to] = useState(info.name.split("/subscriptions/")[0]);
  const [file, setFile] = useState(null);
  const [progress, setProgress] = useState("");
  const stopped = useRef(false);
  const close = () => {
    stopped.current = true;
    onClose();
  };
  const choose = async (event) => {
    const [chosen] = event.target.files;
    if (!chosen) return setFile(null);
    let sum = 0;
    setFile(null);
    setProgress("counting…");
    try {
      for await (const line of linesOf(chosen)) sum += line ? 1 : 0;
    } catch (problem) {
      return setProgress(problem.message);
    }
    if (!sum) return setProgress(`${chosen.name} has no message`);
    setProgress(`${chosen.name} has ${count(sum, "message")}, ${bytes(chosen.size)}. Each batch of up to ${number(BATCH)} is atomic.`);
    return setFile({ chosen, count: sum });
  };
  const sendMany = async () => {
    const told = (sent) => setProgress(`sent ${number(sent)} of ${number(file.count)} messages`);
    onDone(`sent ${count(await sendFile(to, file.chosen, file.count, told, () => stopped.current), "message")}`);
  };
  const submit = async (form) => {
    if (file) return sendMany();
    const given = messageFrom(form, message, binary);
    const due = form.get("due");
    const sent = due
      ? await post(at(to, "/schedule"), { message: given, due_ms: new Date(due).getTime() })
      : await post(at(to, "/messages"), given);
    let text = sent.duplicate_of ? `dropped as a duplicate of message ${sent.duplicate_of}` : `${due ? "scheduled" : "sent"} message ${sent.sequence_number}`;
    if (form.get("replace") === "on" && !sent.duplicate_of) {
      const where = { state: "dead-lettered", sql: `sys.SequenceNumber = ${message.sequence_number}` };
      const gone = await post(at(info.name, "/purge"), { where });
      text += gone.count ? `, deleted the original ${message.sequence_number}` : `, but the original ${message.sequence_number} is held or gone`;
    }
    return onDone(text);
  };
  return html`<${Dialog} title=${`Send to ${to}`} submit=${file ? `Send ${count(file.count, "message")}` : isCopy ? "Send the copy" : "Send"} onSubmit=${submit} onClose=${close}>
    ${isCopy && html`<p>This sends a copy of message ${String(message.sequence_number)} with your changes${to === info.name ? "" : `, to all subscriptions of ${to} that select it`}.</p>`}
    <fieldset class="bare" disabled=${file !== null}><${MessageFields} info=${info} message=${message} binary=${binary} /></fieldset>
    ${original && html`<label class="check"><input type="checkbox" name="replace" /> Delete the dead-lettered original once the copy is stored</label>`}
    ${!isCopy && html`<${Field} label="Or many messages from a file" hint="One message per line: the body, or a JSON object with body and other fields of a message."><input name="file" type="file" onChange=${choose} /><//>`}
    <p role="status">${progress}</p>
  <//>`;
}

const STATES = ["active", "deferred", "scheduled", "dead-lettered"];

/** Delete messages by state and filter, after counting them; `where` is the filter of a list. */
export function Purge({ info, where: given, onClose, onDone }) {
  const counts = {
    active: info.active_count - info.held_count,
    deferred: info.deferred_count,
    scheduled: info.scheduled_count,
    "dead-lettered": info.dead_lettered_count,
  };
  const [counted, setCounted] = useState(null);
  const states = info.kind === "topic" ? ["scheduled"] : STATES;
  const whereOf = (form) => {
    const where = { ...given, state: form.get("state"), sql: optional(form, "sql") ?? given?.sql, body_contains: optional(form, "text") ?? given?.body_contains };
    const days = Number(form.get("days"));
    if (days) where.enqueued_before_ms = Math.round(now() - days * 86_400_000);
    return where;
  };
  const submit = async (form) => {
    if (!counted) {
      const where = whereOf(form);
      setCounted({ where, ...(await post(at(info.name, "/purge"), { where, dry_run: true })) });
      return false;
    }
    if (!counted.count) throw new Error("no message matches: change the filter");
    const done = await post(at(info.name, "/purge"), { where: counted.where, forget_ids: form.get("forget") === "on" });
    onDone(`deleted ${count(done.count, "message")}`);
    return true;
  };
  const title = counted ? `Delete ${count(counted.count, "message")}` : "Count messages";
  return html`<${Dialog} title=${`Purge ${info.name}`} submit=${title} danger=${Boolean(counted)} onInput=${(event) => event.target.name !== "forget" && setCounted(null)} onSubmit=${submit} onClose=${onClose}>
    <p>This deletes every message in the chosen state that matches ${given ? "the filter of the list" : "all fields"} and that no receiver holds. It counts them first. You cannot undo it.</p>
    ${given && html`<p>Filter: <code>${encode(given)}</code></p>`}
    <${Field} label="State"><select name="state">${states.map((one) => html`<option key=${one} value=${one} selected=${one === given?.state}>${one}: ${number(counts[one])} messages in all</option>`)}</select><//>
    ${!given && html`
      <${Field} label="Older than, days"><input name="days" type="number" min="0" step="any" /><//>
      <${Field} label="Body contains"><input name="text" /><//>
      <${Field} label="SQL filter"><input name="sql" spellcheck=${false} /><//>`}
    ${info.settings.requires_duplicate_detection && html`<label class="check"><input type="checkbox" name="forget" /> Also discard recorded ids: a repeated message is then accepted again</label>`}
    <p role="status">${counted ? `Messages that match now: ${number(counted.count)}.` : ""}</p>
  <//>`;
}

/** Call until everything is moved; `step` moves at most MOVES and tells what it did. */
async function inSteps(step, onProgress, stopped) {
  let sum = 0;
  for (;;) {
    const done = await step();
    sum += done.moved.length;
    onProgress(sum);
    const full = done.moved.length + done.refused.length >= MOVES;
    if (!full || !done.moved.length || stopped()) return { sum, refused: done.refused };
  }
}

const stay = (refused) => (refused.length ? `, ${number(refused.length)} stay: ${refused[0].reason}` : "");
const atLeast = (done) => (done.moved.length + done.refused.length >= MOVES ? "at least " : "");

/** A dialog for a call that moves messages: it counts with a dry run, then moves in steps. */
function Mover({ title, call, verb, chosen, to, field, onClose, onDone, children }) {
  const [counted, setCounted] = useState(null);
  const [progress, setProgress] = useState("");
  const stopped = useRef(false);
  const close = () => {
    stopped.current = true;
    onClose();
  };
  const submit = async (form) => {
    const given = { ...chosen, to: form.get("to")?.trim() || undefined, ...(chosen.numbers ? {} : { limit: MOVES }) };
    if (!counted) {
      setCounted(await post(call, { ...given, dry_run: true }));
      return false;
    }
    if (!counted.moved.length) throw new Error(`no message would be ${verb}${stay(counted.refused)}`);
    const { sum, refused } = await inSteps(() => post(call, given), (part) => setProgress(`${verb} ${number(part)}`), () => stopped.current);
    onDone(`${verb} ${number(sum)}${stay(refused)}`);
    return true;
  };
  const many = counted && `${atLeast(counted)}${number(counted.moved.length)}`;
  const button = counted ? `${field} ${many}` : "Dry run";
  return html`<${Dialog} title=${title} submit=${button} onInput=${() => setCounted(null)} onSubmit=${submit} onClose=${close}>
    ${children}
    <${Field} label="To" hint=${to}><input name="to" required=${!to.includes("empty")} autocomplete="off" spellcheck=${false} /><//>
    <p role="status">${progress || (counted ? `${many} would be ${verb}${stay(counted.refused)}` : "")}</p>
  <//>`;
}

/** Move active messages: those named, or all that a filter means. */
export function Move({ info, numbers, where, onClose, onDone }) {
  const chosen = numbers ? { numbers } : { where: { ...where, state: "active" } };
  return html`<${Mover} title=${`Move messages of ${info.name}`} call=${at(info.name, "/move")} verb="moved" field="Move" chosen=${chosen} to="a queue or topic" onClose=${onClose} onDone=${onDone}>
    <p>${numbers ? `This moves ${count(numbers.length, "message")}` : "This moves every active message that matches the filter of the list and that no receiver holds"} to another queue or topic. Each message leaves here and arrives there atomically, with a new sequence number. The dry run counts them first.</p>
    ${!numbers && html`<p>Filter: <code>${encode(chosen.where)}</code></p>`}
  <//>`;
}

/** Resubmit dead-lettered messages: those named, or all that a filter means. */
export function Resubmit({ info, numbers, where, known, onClose, onDone }) {
  const chosen = numbers ? { numbers } : { where };
  const reason = where?.dead_letter_reason;
  return html`<${Mover} title="Resubmit dead-lettered messages" call=${at(info.name, "/dead-letters/resubmit")} verb="resubmitted" field="Resubmit" chosen=${chosen} to="another queue or topic; empty: the entity they came from" onClose=${onClose} onDone=${onDone}>
    <p>This sends ${known === undefined ? "the messages that match" : count(known, "message")}${reason === undefined ? "" : html` with reason <b>${reason || "(none)"}</b>`} again, and removes them from the dead-letter queue. Each message is moved atomically. The dry run counts them first.</p>
    ${!numbers && reason === undefined && html`<p>Filter: <code>${encode(where)}</code></p>`}
  <//>`;
}
