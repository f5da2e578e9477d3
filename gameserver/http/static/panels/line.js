// The line to the server: who serves, how well it goes, and what came back after it was lost.

import { button, element } from "../element.js";
import { plural, seconds } from "./words.js";

const KEPT = 40; // entries of the log
const NAMES = {
  connecting: "Connecting…",
  open: "Connected",
  waiting: "Lost, coming back",
  away: "Hung up",
  closed: "Not connected",
};

export class LinePanel {
  #facts = new Map(); // name -> <dd>
  #replayed = null; // the log entry of the last resume

  /** @param on  {cut(), hangUp(), comeBack()} */
  constructor(root, on) {
    this.facts = root.querySelector(".facts");
    this.log = root.querySelector(".log");
    this.cutButton = button("Cut the line", on.cut, "danger");
    this.cutButton.title = "Loses the connection without closing it, as a pulled cable does. The page comes back by itself and goes on in mid-sentence";
    this.hangButton = button("Hang up", () => (this.state === "away" ? on.comeBack() : on.hangUp()));
    this.hangButton.title = "Closes the connection and keeps your seat: others see you away until you come back";
    root.querySelector(".buttons").replaceChildren(this.cutButton, this.hangButton);
    for (const [name, title] of [
      ["State", "of the connection"],
      ["Node", "which server of the world serves this scene"],
      ["Epoch", "rises whenever the scene changes hands; what comes with a lower one is dropped"],
      ["Framing", "the WebSocket subprotocol: how messages are written"],
      ["Round trip", "to the server and back, measured with each heartbeat"],
      ["First word", "of the last answer, from your line to here, and in brackets what the server says of itself"],
      ["Speed", "of the last answer"],
    ]) this.#add(name, title);
    this.setState({ state: "closed" });
  }

  #add(name, title) {
    const value = element("dd", "", "–");
    const term = element("dt", "", name);
    term.title = title;
    this.facts.append(element("div", "", term, value));
    this.#facts.set(name, value);
  }

  set(name, text) {
    this.#facts.get(name).textContent = text;
  }

  setState({ state, wait }) {
    this.state = state;
    this.set("State", state === "waiting" && wait > 950 ? `${NAMES[state]} in ${seconds(wait)}` : NAMES[state]);
    this.cutButton.disabled = state !== "open";
    this.hangButton.disabled = state === "closed";
    this.hangButton.textContent = state === "away" ? "Come back" : "Hang up";
  }

  setServer({ node, framing }) {
    this.set("Node", node);
    this.set("Framing", framing);
  }

  /** An answer has ended: when its first word came (ms here), and the server's bill. */
  setAnswer(first, { completion, ttft_ms: ttft, total_ms: total }) {
    const server = Number.isFinite(ttft) ? ` (${seconds(ttft)})` : "";
    if (first !== null) this.set("First word", seconds(first) + server);
    const speaking = total - (ttft ?? total);
    if (completion > 1 && speaking > 0) this.set("Speed", `${Math.round((1000 * (completion - 1)) / speaking)} tokens/s`);
  }

  note(text) {
    const time = new Date().toLocaleTimeString([], { hour12: false });
    const entry = element("li", "", element("time", "", time), element("span", "", text));
    this.log.prepend(entry);
    while (this.log.childElementCount > KEPT) this.log.lastChild.remove();
    return entry.lastChild;
  }

  /** What a resume has brought so far; the same Replay again brings its entry up to date. */
  setReplay(replay) {
    if (this.#replayed?.replay !== replay) this.#replayed = { replay, text: this.note("") };
    const { away, tries, events, chunks, skipped } = replay;
    const missed = skipped ? `; ${plural(skipped, "event")} too old to be told, the room is shown as it is` : "";
    this.#replayed.text.textContent =
      `Resumed after ${seconds(away)}, ${tries === 1 ? "1 try" : `${tries} tries`}: ` +
      `${plural(events, "event")} and ${plural(chunks, "chunk")} of speech replayed${missed}`;
  }
}
