// What a client keeps over connections to go on where it was: its session, how far it is in every
// stream, in which epoch, and how much of each running turn it has. No socket, no clock.

// These carry the number of the last event that they include; it may be the one we have.
const VIEWS = new Set(["scene.joined", "scene.snapshot", "scene.synced"]);

export class Memory {
  #session = null; // {session, token}: opens the session once
  #cursors = new Map(); // stream -> number of the last event handled
  #epochs = new Map(); // stream -> highest epoch seen
  #revisions = new Map(); // stream -> {rev, ep} of the last `state.delta`
  #turns = new Map(); // running turn -> {stream, next: index of the first chunk still to come}

  /** Each `welcome` brings the token for the next time. */
  welcome({ session, resume_token: token }) {
    this.#session = { session, token };
  }

  /** Nothing of the session is worth keeping any more. */
  forget() {
    this.#session = null;
    this.#cursors.clear();
    this.#epochs.clear();
    this.#revisions.clear();
    this.#turns.clear();
  }

  /** Where to go on, as `identify.resume`; null if there is no session. */
  get resume() {
    if (!this.#session) return null;
    const turns = [...this.#turns].map(([turn, { next }]) => ({ turn, next_i: next }));
    return { ...this.#session, cursors: this.cursors, turns };
  }

  /** How far we are, as in `heartbeat` and `identify`. */
  get cursors() {
    return [...this.#cursors].map(([st, s]) => ({ st, s, ...this.#revisions.get(st) }));
  }

  /**
   * Takes note of a message. False: it is to be dropped, because it comes from an owner of the scene
   * that has been replaced, or was handled before (an answer that is sent again shows old news).
   */
  accept({ t: type, d: payload, st: stream, s: number, ep: epoch }) {
    if (stream !== undefined && epoch !== undefined) {
      if (epoch < (this.#epochs.get(stream) ?? 0)) return false;
      this.#epochs.set(stream, epoch);
    }
    if (stream !== undefined && number !== undefined) {
      const seen = this.#cursors.get(stream) ?? -1;
      if (number < seen || (number === seen && !VIEWS.has(type))) return false;
      this.#cursors.set(stream, number);
    }
    return this.#follow(type, payload, stream);
  }

  /** Keeps count of the chunks of turns; false for chunks that are there already. */
  #follow(type, payload, stream) {
    switch (type) {
      case "npc.turn.start":
        this.#turns.set(payload.turn, { stream, next: 0 });
        break;
      case "npc.delta":
        if (payload.i + payload.n <= (this.#turns.get(payload.turn)?.next ?? 0)) return false;
        this.#turns.set(payload.turn, { stream, next: payload.i + payload.n });
        break;
      case "npc.turn.sync":
        this.#turns.set(payload.turn, { stream, next: payload.i + payload.n });
        break;
      case "npc.turn.end":
        this.#turns.delete(payload.turn);
        break;
      case "scene.joined":
      case "scene.snapshot":
        for (const [turn, { stream: of }] of this.#turns) if (of === stream) this.#turns.delete(turn);
        for (const { turn, i, n } of payload.turns) this.#turns.set(turn, { stream, next: i + n });
        break;
      case "state.delta":
        this.#revisions.set(stream, { rev: payload.rev, ep: this.#epochs.get(stream) });
        break;
      case "scene.left":
        this.#cursors.delete(stream);
        this.#revisions.delete(stream);
        break;
    }
    return true;
  }
}
