// What was said, oldest first: players' lines, NPCs' lines as they grow, small notes between.

import { element } from "../element.js";
import { bust } from "../portrait.js";
import { colourOf } from "../room/players.js";
import { seconds } from "./words.js";

const ENDINGS = {
  interrupted: "interrupted",
  cancelled: "cancelled",
  failed: "failed",
  truncated: "cut at the length limit",
  abandoned: "lost",
};

const NAMED = 6; // listeners by name; others are counted

/** Who heard a line, as a small fact below it. */
function heardBy(names) {
  const more = names.length - NAMED;
  const shown = names.slice(0, NAMED).join(", ") + (more > 0 ? ` and ${more} more` : "");
  return element("span", "fact listeners", `heard by ${shown}`);
}

export class Journal {
  #lines = new Map(); // message or turn id -> list item
  #following = true;

  constructor(list, spoken) {
    this.list = list;
    this.spoken = spoken; // screen readers hear finished lines from here, not every token
    list.addEventListener("scroll", () => {
      this.#following = list.scrollHeight - list.scrollTop - list.clientHeight < 60;
    });
  }

  has(id) {
    return this.#lines.has(id);
  }

  note(text) {
    this.#add(null, element("li", "note", text));
  }

  playerLine(id, { player, name, own, text, to, reach, listeners = [] }) {
    const item = element("li", own ? "line own" : "line");
    item.style.setProperty("--colour", colourOf(player));
    item.append(this.#head(name, to && `to ${to}`, reach), element("p", "words", text));
    if (listeners.length) item.append(element("p", "meta", heardBy(listeners)));
    this.#add(id, item);
  }

  /** Opens an NPC's line; `extend` and `end` go on with it. */
  npcLine(id, npc, { text = "", reach = "all" } = {}) {
    const item = element("li", "line npc speaking");
    const head = this.#head(npc.name, null, reach);
    item.append(bust(npc), head, element("p", "words", text));
    if (npc.quest_giver) head.append(element("span", "tag quest-tag", "quest"));
    this.#add(id, item);
  }

  wordsOf(id) {
    return this.#lines.get(id)?.querySelector(".words").textContent ?? "";
  }

  /** Empties a line that is told anew (after a reconnection). */
  reopen(id) {
    const item = this.#lines.get(id);
    item.classList.add("speaking");
    item.querySelector(".words").textContent = "";
    item.querySelector(".meta")?.remove();
  }

  extend(id, words) {
    const item = this.#lines.get(id);
    item?.querySelector(".words").append(words);
    this.#follow();
  }

  /** Ends a line with its final text, what it cost, and the names of those who heard it. */
  end(id, { text, status, usage, err }, listeners = []) {
    const item = this.#lines.get(id);
    if (!item) return;
    item.classList.remove("speaking");
    const words = item.querySelector(".words");
    if (words.textContent !== text) words.textContent = text;
    item.dataset.status = status ?? "completed";
    const meta = element("p", "meta");
    if (ENDINGS[status]) meta.append(element("span", "tag ending", err?.msg ?? ENDINGS[status]));
    if (usage) meta.append(...this.#bill(usage));
    if (text && listeners.length > 1) meta.append(heardBy(listeners));
    if (meta.childElementCount) item.append(meta);
    const name = item.querySelector(".who").textContent;
    if (text) this.spoken.textContent = `${name}: ${text}`;
    this.#follow();
  }

  #bill({ prompt, cached, completion, queue_ms: queue, ttft_ms: first, total_ms: total }) {
    const facts = [];
    const add = (className, text, title) => {
      const fact = element("span", `fact ${className}`, text);
      fact.title = title;
      facts.push(fact);
    };
    if (!prompt) return facts; // a greeting: its author wrote it, no model was asked
    if (Number.isFinite(first)) {
      add("ttft", `first token ${seconds(first)}`, `from your line to the first word on the wire; ${seconds(queue ?? 0)} of it in the queue`);
    }
    const share = Math.round((100 * cached) / prompt);
    add("cached", `${cached}/${prompt} cached`, `${cached} of ${prompt} prompt tokens (${share} %) did not have to be computed for this reply`);
    if (completion) add("spent", `${completion} tokens, ${seconds(total)}`, "length of the reply, and the time until its end");
    return facts;
  }

  #head(name, detail, reach = "all") {
    const head = element("p", "head");
    head.append(element("span", "who", name));
    if (detail) head.append(element("span", "detail", detail));
    if (reach === "whisper") head.append(element("span", "tag whisper-tag", "whisper"));
    if (reach === "near") head.append(element("span", "tag near-tag", "in earshot"));
    return head;
  }

  #add(id, item) {
    if (id !== null) this.#lines.set(id, item);
    this.list.append(item);
    this.#follow();
  }

  #follow() {
    if (this.#following) this.list.scrollTop = this.list.scrollHeight;
  }
}
