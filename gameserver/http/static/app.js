// The playground: ties the connection to the room, the journal and the keyboard.

import { Client, Refusal } from "./client.js";
import { Journal } from "./journal.js";
import { Stage } from "./stage.js";

const $ = (id) => document.getElementById(id);
const QUEUED_HINT_MS = 6000;
const STATES = {
  connecting: "Connecting…",
  waiting: "Connection lost, trying again…",
  closed: "Not connected",
};

class Playground {
  constructor(house) {
    this.house = house; // playground.json: {model, game: {port, path}, scenes: [{id, title}]}
    this.address = new URLSearchParams(location.search);
    this.scene = this.address.get("scene") ?? house.scenes[0].id;
    this.stream = this.scene; // the scene instance's id, once joined
    this.npcs = new Map();
    this.players = new Map();
    this.turns = new Map(); // turns that run: id -> {npc, next chunk index, whispered}
    this.confidants = new Set();
    this.chosen = null;
    this.greeted = false;
    this.stage = new Stage($("stage"), {
      onChoose: (id) => this.choose(id, true),
      onInterrupt: (turn) => this.interrupt(turn),
    });
    this.journal = new Journal($("lines"), $("spoken"));
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const { port, path } = house.game;
    const hint = encodeURIComponent(this.scene);
    this.client = new Client({
      url: `${scheme}://${location.hostname}:${port}${path}?scene=${hint}`,
      onMessage: (message) => this.handlers[message.t]?.(message.d, message),
      onState: (state, detail) => this.showState(state, detail),
      onReady: (resumed) => this.ready(resumed),
    });
    this.listen();
  }

  enter(name) {
    // A tab is a player: the id lives as long as the tab, so a reload keeps it.
    let player = sessionStorage.getItem("troupe.player");
    if (!player) {
      player = `web-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
      sessionStorage.setItem("troupe.player", player);
    }
    localStorage.setItem("troupe.name", name);
    this.player = player;
    $("rename").textContent = name;
    this.client.connect(player, name);
  }

  ready(resumed) {
    if (resumed) {
      const speaking = this.turns.size > 0;
      this.journal.note(speaking ? "The connection was lost in mid-sentence; here is the rest" : "The connection was lost for a moment");
    } else {
      this.abandonTurns();
      this.join().catch((error) => this.complain(error));
    }
  }

  async join() {
    const instance = this.address.get("instance");
    const wish = { scene: this.scene, role: "player", greet: !this.greeted };
    const joined = await this.client.command("scene.join", instance ? { ...wish, instance } : wish);
    this.greeted = true;
    this.stream = joined.st;
    await this.recall();
  }

  /** Fills the journal with what was said before, once; later joins add only what is new. */
  async recall() {
    const { d: page } = await this.client.command("history.get", { scene: this.stream, limit: 30 }, this.stream);
    for (const item of page.items) {
      if (this.journal.has(item.id)) continue;
      if (item.kind === "npc") {
        const npc = this.npcs.get(item.who) ?? { id: item.who, name: item.name };
        this.journal.npcLine(item.id, npc, { text: item.text });
        this.journal.end(item.id, item);
      } else {
        const own = item.who === this.player;
        this.journal.playerLine(item.id, { player: item.who, name: item.name, own, text: item.text });
      }
    }
  }

  handlers = {
    "scene.joined": (d, message) => this.setScene(d, message),
    "scene.snapshot": (d, message) => this.setScene(d, message),
    "scene.meta": (d) => this.setMeta(d),
    presence: ({ changes }) => {
      for (const { player, what, meta } of changes) this.presence(player, what, meta ?? {});
      this.showPlayers();
    },
    "player.said": ({ msg, player, npc, text }, { st: stream }) => {
      const name = this.nameOf(player);
      const own = player === this.player;
      const to = this.npcs.get(npc)?.name;
      this.stage.guestSpeaks(player);
      if (this.journal.has(msg)) return;
      this.journal.playerLine(msg, { player, name, own, text, to, whispered: stream === "me" });
    },
    "npc.state": ({ npc, activity }) => this.stage.setActivity(npc, activity),
    "npc.turn.start": ({ turn, npc }, { st: stream }) => this.openTurn(turn, npc, stream === "me"),
    "npc.delta": ({ turn, i, n, text }) => this.extendTurn(turn, i, n, text),
    "npc.turn.sync": ({ turn, npc, i, n, text }, { st: stream }) => {
      this.openTurn(turn, npc, stream === "me");
      this.extendTurn(turn, i, n, text);
    },
    "npc.turn.end": (d, { st: stream }) => {
      this.openTurn(d.turn, d.npc, stream === "me");
      this.stage.hush(d.npc, d.turn);
      this.journal.end(d.turn, d);
      this.turns.delete(d.turn);
      this.showControls();
    },
    "npc.action": (d) => this.act(d),
    "npc.aside": ({ npc, text }) => this.journal.note(`${this.npcName(npc)}: ${text}`),
    "quest.update": ({ title, journal, rewards }) => {
      const given = rewards.map(({ item, count }) => `${count} ${item}`).join(", ");
      this.journal.note([`${title}: ${journal}`, given && `You get ${given}.`].filter(Boolean).join(" "));
    },
    error: (d) => this.complain(new Refusal(d)),
    notice: ({ code, data }) => code === "degraded" && this.hint(data?.msg ?? "The house is very busy; answers are shorter."),
  };

  setScene({ players, npcs, turns, meta, gap }, { st: stream }) {
    this.stream = stream;
    this.npcs = new Map(npcs.map((npc) => [npc.id, npc]));
    this.players = new Map(players.map((player) => [player.id, player]));
    this.abandonTurns(new Set(turns.map(({ turn }) => turn)));
    this.stage.setCast(npcs);
    if (!this.npcs.has(this.chosen)) this.choose(npcs[0]?.id, false);
    this.setMeta(meta ?? {});
    this.showPlayers();
    for (const live of turns) this.handlers["npc.turn.sync"](live, { st: stream });
    if (gap) this.recall().catch((error) => this.complain(error));
  }

  /** Turns of which we shall hear no end, but for those that are told anew. */
  abandonTurns(live = new Set()) {
    for (const [turn, { npc }] of this.turns) {
      if (live.has(turn)) continue;
      this.stage.hush(npc, turn);
      this.journal.end(turn, { text: this.journal.wordsOf(turn), status: "abandoned" });
    }
    this.turns.clear();
    this.showControls();
  }

  setMeta({ title, time, weather }) {
    const known = this.house.scenes.find(({ id }) => id === this.scene);
    $("scene-title").textContent = title ?? known?.title ?? this.scene;
    $("scene-mood").textContent = [time, weather].filter(Boolean).join(" · ");
    this.stage.setWeather(weather);
    document.title = `${$("scene-title").textContent} · Troupe`;
  }

  nameOf(player) {
    return this.players.get(player)?.name ?? player;
  }

  presence(id, what, meta) {
    const known = this.players.get(id);
    if (what === "leave") {
      if (known) this.journal.note(`${known.name} left`);
      this.players.delete(id);
      this.confidants.delete(id);
      return;
    }
    const state = { away: "away", back: "here" }[what] ?? known?.state ?? "here";
    this.players.set(id, { id, name: meta.name ?? known?.name ?? id, state });
    if (what === "join" && !known && id !== this.player) this.journal.note(`${this.nameOf(id)} came in`);
  }

  openTurn(turn, npcId, whispered) {
    if (this.turns.has(turn)) return;
    const npc = this.npcs.get(npcId) ?? { id: npcId, name: npcId };
    this.turns.set(turn, { npc: npcId, next: 0, whispered });
    if (this.journal.has(turn)) this.journal.reopen(turn);
    else this.journal.npcLine(turn, npc, { whispered });
    this.stage.speak(npcId, turn, whispered);
    this.showControls();
  }

  extendTurn(turn, first, count, text) {
    const running = this.turns.get(turn);
    if (!running || first + count <= running.next) return;
    running.next = first + count;
    this.journal.extend(turn, text);
    this.stage.extend(running.npc, turn, text);
  }

  npcName(id) {
    return this.npcs.get(id)?.name ?? id;
  }

  /** Shows what an NPC does. In this small game everything works, and the NPC is told so. */
  act({ turn, action, npc, name, args, player }) {
    const about = Object.values(args).map((value) => String(value)).join(", ");
    this.journal.note(`${this.npcName(npc)}: ${name.replaceAll("_", " ")}${about && ` (${about})`}`);
    if (player !== this.player) return;
    this.client
      .command("action.result", { turn, action, ok: true }, this.stream)
      .catch((error) => error.code !== "no_turn" && this.complain(error)); // too late, or another tab was first
  }

  choose(id, byHand) {
    if (!id) return;
    this.chosen = id;
    this.stage.choose(id);
    const { name } = this.npcs.get(id);
    $("addressee").replaceChildren("Speak to ", Object.assign(document.createElement("b"), { textContent: name }));
    this.showControls();
    if (byHand && matchMedia("(hover: hover)").matches && document.activeElement === document.body) $("text").focus();
  }

  async say(text) {
    const line = { npc: this.chosen, text };
    if ($("whisper").checked) line.to = [this.chosen, ...this.confidants];
    this.hint("");
    const { d: accepted } = await this.client.command("say", line, this.stream);
    if (accepted.queue_pos > 0) this.hint(`${this.npcs.get(line.npc).name} will answer after ${accepted.queue_pos} more.`);
  }

  /** Stops a turn, by default the one of whom we speak to; says how much of it was shown. */
  interrupt(turn = this.runningTurn()) {
    const running = this.turns.get(turn);
    if (!running) return;
    const heard = running.next > 0 ? { heard_i: running.next - 1 } : {};
    this.client
      .command("npc.interrupt", { turn, mode: "truncate", ...heard }, this.stream)
      .catch((error) => error.code !== "no_turn" && this.complain(error));
  }

  runningTurn() {
    const running = [...this.turns].filter(([, turn]) => turn.npc === this.chosen);
    return (running.at(-1) ?? [...this.turns].at(-1))?.[0];
  }

  showControls() {
    $("interrupt").hidden = this.turns.size === 0;
  }

  showPlayers() {
    const players = [...this.players.values()];
    this.stage.setGuests(players, this.player);
    const others = players.filter(({ id }) => id !== this.player);
    $("confidants").hidden = !$("whisper").checked || others.length === 0;
    $("confidants").replaceChildren("Heard also by ", ...others.map(({ id, name }) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name;
      button.setAttribute("aria-pressed", String(this.confidants.has(id)));
      button.onclick = () => {
        if (!this.confidants.delete(id)) this.confidants.add(id);
        this.showPlayers();
      };
      return button;
    }));
  }

  showState(state, detail) {
    $("connection").dataset.state = state;
    $("connection").lastChild.textContent = state === "open" ? "Connected" : detail ?? STATES[state];
    $("send").disabled = state !== "open";
    if (state === "closed") this.abandonTurns();
  }

  hint(text) {
    clearTimeout(this.hintTimer);
    $("hint").hidden = !text;
    $("hint").textContent = text;
    if (text) this.hintTimer = setTimeout(() => this.hint(""), QUEUED_HINT_MS);
  }

  complain(error) {
    if (!(error instanceof Refusal)) throw error;
    const wait = error.retryMs ? ` Try again in ${Math.ceil(error.retryMs / 1000)} s.` : "";
    this.hint(`${error.message}${wait}`);
  }

  listen() {
    $("composer").onsubmit = async (event) => {
      event.preventDefault();
      const text = $("text").value.trim();
      if (!text || !this.chosen) return;
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
      this.showPlayers();
      $("text").focus();
    };
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !$("door").open) this.interrupt();
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (event.altKey && step) {
        event.preventDefault();
        const ids = [...this.npcs.keys()];
        this.choose(ids[(ids.indexOf(this.chosen) + step + ids.length) % ids.length], true);
      }
    });
    $("rename").onclick = () => {
      this.client.leave();
      askName(this);
    };
    $("scene-choice").replaceChildren(...this.house.scenes.map(({ id, title }) => new Option(title, id, false, id === this.scene)));
    $("scene-choice").parentElement.hidden = this.house.scenes.length < 2;
    $("scene-choice").onchange = ({ target }) => {
      this.address.set("scene", target.value);
      location.search = this.address;
    };
    addEventListener("pagehide", () => this.client.leave());
  }
}

/** Asks who is there, then lets them in. */
function askName(playground) {
  $("door").oncancel = (event) => event.preventDefault();
  $("door").onclose = () => {
    playground.enter($("name").value.trim() || "Stranger");
    $("text").focus();
  };
  if (!$("door").open) $("door").showModal();
  $("name").focus();
}

/** Waits until the house is open, showing how far it is; resolves with playground.json. */
async function waitForHouse() {
  const submit = $("door").querySelector("button");
  for (;;) {
    const house = await fetch("playground.json").then((reply) => reply.json()).catch(() => null);
    submit.disabled = !house?.ready;
    $("warming").hidden = Boolean(house?.ready);
    if (house?.ready) {
      $("door-text").textContent = "What shall they call you?";
      return house;
    }
    const { message, done = 0, total = 0 } = house?.progress ?? {};
    $("door-text").textContent = message ?? "Waiting for the house to open…";
    if (total) $("warming").value = done / total;
    else $("warming").removeAttribute("value");
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

$("door").showModal();
$("name").value = localStorage.getItem("troupe.name") ?? "";
askName(new Playground(await waitForHouse()));
