// Messages: a filtered list that loads as it is read, arriving messages, and what to do with them.

import { html, useEffect, useMemo, useRef, useState } from "./preact.js";
import { Unreachable, at, encode, get, post, stream } from "./api.js";
import { Move, Purge, Resubmit } from "./forms.js";
import { Detail } from "./message.js";
import { Held } from "./settle.js";
import { Failure, Table, link, number, preview, time, useLoaded } from "./widgets.js";

const PAGE = 50;
//: Messages that the list keeps, and that it shows at once; the earliest leave first. A row that is
//: shown needs a hundred times the memory of one that is kept.
const ROWS = 500;
const SHOWN = 100;
//: Messages that one step of a search looks at, and milliseconds that it should take. With fewer, a
//: slow connection would make a search crawl: most of a step would be the request itself.
const LOOKS = [1000, 10_000];
const STEP_MS = 300;
//: Bytes of each body in a list.
const BODY = 200;

function Reasons({ info, can, say, chosen, onChoose, total }) {
  const { value, error } = useLoaded((signal) => get(at(info.name, "/dead-letters/reasons"), signal), [info.name, total]);
  const [asked, setAsked] = useState(null);
  if (!value) return html`<${Failure} text=${error} />`;
  // A dialog stays even if another operator resubmits all of them.
  if (!value.reasons.length && !asked) return null;
  const least = value.complete ? "" : "at least ";
  return html`<${Table} label="Reasons" kind="reasons" columns=${["Reason", ["Messages", "num"], ["Actions", "hidden"]]} rows=${value.reasons.map((one) => html`<tr key=${one.reason} aria-selected=${one.reason === chosen}>
      <th scope="row"><button class="plain" aria-pressed=${one.reason === chosen} onClick=${() => onChoose(one.reason === chosen ? undefined : one.reason)}>${one.reason || "(none)"}</button></th>
      <td class="num">${least}${number(one.count)}</td>
      <td>${can("Manage") && html`<button onClick=${() => setAsked(one)}>Resubmit these ${least}${number(one.count)}</button>`}</td></tr>`)} />
  ${value.others > 0 && html`<p class="soft">${number(value.others)} messages have other reasons.</p>`}
  ${!value.complete && html`<p class="soft">These are the reasons of the first messages only. A dry run counts up to 20,000 of a reason.</p>`}
  ${asked && html`<${Resubmit} info=${info} where=${{ dead_letter_reason: asked.reason }} known=${value.complete ? asked.count : undefined} onClose=${() => setAsked(null)} onDone=${say} />`}`;
}

/** Search in bounded steps; return what was found so far, and how to stop and continue. */
function useSearch(name, dead, where, start) {
  const [state, setState] = useState({ messages: [], next: 0, looked: 0, dropped: 0, busy: true, error: "" });
  const stop = useRef(null);
  const run = async (from, before) => {
    stop.current?.abort();
    const control = (stop.current = new AbortController());
    let found = before || { messages: [], looked: 0, dropped: 0 };
    let next = from;
    let looks = LOOKS[0];
    const target = found.dropped + found.messages.length + PAGE;
    try {
      do {
        setState({ ...found, next, busy: true, error: "" });
        const begun = performance.now();
        const page = await post(at(name, "/search"), { start: BigInt(next), limit: PAGE, looks, dead_letters: dead, where, body_limit: BODY }, control.signal);
        // Short steps show progress.
        looks = Math.round(Math.min(Math.max((looks * STEP_MS) / (performance.now() - begun), LOOKS[0]), LOOKS[1]));
        const messages = [...found.messages, ...page.messages];
        const over = Math.max(0, messages.length - ROWS);
        found = { messages: messages.slice(over), looked: found.looked + page.looked, dropped: found.dropped + over };
        next = page.next;
      } while (next !== null && found.dropped + found.messages.length < target);
      setState({ ...found, next, busy: false, error: "" });
    } catch (problem) {
      if (control.signal.aborted) return;
      setState({ ...found, next, busy: false, error: problem.message });
      // The list comes back with the server.
      if (problem instanceof Unreachable) setTimeout(() => control.signal.aborted || run(from, before), 3000);
    }
  };
  const key = encode([name, dead, where, start]);
  useEffect(() => {
    run(start, null);
    return () => stop.current?.abort();
  }, [key]);
  return {
    ...state,
    more: () => run(state.next, state),
    again: () => run(start, null),
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
    stream("tail", at(name, "/tail"), { where, body_limit: BODY }, (message) => {
      setArrived((before) => [message, ...before].slice(0, SHOWN));
    }, stop.signal)
      .then(() => ended("the server ended the stream: the server stopped, the entity was deleted, or the key is no longer valid"))
      .catch((problem) => stop.signal.aborted || ended(problem.message));
    return () => stop.abort();
  }, [key, on]);
  return { on, setOn, arrived, error };
}

/** A time as its field wants it; empty without one, and for one that no calendar has. */
const local = (ms) => {
  const shifted = new Date(Number(ms) - new Date(Number(ms)).getTimezoneOffset() * 60_000);
  return !ms || Number.isNaN(shifted.getTime()) ? "" : shifted.toISOString().slice(0, 19);
};

/** The filter of a list. It is in the address: a link leads to the same messages. */
function Filter({ info, dead, where, start, onFilter, children }) {
  const isTopic = info.kind === "topic";
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const value = (key) => form.get(key) || undefined;
    const moment = (key) => (value(key) ? new Date(value(key)).getTime() : undefined);
    const number = value("number");
    onFilter({
      state: isTopic ? "scheduled" : value("state"),
      sql: value("sql"),
      body_contains: value("text"),
      body_path: value("path"),
      body_equals: value("equals"),
      session_id: value("session"),
      message_id: value("id"),
      enqueued_from_ms: moment("from"),
      enqueued_before_ms: moment("before"),
      dead_letter_reason: where.dead_letter_reason,
    }, number && /^\d+$/.test(number) ? BigInt(number) : 0n);
  };
  return html`<form class="filter" onSubmit=${submit} key=${encode([where, start])}>
    ${!dead && !isTopic && html`<label>State <select name="state">${["", "active", "deferred", "scheduled"].map((one) => html`<option key=${one} value=${one} selected=${one === (where.state ?? "")}>${one || "any"}</option>`)}</select></label>`}
    <label>Body contains <input name="text" data-search defaultValue=${where.body_contains ?? ""} /></label>
    <label>JSON field <input name="path" placeholder="customer.id" spellcheck=${false} defaultValue=${where.body_path ?? ""} /></label>
    <label>equals <input name="equals" defaultValue=${where.body_equals ?? ""} /></label>
    <label>SQL filter <input name="sql" placeholder="priority > 3" spellcheck=${false} defaultValue=${where.sql ?? ""} /></label>
    <label>Message id <input name="id" defaultValue=${where.message_id ?? ""} /></label>
    <label>Session <input name="session" defaultValue=${where.session_id ?? ""} /></label>
    <label>From <input name="from" type="datetime-local" step="1" defaultValue=${local(where.enqueued_from_ms)} /></label>
    <label>Before <input name="before" type="datetime-local" step="1" defaultValue=${local(where.enqueued_before_ms)} /></label>
    <label>Sequence number from <input name="number" inputmode="numeric" defaultValue=${start ? String(start) : ""} /></label>
    <button class="primary">Search</button>
    ${children}
  </form>`;
}

/** Move the focus to the message above or below. */
function stepRows(event) {
  if (!["ArrowDown", "ArrowUp"].includes(event.key)) return;
  const buttons = [...event.currentTarget.querySelectorAll("td.open button")];
  const place = buttons.indexOf(document.activeElement);
  if (place < 0) return;
  event.preventDefault();
  buttons[place + (event.key === "ArrowDown" ? 1 : -1)]?.focus();
}

function Rows({ rows, dead, chosen, picked, onChoose, onPick }) {
  return rows.map((one) => html`<tr key=${one.sequence_number} aria-selected=${chosen === one.sequence_number}>
    ${dead && html`<td><input type="checkbox" aria-label=${`Select message ${one.sequence_number}`} checked=${picked.includes(one.sequence_number)} onChange=${() => onPick(one.sequence_number)} /></td>`}
    <td class="num open"><button class="plain" onClick=${() => onChoose(one)}>${String(one.sequence_number)}</button></td>
    <td>${time(one.enqueued_time_ms)}</td><td>${one.state}</td><td class="clip">${one.message_id ?? "–"}</td><td class="clip">${one.session_id ?? "–"}</td>
    ${dead && html`<td class="clip">${one.dead_letter_reason ?? "–"}</td>`}<td class="num">${one.delivery_count ?? 0}</td><td class="clip body-cell">${preview(one)}</td>
  </tr>`);
}

/** Which part of the loaded messages is shown: the last ones, unless the operator went back. */
function useWindow(rows, dropped, key) {
  const [back, setBack] = useState(null);
  useEffect(() => setBack(null), [key]);
  const last = Math.max(0, rows.length - SHOWN);
  // Counted from the first message found, so that rows that leave do not move the others.
  const first = back === null ? last : Math.min(Math.max(back - dropped, 0), last);
  const move = (by) => setBack(first + by >= last ? null : Math.max(0, first + by) + dropped);
  return { first, last, shown: rows.slice(first, first + SHOWN), move };
}

/** Where a search is: messages looked at, of about how many; and which of them are shown. */
function Progress({ info, dead, where, search, view }) {
  const counts = { active: info.active_count, deferred: info.deferred_count, scheduled: info.scheduled_count };
  const total = dead ? info.dead_lettered_count : where.state ? counts[where.state] : Object.values(counts).reduce((sum, one) => sum + one, 0);
  const found = search.messages.length + search.dropped;
  return html`<div class="bar">
    <span class="soft" role="status">${number(found)} found${search.looked > found ? `, ${number(search.looked)} of about ${number(total)} looked at` : ""}${search.dropped ? `; the first ${number(search.dropped)} are no longer listed` : ""}</span>
    ${search.busy && html`<progress aria-label="Search" max=${Math.max(total, 1)} value=${Math.min(search.looked, total)}></progress><button onClick=${search.halt}>Stop</button>`}
    ${view.last > 0 && html`<span class="soft">${number(search.dropped + view.first + 1)} to ${number(search.dropped + view.first + view.shown.length)} shown</span>`}
    ${view.first > 0 && html`<button onClick=${() => view.move(-PAGE)}>Show earlier</button>`}
    ${view.first < view.last && html`<button onClick=${() => view.move(PAGE)}>Show later</button>`}
    ${!search.busy && search.next !== null && !search.error && view.first === view.last && html`<button onClick=${search.more}>${search.messages.length ? "Load more" : "Continue"}</button>`}
  </div>`;
}

/** What concerns all messages of the filter, or those that were selected. */
function Actions({ info, dead, can, shown, picked, onPicked, onDialog }) {
  if (!can("Manage") || info.kind === "topic") return null;
  const others = shown.map((one) => one.sequence_number).filter((one) => !picked.includes(one));
  return html`<div class="bar">
    ${dead
      ? html`${(shown.length > 0 || picked.length > 0) && html`<button onClick=${() => onPicked(others.length ? [...picked, ...others] : [])}>${others.length ? "Select all shown" : "Select none"}</button>`}
          ${picked.length > 0 && html`<button class="primary" onClick=${() => onDialog("picked")}>Resubmit ${number(picked.length)} selected</button>`}
          <button onClick=${() => onDialog("resubmit")}>Resubmit messages that match</button>`
      : html`<button onClick=${() => onDialog("move")}>Move messages that match</button>`}
    <button class="danger" onClick=${() => onDialog("purge")}>Purge messages that match</button>
  </div>`;
}

/** The filter of actions on all messages of a list that starts at a sequence number. */
function fromNumber(where, start) {
  if (!start) return where;
  const from = `sys.SequenceNumber >= ${start}`;
  return { ...where, sql: where.sql ? `(${where.sql}) AND ${from}` : from };
}

/** The messages of an entity; the list loads again in each `round`, after a change. */
export function Messages({ info, dead, filter, can, round, say }) {
  const isTopic = info.kind === "topic";
  const { start: from, ...given } = filter;
  const where = isTopic ? { ...given, state: "scheduled" } : given;
  const start = /^\d+$/.test(from) ? BigInt(from) : 0n;
  const [chosen, setChosen] = useState(null);
  const [picked, setPicked] = useState([]);
  const [dialog, setDialog] = useState("");
  const search = useSearch(info.name, dead, where, start);
  const tail = useTail(info.name, where);
  const all = fromNumber(where, start);
  const rows = tail.on ? tail.arrived : search.messages;
  const view = useWindow(rows, tail.on ? 0 : search.dropped, encode([where, start, tail.on]));
  const tab = dead ? "dead-lettered" : "messages";
  const onFilter = (wanted, number) => {
    const next = link(info.name, tab, { ...wanted, ...(number ? { start: number } : {}) });
    if (next === location.hash) search.again();
    else location.hash = next;
  };
  // What a dialog counted was about the filter before: the operator went back, or forward.
  useEffect(() => {
    setPicked([]);
    setDialog("");
  }, [encode([where, start])]);
  const done = (text) => {
    setPicked([]);
    say(text);
  };
  const shownRound = useRef(round);
  useEffect(() => {
    if (round !== shownRound.current) search.again();
    shownRound.current = round;
  }, [round]);
  const pick = (key) => setPicked((before) => (before.includes(key) ? before.filter((one) => one !== key) : [...before, key]));
  const step = (by) => {
    const place = rows.findIndex((one) => one.sequence_number === chosen.sequence_number) + by;
    if (!rows[place]) return;
    setChosen(rows[place]);
    if (place < view.first) view.move(-PAGE);
    if (place >= view.first + view.shown.length) view.move(PAGE);
  };
  const close = () => setDialog("");
  const listed = useMemo(
    () => html`<${Rows} rows=${view.shown} dead=${dead} chosen=${chosen?.sequence_number} picked=${picked} onChoose=${setChosen} onPick=${pick} />`,
    [rows, view.first, dead, chosen, picked],
  );
  const columns = [...(dead ? [["Select", "hidden"]] : []), ["Number", "num"], "Enqueued", "State", "Id", "Session", ...(dead ? ["Reason"] : []), ["Deliveries", "num"], "Body"];
  return html`
    ${dead && html`<${Reasons} info=${info} can=${can} say=${done} total=${info.dead_lettered_count} chosen=${where.dead_letter_reason} onChoose=${(reason) => onFilter({ ...where, dead_letter_reason: reason }, start)} />`}
    <${Held} info=${info} dead=${dead} can=${can} say=${done} />
    <${Filter} info=${info} dead=${dead} where=${where} start=${start} onFilter=${onFilter}>
      <button type="button" onClick=${search.again}>Refresh</button>
      ${Object.values(where).some((one) => one !== undefined) && !isTopic && html`<a href=${link(info.name, tab)}>Clear</a>`}
      ${!dead && !isTopic && html`<button type="button" aria-pressed=${tail.on} onClick=${() => tail.setOn(!tail.on)}>Follow</button>`}
    <//>
    <${Actions} info=${info} dead=${dead} can=${can} shown=${view.shown} picked=${picked} onPicked=${setPicked} onDialog=${setDialog} />
    <${Failure} text=${search.error || tail.error} />
    ${tail.on && html`<p class="soft" role="status">Messages appear here as they arrive, the newest first.</p>`}
    <div class=${chosen ? "split" : ""}>
      <div onKeyDown=${stepRows}>
        <${Table} label="Messages" kind="messages" columns=${columns} rows=${listed} />
        ${!tail.on && html`<${Progress} info=${info} dead=${dead} where=${where} search=${search} view=${view} />`}
      </div>
      ${chosen && html`<${Detail} info=${info} chosen=${chosen} dead=${dead} can=${can} say=${done} onClose=${() => setChosen(null)} onStep=${step} />`}
    </div>
    ${dialog === "move" && html`<${Move} info=${info} where=${all} onClose=${close} onDone=${done} />`}
    ${dialog === "purge" && html`<${Purge} info=${info} where=${{ ...all, state: dead ? "dead-lettered" : all.state ?? "active" }} onClose=${close} onDone=${done} />`}
    ${dialog === "resubmit" && html`<${Resubmit} info=${info} where=${all} onClose=${close} onDone=${done} />`}
    ${dialog === "picked" && html`<${Resubmit} info=${info} numbers=${picked.map(BigInt)} known=${picked.length} onClose=${close} onDone=${done} />`}`;
}
