// From places in the scene to places on the screen, and back.
//
// The painted room is 1600 x 900 and covers the stage, centred at the bottom edge. A scene's ground
// (its `bounds`: x to the right, y towards us) lies on the part of the painted floor that is in sight;
// the map is affine, so that a circle on the ground is an ellipse on the screen.

export const ROOM = { width: 1600, height: 900 };
const FLOOR = { left: 70, right: 1000, back: 664, front: 872 };
const SIZE = { back: 0.7, front: 0.98 };
const DEPTH = 0.35; // how much less somebody hides who stands before or behind than beside another
const MARGIN = 64; // from the edge of the stage to the middle of a figure, in px
// Where somebody may stand whose place is not told, as shares of the ground.
const SPOTS = [0.2, 0.5, 0.8].flatMap((near) => [0.08, 0.22, 0.36, 0.5, 0.64, 0.78, 0.92].map((across) => [across, near]));

export class View {
  bounds = null; // [[x, y], [x, y]] of the scene; null: it has no places

  /** Fits the room into a stage of that many px. */
  fit(width, height) {
    this.width = width;
    this.height = height;
    this.scale = Math.max(width / ROOM.width, height / ROOM.height);
    this.left = ROOM.width / 2 - width / this.scale / 2; // first room x in sight
    this.right = ROOM.width - this.left;
    const from = Math.max(FLOOR.left, this.left + MARGIN / this.scale);
    const to = Math.min(FLOOR.right, this.right - MARGIN / this.scale);
    this.floor = { from, across: to - from, deep: FLOOR.front - FLOOR.back };
  }

  /** A place in the painted room in px from the left and from below. */
  place(x, y) {
    return { x: (x - this.left) * this.scale, bottom: (ROOM.height - y) * this.scale };
  }

  /** Where the feet of somebody at `pos` are: px, size of the figure, and nearness from 0 to 1. */
  project(pos) {
    const [across, near] = this.#share(pos);
    const { from, across: wide, deep } = this.floor;
    const feet = this.place(from + wide * across, FLOOR.back + deep * near);
    return { ...feet, near, size: SIZE.back + (SIZE.front - SIZE.back) * near };
  }

  /** The place on the ground under a point of the stage; the nearest one if that is no ground. */
  unproject(x, bottom) {
    const { from, across: wide, deep } = this.floor;
    const across = (x / this.scale + this.left - from) / wide;
    const near = (ROOM.height - bottom / this.scale - FLOOR.back) / deep;
    const [[x0, y0], [x1, y1]] = this.bounds;
    return this.clamp([x0 + (x1 - x0) * across, y0 + (y1 - y0) * near]);
  }

  /** Half axes, in px, of a circle on the ground. */
  circle(radius) {
    const [[x0, y0], [x1, y1]] = this.bounds;
    const { across, deep } = this.floor;
    return {
      x: (radius / (x1 - x0)) * across * this.scale,
      y: (radius / (y1 - y0)) * deep * this.scale,
    };
  }

  /** The place that is farthest from those taken; the same for the same ones. */
  gap(taken) {
    const [[x0, y0], [x1, y1]] = this.bounds;
    const [wide, deep] = [x1 - x0, y1 - y0];
    const room = ([x, y]) => Math.min(...taken.map(([tx, ty]) => Math.hypot((x - tx) / wide, (DEPTH * (y - ty)) / deep)), 2);
    const spots = SPOTS.map(([across, near]) => [x0 + wide * across, y0 + deep * near]);
    return spots.reduce((best, spot) => (room(spot) > room(best) ? spot : best));
  }

  clamp([x, y]) {
    const [[x0, y0], [x1, y1]] = this.bounds;
    return [Math.min(Math.max(x, x0), x1), Math.min(Math.max(y, y0), y1)];
  }

  #share([x, y]) {
    const [[x0, y0], [x1, y1]] = this.bounds;
    const [cx, cy] = this.clamp([x, y]);
    return [(cx - x0) / (x1 - x0), (cy - y0) / (y1 - y0)];
  }
}
