// The door: who comes in, and by which key. A key stays in this tab's session storage; it never gets into
// an address.

const KEY = "troupe.play";

/** The credential of this tab, as in `identify.auth`. A signed token has three parts. */
export function credential() {
  const token = sessionStorage.getItem(KEY);
  if (!token) return { kind: "none" };
  return { kind: token.split(".").length === 3 ? "jwt" : "key", token };
}

/** The player for whom a signed token was made; null for keys and for what cannot be read. */
export function playerOfToken() {
  const { kind, token } = credential();
  if (kind !== "jwt") return null;
  try {
    const claims = JSON.parse(atob(token.split(".")[1].replaceAll("-", "+").replaceAll("_", "/")));
    return typeof claims.sub === "string" ? claims.sub : null;
  } catch {
    return null;
  }
}

export class Door {
  /** @param onEnter called with a name when somebody comes in */
  constructor(dialog, onEnter) {
    this.dialog = dialog;
    this.name = dialog.querySelector("#name");
    this.key = dialog.querySelector("#key");
    this.text = dialog.querySelector("#door-text");
    this.warming = dialog.querySelector("#warming");
    this.trouble = dialog.querySelector("#door-trouble");
    this.submit = dialog.querySelector("button");
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.addEventListener("close", () => {
      const key = this.key.value.trim();
      if (key) sessionStorage.setItem(KEY, key);
      this.key.value = "";
      onEnter(this.name.value.trim() || "Stranger");
    });
  }

  get open() {
    return this.dialog.open;
  }

  /** Asks for a name. */
  ask(text = "What shall they call you?") {
    this.text.textContent = text;
    if (!this.dialog.open) this.dialog.showModal();
    this.name.focus();
  }

  /** The server wants a key, or another one than it got. */
  askKey(refusal) {
    const had = credential().kind !== "none";
    if (had) sessionStorage.removeItem(KEY);
    this.key.closest("label").hidden = false;
    this.key.required = true;
    this.trouble.hidden = false;
    this.trouble.textContent = had ? `That did not open the door: ${refusal.message}.` : "This server asks for a key or a token.";
    this.ask("Whoever runs the server has one for you.");
    this.key.focus();
  }

  /** How far the house is from opening; `progress` as in playground.json. */
  wait(progress) {
    const { message = "Waiting for the house to open…", done = 0, total = 0 } = progress ?? {};
    this.submit.disabled = true;
    this.warming.hidden = false;
    this.text.textContent = message;
    if (total) this.warming.value = done / total;
    else this.warming.removeAttribute("value");
  }

  /** The house is open. */
  unlock() {
    this.submit.disabled = false;
    this.warming.hidden = true;
  }
}
