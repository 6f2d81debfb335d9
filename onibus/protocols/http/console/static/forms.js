// Dialogs that change something. Each says what it will do before it does it.

import { html, useState } from "./preact.js";
import { admin, at, encode, parse, patch, post, put } from "./api.js";
import { Dialog, Field, number } from "./widgets.js";

const BATCH = 1000;
//: Messages that one call moves at most.
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

export function Send({ info, message = {}, onClose, onDone }) {
  const binary = message.body_base64 !== undefined;
  const submit = async (form) => {
    const file = form.get("file");
    if (file && file.size) {
      onDone(`sent ${number(await sendFile(info.name, file))} messages`);
      return;
    }
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
    const due = form.get("due");
    const sent = due
      ? await post(at(info.name, "/schedule"), { message: given, due_ms: new Date(due).getTime() })
      : await post(at(info.name, "/messages"), given);
    onDone(
      sent.duplicate_of
        ? `dropped as a duplicate of message ${sent.duplicate_of}`
        : `${due ? "scheduled" : "sent"} message ${sent.sequence_number}`,
    );
  };
  // Defaults, not values: a view that loads again must not overwrite what the operator typed.
  return html`<${Dialog} title=${`Send to ${info.name}`} submit="Send" onSubmit=${submit} onClose=${onClose}>
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
      <${Field} label="Enqueue at"><input name="due" type="datetime-local" step="1" /><//>
    </div>
    <${Field} label="Properties" hint="a JSON object"><textarea name="properties" rows="2" spellcheck=${false}>${Object.keys(message.properties || {}).length ? encode(message.properties) : ""}</textarea><//>
    <${Field} label="Or many messages from a file" hint="One message per line: the body, or a JSON object with body and other fields of a message."><input name="file" type="file" /><//>
  <//>`;
}

async function sendFile(name, file) {
  const messages = (await file.text()).split(/\r?\n/).filter((line) => line.trim()).map((line) => {
    try {
      const found = parse(line);
      if (found && typeof found === "object" && ("body" in found || "body_base64" in found)) return found;
    } catch {
      // A line that is not JSON is a body.
    }
    return { body: line };
  });
  for (let start = 0; start < messages.length; start += BATCH) {
    try {
      await post(at(name, "/batch"), { messages: messages.slice(start, start + BATCH) });
    } catch (problem) {
      throw new Error(`sent the first ${number(start)} of ${number(messages.length)} messages, then: ${problem.message}`);
    }
  }
  return messages.length;
}

const STATES = ["active", "deferred", "scheduled", "dead-lettered"];

export function Purge({ info, onClose, onDone }) {
  const counts = {
    active: info.active_count - info.held_count,
    deferred: info.deferred_count,
    scheduled: info.scheduled_count,
    "dead-lettered": info.dead_lettered_count,
  };
  const [counted, setCounted] = useState(null);
  const submit = async (form) => {
    if (!counted) {
      const where = { state: form.get("state"), sql: optional(form, "sql"), body_contains: optional(form, "text") };
      const days = Number(form.get("days"));
      if (days) where.enqueued_before_ms = Math.round(Date.now() - days * 86_400_000);
      const { count } = await post(at(info.name, "/purge"), { where, dry_run: true });
      setCounted({ where, count });
      return false;
    }
    const done = await post(at(info.name, "/purge"), { where: counted.where, forget_ids: form.get("forget") === "on" });
    onDone(`deleted ${number(done.count)} messages`);
    return true;
  };
  const title = counted ? `Delete ${number(counted.count)} messages` : "Count messages";
  return html`<${Dialog} title=${`Purge ${info.name}`} submit=${title} danger=${Boolean(counted)} onInput=${(event) => event.target.name !== "forget" && setCounted(null)} onSubmit=${submit} onClose=${onClose}>
    <p>This deletes every message in the chosen state that matches all fields and that no receiver holds. It counts them first. You cannot undo it.</p>
    <${Field} label="State"><select name="state">${STATES.map((one) => html`<option key=${one} value=${one}>${one}: ${number(counts[one])} messages</option>`)}</select><//>
    <${Field} label="Older than, days"><input name="days" type="number" min="0" step="any" /><//>
    <${Field} label="Body contains"><input name="text" /><//>
    <${Field} label="SQL filter"><input name="sql" spellcheck=${false} /><//>
    ${info.settings.requires_duplicate_detection && html`<label class="check"><input type="checkbox" name="forget" /> Also discard recorded ids: a repeated message is then accepted again</label>`}
    <p role="status">${counted ? `${number(counted.count)} messages match now.` : ""}</p>
  <//>`;
}

/** Move active messages: those named, or all that a filter means. */
export function Move({ info, numbers, where, onClose, onDone }) {
  const [counted, setCounted] = useState(null);
  const chosen = numbers ? { numbers: numbers.map(BigInt) } : { where: { ...where, state: "active" } };
  const told = ({ refused }) => (refused.length ? `, ${number(refused.length)} stay: ${refused[0].reason}` : "");
  const submit = async (form) => {
    const to = form.get("to").trim();
    if (!counted) {
      setCounted(await post(at(info.name, "/move"), { ...chosen, to, dry_run: true }));
      return false;
    }
    let count = 0;
    for (;;) {
      const done = await post(at(info.name, "/move"), { ...chosen, to, limit: MOVES });
      count += done.moved.length;
      if (numbers || done.moved.length < MOVES) {
        onDone(`moved ${number(count)}${told(done)}`);
        return true;
      }
    }
  };
  const many = counted && `${counted.moved.length === MOVES ? "at least " : ""}${number(counted.moved.length)}`;
  return html`<${Dialog} title=${`Move messages of ${info.name}`} submit=${counted ? `Move ${many}` : "Count messages"} onInput=${() => setCounted(null)} onSubmit=${submit} onClose=${onClose}>
    <p>${numbers ? "This moves the message" : "This moves every active message that matches the filter and that no receiver holds"} to another queue or topic. Each message leaves here and arrives there atomically, with a new sequence number.</p>
    <${Field} label="To" hint="a queue or topic"><input name="to" required autocomplete="off" spellcheck=${false} /><//>
    <p role="status">${counted ? `${many} would move${told(counted)}` : ""}</p>
  <//>`;
}

const CHOICES = {
  queue: ["requires_duplicate_detection", "requires_session", "enable_partitioning", "fifo"],
  topic: ["requires_duplicate_detection", "enable_partitioning"],
  subscription: ["requires_session", "dead_letter_on_expiration"],
};

export function NewEntity({ onClose, onDone }) {
  const [kind, setKind] = useState("queue");
  const submit = async (form) => {
    const name = form.get("name").trim();
    if (kind === "subscription" && !name.includes("/subscriptions/")) {
      throw new Error("name a subscription topic/subscriptions/name");
    }
    const settings = parse(form.get("more") || "{}");
    for (const choice of CHOICES[kind]) if (form.get(choice) === "on") settings[choice] = true;
    await put(admin(kind, name), settings);
    onDone(name);
  };
  return html`<${Dialog} title="New entity" submit="Create" onSubmit=${submit} onClose=${onClose}>
    <${Field} label="Kind"><select value=${kind} onChange=${(event) => setKind(event.target.value)}>${Object.keys(CHOICES).map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select><//>
    <${Field} label="Name" hint=${kind === "subscription" ? "topic/subscriptions/name" : ""}><input name="name" required autocomplete="off" /><//>
    ${CHOICES[kind].map((one) => html`<label key=${one} class="check"><input type="checkbox" name=${one} /> ${one.replaceAll("_", " ")}</label>`)}
    <${Field} label="Other settings" hint="a JSON object, such as {'lock_duration_ms': 60000} with double quotes"><textarea name="more" rows="2" spellcheck=${false}></textarea><//>
  <//>`;
}

export function ChangeSettings({ info, onClose, onDone }) {
  const text = encode(info.settings, 2);
  const submit = async (form) => {
    const wanted = parse(form.get("settings"));
    const changed = Object.entries(wanted).filter(([key, value]) => encode([value]) !== encode([info.settings[key]]));
    if (!changed.length) throw new Error("nothing changed");
    await patch(admin(info.kind, info.name), Object.fromEntries(changed));
    onDone();
  };
  return html`<${Dialog} title=${`Settings of ${info.name}`} submit="Save" onSubmit=${submit} onClose=${onClose}>
    <p>The server checks every value and rejects settings that are fixed at creation.</p>
    <textarea name="settings" rows="20" class="code" aria-label="Settings" spellcheck=${false}>${text}</textarea>
  <//>`;
}

export function EditRule({ name, onClose, onDone }) {
  const [tested, setTested] = useState("");
  const [sql, setSql] = useState("");
  const topic = name.split("/subscriptions/")[0];
  const test = async () => {
    try {
      const where = { sql, state: "active" };
      const found = await post(at(name, "/search"), { limit: 100, looks: 1000, where });
      setTested(`matches ${found.messages.length} of the first ${found.looked} messages of this subscription`);
    } catch (problem) {
      setTested(problem.message);
    }
  };
  const submit = async (form) => {
    const rule = { name: form.get("name").trim(), filter: sql ? { type: "sql", expression: sql } : { type: "true" } };
    const action = form.get("action").trim();
    if (action) rule.action = { expression: action };
    await post(`${admin("subscription", name)}/rules`, rule);
    onDone();
  };
  return html`<${Dialog} title=${`Add a rule to ${name}`} submit="Add" onSubmit=${submit} onClose=${onClose}>
    <${Field} label="Name"><input name="name" required autocomplete="off" /><//>
    <${Field} label="SQL filter" hint=${`Which messages of ${topic} the subscription gets; empty: all.`}><textarea rows="2" spellcheck=${false} onInput=${(event) => setSql(event.target.value)}></textarea><//>
    <p><button type="button" onClick=${test} disabled=${!sql}>Test against waiting messages</button> <span class="soft">${tested}</span></p>
    <${Field} label="SQL action" hint="Changes properties, such as SET region = 'eu'."><input name="action" spellcheck=${false} /><//>
  <//>`;
}

/** Resubmit dead-lettered messages: those named, or all with a reason. */
export function Resubmit({ info, numbers, reason, count, onClose, onDone }) {
  const [dry, setDry] = useState("");
  const body = (form, dry_run) => ({
    dry_run,
    to: optional(form, "to"),
    ...(numbers ? { numbers: numbers.map(BigInt) } : { where: reason === undefined ? {} : { dead_letter_reason: reason } }),
  });
  const tell = (done, verb) => `${verb} ${number(done.moved.length)}${done.refused.length ? `, ${number(done.refused.length)} rejected: ${done.refused[0].reason}` : ""}`;
  const tryOut = async (event) => {
    try {
      setDry(tell(await post(at(info.name, "/dead-letters/resubmit"), body(new FormData(event.target.form), true)), "would resubmit"));
    } catch (problem) {
      setDry(problem.message);
    }
  };
  const submit = async (form) => {
    onDone(tell(await post(at(info.name, "/dead-letters/resubmit"), body(form, false)), "resubmitted"));
  };
  return html`<${Dialog} title="Resubmit dead-lettered messages" submit=${`Resubmit ${number(count)}`} onSubmit=${submit} onClose=${onClose}>
    <p>This sends ${number(count)} messages${reason === undefined ? "" : html` with reason <b>${reason || "(none)"}</b>`} again, and removes them from the dead-letter queue. Each message is moved atomically.</p>
    <${Field} label="To" hint="another queue or topic; empty: the entity they came from"><input name="to" autocomplete="off" /><//>
    <p><button type="button" onClick=${tryOut}>Dry run</button> <span class="soft">${dry}</span></p>
  <//>`;
}
