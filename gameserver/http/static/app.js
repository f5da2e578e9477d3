// The playground page: waits for the house to open, asks who is there, lets them in, and makes room for a
// second player beside the first.

import { element } from "./element.js";
import { Door } from "./panels/door.js";
import { Playground } from "./playground.js";

const $ = (id) => document.getElementById(id);
const POLL_MS = 500;
const LOOKS_AT = "troupe.panel";

/** Waits until the house is open, showing how far it is; resolves with playground.json. */
async function waitForHouse(door) {
  for (;;) {
    const house = await fetch("playground.json").then((reply) => reply.json()).catch(() => null);
    if (house?.ready) return house;
    door.wait(house?.progress);
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

/** On small screens one panel is shown at a time. */
function choosePanels() {
  const show = (name) => {
    $("house").dataset.panel = name;
    for (const tab of $("tabs").children) tab.setAttribute("aria-pressed", String(tab.dataset.panel === name));
    sessionStorage.setItem(LOOKS_AT, name);
  };
  for (const tab of $("tabs").children) tab.addEventListener("click", () => show(tab.dataset.panel));
  show(sessionStorage.getItem(LOOKS_AT) ?? "talk");
}

/** Opens and closes a second player's page beside this one, in the same scene. */
function split() {
  const open = document.querySelector("iframe");
  $("split").setAttribute("aria-pressed", String(!open));
  document.body.classList.toggle("split", !open);
  if (open) return open.remove();
  const address = new URLSearchParams(location.search);
  address.set("pane", "2");
  const frame = element("iframe");
  frame.title = "A second player";
  frame.src = `?${address}`;
  document.body.append(frame);
}

const pane = new URLSearchParams(location.search).get("pane") ?? "";
let playground = null;
const door = new Door($("door"), (name) => {
  playground.enter(name);
  $(matchMedia("(hover: hover)").matches ? "text" : "stage").focus();
});

choosePanels();
$("split").hidden = Boolean(pane);
$("split").addEventListener("click", split);
$("name").value = pane ? "Second player" : localStorage.getItem("troupe.name") ?? "";
if (!pane) door.ask();
const house = await waitForHouse(door);
door.unlock();
playground = new Playground(house, { pane, onLocked: (refusal) => door.askKey(refusal) });
$("rename").addEventListener("click", () => {
  playground.leave();
  door.ask();
});
if (pane) playground.enter($("name").value);
else door.ask();
