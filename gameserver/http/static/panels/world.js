// What happens in the world: events, who comes and goes, what NPCs do, where quests are, and the state of
// things.

import { button, element } from "../element.js";
import { spoken, wordsOf } from "../room/things.js";

const KEPT = 80; // entries of the feed
const SHOWN = 200; // characters of an event's data

/** Data of an event for people: JSON, cut. */
function shown(data) {
  if (data === null || data === undefined) return "";
  const text = typeof data === "string" ? data : JSON.stringify(data);
  if (text === "{}") return "";
  return text.length > SHOWN ? `${text.slice(0, SHOWN)}…` : text;
}

export class WorldPanel {
  #actions = new Map(); // action id -> the entry with its buttons

  /** @param on  {raise(event, data), decide(action, ok), touch(entity, key)} */
  constructor(root, on) {
    this.on = on;
    this.feed = root.querySelector(".feed");
    this.quests = root.querySelector(".quests");
    this.events = root.querySelector(".events");
    this.things = root.querySelector(".things");
    this.data = root.querySelector("#event-data");
    this.empty = root.querySelector(".empty");
  }

  /** Buttons for the events that players may raise here. */
  setEvents(names) {
    this.events.replaceChildren(...names.map((name) => button(spoken(name), () => this.#raise(name), "chip")));
    this.events.parentElement.hidden = names.length === 0;
  }

  #raise(name) {
    const written = this.data.value.trim();
    this.data.setCustomValidity("");
    try {
      this.on.raise(name, written ? JSON.parse(written) : undefined);
    } catch {
      this.data.setCustomValidity('This is no JSON. Write for example {"item": "whistle"}, or nothing.');
      this.data.reportValidity();
    }
  }

  /** The quests as they are: [{quest, title, stage, journal, ending}]. */
  setQuests(quests) {
    this.quests.replaceChildren(...quests.map(({ title, stage, journal, ending }) => element("li", ending ? "over" : "",
      element("b", "", title), element("span", "tag", ending || stage), journal && element("p", "", journal))));
  }

  /** What entities are like, but for where they are: [id, name, Map of keys]. */
  setThings(entities) {
    const rows = entities.flatMap(([id, name, keys]) => [...keys].filter(([key]) => key !== "pos").map(([key, value]) => {
      const words = wordsOf(key, value);
      const value_ = typeof value === "boolean"
        ? button(words, () => this.on.touch(id, key), "chip")
        : element("span", "", words);
      if (typeof value === "boolean") value_.setAttribute("aria-label", `${name}: ${words}; press to change`);
      return element("li", "", element("b", "", name), value_);
    }));
    this.things.replaceChildren(...rows);
    this.things.parentElement.hidden = rows.length === 0;
  }

  event({ name, data, src, state }) {
    this.#add(state ? "state" : "event", [element("b", "", spoken(name)), shown(data), element("small", "", `from ${src}`)]);
  }

  /** Somebody came, left, went away or is back. */
  presence(name, what) {
    const words = { join: "came in", leave: "left", away: "is away", back: "is back" }[what];
    if (words) this.#add(what, [element("b", "", name), words]);
  }

  /** Something an NPC does; with `ours`, this player's game says what becomes of it. */
  action({ turn, action, name, args }, who, ours) {
    const about = Object.values(args).map((value) => (typeof value === "string" ? value : JSON.stringify(value))).join(", ");
    const decide = (ok) => {
      this.settle(action, ok ? "done" : "refused");
      this.on.decide({ turn, action }, ok);
    };
    const entry = this.#add("action", [
      element("b", "", who), `${spoken(name)}${about && ` (${about})`}`,
      ours
        ? element("span", "verdict", button("Let it happen", () => decide(true), "chip"), button("Refuse", () => decide(false), "chip"))
        : element("span", "verdict", "for somebody else"),
    ]);
    if (ours) this.#actions.set(action, entry);
    return about;
  }

  /** How an action ended. */
  settle(action, words) {
    this.#actions.get(action)?.querySelector(".verdict").replaceChildren(words);
    this.#actions.delete(action);
  }

  notice(text) {
    this.#add("notice", [text]);
  }

  #add(kind, children) {
    const spaced = children.filter(Boolean).flatMap((child) => [child, " "]);
    const entry = element("li", kind, element("time", "", new Date().toLocaleTimeString([], { hour12: false })), element("span", "", spaced));
    this.feed.prepend(entry);
    while (this.feed.childElementCount > KEPT) this.feed.lastChild.remove();
    this.empty.hidden = true;
    return entry;
  }
}
