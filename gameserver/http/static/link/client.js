// A player's connection to a game server: protocol v1 over a WebSocket, in JSON.
//
//   const client = new Client({ url: "wss://game.example/v1/ws", caps: ["world.state"] });
//   client.addEventListener("message", ({ detail: message }) => ...);
//   client.addEventListener("ready", ({ detail: { resumed } }) => resumed || client.command("scene.join", ...));
//   client.connect({ player: "ada", name: "Ada" });
//
// It reconnects by itself and goes on where it was: in the same session, in mid-sentence if need be.
// Commands without an answer are sent again; the server carries each out once. Where the server
// sends it to another node, it goes there. Events:
//
//   message  everything the server says, each once and in order, but for errors that answer a command
//   state    {state: "connecting"|"open"|"waiting"|"away"|"closed", refusal?, code?, wait?}; a session
//            lives on in all of them but "closed"
//   ready    {resumed, node, framing}: after each `welcome`; if resumed, all that was missed follows
//   replay   a Replay, each time its figures have changed
//   rtt      ms, after each heartbeat

import { Backoff } from "./backoff.js";
import { Memory } from "./memory.js";
import { Refusal } from "./refusal.js";
import { Replay } from "./replay.js";

const SUBPROTOCOL = "npc.v1.json";
// After these the server would only refuse again (bad client, credential, taken over, version).
const FINAL_CODES = new Set([1000, 4400, 4401, 4403, 4409, 4426]);
const SESSION_EXPIRED = 4410;
const HEARTBEAT_LOST = 4440;
const HUNG_UP = 4499; // ours: anything but 1000, with which the server would end the session

export class Client extends EventTarget {
  #url; // where we connect next; another node's once we were sent there
  #socket = null;
  #severed = []; // sockets that are cut but not closed
  #memory = new Memory();
  #backoff = new Backoff();
  #lastId = 0;
  #pending = new Map(); // id -> {message, resolve, reject}
  #replay = null;
  #refusal = null; // the fatal error that comes before a close
  #wanted = false;
  #hello = null;
  #retry = 0; // timer of the next try
  #heartbeat = 0; // timer of the next beat
  #acknowledged = true;
  #beatAt = 0;
  #lostAt = 0;
  #tries = 0;

  /**
   * @param {{url: string, caps?: string[], sdk?: {engine: string, sdk: string, ver: string, platform: string},
   *          credential?: () => {kind: "none"|"key"|"jwt", token?: string}}} options
   */
  constructor({ url, caps = [], sdk = {}, credential = () => ({ kind: "none" }) }) {
    super();
    this.home = url;
    this.#url = url;
    this.caps = caps;
    this.sdk = { engine: "browser", sdk: "troupe", ver: "1", platform: "web", ...sdk };
    this.credential = credential;
    this.state = "closed";
    this.granted = new Set(); // of our caps, those the server has
    addEventListener("online", () => this.state === "waiting" && this.#open());
  }

  /** Connects, or comes back after `hangUp`; `player` and `name` are kept from call to call. */
  connect({ player = this.player, name = this.name } = {}) {
    this.player = player;
    this.name = name;
    this.#wanted = true;
    if (!this.#socket) this.#open();
  }

  /** Leaves for good: lines that wait are dropped, the seat is free at once. */
  leave() {
    this.#wanted = false;
    this.#forget();
    if (this.#socket?.readyState === WebSocket.OPEN) this.#send({ t: "bye", d: {} });
    this.#part();
    this.#tell("closed");
  }

  /** Closes the line but keeps the session: others see us away until `connect`. */
  hangUp() {
    this.#wanted = false;
    this.#part(HUNG_UP);
    this.#tell("away");
  }

  /**
   * Loses the line as a pulled cable does: nothing is closed, the server goes on talking to nobody,
   * and what it says is lost. The client comes back by itself after `hold` ms and its usual wait.
   */
  cut(hold = 0) {
    if (!this.#socket) return;
    this.#severed.push(this.#socket);
    this.#backoff.ask(hold);
    this.#lost();
  }

  /** Sends a command; resolves with the answering message, rejects with a Refusal. */
  command(type, payload, stream) {
    if (this.state !== "open") return Promise.reject(offline("Not connected just now."));
    const id = ++this.#lastId;
    return new Promise((resolve, reject) => {
      const message = { t: type, id, ...(stream ? { st: stream } : {}), d: payload };
      this.#pending.set(id, { message, resolve, reject });
      this.#send(message);
    });
  }

  /** Sends what needs no answer, if there is a line; false if there is none. */
  post(type, payload, stream) {
    if (this.state !== "open") return false;
    this.#send({ t: type, ...(stream ? { st: stream } : {}), d: payload });
    return true;
  }

  #send(message) {
    this.#socket.send(JSON.stringify(message));
  }

  #tell(state, detail = {}) {
    this.state = state;
    this.#emit("state", { state, ...detail });
  }

  #emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  #open() {
    clearTimeout(this.#retry);
    this.#refusal = null;
    this.#hello = null;
    this.#tries += 1;
    const socket = new WebSocket(this.#url, SUBPROTOCOL);
    this.#socket = socket;
    socket.onmessage = ({ data }) => socket === this.#socket && this.#receive(JSON.parse(data));
    socket.onclose = ({ code }) => socket === this.#socket && this.#closed(code);
    this.#tell("connecting");
  }

  /** Lets go of the socket; what it still brings counts no more. */
  #part(code = 1000) {
    clearTimeout(this.#retry);
    clearTimeout(this.#heartbeat);
    const socket = this.#socket;
    this.#socket = null;
    if (this.state === "open") this.#lostAt = performance.now();
    socket?.close(code);
    for (const severed of this.#severed.splice(0)) severed.close(HUNG_UP);
  }

  #receive(message) {
    const { t: type, d: payload, re } = message;
    const fresh = this.#memory.accept(message);
    switch (type) {
      case "hello":
        this.#identify(payload);
        break;
      case "welcome":
        this.#welcome(payload);
        break;
      case "heartbeat.ack":
        this.#acknowledged = true;
        this.#emit("rtt", performance.now() - this.#beatAt);
        break;
      case "reconnect":
        this.#backoff.ask(payload.delay_ms);
        this.#goTo(payload.url);
        break;
      case "scene.moved":
        return this.#move(message);
      case "error":
        if (payload.fatal) this.#refusal = payload;
        this.#backoff.ask(payload.fatal ? payload.retry_ms : undefined);
        break;
    }
    if (fresh && this.#replay?.count(message)) this.#emit("replay", this.#replay);
    const waiter = this.#pending.get(re);
    this.#pending.delete(re);
    if (waiter && type === "error") return waiter.reject(new Refusal(payload));
    if (fresh) this.#emit("message", message);
    waiter?.resolve(message);
  }

  #identify(hello) {
    this.#hello = hello;
    const resume = this.#memory.resume;
    this.#send({
      t: "identify",
      d: {
        auth: this.credential(), player: this.player, name: this.name, client: this.sdk,
        caps: this.caps, need: [], ...(resume ? { resume } : {}),
      },
    });
    this.#acknowledged = true;
    clearTimeout(this.#heartbeat);
    // A random first delay spreads the beats of many clients that connect together.
    this.#heartbeat = setTimeout(() => this.#beat(), Math.random() * Math.min(hello.hb_ms, 2000));
  }

  #welcome(welcome) {
    const { resumed, caps } = welcome;
    const cursors = this.#memory.cursors;
    if (!resumed) this.#forget();
    this.#memory.welcome(welcome);
    this.granted = new Set(caps);
    this.#replay = resumed ? new Replay(cursors, performance.now() - this.#lostAt, this.#tries) : null;
    this.#backoff.reset();
    this.#tries = 0;
    for (const severed of this.#severed.splice(0)) severed.close(HUNG_UP);
    this.#tell("open");
    for (const { message } of this.#pending.values()) this.#send(message);
    this.#emit("ready", { resumed, node: this.#hello.node, framing: this.#socket.protocol });
    if (this.#replay) this.#emit("replay", this.#replay);
  }

  /**
   * Another node has the scene. A join that is answered so begins a session there; otherwise this
   * session goes on there. An unknown address means any node, after a pause.
   */
  #move({ re, d: { url, delay_ms: delay } }) {
    this.#backoff.ask(delay);
    this.#goTo(url);
    if (this.#pending.get(re)?.message.t === "scene.join") {
      if (this.#socket.readyState === WebSocket.OPEN) this.#send({ t: "bye", d: {} });
      this.#socket.close(1000);
      this.#forget();
    } else {
      this.#socket.close(HUNG_UP);
    }
    this.#lost();
  }

  /** Takes another address for the next try, never one that gives encryption up. */
  #goTo(url) {
    if (!url) return;
    const { protocol } = new URL(url);
    if (protocol === "wss:" || (protocol === "ws:" && this.home.startsWith("ws:"))) this.#url = url;
  }

  #beat() {
    if (this.#socket?.readyState !== WebSocket.OPEN) return;
    if (!this.#acknowledged) {
      // The socket looks open but nobody answers: give it up and start anew.
      this.#socket.close(HEARTBEAT_LOST);
      this.#closed(HEARTBEAT_LOST);
      return;
    }
    this.#acknowledged = false;
    this.#beatAt = performance.now();
    const cursors = this.#memory.cursors.map(({ st, s }) => ({ st, s }));
    this.#send({ t: "heartbeat", d: { n: Math.round(this.#beatAt), cursors } });
    this.#heartbeat = setTimeout(() => this.#beat(), this.#hello.hb_ms);
  }

  #closed(code) {
    if (code === SESSION_EXPIRED) this.#forget();
    if (FINAL_CODES.has(code)) {
      this.#wanted = false;
      this.#forget();
      this.#socket = null;
      clearTimeout(this.#heartbeat);
      this.#tell("closed", { refusal: this.#refusal && new Refusal(this.#refusal), code });
      return;
    }
    // Whoever sent us here may know better by now than a node that does not answer.
    if (!this.#hello) this.#url = this.home;
    this.#lost(code);
  }

  /** The line is gone; the next one follows. */
  #lost(code) {
    this.#socket = null;
    clearTimeout(this.#heartbeat);
    if (this.state === "open") this.#lostAt = performance.now();
    const wait = this.#backoff.next();
    this.#retry = setTimeout(() => this.#wanted && !this.#socket && this.#open(), wait);
    this.#tell("waiting", { refusal: this.#refusal && new Refusal(this.#refusal), code, wait });
  }

  /** What belongs to a session is over with it: ids, cursors, commands without an answer. */
  #forget() {
    this.#memory.forget();
    this.#lastId = 0;
    for (const { reject } of this.#pending.values()) reject(offline("The connection was lost."));
    this.#pending.clear();
  }
}

function offline(msg) {
  return new Refusal({ code: "offline", msg });
}
