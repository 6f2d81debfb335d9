// Parts that several views use: figures, plots, dialogs, tables that load as they are read.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./preact.js";

const NUMBER = new Intl.NumberFormat("en-GB");
const SHORT = new Intl.NumberFormat("en-GB", { notation: "compact", maximumFractionDigits: 1 });

export const number = (value) => (value === undefined || value === null ? "–" : NUMBER.format(value));
export const short = (value) => (value < 10_000 ? number(value) : SHORT.format(value));
export const rate = (value) => (value ? `${value < 10 ? value.toFixed(1) : number(Math.round(value))}/s` : "0");
export const bytes = (size) => {
  let value = Number(size);
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  for (; value >= 1000 && at < 4; at += 1) value /= 1000;
  return `${at && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
};
export const time = (ms) => (ms ? new Date(Number(ms)).toLocaleString("en-GB") : "–");

export function age(ms) {
  if (ms === undefined || ms === null) return "–";
  const seconds = Math.max(0, (Date.now() - Number(ms)) / 1000);
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

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
  if (!values || values.length < 2) return html`<svg class="spark" aria-hidden="true"></svg>`;
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
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
    plot.current = new uPlot(
      {
        width: place.current.clientWidth,
        height: 190,
        series: [{}, ...series.map(([label, , stroke]) => ({ label, stroke: colour(stroke), width: 2, points: { show: points } }))],
        axes: [axis, { ...axis, size: 60, values: (_, marks) => marks.map(short) }],
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

/** A dialog with a form; an error of `onSubmit` is shown, and the dialog stays after `false`. */
export function Dialog({ title, submit, danger, onInput, onSubmit, onClose, children }) {
  const place = useRef(null);
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    place.current.showModal();
  }, []);
  const run = async (event) => {
    event.preventDefault();
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
  return html`<dialog ref=${place} aria-label=${title} onClose=${onClose} onCancel=${onClose}>
    <form onSubmit=${run} onInput=${onInput}>
      <h2>${title}</h2>
      ${children}
      ${error && html`<p class="error" role="alert">${error}</p>`}
      <footer>
        <button type="button" onClick=${onClose}>Cancel</button>
        ${submit && html`<button class=${danger ? "danger" : "primary"} disabled=${busy}>${submit}</button>`}
      </footer>
    </form>
  </dialog>`;
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

/** Load something now, again when `keys` change, and every `seconds` if given. */
export function useLoaded(load, keys, seconds) {
  const [state, setState] = useState({ value: null, error: "" });
  const [round, setRound] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    const run = async () => {
      try {
        const value = await load(stop.signal);
        if (!stop.signal.aborted) setState({ value, error: "" });
      } catch (problem) {
        if (!stop.signal.aborted) setState((before) => ({ value: before.value, error: problem.message }));
      }
      if (seconds && !stop.signal.aborted) timer = setTimeout(run, seconds * 1000);
    };
    run();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [...keys, round]);
  return { ...state, again: () => setRound((before) => before + 1) };
}

export const Failure = ({ text }) => (text ? html`<p class="error" role="alert">${text}</p>` : null);
