// Small drawings of what an NPC has felt, over time.

import { svg } from "./portrait.js";

/** Colours of moods, bright enough on dark and light ground. */
const MOODS = {
  neutral: "#a8926f", content: "#8fb56a", cheerful: "#e0a63a", amused: "#d98a4a", curious: "#5f9fce",
  proud: "#b07fd0", sad: "#6585c4", worried: "#9a8fb8", afraid: "#8f6fd6", angry: "#d9573f",
  disgusted: "#7d9440",
};
export const colourOfMood = (name) => MOODS[name] ?? MOODS.neutral;

const WIDTH = 400;
const HEIGHT = 64;
const SAMPLES = 16;

/** How strongly a mood that was `level` at `at` is felt at `now`; times in ms. */
const faded = (level, at, now, halfLife) => level * 0.5 ** ((now - at) / (1000 * halfLife));

/**
 * The mood from its first stir to now: each stir jumps up, and dies away in its colour.
 * `mood` is {history: [{at, name, level}], half_life_s}; `now` the server's clock in ms.
 */
export function moodCurve(mood, now) {
  const { history, half_life_s: halfLife } = mood;
  const floor = svg("path", { class: "floor", d: `M0 ${HEIGHT - 1}H${WIDTH}` });
  const first = Math.max(history[0]?.at ?? now, now - 8000 * halfLife);
  const from = Math.min(first - 0.06 * (now - first), now - 10_000);
  const x = (at) => ((at - from) / (now - from)) * WIDTH;
  const y = (level) => HEIGHT - 2 - level * (HEIGHT - 6);
  const parts = history.map((stir, i) => {
    const end = history[i + 1]?.at ?? now;
    if (end < from) return null;
    const start = Math.max(stir.at, from);
    const points = Array.from({ length: SAMPLES + 1 }, (_, n) => {
      const at = start + ((end - start) * n) / SAMPLES;
      return `${x(at).toFixed(1)} ${y(faded(stir.level, stir.at, at, halfLife)).toFixed(1)}`;
    });
    const colour = colourOfMood(stir.name);
    const line = `M${points.join("L")}`;
    const [left, right] = [x(start).toFixed(1), x(end).toFixed(1)];
    const title = svg("title");
    title.textContent = `${stir.name}, ${Math.round(100 * stir.level)} %`;
    return svg("g", {}, title,
      svg("path", { class: "under", fill: colour, d: `${line}L${right} ${HEIGHT - 1}L${left} ${HEIGHT - 1}Z` }),
      svg("path", { class: "fall", stroke: colour, d: `M${left} ${HEIGHT - 1}L${line.slice(1)}` }));
  });
  const told = history.length
    ? `Mood over time: ${[...new Set(history.map(({ name }) => name))].join(", ")}`
    : "Nothing has stirred this mood yet";
  return svg("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": told,
  }, floor, parts);
}

/** The steps that one feeling has taken; `points` is [{at, …}], oldest first. */
export function sparkline(points, axis, now) {
  const least = axis === "fear" ? 0 : -100;
  const y = (value) => (21 - ((value - least) / (100 - least)) * 20).toFixed(1);
  const from = points[0]?.at ?? now;
  const x = (at) => (((at - from) / Math.max(now - from, 1)) * 100).toFixed(2);
  const steps = points.map((point, i) => `${i ? `H${x(point.at)}V` : "M0 "}${y(point[axis])}`);
  return svg("svg", { viewBox: "0 0 100 22", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("path", { class: "zero", d: `M0 ${y(0)}H100` }),
    points.length > 0 && svg("path", { d: `${steps.join("")}H100` }));
}
