// How long to wait before the next try: doubled from try to try, and random, so that many clients
// which lost the same server do not come back as one crowd.

const FIRST_MS = 500;
const LONGEST_MS = 30_000;

export class Backoff {
  #wait = FIRST_MS;
  #asked = null;

  /** @param {() => number} random  in [0, 1) */
  constructor(random = Math.random) {
    this.random = random;
  }

  /** The server named a time (`retry_ms`, `reconnect.delay_ms`): it counts once. */
  ask(ms) {
    if (Number.isFinite(ms) && ms >= 0) this.#asked = Math.min(ms, LONGEST_MS);
  }

  /** ms until the next try. */
  next() {
    const wait = this.#wait * (0.5 + this.random());
    // A time that the server names is random already where it should be; a little more does no harm.
    const asked = this.#asked === null ? null : this.#asked * (1 + 0.2 * this.random());
    this.#wait = Math.min(this.#wait * 2, LONGEST_MS);
    this.#asked = null;
    return Math.min(asked ?? wait, LONGEST_MS);
  }

  /** It went well: the next loss begins with a short wait again. */
  reset() {
    this.#wait = FIRST_MS;
  }
}
