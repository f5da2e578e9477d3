// Ties the connection to the room, the journal, the panels and the keyboard.

import { element } from "./element.js";
import { Client } from "./link/client.js";
import { Refusal } from "./link/refusal.js";
import { WorldState } from "./link/state.js";
import { credential, playerOfToken } from "./panels/door.js";
import { Journal } from "./panels/journal.js";
import { LinePanel } from "./panels/line.js";
import { inWords, seconds } from "./panels/words.js";
import { WorldPanel } from "./panels/world.js";
import { Stage } from "./room/stage.js";
import { spoken } from "./room/things.js";

const $ = (id) => document.getElementById(id);
const QUEUED_HINT_MS = 6000;
const LINES_KEPT = 200; // whose reach is remembered
const CUT_MS = 1500; // how long the line stays dead at least: long enough to miss something
const STATES = {
  connecting: "Connecting…",
  open: "Connected",
  waiting: "Connection lost, trying again…",
  away: "Hung up: others see you away",
  closed: "Not connected",
};

/** How busy the server is, from `notice degraded`. */
function inLevels({ level, reason }) {
  if (level === 0) return "The house is itself again.";
  if (reason === "store") return "The house cannot write things down just now; what happens may be forgotten.";
  return "The house is very busy; answers are shorter and may come late.";
}

export class Playground {
  #state = new WorldState();
  #npcs = new Map();
  #players = new Map();
  #turns = new Map(); // turns that run: id -> {npc, next chunk index, reach, to, asked, first}
  #quests = new Map();
  #reach = new Map(); // line of a player -> how far it reached
  #whispering = null; // the whisper of ours that was sent last
  #asked = new Map(); // line of ours without an answer -> when it was sent
  #confidants = new Set();
  #chosen = null;
  #greeted = false;
  #player = "";

  /**
   * @param house  playground.json: {game: {port, path}, scenes: [{id, title, events, bounds, hearing}]}
   * @param {{pane: string, onLocked: (refusal: Refusal) => void}} options  `pane` tells apart the players
   *   of one tab; `onLocked` is called when the server does not let us in
   */
  constructor(house, { pane, onLocked }) {
    this.house = house;
    this.pane = pane;
    this.onLocked = onLocked;
    this.address = new URLSearchParams(location.search);
    this.scene = this.address.get("scene") ?? house.scenes[0].id;
    this.stream = this.scene; // the scene instance's id, once joined
    this.stage = new Stage($("stage"), this.#state, {
      choose: (npc) => this.choose(npc, true),
      interrupt: (turn) => this.interrupt(turn),
      walk: (pos) => this.#stand(pos),
      touch: (entity, key) => this.touch(entity, key),
      listen: () => this.#showAddressee(),
    });
    this.journal = new Journal($("lines"), $("spoken"));
    this.world = new WorldPanel($("world"), {
      raise: (name, data) => this.#try("world.event", { name, ...(data === undefined ? {} : { data }) }),
      decide: ({ turn, action }, ok) => this.#try("action.result", { turn, action, ok }),
      touch: (entity, key) => this.touch(entity, key),
    });
    this.client = this.#connection();
    this.line = new LinePanel($("line"), {
      cut: () => {
        this.client.cut(CUT_MS);
        this.line.note(this.#turns.size ? "Cut in mid-sentence" : "Cut");
      },
      hangUp: () => this.client.hangUp(),
      comeBack: () => this.client.connect(),
    });
    this.#furnish();
    this.#listen();
  }

  #connection() {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const { port, path } = this.house.game;
    const client = new Client({
      url: `${scheme}://${location.hostname}:${port}${path}?scene=${encodeURIComponent(this.scene)}`,
      caps: ["world.state"],
      sdk: { sdk: "troupe-playground" },
      credential,
    });
    client.addEventListener("message", ({ detail: message }) => {
      if (message.ep !== undefined && message.st === this.stream) this.line.set("Epoch", String(message.ep));
      if (Object.hasOwn(this.handlers, message.t)) this.handlers[message.t](message.d, message);
    });
    client.addEventListener("state", ({ detail }) => this.#showState(detail));
    client.addEventListener("ready", ({ detail }) => this.#ready(detail));
    client.addEventListener("replay", ({ detail }) => this.line.setReplay(detail));
    client.addEventListener("rtt", ({ detail }) => this.line.set("Round trip", seconds(detail)));
    return client;
  }

  enter(name) {
    // A pane of a tab is a player: the id lives as long as the tab, so a reload keeps it.
    const key = `troupe.player${this.pane}`;
    let player = playerOfToken() ?? sessionStorage.getItem(key);
    if (!player) {
      player = `web-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
      sessionStorage.setItem(key, player);
    }
    if (!this.pane) localStorage.setItem("troupe.name", name);
    this.#player = player;
    $("rename").textContent = name;
    this.client.connect({ player, name });
  }

  leave() {
    this.client.leave();
  }

  #ready({ resumed, node, framing }) {
    this.line.setServer({ node, framing });
    if (resumed) {
      const speaking = this.#turns.size > 0;
      this.journal.note(speaking ? "The connection was lost in mid-sentence; here is the rest" : "The connection was lost for a moment");
    } else {
      this.#abandonTurns();
      this.join().catch((error) => this.complain(error));
    }
  }

  async join() {
    const instance = this.address.get("instance");
    const wish = { scene: this.scene, role: "player", greet: !this.#greeted };
    const joined = await this.client.command("scene.join", instance ? { ...wish, instance } : wish);
    this.#greeted = true;
    this.stream = joined.st;
    await this.recall();
  }

  /** Fills the journal with what was said before, once; later joins add only what is new. */
  async recall() {
    const { d: page } = await this.client.command("history.get", { scene: this.stream, limit: 30 }, this.stream);
    for (const item of page.items) {
      if (this.journal.has(item.id)) continue;
      if (item.kind === "npc") {
        const npc = this.#npcs.get(item.who) ?? { id: item.who, name: item.name };
        this.journal.npcLine(item.id, npc, { text: item.text });
        this.journal.end(item.id, item);
      } else {
        const own = item.who === this.#player;
        this.journal.playerLine(item.id, { player: item.who, name: item.name, own, text: item.text });
      }
    }
  }

  handlers = {
    "scene.joined": (d, message) => this.#setScene(d, message),
    "scene.snapshot": (d, message) => this.#setScene(d, message),
    "scene.meta": (d) => this.#setMeta(d),
    "state.delta": (d, { st: stream }) => {
      if (stream !== this.stream) return;
      this.#state.apply(d);
      this.#showWorld();
      if (d.full) this.#arrive();
    },
    presence: ({ changes }) => {
      for (const { player, what, meta } of changes) this.#presence(player, what, meta ?? {});
      this.#showPlayers();
    },
    "player.said": (d, { st: stream }) => this.#heard(d, stream),
    "npc.state": ({ npc, activity, mood }) => this.stage.cast.show(npc, activity, mood),
    "npc.turn.start": ({ turn, npc, cause, to }, { st: stream }) => {
      const line = cause.find((id) => this.#reach.has(id));
      const reach = this.#reach.get(line) ?? this.#reachOf(stream, npc);
      this.#openTurn(turn, npc, reach, { to, asked: this.#takeAsked(cause) });
    },
    "npc.delta": ({ turn, i, n, text }) => this.#extendTurn(turn, i, n, text),
    "npc.turn.sync": ({ turn, npc, i, n, text }, { st: stream }) => {
      this.#openTurn(turn, npc, this.#reachOf(stream, npc));
      this.#extendTurn(turn, i, n, text);
    },
    "npc.turn.end": (d, { st: stream }) => this.#endTurn(d, stream),
    "npc.action": (d) => {
      const ours = d.player === null || d.player === this.#player;
      const about = this.world.action(d, this.nameOf(d.npc), ours);
      this.journal.note(`${this.nameOf(d.npc)}: ${spoken(d.name)}${about && ` (${about})`}`);
    },
    "npc.aside": ({ npc, text }) => this.journal.note(`${this.nameOf(npc)}: ${text}`),
    "world.event": (d) => this.world.event(d),
    "quest.update": (d) => {
      const given = d.rewards.map(({ item, count }) => `${count} ${item}`).join(", ");
      this.journal.note([`${d.title}: ${d.journal}`, given && `You get ${given}.`].filter(Boolean).join(" "));
      this.#quests.set(d.quest, d);
      this.world.setQuests([...this.#quests.values()]);
    },
    error: (d) => this.complain(new Refusal(d)),
    notice: ({ code, data }) => this.#notice(code, data ?? {}),
    reconnect: ({ reason, delay_ms: delay }) =>
      this.line.note(`The server asks to come back in ${seconds(delay)}: ${reason}`),
  };

  #setScene({ players, npcs, turns, meta, quests = [], gap }, { st: stream }) {
    this.stream = stream;
    this.#npcs = new Map(npcs.map((npc) => [npc.id, npc]));
    this.#players = new Map(players.map((player) => [player.id, player]));
    this.#quests = new Map(quests.map((quest) => [quest.quest, quest]));
    this.#abandonTurns(new Set(turns.map(({ turn }) => turn)));
    this.stage.setCast(npcs);
    if (!this.#npcs.has(this.#chosen)) this.choose(npcs[0]?.id, false);
    this.#setMeta(meta ?? {});
    this.world.setQuests(quests);
    this.#showPlayers();
    for (const live of turns) this.handlers["npc.turn.sync"](live, { st: stream });
    if (gap) this.recall().catch((error) => this.complain(error));
  }

  #setMeta({ title, time, weather }) {
    $("scene-title").textContent = title ?? this.#pack()?.title ?? this.scene;
    $("scene-mood").textContent = [time, weather].filter(Boolean).join(" · ");
    this.stage.setWeather(weather);
    document.title = `${$("scene-title").textContent} · Troupe`;
  }

  #pack() {
    return this.house.scenes.find(({ id }) => id === this.scene);
  }

  nameOf(id) {
    return this.#npcs.get(id)?.name ?? this.#players.get(id)?.name ?? id;
  }

  #presence(id, what, meta) {
    const known = this.#players.get(id);
    const name = meta.name ?? known?.name ?? id;
    if (id !== this.#player && (what !== "join" || !known)) this.world.presence(name, what);
    if (what === "leave") {
      if (known) this.journal.note(`${name} left`);
      this.#players.delete(id);
      this.#confidants.delete(id);
      return;
    }
    const state = { away: "away", back: "here" }[what] ?? known?.state ?? "here";
    this.#players.set(id, { id, name, state });
    if (what === "join" && !known && id !== this.#player) this.journal.note(`${name} came in`);
  }

  #heard({ msg, player, npc, text, near }, stream) {
    const own = player === this.#player;
    const whispered = own && this.#whispering === text;
    const reach = stream !== "me" ? "all" : near ? "near" : "whisper";
    this.#reach.set(msg, reach);
    if (this.#reach.size > LINES_KEPT) this.#reach.delete(this.#reach.keys().next().value);
    this.stage.players.stir(player);
    this.stage.bubbles.line(player, text, reach);
    if (this.journal.has(msg)) return;
    const listeners = whispered ? [npc, ...this.#confidants].filter(Boolean).map((id) => this.nameOf(id)) : [];
    const to = npc && this.#npcs.get(npc)?.name;
    this.journal.playerLine(msg, { player, name: this.nameOf(player), own, text, to, reach, listeners });
  }

  /**
   * How far something reaches that somebody says: "all", "near" or "whisper". What not everybody hears
   * comes on our private stream; it was a whisper if everybody were near enough.
   */
  #reachOf(stream, speaker) {
    if (stream !== "me") return "all";
    return [...this.#players.keys()].every((id) => this.stage.within(speaker, id)) ? "whisper" : "near";
  }

  #openTurn(turn, npcId, reach, { to = [], asked = null } = {}) {
    if (this.#turns.has(turn)) return;
    const npc = this.#npcs.get(npcId) ?? { id: npcId, name: npcId };
    this.#turns.set(turn, { npc: npcId, next: 0, reach, to, asked, first: null });
    if (this.journal.has(turn)) this.journal.reopen(turn);
    else this.journal.npcLine(turn, npc, { reach });
    this.stage.bubbles.open(npcId, turn, reach);
    this.#showControls();
  }

  #extendTurn(turn, first, count, text) {
    const running = this.#turns.get(turn);
    if (!running || first + count <= running.next) return;
    if (first === 0 && running.next > 0) {
      // The server tells it from its beginning.
      this.journal.reopen(turn);
      this.stage.bubbles.restart(running.npc, turn);
    }
    running.next = first + count;
    if (running.first === null && running.asked !== null) running.first = performance.now() - running.asked;
    this.journal.extend(turn, text);
    this.stage.bubbles.extend(running.npc, turn, text);
  }

  #endTurn(end, stream) {
    this.#openTurn(end.turn, end.npc, this.#reachOf(stream, end.npc));
    const { first, to, reach } = this.#turns.get(end.turn);
    this.stage.bubbles.close(end.npc, end.turn);
    this.journal.end(end.turn, end, this.#listeners(reach === "all" ? null : to));
    this.#turns.delete(end.turn);
    if (end.usage.prompt) this.line.setAnswer(first, end.usage);
    this.#showControls();
  }

  /** Turns of which we shall hear no end, but for those that are told anew. */
  #abandonTurns(live = new Set()) {
    for (const [turn, { npc }] of this.#turns) {
      if (live.has(turn)) continue;
      this.stage.bubbles.close(npc, turn);
      this.journal.end(turn, { text: this.journal.wordsOf(turn), status: "abandoned" });
    }
    this.#turns.clear();
    this.#showControls();
  }

  /** Names of the players who hear an NPC: those the server names, else all who are here. */
  #listeners(to) {
    if (to) return to.map((id) => this.nameOf(id));
    return [...this.#players.values()].filter(({ state }) => state !== "away").map(({ name }) => name);
  }

  /** When the line was sent that caused a turn; null if it is not ours. */
  #takeAsked(cause) {
    const line = cause.find((id) => this.#asked.has(id));
    const at = this.#asked.get(line) ?? null;
    this.#asked.delete(line);
    return at;
  }

  choose(id, byHand) {
    if (!id) return;
    this.#chosen = id;
    this.stage.cast.choose(id);
    this.#showAddressee();
    this.#showControls();
    if (byHand && matchMedia("(hover: hover)").matches && document.activeElement === document.body) $("text").focus();
  }

  #showAddressee() {
    const chosen = this.#npcs.get(this.#chosen);
    if (!chosen) return;
    const far = this.stage.within(this.#player, chosen.id) ? "" : " (you will walk up)";
    $("addressee").replaceChildren("Speak to ", element("b", "", chosen.name), far);
  }

  async say(text) {
    const line = { npc: this.#chosen, text };
    if ($("whisper").checked) line.to = [this.#chosen, ...this.#confidants];
    const far = !this.stage.within(this.#player, line.npc);
    this.hint(far ? `You walk up to ${this.nameOf(line.npc)} first.` : "");
    await this.stage.approach(line.npc);
    if (far) this.hint("");
    this.#whispering = line.to ? text : null;
    const sent = performance.now();
    const { d: accepted } = await this.client.command("say", line, this.stream);
    this.#asked.set(accepted.msg, sent);
    if (accepted.queue_pos > 0) this.hint(`${this.nameOf(line.npc)} will answer after ${accepted.queue_pos} more.`);
  }

  /** Stops a turn, by default the one of whom we speak to; says how much of it was shown. */
  interrupt(turn = this.#runningTurn()) {
    const running = this.#turns.get(turn);
    if (!running) return;
    const heard = running.next > 0 ? { heard_i: running.next - 1 } : {};
    this.#try("npc.interrupt", { turn, mode: "truncate", ...heard });
  }

  /** Switches what is on off, and the other way round. */
  touch(entity, key) {
    this.#try("state.set", { items: [{ e: entity, k: key, v: !this.#state.get(entity, key) }] });
  }

  /** A command that may come too late: then what it was about is over, and there is nothing to say. */
  #try(type, payload) {
    this.client.command(type, payload, this.stream).catch((error) => error.code !== "no_turn" && this.complain(error));
  }

  #runningTurn() {
    const running = [...this.#turns].filter(([, turn]) => turn.npc === this.#chosen);
    return (running.at(-1) ?? [...this.#turns].at(-1))?.[0];
  }

  #showControls() {
    $("interrupt").hidden = this.#turns.size === 0;
  }

  #showPlayers() {
    const players = [...this.#players.values()];
    this.stage.setPlayers(players, this.#player);
    const others = players.filter(({ id }) => id !== this.#player);
    $("confidants").hidden = !$("whisper").checked || others.length === 0;
    $("confidants").replaceChildren("Heard also by ", ...others.map(({ id, name }) => {
      const chip = element("button", "", name);
      chip.type = "button";
      chip.setAttribute("aria-pressed", String(this.#confidants.has(id)));
      chip.onclick = () => {
        if (!this.#confidants.delete(id)) this.#confidants.add(id);
        this.#showPlayers();
      };
      return chip;
    }));
  }

  /** The world is not as it was: people and things to their places. */
  #showWorld() {
    this.stage.arrange();
    const things = [...this.#state.entries()].map(([id, keys]) => [id, this.#named(id), keys]);
    this.world.setThings(things);
  }

  /** Somebody without a place, in a scene that has places, stands at the door. */
  #arrive() {
    const { entrance } = this.stage;
    if (entrance && !this.stage.posOf(this.#player)) this.#stand(entrance);
  }

  /** Tells where we are. No answer is awaited: a later position makes an earlier one void. */
  #stand(pos) {
    this.client.post("state.set", { items: [{ e: this.#player, k: "pos", v: pos }] }, this.stream);
  }

  #named(id) {
    return this.#npcs.has(id) || this.#players.has(id) ? this.nameOf(id) : spoken(id);
  }

  #showState(detail) {
    const { state, refusal, wait } = detail;
    $("connection").dataset.state = state;
    $("connection").lastChild.textContent = state === "open" ? STATES.open : refusal ? inWords(refusal) : STATES[state];
    $("send").disabled = state !== "open";
    this.line.setState(detail);
    if (state === "waiting" && refusal) this.line.note(`${inWords(refusal)} Next try in ${seconds(wait)}.`);
    if (state !== "closed") return;
    this.#abandonTurns();
    if (refusal) this.line.note(inWords(refusal));
    if (["auth_failed", "forbidden"].includes(refusal?.code)) this.onLocked(refusal);
  }

  #notice(code, data) {
    const words = {
      degraded: data.msg ?? inLevels(data),
      slow_consumer: "This page reads too slowly: it gets fewer and larger pieces.",
      gap: "Some whispers were missed for good.",
      auth_expired: "Your token has expired: leave and enter with a new one.",
    }[code] ?? data.msg;
    if (!words) return;
    this.world.notice(words);
    this.hint(words);
  }

  hint(text) {
    clearTimeout(this.hintTimer);
    $("hint").hidden = !text;
    $("hint").textContent = text;
    if (text) this.hintTimer = setTimeout(() => this.hint(""), QUEUED_HINT_MS);
  }

  complain(error) {
    if (!(error instanceof Refusal)) throw error;
    this.hint(inWords(error));
  }

  /** What the page knows of the scene before anybody is in it. */
  #furnish() {
    const { events = [], ...ground } = this.#pack() ?? {};
    this.stage.setGround(ground);
    this.world.setEvents(events);
    $("scene-choice").replaceChildren(...this.house.scenes.map(({ id, title }) => new Option(title, id, false, id === this.scene)));
    $("scene-choice").parentElement.hidden = this.house.scenes.length < 2;
  }

  #listen() {
    $("composer").onsubmit = async (event) => {
      event.preventDefault();
      const text = $("text").value.trim();
      if (!text || !this.#chosen) return;
      $("text").value = "";
      try {
        await this.say(text);
      } catch (error) {
        if (!$("text").value) $("text").value = text; // nothing typed is lost
        this.complain(error);
      }
    };
    $("interrupt").onclick = () => this.interrupt();
    $("whisper").onchange = () => {
      $("composer").classList.toggle("whispering", $("whisper").checked);
      this.#showPlayers();
      $("text").focus();
    };
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !$("door").open) this.interrupt();
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (event.altKey && step) {
        event.preventDefault();
        const ids = [...this.#npcs.keys()];
        this.choose(ids[(ids.indexOf(this.#chosen) + step + ids.length) % ids.length], true);
      }
    });
    $("scene-choice").onchange = ({ target }) => {
      this.address.set("scene", target.value);
      location.search = this.address;
    };
    addEventListener("pagehide", () => this.client.leave());
  }
}
