// What else is in the room: doors, lamps, and whatever a scene file names. A thing is drawn by what its
// keys say, because the server knows no shapes: what opens is a door, what is lit is a lamp, what does something is alive.
// What has `fire` is the painted fireplace.

import { element } from "../element.js";
import { svg } from "../portrait.js";

const DOOR = /door|gate|hatch|window|shutter/;
const LAMP = /lamp|lantern|candle|light|torch/;

/** "front_door" -> "front door". */
export const spoken = (id) => id.replaceAll(/[_.-]+/g, " ").trim() || id;

/** A state in words: {open: false} -> "shut". */
export function wordsOf(key, value) {
  if (key === "open" && typeof value === "boolean") return value ? "open" : "shut";
  if (/^(lit|on)$/.test(key) && typeof value === "boolean") return value ? "lit" : "dark";
  if (typeof value === "boolean") return value ? spoken(key) : `not ${spoken(key)}`;
  return `${spoken(key)}: ${typeof value === "string" ? value : JSON.stringify(value)}`;
}

const sketch = (tall, ...shapes) => {
  const drawing = svg("svg", { viewBox: "0 0 60 96", "aria-hidden": "true" }, ...shapes);
  drawing.style.setProperty("--tall", String(tall));
  return drawing;
};

const door = (open) => sketch(150,
  svg("path", { d: "M4 96V22Q4 4 30 4T56 22V96Z", fill: "#1b100a" }),
  svg("path", { d: "M9 96V24Q9 9 30 9T51 24V96Z", fill: open ? "#3b5687" : "#6e4424" }),
  open
    ? svg("path", { d: "M9 96V24Q9 15 18 12L26 26V90Z", fill: "#8a5a30" })
    : [svg("path", { d: "M20 12V96M30 9V96M41 12V96", stroke: "#4a2c16", "stroke-width": 2 }),
      svg("circle", { cx: 45, cy: 56, r: 3, fill: "#e0bd74" })]);

const lamp = (lit) => sketch(84,
  lit && svg("circle", { cx: 30, cy: 40, r: 46, fill: "#ffcf6b", opacity: 0.22 }),
  svg("path", { d: "M28 60H32V90H42V96H18V90H28Z", fill: "#2f2017" }),
  svg("path", { d: "M18 24H42L46 60H14Z", fill: lit ? "#ffd98a" : "#4b4038", stroke: "#2f2017", "stroke-width": 4 }),
  svg("path", { d: "M22 24Q30 6 38 24Z", fill: "#2f2017" }));

const creature = () => sketch(70,
  svg("path", { d: "M52 88Q66 70 52 60", stroke: "#6b6762", "stroke-width": 6, fill: "none", "stroke-linecap": "round" }),
  svg("path", { d: "M6 92Q0 66 24 64Q54 62 56 92Z", fill: "#7d7973" }),
  svg("path", { d: "M4 74L6 54L15 62H24L32 54L34 74Q32 86 19 86T4 74Z", fill: "#8f8b84" }),
  svg("path", { d: "M10 74q3 3 6 0M22 74q3 3 6 0", stroke: "#2a2522", "stroke-width": 2, fill: "none" }));

const chest = () => sketch(70,
  svg("path", { d: "M6 96V66Q6 50 30 50T54 66V96Z", fill: "#6e4424" }),
  svg("path", { d: "M6 72H54M30 68V80", stroke: "#2f2017", "stroke-width": 4 }));

function drawing(id, keys) {
  if (typeof keys.get("open") === "boolean" || DOOR.test(id)) return door(keys.get("open") === true);
  const lit = keys.get("lit") ?? keys.get("on");
  if (typeof lit === "boolean" || LAMP.test(id)) return lamp(lit !== false);
  return keys.has("does") ? creature() : chest();
}

export class Things {
  #shown = new Map(); // entity id -> node

  /** @param onTouch called with an entity id and the key of what can be switched */
  constructor(layer, { onTouch }) {
    this.layer = layer;
    this.onTouch = onTouch;
  }

  /** Shows the entities that have a place: [id, Map of keys]. */
  show(entities, view) {
    const placed = view.bounds ? entities.filter(([, keys]) => keys.has("pos") && !keys.has("fire")) : [];
    const known = new Set(placed.map(([id]) => id));
    for (const [id, node] of this.#shown) {
      if (known.has(id)) continue;
      node.remove();
      this.#shown.delete(id);
    }
    for (const [id, keys] of placed) this.#draw(id, keys, view);
  }

  #draw(id, keys, view) {
    const switched = [...keys].find(([, value]) => typeof value === "boolean")?.[0];
    const node = this.#shown.get(id) ?? this.#make(id);
    const said = [...keys].filter(([key]) => key !== "pos").map(([key, value]) => wordsOf(key, value)).join(", ");
    const label = said ? `${spoken(id)}, ${said}` : spoken(id);
    const { x, bottom, size, near } = view.project(keys.get("pos"));
    node.style.left = `${x}px`;
    node.style.bottom = `${bottom}px`;
    node.style.setProperty("--size", String(Math.max(view.scale * size, 0.34)));
    node.style.setProperty("--layer", String(1 + Math.round(near * 50)));
    if (node.dataset.said === label) return;
    node.dataset.said = label;
    node.setAttribute("aria-label", switched ? `${label}; press to change` : label);
    node.title = label;
    node.disabled = !switched;
    node.dataset.key = switched ?? "";
    node.replaceChildren(drawing(id, keys), element("span", "tag", label));
  }

  #make(id) {
    const node = element("button", "thing");
    node.type = "button";
    node.dataset.entity = id;
    node.addEventListener("click", () => this.onTouch(id, node.dataset.key));
    this.layer.append(node);
    this.#shown.set(id, node);
    return node;
  }
}
