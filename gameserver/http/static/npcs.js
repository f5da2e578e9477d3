// The NPC page: who there is in running scenes, and everything about one of them, as it changes.

import { colourOfMood, moodCurve, sparkline } from "./charts.js";
import { bust } from "./portrait.js";

const $ = (id) => document.getElementById(id);
const PERIOD_MS = 1000;
const AXES = ["trust", "affection", "fear"];
// Control tokens of a prompt, and the notes in it: bracketed lines that no name stands before.
const SPECIAL = /(<\|[^|<>]{1,40}\|>|<\/?(?:s|bos|eos|(?:start|end)_of_turn)>)|(?<!: )(\([^():\n]{1,60}: [^\n]+\))$/gm;

/** An element with text or children; null children are left out. */
function element(tag, className = "", ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children.flat().filter((child) => child !== null && child !== false));
  return node;
}

const tag = (text, kind = "") => element("span", `tag ${kind}`, text);
const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
const percent = (level) => `${Math.round(100 * level)} %`;
const looks = (npc) => bust({ ...npc, quest_giver: npc.kind === "quest_giver" });

/** A list of terms and what is said of them. */
function facts(className, entries) {
  return element("dl", className, entries.flatMap(([term, ...said]) => [
    element("dt", "", term), ...said,
  ]));
}

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The game that is looked at; "" for all that the key opens. */
const chosenGame = () => sessionStorage.getItem("troupe.game") ?? "";

async function load(path) {
  const key = sessionStorage.getItem("troupe.key");
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const url = new URL(path, location.href);
  if (chosenGame()) url.searchParams.set("tenant", chosenGame());
  const reply = await fetch(url, { headers, cache: "no-store" });
  const body = await reply.json();
  if (!reply.ok) throw new Refused(reply.status, body.error);
  return body;
}

class Page {
  #shown = new Map(); // part of the page -> the data it shows, as JSON
  #turn = ""; // the turn whose prompt is shown; "" for the newest

  constructor() {
    addEventListener("hashchange", () => { this.#turn = ""; this.look(); });
    document.addEventListener("visibilitychange", () => document.hidden || this.look());
    $("turns").addEventListener("change", () => { this.#turn = $("turns").value; this.look(); });
    $("remembered").addEventListener("change", () => this.look());
    $("words").addEventListener("input", () => this.look());
    $("game").addEventListener("change", () => this.visit($("game").value));
    $("door").addEventListener("cancel", (event) => event.preventDefault());
    $("door").addEventListener("close", () => {
      sessionStorage.setItem("troupe.key", $("key").value.trim());
      this.visit("");
    });
  }

  /** Look at another game, at whoever is busiest there. */
  visit(game) {
    sessionStorage.setItem("troupe.game", game);
    location.hash = "";
    this.look();
  }

  /** Look once; the next look follows by itself. */
  async look() {
    clearTimeout(this.timer);
    const round = this.round = (this.round ?? 0) + 1;
    try {
      const { games, scenes, more } = await load("/console/npcs");
      this.part("games", games, () => this.games(games));
      const chosen = this.choose(scenes);
      const sheet = chosen && await load(`/console/npcs/${chosen.map(encodeURIComponent).join("/")}`);
      if (round !== this.round) return; // another look has begun meanwhile
      this.part("cast", { scenes, more, chosen }, (data) => this.cast(data));
      $("empty").hidden = Boolean(sheet);
      $("sheet").hidden = !sheet;
      if (sheet) {
        this.sheet(sheet);
        await this.remember(sheet);
        if (round !== this.round) return;
      }
      this.state("live", "Live");
    } catch (error) {
      if (round !== this.round) return;
      this.trouble(error);
      if (error.status === 401) return; // the door opens, and looks when it closes
    }
    if (!document.hidden) this.timer = setTimeout(() => this.look(), PERIOD_MS);
  }

  trouble(error) {
    if (error.status === 401) {
      $("door-text").textContent = sessionStorage.getItem("troupe.key") ? "That key is not known here." : "The same as for its API.";
      if (!$("door").open) $("door").showModal();
    }
    const gone = error.status === 404;
    this.state(gone ? "live" : "waiting", error.status ? error.message : "No connection, trying again…");
    if (gone) location.hash = "";
  }

  state(state, text) {
    $("status").dataset.state = state;
    const words = $("status").querySelector("span");
    if (words.textContent !== text) words.textContent = text;
  }

  /** Scene and NPC that the address names, else the one that is busiest with players. */
  choose(scenes) {
    const [scene, npc] = location.hash.slice(1).split("/").map(decodeURIComponent);
    if (scene && npc) return [scene, npc];
    const first = scenes[0];
    return first ? [first.id, (first.npcs.find((each) => each.awake) ?? first.npcs[0]).id] : null;
  }

  /** Draw a part of the page if its data has changed, so that nothing moves that need not. */
  part(name, data, draw) {
    const json = JSON.stringify(data);
    if (this.#shown.get(name) === json) return;
    this.#shown.set(name, json);
    draw(data);
  }

  /** What may be chosen, where there are several games. */
  games(games) {
    $("game").replaceChildren(new Option("all", ""), ...games.map((game) => new Option(game)));
    $("game").value = chosenGame();
    $("game").closest("label").hidden = games.length < 2;
  }

  cast({ scenes, more, chosen }) {
    const focused = document.activeElement?.dataset?.npc;
    $("cast").replaceChildren(
      ...scenes.map((scene) => element("section", "scene",
        element("h2", "", scene.title),
        element("p", "fine", [scene.id, ...scene.players.map(({ name }) => name)].join(" · ")),
        scene.npcs.map((npc) => this.row(scene, npc, chosen)))),
      more ? element("p", "fine", `and ${plural(more, "other scene")}`) : "",
    );
    if (focused) [...$("cast").querySelectorAll("button")].find((b) => b.dataset.npc === focused)?.focus();
  }

  row(scene, npc, chosen) {
    const row = element("button", "npc", looks(npc),
      element("span", "", element("b", "", npc.name), element("small", "", npc.role)),
      element("span", "pulse"));
    row.type = "button";
    row.dataset.npc = `${scene.id}/${npc.id}`;
    row.dataset.activity = npc.activity;
    row.title = npc.awake ? `${npc.activity}, ${npc.mood}` : "nobody has needed them yet";
    if (npc.awake) row.dataset.awake = "";
    row.setAttribute("aria-current", String(chosen?.[0] === scene.id && chosen?.[1] === npc.id));
    row.addEventListener("click", () => {
      location.hash = [scene.id, npc.id].map(encodeURIComponent).join("/");
    });
    return row;
  }

  sheet(sheet) {
    const { npc, persona, relations, now } = sheet;
    const who = `${sheet.scene}/${npc.id}`;
    this.part("who", [who, npc, persona.factions, persona.actions], () => this.who(sheet));
    this.part("mood", [who, sheet.mood, Math.round(now / 5000)], () => this.mood(sheet));
    this.part("relations", [who, relations, sheet.more, Math.round(now / 5000)], () => this.relations(sheet));
    this.part("secrets", [who, persona.secrets, relations.map((r) => [r.name, r.confided])], () => this.secrets(sheet));
    this.part("quests", [who, sheet.quests], () => this.quests(sheet));
    this.part("budget", [who, sheet.spent, sheet.spent_by_all], () => this.budget(sheet));
    this.part("talk", [who, sheet.lines, relations.map((r) => r.name)], () => this.talk(sheet));
    this.part("persona", [who, persona], () => this.persona(sheet));
    this.part("prompt", [who, sheet.prompts, this.#turn], () => this.prompt(sheet));
  }

  who({ title, npc, persona }) {
    document.title = `${npc.name} · Troupe`;
    $("face").replaceChildren(looks(npc));
    $("name").textContent = npc.name;
    $("role").textContent = npc.role;
    $("tags").replaceChildren(
      tag(npc.kind.replace("_", " "), npc.kind),
      tag(npc.awake ? npc.activity : "not needed yet", npc.activity),
      ...(npc.waiting ? [tag(`${plural(npc.waiting, "line")} waiting`)] : []),
      ...persona.factions.map((faction) => tag(faction)),
      ...persona.actions.map((action) => tag(`can ${action.replaceAll("_", " ")}`)),
      tag(title),
    );
  }

  mood({ mood, now }) {
    const stirred = mood.level > 0;
    $("mood-now").textContent = stirred ? `${mood.name}, ${percent(mood.level)}` : mood.name;
    $("mood-now").style.setProperty("--mood", colourOfMood(mood.name));
    $("mood-curve").replaceChildren(moodCurve(mood, now));
    $("mood-rest").textContent = `rests ${mood.resting}; half is gone after ${mood.half_life_s} s`;
  }

  relations({ relations, more, now, npc }) {
    const none = element("p", "fine", `${npc.name} knows nobody yet.`);
    $("relations").replaceChildren(...relations.map((each) => this.relation(each, now)));
    if (!relations.length) $("relations").append(none);
    else $("relations").append(element("p", "fine", "The thin line is what others could notice; the rest came of whispers."));
    if (more) $("relations").append(element("p", "fine", `and ${plural(more, "other player")}`));
  }

  relation(each, now) {
    const axes = element("dl", "axes", AXES.flatMap((axis) => [
      element("dt", "", axis),
      element("dd", "", this.meter(axis, each)),
      element("dd", "value", String(each[axis])),
      element("dd", "spark", sparkline(each.history, axis, now)),
    ]));
    return element("article", "relation",
      element("header", "",
        element("h4", "", each.name),
        each.here ? null : element("span", "away", "not here")),
      axes,
      element("p", "tags",
        each.told.map((words) => tag(words, "feels")),
        each.caused.map((id) => tag(id)),
        each.confided.map((id) => tag(`may hear: ${id}`, "secret"))));
  }

  /** A feeling as a bar, and below it the part of it that others could know of. */
  meter(axis, each) {
    const both = axis !== "fear";
    const meter = element("div", both ? "meter both" : "meter");
    meter.setAttribute("role", "meter");
    for (const [name, value] of Object.entries({
      label: `${axis} of ${each.name}`, valuemin: both ? -100 : 0, valuemax: 100, valuenow: each[axis],
    })) meter.setAttribute(`aria-${name}`, value);
    meter.title = `${each[axis]}; ${each.seen[axis]} of it before everybody`;
    for (const [value, kind] of [[each[axis], ""], [each.seen[axis], "seen"]]) {
      const bar = element("i", `${kind} ${both ? (value < 0 ? "down" : "up") : "fear"}`.trim());
      const width = both ? Math.abs(value) / 2 : value;
      bar.style.width = `${width}%`;
      bar.style.left = `${both ? (value < 0 ? 50 - width : 50) : 0}%`;
      meter.append(bar);
    }
    return meter;
  }

  secrets({ persona, relations, npc }) {
    $("secrets").replaceChildren(...persona.secrets.map((secret) => {
      const knowing = relations.filter(({ confided }) => confided.includes(secret.id));
      return element("article", "kept",
        element("p", "secret-text", secret.text),
        element("p", "tags",
          tag(secret.id, "secret"),
          secret.conditions.map((condition) => tag(condition)),
          tag(secret.personal ? "only whispered" : "may be said aloud"),
          knowing.map(({ name }) => tag(`${name} may hear it`, "feels"))));
    }));
    if (!persona.secrets.length) $("secrets").append(element("p", "fine", `${npc.name} has none.`));
  }

  quests({ quests }) {
    $("quests").replaceChildren(...quests.map((quest) => {
      const stages = Object.entries(quest.stages).map(([player, stage]) => tag(player ? `${player}: ${stage}` : stage, "feels"));
      return element("article", "quest",
        element("h4", "", quest.title),
        element("p", "journal", quest.journal),
        element("p", "tags", stages, quest.gives ? tag("gives it", "quest_giver") : null),
        element("figure", "", this.drawing(quest.svg)));
    }));
    if (!quests.length) $("quests").append(element("p", "fine", "This scene has none."));
  }

  /** The server's drawing, in this page's colours. */
  drawing(source) {
    const drawn = new DOMParser().parseFromString(source, "image/svg+xml").documentElement;
    drawn.querySelectorAll("style, [style]").forEach((styled) => {
      if (styled.localName === "style") styled.remove();
      else styled.removeAttribute("style");
    });
    return document.adoptNode(drawn);
  }

  budget({ spent, spent_by_all: all, npc }) {
    const row = (who, { tokens, tokens_per_day: most, turns, turns_per_minute: pace }) => [
      element("dt", "", who),
      element("dd", "", [
        `${tokens.toLocaleString("en")}${most ? ` of ${most.toLocaleString("en")}` : ""} tokens today`,
        pace ? `${Math.floor(turns)} of ${plural(pace, "turn")} left this minute` : "turns unlimited",
      ].join(" · ")),
    ];
    $("budget").replaceChildren(element("dl", "spent", row(npc.name, spent), row("everybody", all)));
  }

  talk({ lines, npc, relations }) {
    const list = $("talk");
    const names = new Map([[npc.id, npc.name], ...relations.map(({ player, name }) => [player, name])]);
    const following = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
    list.replaceChildren(...lines.map((line) => {
      const words = element("span", "", line.text);
      const item = element("li", `${line.who === npc.id ? "own" : ""} ${line.to ? "whisper" : ""}`,
        element("b", "", line.name), words);
      if (line.to) {
        const others = [npc.id, ...line.to].filter((who) => who !== line.who);
        words.dataset.to = others.map((who) => names.get(who) ?? who).join(", ");
      }
      return item;
    }));
    if (!lines.length) list.append(element("li", "fine", "Nothing was said yet."));
    if (following) list.scrollTop = list.scrollHeight;
  }

  /** What the NPC remembers of one player, best first for the words that were typed. */
  async remember({ scene, npc, relations }) {
    const choice = $("remembered");
    this.part("remembered", [scene, npc.id, relations.map(({ player, name }) => [player, name])], ([, , players]) => {
      const before = choice.value;
      choice.replaceChildren(...players.map(([player, name]) => new Option(name, player)));
      if (players.some(([player]) => player === before)) choice.value = before;
    });
    let found = null;
    if (choice.value) {
      const path = [choice.value, npc.id].map(encodeURIComponent).join("/");
      const words = new URLSearchParams({ query: $("words").value.trim() });
      try {
        ({ memories: found } = await load(`/console/memories/${path}?${words}`));
      } catch (error) {
        if (error.status !== 503) throw error; // NPCs of this server remember nothing
      }
    }
    $("memory").hidden = found === null;
    if (found) this.part("memory", [npc.id, found], () => this.memories(npc, found));
  }

  memories(npc, found) {
    $("memories").replaceChildren(...found.map((each) => element("li", "",
      element("p", "", each.text),
      element("b", "", each.score.toFixed(2)),
      element("p", "tags",
        tag(each.kind, "feels"),
        ["importance", "strength", "relevance"].map((what) => tag(`${what} ${each[what].toFixed(2)}`)),
        each.heard_by ? tag("whispered", "secret") : null,
        tag(new Date(each.ts).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" }))))));
    if (!found.length) $("memories").append(element("li", "fine", `${npc.name} remembers nothing of them yet.`));
  }

  persona({ persona }) {
    const list = (items) => element("dd", "", element("ul", "", items.map((item) => element("li", "", item))));
    const counts = [plural(persona.examples, "example"), plural(persona.lore, "lore entry").replace("entrys", "entries")];
    $("persona").replaceChildren(facts("facts", [
      ["Voice", element("dd", "", persona.voice)],
      ...(persona.knows.length ? [["Knows", list(persona.knows)]] : []),
      ...(persona.greeting ? [["Greets", element("dd", "", persona.greeting)]] : []),
      ...(persona.reactions.length ? [["Reacts to", element("dd", "tags", persona.reactions.map((id) => tag(id)))]] : []),
      ["Beside that", element("dd", "plain", counts.join(", "))],
    ]));
  }

  prompt({ prompts }) {
    const choice = $("turns");
    choice.closest("label").hidden = !prompts?.length;
    $("prompt-body").hidden = !prompts?.length;
    $("prompt-none").hidden = Boolean(prompts?.length);
    if (!prompts?.length) {
      $("prompt-none").textContent = prompts ? "No turn of theirs has asked the model yet." : "Prompts are kept where the server is started with --inspect.";
      return;
    }
    const shown = prompts.find(({ turn }) => turn === this.#turn) ?? prompts[0];
    choice.replaceChildren(...prompts.map(({ turn, tokens }, i) => {
      const option = new Option(`${i ? turn : "newest"} · ${plural(tokens, "token")}`, i ? turn : "");
      option.selected = turn === shown.turn;
      return option;
    }));
    $("shares").setAttribute("aria-label", shown.parts.map(({ name, tokens }) => `${name} ${plural(tokens, "token")}`).join(", "));
    $("shares").replaceChildren(...shown.parts.map(({ tokens }) => {
      const share = element("i");
      share.style.flexGrow = tokens;
      return share;
    }));
    for (const { name, text, tokens } of shown.parts) {
      const details = $("prompt").querySelector(`details[data-part="${name}"]`);
      details.querySelector("summary").replaceChildren(name, element("span", "", plural(tokens, "token")));
      const pre = details.querySelector("pre");
      pre.replaceChildren(...this.spelt(text));
      if (name === "turn") pre.scrollTop = pre.scrollHeight; // the newest line, and the notes before it
    }
  }

  /** A prompt's text with its control tokens dimmed and its notes marked. */
  spelt(text) {
    const parts = [];
    let end = 0;
    for (const match of text.matchAll(SPECIAL)) {
      parts.push(text.slice(end, match.index));
      parts.push(match[1] ? element("span", "control", match[1]) : element("mark", "", match[2]));
      end = match.index + match[0].length;
    }
    return [...parts, text.slice(end)];
  }
}

new Page().look();
