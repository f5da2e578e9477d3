// Refusals in words: what happened, and what to do about it.

const ADVICE = {
  auth_failed: "Check the key or token and try again.",
  forbidden: "Ask whoever runs the server for a key or token that allows it.",
  version: "Reload the page: it and the server are of different versions.",
  replaced: "Close this page, or reload it to take your place back.",
  rate_limited: "Go a little slower.",
  too_large: "Make it shorter.",
  context_exceeded: "Make it shorter.",
  busy: "Your first line is still being answered; wait for it or interrupt.",
  over_budget: "The budget for now is used up.",
  halted: "Whoever runs the server has silenced everybody for now.",
  too_far: "Walk nearer, or speak to somebody else.",
  not_in_scene: "Reload the page to come in again.",
  no_scene: "Choose another scene, or reload the page.",
  no_npc: "Choose somebody who is here.",
  draining: "The server restarts; the page comes back by itself.",
  offline: "The page connects again by itself; your words are still in the box.",
  internal: "That is a fault of the server's; its log says more.",
};

const limits = ({ limit, actual }) =>
  limit === undefined ? "" : ` (${actual === undefined ? "" : `${actual}, `}at most ${limit})`;

/** A sentence or two for people. */
export function inWords(refusal) {
  const said = refusal.message.trim().replace(/\.$/, "") || refusal.code;
  const what = said.charAt(0).toUpperCase() + said.slice(1) + limits(refusal);
  const wait = refusal.retryMs ? `Try again in ${Math.ceil(refusal.retryMs / 1000)} s.` : "";
  const advice = Object.hasOwn(ADVICE, refusal.code) ? ADVICE[refusal.code] : "";
  return [`${what}.`, advice, wait].filter(Boolean).join(" ");
}

/** A span of time for people. */
export const seconds = (ms) => (ms < 950 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

/** One thing or several. */
export const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
