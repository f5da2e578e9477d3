// What was said, oldest first: players' lines, NPCs' lines as they grow, small notes between.

import { bust } from "./portrait.js";
import { colourOf } from "./stage.js";

function element(tag, className, text = "") {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  return node;
}

const seconds = (ms) => (ms < 950 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

const ENDINGS = {
  interrupted: "interrupted",
  cancelled: "cancelled",
  failed: "failed",
  truncated: "cut at the length limit",
  abandoned: "lost",
};

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

  clear() {
    this.#lines.clear();
    this.list.replaceChildren();
  }

  has(id) {
    return this.#lines.has(id);
  }

  note(text) {
    this.#add(null, element("li", "note", text));
  }

  playerLine(id, { player, name, own, text, to, whispered }) {
    const item = element("li", own ? "line own" : "line");
    item.style.setProperty("--colour", colourOf(player));
    item.append(this.#head(name, to && `to ${to}`, whispered), element("p", "words", text));
    this.#add(id, item);
  }

  /** Opens an NPC's line; `extend` and `end` go on with it. */
  npcLine(id, npc, { text = "", whispered = false } = {}) {
    const item = element("li", "line npc speaking");
    const head = this.#head(npc.name, null, whispered);
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

  /** Ends a line with its final text and what it cost. `kept` chunks of `n` are remembered. */
  end(id, { text, status, usage, err }) {
    const item = this.#lines.get(id);
    if (!item) return;
    item.classList.remove("speaking");
    const words = item.querySelector(".words");
    if (words.textContent !== text) words.textContent = text;
    item.dataset.status = status ?? "completed";
    const meta = element("p", "meta");
    if (ENDINGS[status]) meta.append(element("span", "tag ending", err?.msg ?? ENDINGS[status]));
    if (usage) meta.append(...this.#bill(usage));
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

  #head(name, detail, whispered) {
    const head = element("p", "head");
    head.append(element("span", "who", name));
    if (detail) head.append(element("span", "detail", detail));
    if (whispered) head.append(element("span", "tag whisper-tag", "whisper"));
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
