// Walking: arrow keys, WASD or a click on the floor, turned into positions.

const KEYS = {
  arrowup: [0, -1], w: [0, -1], arrowdown: [0, 1], s: [0, 1],
  arrowleft: [-1, 0], a: [-1, 0], arrowright: [1, 0], d: [1, 0],
};
const CROSSING_S = 5; // how long it takes to walk across the whole room
const TELL_MS = 100; // how often others are told where we are
const ECHO_MS = 3000; // what we told and nobody has repeated by then was not taken
// A page that was asleep does not leap, and a frame may bear an earlier time than its request.
const STEP_S = { least: 0.001, most: 0.1 };
const TYPING = "input, textarea, select, [contenteditable]";

export class Steps {
  #held = new Set();
  #target = null;
  #arrived = null; // resolves the promise of the walk to the target
  #moving = false;
  #toldAt = 0;
  #told = []; // positions on their way, oldest first: what is said before they are back is older
  #said = ""; // what others said last
  pos = null; // where we are by our own count; null: nowhere

  /**
   * @param floor  element whose clicks name a place
   * @param onStep called with our position whenever it changes
   * @param onTell called with a position that others should know of
   */
  constructor(floor, view, { onStep, onTell }) {
    Object.assign(this, { view, onStep, onTell });
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    document.addEventListener("keydown", (event) => this.#press(event));
    document.addEventListener("keyup", (event) => this.#held.delete(event.key.toLowerCase()));
    addEventListener("blur", () => this.#held.clear());
    floor.addEventListener("click", (event) => {
      if (!this.pos || event.target.closest("button, .bubble")) return;
      const box = floor.getBoundingClientRect();
      this.walkTo(view.unproject(event.clientX - box.left, box.bottom - event.clientY));
    });
  }

  /** Walks to a place; resolves with true on arrival, with false if something else is done first. */
  walkTo(pos) {
    this.#stop(false);
    return new Promise((resolve) => {
      this.#target = this.view.clamp(pos);
      this.#arrived = resolve;
      this.#start();
    });
  }

  #stop(arrived) {
    this.#target = null;
    this.#arrived?.(arrived);
    this.#arrived = null;
  }

  /**
   * Others say where we are: it counts unless we are walking just now, or it is only our own word of
   * a moment ago.
   */
  place(pos) {
    const said = JSON.stringify(pos);
    if (performance.now() - this.#toldAt > ECHO_MS) this.#told = [];
    const echo = this.#told.indexOf(said);
    if (echo >= 0) this.#told.splice(0, echo + 1);
    else if (said !== this.#said) this.#told = []; // somebody else has moved us
    this.#said = said;
    if (!this.#moving && !this.#told.length) this.pos = pos;
  }

  #press(event) {
    const key = event.key.toLowerCase();
    if (!this.pos || !KEYS[key] || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.target.closest(TYPING) || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    this.#stop(false);
    this.#held.add(key);
    this.#start();
  }

  #start() {
    if (this.#moving) return;
    this.#moving = true;
    let last = performance.now();
    const step = (now) => {
      const seconds = Math.min(Math.max((now - last) / 1000, STEP_S.least), STEP_S.most);
      last = now;
      const next = this.#next(seconds);
      this.#moving = next !== null && this.pos !== null;
      if (this.#moving) {
        this.pos = this.view.clamp(next);
        this.onStep(this.pos);
        if (now - this.#toldAt >= TELL_MS) this.#tell(now);
        requestAnimationFrame(step);
      } else {
        if (this.pos) this.#tell(now); // where we have come to rest
        this.#stop(this.pos !== null);
      }
    };
    requestAnimationFrame(step);
  }

  #tell(now) {
    this.#toldAt = now;
    this.#told.push(JSON.stringify(this.pos));
    this.onTell(this.pos);
  }

  /** The next position; null if there is nowhere to go. */
  #next(seconds) {
    const [[x0, y0], [x1, y1]] = this.view.bounds;
    const reach = { x: ((x1 - x0) / CROSSING_S) * seconds, y: ((y1 - y0) / CROSSING_S) * seconds };
    const [x, y] = this.pos;
    if (this.#held.size) {
      const [dx, dy] = [...this.#held].reduce(([ax, ay], key) => [ax + KEYS[key][0], ay + KEYS[key][1]], [0, 0]);
      return [x + dx * reach.x, y + dy * reach.y];
    }
    if (!this.#target) return null;
    const [dx, dy] = [this.#target[0] - x, this.#target[1] - y];
    const far = Math.hypot(dx / reach.x, dy / reach.y); // in steps
    if (far === 0) return null;
    return far <= 1 || this.still.matches ? this.#target : [x + dx / far, y + dy / far];
  }
}
