// The room: who stands where, who is chosen, who speaks. It knows nothing of the network.

import { figure, hash, hood } from "./portrait.js";

// The painted room is 1600 x 900 and covers the stage, centred at the bottom edge.
const WORLD = { width: 1600, height: 900 };
const FIGURE = { width: 200, height: 312 };
const COUNTER_TOP = 500;
const BEHIND_COUNTER = { x: 1204, y: 596, size: 1, layer: 1 };
const ROWS = [{ y: 670, size: 0.94, layer: 2 }, { y: 776, size: 1.06, layer: 3 }];
const LAST_WORDS_MS = 9000;
const GUESTS_SHOWN = 8;
const STIR_MS = 140;
const BLINKS = 0.15; // chance that somebody blinks, each time

const ARTICLE = /^(the|an?)\s+/i;

/** The head of a role for a name plate: "the captain of the watch who ..." -> "Captain of the watch". */
function shortRole(role = "") {
  const head = role.split(/[,;.]| who | that | with /)[0].replace(ARTICLE, "");
  return head.charAt(0).toUpperCase() + head.slice(1);
}

/** A colour of the player's own, readable on dark ground, the same on every screen. */
export const colourOf = (player) => `hsl(${(hash(player) % 997) * 137.5 % 360} 58% 70%)`;

function element(tag, className, ...children) {
  const node = document.createElement(tag);
  node.className = className;
  node.append(...children);
  return node;
}

export class Stage {
  #people = new Map(); // npc id -> {npc, place, button}
  #bubbles = new Map(); // npc id -> {box, text, timer, turn}
  #chosen = null;
  #rising = 1; // the newest bubble lies on top

  /** @param onChoose called with an NPC id; @param onInterrupt with a turn id */
  constructor(root, { onChoose, onInterrupt }) {
    this.root = root;
    this.cast = root.querySelector("#cast");
    this.layer = root.querySelector("#bubbles");
    this.guests = root.querySelector("#guests");
    this.onChoose = onChoose;
    this.onInterrupt = onInterrupt;
    this.cast.addEventListener("keydown", (event) => this.#walk(event));
    new ResizeObserver(() => this.#arrange()).observe(root);
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) {
      setInterval(() => document.hidden || this.#stir(), STIR_MS);
    }
  }

  /** Puts the scene's NPCs, [{id, name, role, quest_giver, activity}], into the room. */
  setCast(npcs) {
    for (const id of [...this.#bubbles.keys()]) this.#dropBubble(id);
    this.#people.clear();
    this.cast.replaceChildren(...npcs.map((npc) => this.#person(npc)));
    this.#arrange();
    const kept = this.#people.has(this.#chosen) ? this.#chosen : npcs[0]?.id;
    if (kept) this.choose(kept);
    for (const npc of npcs) this.setActivity(npc.id, npc.activity);
  }

  #person(npc) {
    const plate = element("span", "plate", element("b", ""), element("small", ""));
    plate.firstChild.textContent = npc.name;
    plate.lastChild.textContent = shortRole(npc.role);
    const drawing = figure(npc);
    const button = element("button", "person", element("span", "ring"), drawing, plate);
    button.type = "button";
    button.dataset.npc = npc.id;
    button.setAttribute("role", "radio");
    button.append(element("span", "thought", ..."...".split("").map(() => element("i", ""))));
    if (npc.quest_giver) {
      const badge = element("span", "quest", "!");
      badge.title = "Has a quest to give";
      button.append(badge);
    }
    const quest = npc.quest_giver ? ", has a quest to give" : "";
    button.setAttribute("aria-label", `${npc.name}${npc.role ? `, ${npc.role}` : ""}${quest}`);
    button.onclick = () => this.onChoose(npc.id);
    this.#people.set(npc.id, { npc, button, tall: Number(drawing.dataset.tall), place: null });
    return button;
  }

  /** Arrow keys move the choice, as in every radio group. */
  #walk(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const ids = [...this.#people.keys()];
    const next = ids[(ids.indexOf(this.#chosen) + step + ids.length) % ids.length];
    this.onChoose(next);
    this.#people.get(next).button.focus();
  }

  choose(id) {
    this.#chosen = id;
    for (const [other, { button }] of this.#people) {
      button.setAttribute("aria-checked", String(other === id));
      button.tabIndex = other === id ? 0 : -1;
    }
  }

  setActivity(id, activity) {
    const person = this.#people.get(id);
    if (person) person.button.dataset.activity = activity || "idle";
  }

  /**
   * Moves the fire, the weather and an eyelid now and then. Seldom and by hand: endless animations cost
   * a frame each, and whoever plays here may run the engine on the same processor.
   */
  #stir() {
    const some = (from, to) => from + Math.random() * (to - from);
    const flame = `scale(${some(0.94, 1.02)}, ${some(0.92, 1.07)}) skewX(${some(-4, 4)}deg)`;
    this.root.querySelector(".fire").style.transform = flame;
    const weather = this.root.querySelector(".weather").style;
    weather.setProperty("--fall", `${some(-30, 30)}px`);
    weather.setProperty("--drift", `${some(-6, 6)}px`);
    const people = [...this.#people.values()];
    for (const { button } of people) button.classList.remove("blinking");
    if (people.length && Math.random() < BLINKS) {
      people[Math.floor(some(0, people.length))].button.classList.add("blinking");
    }
  }

  /** Where everybody stands: the innkeeper behind the counter if it is in sight, others in two rows. */
  #arrange() {
    const { clientWidth: width, clientHeight: height } = this.root;
    if (!width || !height) return;
    const scale = Math.max(width / WORLD.width, height / WORLD.height);
    const left = WORLD.width / 2 - width / scale / 2; // first world x in sight
    this.root.style.setProperty("--scale", scale);
    this.root.style.setProperty("--left", left);
    const right = WORLD.width - left;
    const people = [...this.#people.values()];
    const counterInSight = right > BEHIND_COUNTER.x + 20;
    const keeper = counterInSight && people.find(({ npc }) => /innkeep|bar ?keep|landlady|landlord/i.test(npc.role));
    const floor = people.filter((person) => person !== keeper);
    const from = Math.max(left + 120, 130);
    const to = keeper ? 968 : right - 100;
    if (keeper) {
      const x = Math.min(BEHIND_COUNTER.x, right - FIGURE.width / 2);
      this.#place(keeper, { ...BEHIND_COUNTER, x }, scale, left);
    }
    floor.forEach((person, index) => {
      const along = floor.length > 1 ? index / (floor.length - 1) : 0.5;
      this.#place(person, { ...ROWS[index % 2], x: from + (to - from) * along }, scale, left);
    });
    this.#seat();
  }

  #place(person, { x, y, size, layer }, scale, left) {
    const { style } = person.button;
    const pixels = Math.max(scale * size, 0.29);
    person.place = {
      x: (x - left) * scale,
      bottom: (WORLD.height - y) * scale,
      height: FIGURE.height * pixels,
      head: FIGURE.height * pixels * person.tall,
    };
    style.left = `${person.place.x - (FIGURE.width * pixels) / 2}px`;
    style.bottom = `${person.place.bottom}px`;
    style.width = `${FIGURE.width * pixels}px`;
    style.height = `${person.place.height}px`;
    style.setProperty("--layer", layer);
    style.setProperty("--head", `${person.place.head}px`);
    person.button.classList.toggle("at-counter", layer === BEHIND_COUNTER.layer);
    style.setProperty("--hidden", `${(BEHIND_COUNTER.y - COUNTER_TOP) * scale}px`);
  }

  /** What is seen through the window. */
  setWeather(weather = "") {
    const kind = ["rain", "storm", "snow"].find((word) => weather.toLowerCase().includes(word));
    this.root.dataset.weather = kind ?? "clear";
  }

  /** Opens an empty speech bubble over an NPC; words said before make room for it. */
  speak(id, turn, whispered) {
    for (const [other, { timer }] of this.#bubbles) if (timer || other === id) this.#dropBubble(other);
    const stop = element("button", "hush", "Interrupt");
    stop.type = "button";
    stop.onclick = () => this.onInterrupt(turn);
    const text = element("p", "");
    const box = element("div", whispered ? "bubble whispered" : "bubble", text, stop);
    box.dataset.npc = id;
    box.dataset.name = this.#people.get(id)?.npc.name ?? id;
    box.setAttribute("aria-hidden", "true"); // the journal reads it out
    stop.tabIndex = -1; // Escape does the same from the keyboard
    box.style.zIndex = String(this.#rising++);
    this.layer.append(box);
    this.#bubbles.set(id, { box, text, turn, timer: 0 });
    this.#seat();
  }

  extend(id, turn, words) {
    const bubble = this.#bubbles.get(id);
    if (bubble?.turn !== turn) return;
    bubble.text.append(words);
    this.#seat();
    bubble.text.scrollTop = bubble.text.scrollHeight;
  }

  /** The turn is over; its bubble stays for a while. */
  hush(id, turn) {
    const bubble = this.#bubbles.get(id);
    if (bubble?.turn !== turn) return;
    bubble.box.classList.add("said");
    if (!bubble.text.textContent) return this.#dropBubble(id);
    const reading = LAST_WORDS_MS + bubble.text.textContent.length * 20;
    bubble.timer = setTimeout(() => this.#dropBubble(id), reading);
    this.#seat();
  }

  #dropBubble(id) {
    const bubble = this.#bubbles.get(id);
    if (!bubble) return;
    clearTimeout(bubble.timer);
    bubble.box.remove();
    this.#bubbles.delete(id);
  }

  /** Puts every bubble over its speaker's head, inside the stage; older ones make way upwards. */
  #seat() {
    const { clientWidth: width, clientHeight: height } = this.root;
    const taken = []; // [left, right, top, bottom] of newer bubbles; heights count from below
    for (const [id, { box }] of [...this.#bubbles].reverse()) {
      const place = this.#people.get(id)?.place;
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

  /** Shows the players, [{id, name, state}], at the front; `self` is our own id. */
  setGuests(players, self) {
    const shown = players.slice(0, GUESTS_SHOWN).map(({ id, name, state }) => {
      const guest = element("li", "guest", element("span", ""), hood());
      guest.dataset.player = id;
      guest.firstChild.textContent = id === self ? `${name} (you)` : name;
      guest.style.setProperty("--colour", colourOf(id));
      guest.classList.toggle("away", state === "away");
      return guest;
    });
    const more = players.length - shown.length;
    if (more > 0) shown.push(element("li", "guest more", `+ ${more}`));
    this.guests.replaceChildren(...shown);
  }

  /** A short sign that a player said something. */
  guestSpeaks(player) {
    const guest = this.guests.querySelector(`[data-player="${CSS.escape(player)}"]`);
    guest?.animate([{ translate: "0 0" }, { translate: "0 -8px" }, { translate: "0 0" }], 420);
  }
}
