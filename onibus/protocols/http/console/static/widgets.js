// Parts that several views use: figures, plots, dialogs, tables that load as they are read.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./preact.js";
import { Unreachable, encode, now } from "./api.js";

const NUMBER = new Intl.NumberFormat("en-GB");
const SHORT = new Intl.NumberFormat("en-GB", { notation: "compact", maximumFractionDigits: 1 });

export const number = (value) => (value === undefined || value === null ? "–" : NUMBER.format(value));
/** A number with its noun: 1 message, 2 messages. */
export const count = (value, noun, more = `${noun}s`) => `${number(value)} ${Number(value) === 1 ? noun : more}`;
export const short = (value) => (value < 10_000 ? number(value) : SHORT.format(value));
export const rate = (value) => (value ? `${value < 10 ? value.toFixed(1) : number(Math.round(value))}/s` : "0");
export const bytes = (size) => {
  let value = Number(size);
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  for (; value >= 1000 && at < 4; at += 1) value /= 1000;
  return `${at && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
};
// Formatters are made once: one per call costs the browser more memory than the list around it.
const TIME = new Intl.DateTimeFormat("en-GB", { dateStyle: "short", timeStyle: "medium" });
const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
/** A time as text; the number itself if no calendar has it. */
export const time = (ms) => (ms ? (Math.abs(Number(ms)) <= 8.64e15 ? TIME.format(Number(ms)) : String(ms)) : "–");

export function age(ms) {
  if (ms === undefined || ms === null) return "–";
  const seconds = Math.max(0, (now() - Number(ms)) / 1000);
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

export const ago = (ms) => (ms === undefined || ms === null ? "–" : `${age(ms)} ago`);

/** The address of a view of an entity; the filter of a list of messages is part of it. */
export const link = (name, tab = "figures", filter) =>
  `#/entity/${encodeURIComponent(name)}/${tab}${filter ? `/${encodeURIComponent(encode(filter))}` : ""}`;

/** Milliseconds in the largest unit that keeps two digits. */
export function duration(ms) {
  if (ms === undefined || ms === null) return "–";
  const value = Number(ms);
  if (value < 1000) return `${value} ms`;
  for (const [unit, size] of [["s", 1000], ["min", 60_000], ["h", 3_600_000]]) {
    const amount = value / size;
    if (amount < (unit === "s" ? 100 : 90)) return `${amount < 10 ? amount.toFixed(1) : Math.round(amount)} ${unit}`;
  }
  return `${Math.round(value / 86_400_000)} d`;
}

const hex = (bytes) => Array.from(bytes, (one) => one.toString(16).padStart(2, "0")).join(" ");

/** The body of a message as bytes. */
export const bytesOf = (message) =>
  message.body_base64 === undefined
    ? new TextEncoder().encode(message.body ?? "")
    : Uint8Array.from(atob(message.body_base64), (one) => one.charCodeAt(0));

/** The beginning of a body on one line. */
export function preview(message) {
  const text = message.body_base64 === undefined ? (message.body ?? "").slice(0, 200) : hex(bytesOf({ body_base64: message.body_base64.slice(0, 88) }));
  return message.body_size ? `${text}… (${bytes(message.body_size)})` : text;
}

/** Rows of sixteen bytes: their place, their digits, and their characters. */
export function hexDump(content) {
  const lines = [];
  for (let start = 0; start < content.length; start += 16) {
    const row = content.subarray(start, start + 16);
    const text = Array.from(row, (one) => (one >= 32 && one < 127 ? String.fromCharCode(one) : ".")).join("");
    lines.push(`${start.toString(16).padStart(8, "0")}  ${hex(row).padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}

//: From these values on, a figure is marked: as a warning, as an alarm.
export const THRESHOLDS = { dead_lettered: [1, 100], oldest_ms: [300_000, 3_600_000], growth: [100, 1000] };
const SIGNS = { warn: ["▲", "warning"], bad: ["‼", "alarm"] };

/** Return "", "warn" or "bad" for a figure. */
export const level = (name, value) => {
  const [warn, bad] = THRESHOLDS[name];
  return value >= bad ? "bad" : value >= warn ? "warn" : "";
};

/** Return by how much the backlog grew in the time that its small plot shows. */
export const growth = (depths) => (depths && depths.length > 1 ? depths[depths.length - 1] - depths[0] : 0);

/** A sign next to a marked figure, so that its colour is not the only one. */
export function Sign({ at }) {
  if (!at) return null;
  const [sign, word] = SIGNS[at];
  return html`<span class=${`sign ${at}`} title=${word} role="img" aria-label=${word}>${sign}</span>`;
}

/** A small plot of the last counts. */
export function Spark({ values }) {
  if (!values || values.length < 2) return null;
  const top = Math.max(...values, 1);
  const points = values
    .map((value, at) => `${((at / (values.length - 1)) * 78 + 1).toFixed(1)},${(19 - (value / top) * 18).toFixed(1)}`)
    .join(" ");
  return html`<svg class="spark" viewBox="0 0 80 20" aria-hidden="true"><polyline points=${points} /></svg>`;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A plot over time: `series` is a list of [label, values, colour variable]. */
export function Chart({ title, times, series, points = false }) {
  const place = useRef(null);
  const plot = useRef(null);
  useLayoutEffect(() => {
    const clock = (seconds) => (seconds ? CLOCK.format(seconds * 1000) : "–");
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
    plot.current = new uPlot(
      {
        width: place.current.clientWidth,
        height: 190,
        series: [{ value: (_, seconds) => clock(seconds) }, ...series.map(([label, , stroke]) => ({ label, stroke: colour(stroke), width: 2, points: { show: points } }))],
        axes: [{ ...axis, space: 80, values: (_, marks) => marks.map(clock) }, { ...axis, size: 60, values: (_, marks) => marks.map(short) }],
        scales: { y: { range: (_, low, high) => [0, Math.max(high || 0, 1)] } },
        legend: { live: true },
      },
      [times, ...series.map(([, values]) => values)],
      place.current,
    );
    const resize = new ResizeObserver(() => {
      plot.current.setSize({ width: place.current.clientWidth, height: 190 });
    });
    resize.observe(place.current);
    return () => {
      resize.disconnect();
      plot.current.destroy();
    };
  }, [series.length]);
  useEffect(() => {
    plot.current.setData([times, ...series.map(([, values]) => values)]);
  }, [times]);
  return html`<figure class="chart"><figcaption>${title}</figcaption><div ref=${place}></div></figure>`;
}

/** Give the focus back to where it was, or to the content if that is gone. */
export function focusAgain(place) {
  requestAnimationFrame(() => {
    const there = place?.isConnected && !place.closest("[inert]");
    (there ? place : document.getElementById("content"))?.focus();
  });
}

/** A dialog with a form; an error of `onSubmit` is shown, and the dialog stays after `false`. */
export function Dialog({ title, submit, danger, onInput, onSubmit, onClose, children }) {
  const place = useRef(null);
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    const opener = document.activeElement;
    place.current.showModal();
    return () => focusAgain(opener);
  }, []);
  const run = async (event) => {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    setError("");
    try {
      if ((await onSubmit(new FormData(event.target))) !== false) onClose();
    } catch (problem) {
      setError(problem.message);
    } finally {
      setBusy(false);
    }
  };
  // Not disabled while it works: the button would lose the focus.
  return html`<dialog ref=${place} aria-label=${title} onClose=${onClose} onCancel=${onClose}>
    <form onSubmit=${run} onInput=${onInput}>
      <h2>${title}</h2>
      ${children}
      <${Failure} text=${error} />
      <footer>
        ${busy && html`<span class="soft late" role="status">Waiting for the server…</span><span class="grow"></span>`}
        <button type="button" onClick=${onClose}>Cancel</button>
        ${submit && html`<button class=${danger ? "danger" : "primary"} aria-disabled=${busy}>${submit}</button>`}
      </footer>
    </form>
  </dialog>`;
}

/** A table in a region of its own that scrolls if the window is narrow. */
export function Table({ label, columns, rows, children, kind = "" }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>
    <table class=${kind}>
      <thead><tr>${columns.map((one) => {
        const [text, type] = Array.isArray(one) ? one : [one, ""];
        return html`<th key=${text} scope="col" class=${type === "num" ? "num" : ""}>${type === "hidden" ? html`<span class="hidden">${text}</span>` : text}</th>`;
      })}</tr></thead>
      <tbody>${rows}</tbody>
    </table>${children}
  </div>`;
}

/** Buttons to the previous and the next page of a list. */
export function Pager({ start, page, total, onStart }) {
  if (total <= page) return null;
  return html`<div class="bar">
    <button disabled=${!start} onClick=${() => onStart(Math.max(0, start - page))}>Previous</button>
    <span class="soft">${number(start + 1)} to ${number(Math.min(start + page, total))} of ${number(total)}</span>
    <button disabled=${start + page >= total} onClick=${() => onStart(start + page)}>Next</button>
  </div>`;
}

export function Field({ label, hint, children }) {
  return html`<label class="field"><span>${label}</span>${children}${hint && html`<small>${hint}</small>`}</label>`;
}

export function Tabs({ tabs, chosen, href }) {
  return html`<nav class="tabs" aria-label="Views">
    ${tabs.map(([key, label]) => html`<a key=${key} href=${href(key)} aria-current=${key === chosen ? "page" : undefined}>${label}</a>`)}
  </nav>`;
}

/** Ask before something happens that cannot be undone. */
export function Confirm({ title, text, submit, onSubmit, onClose }) {
  return html`<${Dialog} title=${title} submit=${submit} danger onSubmit=${onSubmit} onClose=${onClose}><p>${text}</p><//>`;
}

//: Seconds after which a view whose server did not respond asks again.
const AGAIN = 3;
//: A view that takes long to load waits this many times as long, up to these seconds.
const REST = 30;
const LONGEST = 30;

/** Resolve when the page is visible. A tab in the background asks the server nothing. */
const visible = () => new Promise((resolve) => {
  const look = () => {
    if (document.hidden) return;
    document.removeEventListener("visibilitychange", look);
    resolve();
  };
  document.addEventListener("visibilitychange", look);
  look();
});

/** Run something when the page is visible; abort it when the page is hidden, or by a signal. */
export async function whileVisible(run, signal) {
  await visible();
  const control = new AbortController();
  const stop = () => (document.hidden || signal.aborted) && control.abort();
  document.addEventListener("visibilitychange", stop);
  signal.addEventListener("abort", stop);
  stop();
  try {
    await run(control.signal);
  } catch (problem) {
    if (!control.signal.aborted) throw problem;
  } finally {
    document.removeEventListener("visibilitychange", stop);
    signal.removeEventListener("abort", stop);
  }
}

/** Load something now, again when `keys` change, and every `seconds` if given. */
export function useLoaded(load, keys, seconds) {
  const [state, setState] = useState({ value: null, error: "" });
  const [round, setRound] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    const run = async () => {
      let next = seconds;
      const begun = performance.now();
      try {
        const value = await load(stop.signal);
        if (seconds) next = Math.max(seconds, Math.min(((performance.now() - begun) / 1000) * REST, LONGEST));
        if (!stop.signal.aborted) setState({ value, error: "" });
      } catch (problem) {
        if (problem instanceof Unreachable) next = AGAIN;
        if (!stop.signal.aborted) setState((before) => ({ value: before.value, error: problem.message }));
      }
      if (next && !stop.signal.aborted) timer = setTimeout(() => visible().then(() => stop.signal.aborted || run()), next * 1000);
    };
    run();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [...keys, round]);
  return { ...state, again: () => setRound((before) => before + 1) };
}

/** An error; or, while there is no value yet and the server takes its time, that it loads. */
export function Failure({ text, wait = false }) {
  // Always an element: Preact places what appears next to one that vanishes before its siblings.
  if (text) return html`<p class="error" role="alert">${text}</p>`;
  return html`<p class="soft late" role=${wait ? "status" : undefined} hidden=${!wait}>${wait && "Loading…"}</p>`;
}
