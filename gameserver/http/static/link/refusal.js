// What a server refuses, in the protocol's terms.

/** The server, or the state of the line, refused a command. */
export class Refusal extends Error {
  /**
   * @param {{code: string, msg: string, retry_ms?: number, limit?: number, actual?: number}} body
   *   payload of `error`; `code` may also be "offline", which is ours: there is no line just now.
   */
  constructor({ code, msg, retry_ms: retryMs, limit, actual }) {
    super(msg);
    this.code = code;
    this.retryMs = retryMs;
    this.limit = limit;
    this.actual = actual;
  }
}
