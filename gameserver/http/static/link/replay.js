// What a resumed session brought: counted from `welcome` until every stream is level again, and then
// the rest of the turns that run.

export class Replay {
  /**
   * @param {{st: string}[]} cursors  the streams that were to be brought level
   * @param {number} away  ms without a line
   * @param {number} tries  connections it took
   */
  constructor(cursors, away, tries) {
    this.away = away;
    this.tries = tries;
    this.events = 0;
    this.chunks = 0;
    this.skipped = 0;
    this.behind = new Set(cursors.map(({ st }) => st));
  }

  /** Counts a message; true if the figures changed. */
  count({ t: type, d: payload, st: stream, s: number }) {
    const catchingUp = this.behind.has(stream);
    if (type === "scene.synced" || type === "scene.snapshot") {
      this.behind.delete(stream);
      if (payload.gap) this.skipped += payload.gap.to - payload.gap.from + 1;
      return true;
    }
    if (type === "npc.turn.sync" || (type === "npc.delta" && catchingUp)) {
      this.chunks += payload.n;
      return true;
    }
    if (catchingUp && number !== undefined) {
      this.events += 1;
      return true;
    }
    return false;
  }
}
