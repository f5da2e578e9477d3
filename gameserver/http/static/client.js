// A player's connection to the game port: protocol v1 over a WebSocket, in JSON.
//
// It reconnects by itself. Everything the server says goes to `onMessage`, but for errors that answer a
// command: those reject the promise that the command returned.

const SUBPROTOCOL = "npc.v1.json";
// After these the server would only refuse again (bad client, auth, taken over, wrong version).
const FINAL_CODES = new Set([4400, 4401, 4403, 4409, 4426]);
const FIRST_WAIT_MS = 400;
const LONGEST_WAIT_MS = 8000;

/** The server refused a command; `code` is the protocol's, `retryMs` may say when to try again. */
export class Refusal extends Error {
  constructor({ code, msg, retry_ms: retryMs }) {
    super(msg);
    this.code = code;
    this.retryMs = retryMs;
  }
}

export class Client {
  #socket = null;
  #lastId = 0;
  #pending = new Map(); // id -> {resolve, reject}
  #cursors = new Map(); // stream -> last event number seen
  #heartbeat = 0;
  #acknowledged = true;
  #wait = FIRST_WAIT_MS;
  #waitAsked = null; // ms the server asked us to wait before the next connection
  #refusal = null;
  #wanted = false;

  /**
   * @param {{url: string, onMessage: (message: object) => void,
   *          onState: (state: "connecting"|"open"|"waiting"|"closed", detail?: string) => void,
   *          onReady: () => void}} options  onReady runs after each `welcome`.
   */
  constructor({ url, onMessage, onState, onReady }) {
    Object.assign(this, { url, onMessage, onState, onReady });
    this.player = "";
    this.name = "";
    this.rtt = null;
  }

  connect(player, name) {
    this.player = player;
    this.name = name;
    this.#wanted = true;
    this.#open();
  }

  /** Leaves for good: lines that wait are dropped, the seat is free at once. */
  leave() {
    this.#wanted = false;
    if (this.#socket?.readyState === WebSocket.OPEN) this.#send({ t: "bye", d: {} });
    this.#socket?.close(1000);
  }

  /** Sends a command; resolves with the answering message, rejects with a Refusal. */
  command(type, payload, stream) {
    if (this.#socket?.readyState !== WebSocket.OPEN) {
      return Promise.reject(new Refusal({ code: "offline", msg: "Not connected just now." }));
    }
    const id = ++this.#lastId;
    return new Promise((resolve, reject) => {
      this.#pending.set(id, { resolve, reject });
      this.#send({ t: type, id, ...(stream ? { st: stream } : {}), d: payload });
    });
  }

  #send(message) {
    this.#socket.send(JSON.stringify(message));
  }

  #open() {
    this.onState("connecting");
    // Ids rise within a session, and every connection begins a new one.
    this.#lastId = 0;
    this.#refusal = null;
    this.#cursors.clear();
    const socket = new WebSocket(this.url, SUBPROTOCOL);
    this.#socket = socket;
    socket.onmessage = ({ data }) => socket === this.#socket && this.#receive(JSON.parse(data));
    socket.onclose = ({ code }) => socket === this.#socket && this.#closed(code);
  }

  #receive(message) {
    const { t: type, d: payload, re, st: stream, s: sequence } = message;
    if (stream && sequence !== undefined) this.#cursors.set(stream, sequence);
    if (type === "hello") {
      this.#identify(payload);
    } else if (type === "welcome") {
      this.#wait = FIRST_WAIT_MS;
      this.onState("open");
      this.onReady();
    } else if (type === "heartbeat.ack") {
      this.#acknowledged = true;
      this.rtt = performance.now() - this.beatSent;
    } else if (type === "reconnect") {
      this.#waitAsked = payload.delay_ms;
    } else if (type === "error" && payload.fatal) {
      this.#refusal = payload;
      this.#waitAsked = payload.retry_ms ?? this.#waitAsked;
    }
    const waiter = this.#pending.get(re);
    this.#pending.delete(re);
    if (waiter && type === "error") return waiter.reject(new Refusal(payload));
    this.onMessage(message);
    waiter?.resolve(message);
  }

  #identify({ hb_ms: period }) {
    const identity = {
      auth: { kind: "none" }, player: this.player, name: this.name, caps: [], need: [],
      client: { engine: "browser", sdk: "troupe-playground", ver: "1", platform: "web" },
    };
    this.#send({ t: "identify", id: ++this.#lastId, d: identity });
    this.#acknowledged = true;
    clearTimeout(this.#heartbeat);
    // A random first delay spreads the beats of many clients that connect together.
    this.#heartbeat = setTimeout(() => this.#beat(period), Math.random() * Math.min(period, 2000));
  }

  #beat(period) {
    if (this.#socket?.readyState !== WebSocket.OPEN) return;
    if (!this.#acknowledged) {
      // The socket looks open but nobody answers: give it up, onclose starts anew.
      this.#socket.close(4440);
      this.#closed(4440);
      return;
    }
    this.#acknowledged = false;
    this.beatSent = performance.now();
    const cursors = [...this.#cursors].map(([st, s]) => ({ st, s }));
    this.#send({ t: "heartbeat", d: { n: Math.round(this.beatSent), cursors } });
    this.#heartbeat = setTimeout(() => this.#beat(period), period);
  }

  #closed(code) {
    this.#socket = null;
    clearTimeout(this.#heartbeat);
    for (const { reject } of this.#pending.values()) {
      reject(new Refusal({ code: "offline", msg: "The connection was lost." }));
    }
    this.#pending.clear();
    if (!this.#wanted) return this.onState("closed");
    if (FINAL_CODES.has(code)) {
      this.#wanted = false;
      return this.onState("closed", this.#refusal?.msg ?? `closed with code ${code}`);
    }
    const wait = this.#waitAsked ?? this.#wait * (0.5 + Math.random());
    this.#waitAsked = null;
    this.#wait = Math.min(this.#wait * 2, LONGEST_WAIT_MS);
    this.onState("waiting", this.#refusal?.msg);
    setTimeout(() => this.#wanted && !this.#socket && this.#open(), wait);
  }
}
