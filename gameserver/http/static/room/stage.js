// The room as a whole: people, players and things in one view. It knows nothing of the network.

import { Bubbles } from "./bubbles.js";
import { Cast } from "./cast.js";
import { Players } from "./players.js";
import { Steps } from "./steps.js";
import { Things } from "./things.js";
import { View } from "./view.js";

const STIR_MS = 140;
const REACHES = [0.55, 0.8, 0.35]; // how near we go to talk, as shares of how far a line is heard
const TURNS = [0, 0.6, -0.6, 1.2, -1.2]; // and how far round somebody, in radians
const ELBOWS = 70; // how far apart people are seen to stand if they can, in units of the painted room
const BLINKS = 0.15; // chance that somebody blinks, each time

export class Stage {
  #players = [];
  #npcs = [];
  #hearing = null; // how far a line is heard; null: everywhere
  view = new View();

  /**
   * @param root  the stage's element
   * @param {WorldState} state  where everything is
   * @param on  {choose(npc), interrupt(turn), walk(pos), touch(entity, key), listen()}; `listen` when
   *   others may be in earshot than before
   */
  constructor(root, state, on) {
    this.root = root;
    this.state = state;
    this.self = null;
    this.on = on;
    this.earshot = root.querySelector("#earshot");
    this.cast = new Cast(root.querySelector("#cast"), {
      onChoose: on.choose,
      onApproach: (id) => this.approach(id),
    });
    this.players = new Players(root.querySelector("#walkers"), root.querySelector("#guests"));
    this.things = new Things(root.querySelector("#things"), { onTouch: on.touch });
    this.bubbles = new Bubbles(root.querySelector("#bubbles"), {
      headOf: (id) => this.cast.headOf(id) ?? this.players.headOf(id),
      nameOf: (id) => this.nameOf(id),
      onInterrupt: on.interrupt,
    });
    this.steps = new Steps(root, this.view, { onStep: (pos) => this.#step(pos), onTell: on.walk });
    new ResizeObserver(() => this.arrange()).observe(root);
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) {
      setInterval(() => document.hidden || this.#stir(), STIR_MS);
    }
  }

  nameOf(id) {
    return this.cast.nameOf(id) ?? this.#players.find((player) => player.id === id)?.name ?? id;
  }

  /** The ground of the scene: its bounds, and how far a line is heard on it. */
  setGround({ bounds = null, hearing = null }) {
    this.given = bounds;
    this.#hearing = hearing;
    this.arrange();
  }

  setCast(npcs) {
    this.#npcs = npcs;
    this.bubbles.clear();
    this.cast.set(npcs);
    this.arrange();
  }

  /** The players, [{id, name, state}]; `self` is our own id. */
  setPlayers(players, self) {
    this.#players = players;
    this.self = self;
    this.arrange();
  }

  posOf(id) {
    const pos = this.state.get(id, "pos");
    return Array.isArray(pos) ? pos : undefined;
  }

  /** Everything to its place. */
  arrange() {
    const { clientWidth: width, clientHeight: height } = this.root;
    if (!width || !height) return;
    this.view.fit(width, height);
    this.view.bounds = this.given ?? this.#guessBounds();
    this.root.style.setProperty("--scale", this.view.scale);
    this.root.style.setProperty("--left", this.view.left);
    const posOf = (id) => this.posOf(id);
    this.cast.arrange(this.view, posOf);
    this.steps.place(this.view.bounds ? posOf(this.self) ?? null : null);
    const own = this.steps.pos; // what we see of ourselves is not late by a round trip
    this.players.show(this.#players, this.self, this.view, (id) => (id === this.self && own) || posOf(id));
    const people = new Set([...this.#npcs, ...this.#players].map(({ id }) => id));
    const things = [...this.state.entries()].filter(([id]) => !people.has(id));
    this.things.show(things, this.view);
    this.root.dataset.fire = things.map(([, keys]) => keys.get("fire")).find((fire) => fire !== undefined) ?? "high";
    this.#listen();
    this.bubbles.seat();
    this.root.classList.toggle("walkable", Boolean(own));
  }

  /** A scene without bounds is as large as what is in it. */
  #guessBounds() {
    const places = [...this.state.entries()].map(([, keys]) => keys.get("pos")).filter(Array.isArray);
    if (places.length < 2) return null;
    const [xs, ys] = [0, 1].map((axis) => places.map((pos) => pos[axis]));
    const [low, high] = [Math.min, Math.max].map((most) => [most(...xs), most(...ys)]);
    const pad = Math.max(high[0] - low[0], high[1] - low[1], 1) * 0.15;
    return [[low[0] - pad, low[1] - pad], [high[0] + pad, high[1] + pad]];
  }

  #step(pos) {
    this.players.move(this.self, this.view, pos);
    this.#listen();
    this.bubbles.seat();
  }

  /** Where somebody comes in: beside a door if there is one, not all on one spot. */
  get entrance() {
    const { bounds } = this.view;
    if (!bounds) return null;
    const [[x0, y0], [x1, y1]] = bounds;
    const door = [...this.state.entries()].find(([id, keys]) => keys.has("pos") && typeof keys.get("open") === "boolean");
    const [x, y] = door?.[1].get("pos") ?? [x0, (y0 + y1) / 2];
    const step = () => 0.05 + 0.14 * Math.random();
    const inwards = x > (x0 + x1) / 2 ? -1 : 1;
    return this.view.clamp([x + inwards * step() * (x1 - x0), y + step() * 2 * (y1 - y0)]).map((value) => Math.round(value * 100) / 100);
  }

  /** Draws how far we are heard, and dims who does not hear us. */
  #listen() {
    const own = this.steps.pos;
    const limited = Boolean(own && this.#hearing);
    this.earshot.hidden = !limited;
    this.on.listen();
    for (const { id } of this.#npcs) this.cast.setEarshot(id, this.within(this.self, id));
    if (!limited) return;
    const { x, bottom } = this.view.project(own);
    const radius = this.view.circle(this.#hearing);
    const { style } = this.earshot;
    style.left = `${x - radius.x}px`;
    style.bottom = `${bottom - radius.y}px`;
    style.width = `${2 * radius.x}px`;
    style.height = `${2 * radius.y}px`;
  }

  /** Whether two are near enough to hear each other, as far as the page can tell. */
  within(one, other) {
    const [here, there] = [one, other].map((id) => (id === this.self && this.steps.pos) || this.posOf(id));
    if (!here || !there || !this.#hearing) return true;
    return Math.hypot(...here.map((value, axis) => value - (there[axis] ?? value))) <= this.#hearing;
  }

  /** Walks up to somebody who does not hear us; resolves with false if we did not get there. */
  async approach(id) {
    if (this.within(this.self, id)) return true;
    return this.steps.walkTo(this.#beside(id));
  }

  /** A place to talk to somebody from: straight before us, or round them where nobody stands yet. */
  #beside(id) {
    const [own, other] = [this.steps.pos, this.posOf(id)];
    const straight = Math.atan2(own[1] - other[1], own[0] - other[0]);
    const places = REACHES.flatMap((share) => TURNS.map((turn) => {
      const [reach, way] = [this.#hearing * share, straight + turn];
      return this.view.clamp([other[0] + reach * Math.cos(way), other[1] + reach * Math.sin(way)]);
    }));
    const taken = [...this.#npcs, ...this.#players].filter((person) => person.id !== this.self)
      .map((person) => this.posOf(person.id)).filter(Boolean).map((pos) => this.view.project(pos));
    const free = (place) => {
      const { x, bottom } = this.view.project(place);
      return taken.every((feet) => Math.hypot(feet.x - x, feet.bottom - bottom) >= ELBOWS * this.view.scale);
    };
    return places.find(free) ?? places[0];
  }

  /** What is seen through the window. */
  setWeather(weather = "") {
    const kind = ["rain", "storm", "snow"].find((word) => String(weather).toLowerCase().includes(word));
    this.root.dataset.weather = kind ?? "clear";
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
    this.cast.blink(BLINKS);
  }
}
