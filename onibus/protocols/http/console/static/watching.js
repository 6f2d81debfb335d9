// Figures that change while you look: a stream of rows, each with the counts of an entity.

import { useEffect, useState } from "./preact.js";
import { Crowded, stream } from "./api.js";
import { whileVisible } from "./widgets.js";

/** Watch entities over a stream; return their newest figures by name, and when they came. */
export function useChanges(path, names, body = { names }) {
  const [changes, setChanges] = useState(new Map());
  const [live, setLive] = useState(true);
  const [crowded, setCrowded] = useState(false);
  const [error, setError] = useState("");
  useEffect(() => setChanges(new Map()), [names.join("\n")]);
  useEffect(() => {
    setError("");
    if (!names.length || !live) return undefined;
    const stop = new AbortController();
    const watch = async () => {
      while (!stop.signal.aborted) {
        try {
          await whileVisible((signal) => stream("watch", path, body, (row) => {
            setError("");
            setCrowded(false);
            setChanges((before) => new Map(before).set(row.name, { ...row, seen: performance.now() }));
          }, signal), stop.signal);
        } catch (problem) {
          if (problem instanceof Crowded) setCrowded(true);
          else if (!stop.signal.aborted) setError(`figures are not updated: ${problem.message}`);
        }
        await new Promise((resolve) => setTimeout(resolve, 3000));
      }
    };
    watch();
    return () => stop.abort();
  }, [path, names.join("\n"), live]);
  return { changes, live, setLive, crowded, stale: error };
}
