// The NPCs of the room: who stands where, who is chosen, who thinks or speaks.

import { element } from "../element.js";
import { figure } from "../portrait.js";

const FIGURE = { width: 200, height: 312 };
const COUNTER_TOP = 500;
// The counter of the painted room is the innkeeper's, wherever a scene says that the bar is.
const BEHIND_COUNTER = { x: 1204, y: 596, size: 1, near: 0 };
const ROWS = [{ y: 670, size: 0.94, near: 0.2 }, { y: 776, size: 1.06, near: 0.7 }];
const SMALLEST = 0.29; // of a figure, in px per unit
const KEEPER = /innkeep|bar ?keep|landlady|landlord/i;
const ARTICLE = /^(the|an?)\s+/i;

/** The head of a role for a name plate: "the captain of the watch who ..." -> "Captain of the watch". */
function shortRole(role = "") {
  const head = role.split(/[,;.]| who | that | with /)[0].replace(ARTICLE, "");
  return head.charAt(0).toUpperCase() + head.slice(1);
}

/** Puts a figure's box where its feet are; returns where its head is. */
export function stand(node, { x, bottom, size, near }, scale, tall = 1) {
  const pixels = Math.max(scale * size, SMALLEST);
  const { style } = node;
  const head = FIGURE.height * pixels * tall;
  style.left = `${x - (FIGURE.width * pixels) / 2}px`;
  style.bottom = `${bottom}px`;
  style.width = `${FIGURE.width * pixels}px`;
  style.height = `${FIGURE.height * pixels}px`;
  style.setProperty("--layer", String(2 + Math.round(near * 50))); // who is nearer hides others
  style.setProperty("--head", `${head}px`);
  return { x, bottom, head };
}

export class Cast {
  #people = new Map(); // npc id -> {npc, button, tall, place}
  #chosen = null;

  /** @param onChoose  called with an NPC's id; @param onApproach when it was pressed, too */
  constructor(root, { onChoose, onApproach }) {
    Object.assign(this, { root, onChoose, onApproach });
    root.addEventListener("keydown", (event) => this.#walk(event));
  }

  get ids() {
    return [...this.#people.keys()];
  }

  /** Where an NPC's head is, in px; undefined for others. */
  headOf(id) {
    return this.#people.get(id)?.place;
  }

  nameOf(id) {
    return this.#people.get(id)?.npc.name;
  }

  /** Puts the scene's NPCs, [{id, name, role, quest_giver, activity}], into the room. */
  set(npcs) {
    this.#people.clear();
    this.root.replaceChildren(...npcs.map((npc) => this.#person(npc)));
    this.choose(this.#people.has(this.#chosen) ? this.#chosen : npcs[0]?.id);
    for (const { id, activity, mood } of npcs) this.show(id, activity, mood);
  }

  #person(npc) {
    const plate = element("span", "plate", element("b", "", npc.name), element("small", "", shortRole(npc.role)));
    const drawing = figure(npc);
    const dots = [0, 1, 2].map(() => element("i"));
    const person = element("button", "person", element("span", "ring"), drawing, plate, element("span", "thought", dots));
    person.type = "button";
    person.dataset.npc = npc.id;
    person.setAttribute("role", "radio");
    if (npc.quest_giver) {
      const badge = element("span", "quest", "!");
      badge.title = "Has a quest to give";
      person.append(badge);
    }
    const quest = npc.quest_giver ? ", has a quest to give" : "";
    person.setAttribute("aria-label", `${npc.name}${npc.role ? `, ${npc.role}` : ""}${quest}`);
    person.addEventListener("click", () => {
      this.onChoose(npc.id);
      this.onApproach(npc.id);
    });
    this.#people.set(npc.id, { npc, button: person, tall: Number(drawing.dataset.tall), place: null });
    return person;
  }

  /** Arrow keys move the choice, as in every radio group. */
  #walk(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    const { ids } = this;
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

  /** What an NPC is doing, and how it feels. */
  show(id, activity, mood) {
    const person = this.#people.get(id);
    if (!person) return;
    person.button.dataset.activity = activity || "idle";
    person.button.title = mood && mood !== "neutral" ? mood : "";
  }

  /** Whether an NPC hears what is said here. */
  setEarshot(id, within) {
    this.#people.get(id)?.button.classList.toggle("out-of-earshot", !within);
  }

  /** Lets somebody close an eye for a moment. */
  blink(chance) {
    const people = [...this.#people.values()];
    for (const { button } of people) button.classList.remove("blinking");
    if (people.length && Math.random() < chance) {
      people[Math.floor(Math.random() * people.length)].button.classList.add("blinking");
    }
  }

  /** Where everybody stands: the innkeeper behind the counter if that is in sight, others at their `pos`;
   * those without one where there is room. */
  arrange(view, posOf) {
    const people = [...this.#people.values()];
    const keeper = view.right > BEHIND_COUNTER.x + 20 && people.find(({ npc }) => KEEPER.test(npc.role));
    if (keeper) {
      const x = Math.min(BEHIND_COUNTER.x, view.right - FIGURE.width / 2);
      this.#place(keeper, { ...BEHIND_COUNTER, ...view.place(x, BEHIND_COUNTER.y) }, view.scale);
      keeper.button.style.setProperty("--hidden", `${(BEHIND_COUNTER.y - COUNTER_TOP) * view.scale}px`);
    }
    for (const person of people) person.button.classList.toggle("at-counter", person === keeper);
    const floor = people.filter((person) => person !== keeper);
    if (view.bounds) this.#spread(floor, view, posOf);
    else this.#lineUp(floor, view, keeper ? 968 : view.right - 100);
  }

  /** On the ground of the scene. */
  #spread(people, view, posOf) {
    const taken = people.map(({ npc }) => posOf(npc.id)).filter(Boolean);
    for (const person of people) {
      const pos = posOf(person.npc.id) ?? view.gap(taken);
      taken.push(pos);
      this.#place(person, view.project(pos), view.scale);
    }
  }

  /** In two rows, where a scene has no places. */
  #lineUp(people, view, to) {
    const from = Math.max(view.left + 120, 130);
    people.forEach((person, index) => {
      const x = from + (to - from) * (people.length > 1 ? index / (people.length - 1) : 0.5);
      const row = ROWS[index % 2];
      this.#place(person, { ...row, ...view.place(x, row.y) }, view.scale);
    });
  }

  #place(person, feet, scale) {
    person.place = stand(person.button, feet, scale, person.tall);
  }
}
