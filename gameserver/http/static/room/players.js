// The players of the room: those with a place walk about in it, others sit at its front.

import { element } from "../element.js";
import { hood, hueOf, traveller } from "../portrait.js";
import { stand } from "./cast.js";

const SHOWN = 8; // of those at the front
const WALKING_MS = 260; // after its last step somebody stands

/** A colour of the player's own, readable on dark ground, the same on every screen. */
export const colourOf = (player) => `hsl(${hueOf(player)} 58% 70%)`;

export class Players {
  #walkers = new Map(); // player id -> {node, place, x, timer}

  constructor(layer, front) {
    this.layer = layer;
    this.front = front;
  }

  headOf(id) {
    return this.#walkers.get(id)?.place;
  }

  /** Shows the players, [{id, name, state}]; `self` is our own id, `posOf` tells where one is. */
  show(players, self, view, posOf) {
    const walking = players.filter(({ id }) => view.bounds && posOf(id));
    const known = new Set(walking.map(({ id }) => id));
    for (const [id, { node }] of this.#walkers) {
      if (known.has(id)) continue;
      node.remove();
      this.#walkers.delete(id);
    }
    for (const player of walking) {
      const walker = this.#walkers.get(player.id) ?? this.#enter(player.id, self);
      const name = player.id === self ? `${player.name} (you)` : player.name;
      walker.node.querySelector("b").textContent = name;
      walker.node.setAttribute("aria-label", player.state === "away" ? `${name}, away` : name);
      walker.node.classList.toggle("away", player.state === "away");
      this.move(player.id, view, posOf(player.id));
    }
    this.#seat(players.filter(({ id }) => !known.has(id)), self);
  }

  /** Somebody is elsewhere now. */
  move(id, view, pos) {
    const walker = this.#walkers.get(id);
    if (!walker) return;
    const feet = view.project(pos);
    const before = walker.place;
    walker.place = stand(walker.node, feet, view.scale * 0.92);
    if (!before || (before.x === feet.x && before.bottom === feet.bottom)) return;
    if (feet.x !== before.x) walker.node.classList.toggle("to-left", feet.x < before.x);
    walker.node.classList.add("walking");
    clearTimeout(walker.timer);
    walker.timer = setTimeout(() => walker.node.classList.remove("walking"), WALKING_MS);
  }

  #enter(id, self) {
    const plate = element("span", "plate", element("b"));
    const node = element("div", id === self ? "walker own" : "walker", traveller(id), plate);
    node.dataset.player = id;
    node.setAttribute("role", "img");
    node.style.setProperty("--colour", colourOf(id));
    this.layer.append(node);
    const walker = { node, place: null, timer: 0 };
    this.#walkers.set(id, walker);
    return walker;
  }

  #seat(players, self) {
    const shown = players.slice(0, SHOWN).map(({ id, name, state }) => {
      const guest = element("li", "guest", element("span", "", id === self ? `${name} (you)` : name), hood());
      guest.dataset.player = id;
      guest.style.setProperty("--colour", colourOf(id));
      guest.classList.toggle("away", state === "away");
      return guest;
    });
    const more = players.length - shown.length;
    if (more > 0) shown.push(element("li", "guest more", `+ ${more}`));
    this.front.replaceChildren(...shown);
  }

  /** A short sign that a player said something. */
  stir(id) {
    const guest = this.front.querySelector(`[data-player="${CSS.escape(id)}"]`);
    guest?.animate([{ translate: "0 0" }, { translate: "0 -8px" }, { translate: "0 0" }], 420);
  }
}
