// What is being said, over the heads of those who say it.

import { button, element } from "../element.js";

const LAST_WORDS_MS = 9000;
const MS_PER_CHARACTER = 20;

export class Bubbles {
  #open = new Map(); // speaker -> {box, text, timer, turn}
  #rising = 1; // the newest bubble lies on top

  /** @param headOf  tells where a speaker's head is: {x, bottom, head} in px, or undefined */
  constructor(layer, { headOf, nameOf, onInterrupt }) {
    Object.assign(this, { layer, headOf, nameOf, onInterrupt });
  }

  clear() {
    for (const speaker of [...this.#open.keys()]) this.#drop(speaker);
  }

  /** Opens an empty bubble for a turn that reaches "all", those "near", or is a "whisper"; words said before make room for it. */
  open(speaker, turn, reach) {
    for (const [other, { timer }] of this.#open) if (timer || other === speaker) this.#drop(other);
    const text = element("p");
    const stop = button("Interrupt", () => this.onInterrupt(turn), "hush");
    stop.tabIndex = -1; // Escape does the same from the keyboard
    this.#add(speaker, turn, element("div", `bubble ${reach}`, text, stop), text);
  }

  /** A whole line of a player, shown for a while. */
  line(speaker, words, reach) {
    this.#drop(speaker);
    const text = element("p", "", words);
    const box = element("div", `bubble line-bubble ${reach}`, text);
    this.#add(speaker, null, box, text);
    this.close(speaker, null);
  }

  extend(speaker, turn, words) {
    const bubble = this.#open.get(speaker);
    if (bubble?.turn !== turn) return;
    bubble.text.append(words);
    this.seat();
    bubble.text.scrollTop = bubble.text.scrollHeight;
  }

  /** All that was said so far is told anew. */
  restart(speaker, turn) {
    const bubble = this.#open.get(speaker);
    if (bubble?.turn === turn) bubble.text.textContent = "";
  }

  /** The turn is over; its bubble stays as long as reading it takes. */
  close(speaker, turn) {
    const bubble = this.#open.get(speaker);
    if (bubble?.turn !== turn) return;
    bubble.box.classList.add("said");
    const { length } = bubble.text.textContent;
    if (!length) return this.#drop(speaker);
    bubble.timer = setTimeout(() => this.#drop(speaker), LAST_WORDS_MS + length * MS_PER_CHARACTER);
    this.seat();
  }

  #add(speaker, turn, box, text) {
    box.dataset.npc = speaker;
    box.dataset.name = this.nameOf(speaker);
    box.setAttribute("aria-hidden", "true"); // the journal reads it out
    box.style.zIndex = String(this.#rising++);
    this.layer.append(box);
    this.#open.set(speaker, { box, text, turn, timer: 0 });
    this.seat();
  }

  #drop(speaker) {
    const bubble = this.#open.get(speaker);
    if (!bubble) return;
    clearTimeout(bubble.timer);
    bubble.box.remove();
    this.#open.delete(speaker);
  }

  /** Puts every bubble over its speaker's head, inside the stage; older ones make way upwards. */
  seat() {
    const { clientWidth: width, clientHeight: height } = this.layer;
    const taken = []; // [left, right, top, bottom] of newer bubbles; heights count from below
    for (const [speaker, { box }] of [...this.#open].reverse()) {
      const place = this.headOf(speaker);
      box.hidden = !place;
      if (!place) continue;
      const half = box.offsetWidth / 2;
      const centre = Math.max(half + 10, Math.min(place.x, width - half - 10));
      let bottom = place.bottom + place.head * 0.97;
      for (const [left, right, top, floor] of taken) {
        const beside = centre + half < left || centre - half > right;
        if (!beside && bottom < top && bottom + box.offsetHeight > floor) bottom = top + 8;
      }
      box.classList.toggle("lifted", bottom > place.bottom + place.head);
      bottom = Math.min(bottom, height - box.offsetHeight - 10);
      taken.push([centre - half, centre + half, bottom + box.offsetHeight, bottom]);
      box.style.left = `${centre}px`;
      box.style.bottom = `${bottom}px`;
      box.style.setProperty("--tail", `${place.x - centre + half}px`);
    }
  }
}
