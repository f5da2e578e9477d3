// A player's connection to the game port: protocol v1 over a WebSocket, in JSON.
//
// It reconnects by itself and goes on where it was: with the same session, in mid-sentence if need be.
// Commands that were not answered yet are sent again; the server carries each out once. Everything the server says goes to `onMessage`, but for errors that answer a
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
  #session = null; // {session, token}: what opens the session again
  #pending = new Map(); // id -> {message, resolve, reject}
  #cursors = new Map(); // stream -> last event number seen
  #chunks = new Map(); // turn that runs -> first chunk that is still to come
  #heartbeat = 0;
  #acknowledged = true;
  #wait = FIRST_WAIT_MS;
  #waitAsked = null; // ms the server asked us to wait before the next connection
  #refusal = null;
  #wanted = false;

  /**
   * @param {{url: string, onMessage: (message: object) => void,
   *          onState: (state: "connecting"|"open"|"waiting"|"closed", detail?: string) => void,
   *          onReady: (resumed: boolean) => void}} options  onReady runs after each `welcome`; if it
   *          was resumed, all that was missed follows by itself.
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
    this.#forget();
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
      const message = { t: type, id, ...(stream ? { st: stream } : {}), d: payload };
      this.#pending.set(id, { message, resolve, reject });
      this.#send(message);
    });
  }

  #send(message) {
    this.#socket.send(JSON.stringify(message));
  }

  #open() {
    this.onState("connecting");
    this.#refusal = null;
    const socket = new WebSocket(this.url, SUBPROTOCOL);
    this.#socket = socket;
    socket.onmessage = ({ data }) => socket === this.#socket && this.#receive(JSON.parse(data));
    socket.onclose = ({ code }) => socket === this.#socket && this.#closed(code);
  }

  #receive(message) {
    const { t: type, d: payload, re, st: stream, s: sequence } = message;
    // The answer to a join that is sent again shows the scene as it was: what came since counts.
    const old = sequence < (this.#cursors.get(stream) ?? 0);
    if (stream && sequence !== undefined && !old) this.#cursors.set(stream, sequence);
    if (!old) this.#follow(type, payload);
    if (type === "hello") {
      this.#identify(payload);
    } else if (type === "welcome") {
      this.#wait = FIRST_WAIT_MS;
      if (!payload.resumed) this.#forget();
      this.#session = { session: payload.session, token: payload.resume_token };
      this.onState("open");
      for (const { message: open } of this.#pending.values()) this.#send(open);
      this.onReady(payload.resumed);
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
    if (!old) this.onMessage(message);
    waiter?.resolve(message);
  }

  /** Keeps count of the chunks of the turns that run. */
  #follow(type, payload) {
    if (type === "npc.turn.start") this.#chunks.set(payload.turn, 0);
    if (type === "npc.delta" || type === "npc.turn.sync") this.#chunks.set(payload.turn, payload.i + payload.n);
    if (type === "npc.turn.end") this.#chunks.delete(payload.turn);
    if (type === "scene.joined" || type === "scene.snapshot") {
      for (const { turn, i, n } of payload.turns) this.#chunks.set(turn, i + n);
    }
  }

  /** What belongs to a session is over with it: ids, cursors, commands without an answer. */
  #forget() {
    this.#session = null;
    this.#lastId = 0;
    this.#cursors.clear();
    this.#chunks.clear();
    for (const { reject } of this.#pending.values()) {
      reject(new Refusal({ code: "offline", msg: "The connection was lost." }));
    }
    this.#pending.clear();
  }

  #identify({ hb_ms: period }) {
    const identity = {
      auth: { kind: "none" }, player: this.player, name: this.name, caps: [], need: [],
      client: { engine: "browser", sdk: "troupe-playground", ver: "1", platform: "web" },
    };
    if (this.#session) {
      const cursors = [...this.#cursors].map(([st, s]) => ({ st, s }));
      const turns = [...this.#chunks].map(([turn, next]) => ({ turn, next_i: next }));
      identity.resume = { ...this.#session, cursors, turns };
    }
    this.#send({ t: "identify", d: identity });
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
    if (!this.#wanted) return this.onState("closed");
    if (FINAL_CODES.has(code)) {
      this.#wanted = false;
      this.#forget();
      return this.onState("closed", this.#refusal?.msg ?? `closed with code ${code}`);
    }
    const wait = this.#waitAsked ?? this.#wait * (0.5 + Math.random());
    this.#waitAsked = null;
    this.#wait = Math.min(this.#wait * 2, LONGEST_WAIT_MS);
    this.onState("waiting", this.#refusal?.msg);
    setTimeout(() => this.#wanted && !this.#socket && this.#open(), wait);
  }
}
