// A character as a storybook figure in SVG. A look says what to draw; one that nobody wrote is
// chosen from the NPC's role and id, the same on every screen.

const NAMESPACE = "http://www.w3.org/2000/svg";

/** An SVG element with attributes and children; null children are left out. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.flat(3).filter(Boolean));
  return element;
}

/** Straps and a bundle on the back of somebody who carries all they own. */
const packOf = ({ pack }) => pack && [
  path("M46 124Q100 92 154 124Q170 170 160 232Q100 252 40 232Q30 170 46 124Z", shade(pack, -0.25)),
  path("M50 128Q100 98 150 128Q150 150 100 152Q50 150 50 128Z", pack),
  svg("rect", { x: 60, y: 104, width: 80, height: 20, rx: 10, fill: "#caa66a" }),
];

const path = (d, fill, more = {}) => svg("path", { d, fill, ...more });
const line = (d, stroke, width, more = {}) =>
  svg("path", {
    d, stroke, "stroke-width": width, fill: "none",
    "stroke-linecap": "round", "stroke-linejoin": "round", ...more,
  });
const circle = (cx, cy, r, fill, more = {}) => svg("circle", { cx, cy, r, fill, ...more });
const oval = (cx, cy, rx, ry, fill, more = {}) => svg("ellipse", { cx, cy, rx, ry, fill, ...more });

/** A colour made darker (amount < 0) or lighter (> 0); colours are #rrggbb. */
function shade(colour, amount) {
  const target = amount < 0 ? 0 : 255;
  const mix = (at) => {
    const value = parseInt(colour.slice(at, at + 2), 16);
    return Math.round(value + (target - value) * Math.abs(amount)).toString(16).padStart(2, "0");
  };
  return `#${mix(1)}${mix(3)}${mix(5)}`;
}

const SKINS = ["#f0c6a0", "#e0ab80", "#c98d62", "#a56b45", "#7d4e33", "#f3d2b3"];
const HAIRS = ["#2b1d16", "#5a3620", "#8c5a2b", "#b5492a", "#c9a35a", "#8d8a86", "#dcd7cd"];
const CLOTHS = ["#7a3b34", "#3f5d4a", "#39506f", "#6d5230", "#5d4270", "#7c6a3a", "#2f5f66", "#84503a"];
const STYLES = ["short", "long", "bun", "curly", "braid", "swept"];
const BEARDS = ["none", "none", "none", "full", "goatee", "moustache"];

// The first row whose words appear in a role dresses the character.
const TRADES = [
  [/innkeep|barkeep|landlady|landlord|host/, { over: "apron", prop: "tankard" }],
  [/cook|kitchen|baker/, { over: "apron", prop: "ladle", hat: "scarf" }],
  [/bard|minstrel|singer|musician|fiddler|lute/, { over: "vest", prop: "lute", hat: "feather" }],
  [/captain|guard|warden|soldier|knight|sergeant|marshal/, { over: "armour", prop: "sword" }],
  [/merchant|peddler|pedlar|trader|seller|broker/, { over: "coat", prop: "pouch", hat: "brim" }],
  [/scout|ranger|hunter|tracker|guide|thief|smuggler/, { over: "cloak", prop: "bow", hat: "hood" }],
  [/scholar|mage|wizard|witch|scribe|archivist|priest|healer/, { over: "cloak", prop: "book" }],
  [/fish|sailor|ferry|farmer|shepherd|drover|miner|smith/, { over: "vest", prop: "pipe", hat: "cap" }],
  [/quest|elder|mayor|reeve/, { over: "coat", prop: "scroll" }],
];

/** Looks of the characters in the shipped scenes. */
const LOOKS = {
  mira: {
    skin: "#e6b088", hair: "#6d3d25", style: "bun", beard: "none", cloth: "#7d3a35", trim: "#d8b06a",
    over: "apron", prop: "tankard", broad: 1.12,
  },
  harn: {
    skin: "#c99470", hair: "#aaa7a4", style: "braids", beard: "none", cloth: "#2c4a78", trim: "#d8b06a",
    over: "armour", prop: "sword", tall: 1.07, stern: true,
  },
  fenn: {
    skin: "#f1c9a4", hair: "#b0602c", style: "swept", beard: "none", cloth: "#4a6340", trim: "#c9a35a",
    over: "cloak", accent: "#d9c7a0", prop: "bow", broad: 0.92, freckled: true,
  },
  quill: {
    skin: "#dba67c", hair: "#dedad3", style: "short", beard: "goatee", cloth: "#6b3a68", trim: "#e3c073",
    over: "coat", prop: "pouch", hat: "brim", hatColour: "#43233f", pack: "#a93a32", tall: 0.92, old: true,
  },
  tobb: {
    skin: "#dca888", hair: "#ece8df", style: "bald", beard: "full", cloth: "#46565f", trim: "#b9a27a",
    over: "vest", accent: "#d8cdb5", prop: "pipe", hat: "cap", hatColour: "#2f3f4b", tall: 0.95, old: true,
  },
  pip: {
    skin: "#f0c39c", hair: "#cf8a3f", style: "braids", beard: "none", cloth: "#4f7f86", trim: "#f4e3bb",
    over: "apron", accent: "#d8c7a6", prop: "bowl", hat: "scarf", hatColour: "#a8483f", tall: 0.74,
    freckled: true,
  },
  lark: {
    skin: "#9a6340", hair: "#231712", style: "swept", beard: "moustache", cloth: "#7a3350", trim: "#e3c073",
    over: "vest", prop: "fiddle", hat: "feather", hatColour: "#2f7a4f",
  },
};

/** A number in [0, 2^32) that is the same for the same text (FNV-1a). */
export function hash(text) {
  let value = 0x811c9dc5;
  for (const character of text) value = Math.imul(value ^ character.codePointAt(0), 0x01000193);
  return value >>> 0;
}

function lookOf(npc) {
  if (Object.hasOwn(LOOKS, npc.id)) return LOOKS[npc.id];
  let seed = hash(npc.id);
  const pick = (list) => {
    seed = Math.imul(seed ^ (seed >>> 15), 0x2c1b3c6d) >>> 0;
    return list[seed % list.length];
  };
  const role = `${npc.role ?? ""} ${npc.quest_giver ? "quest" : ""}`.toLowerCase();
  const trade = TRADES.find(([words]) => words.test(role))?.[1] ?? { over: "vest", prop: "tankard" };
  return {
    skin: pick(SKINS), hair: pick(HAIRS), style: pick(STYLES), beard: pick(BEARDS),
    cloth: pick(CLOTHS), trim: "#d8b06a", ...trade,
  };
}

// The body stands in a box of 200 x 300 with its feet at 288 and its face around (100, 84).

function body({ cloth, skin, trim, over, accent = "#efe3cc" }) {
  const dark = shade(cloth, -0.35);
  const robe = "M100 126C66 126 56 150 51 196L43 268Q100 292 157 268L149 196C144 150 134 126 100 126Z";
  const layers = {
    apron: () => [
      path("M78 152Q100 164 122 152L132 206L139 266Q100 280 61 266L68 206Z", accent),
      path("M78 152Q100 164 122 152L126 172Q100 182 74 172Z", shade(accent, -0.08)),
      line("M68 207Q100 217 132 207", shade(accent, -0.3), 4),
      path("M84 226h32v16q-16 9 -32 0Z", shade(accent, -0.12)),
      line("M80 152L88 130M120 152L112 130", accent, 6),
    ],
    vest: () => [
      path("M88 128L80 206L62 214L66 158Q70 132 88 128Z", dark),
      path("M112 128L120 206L138 214L134 158Q130 132 112 128Z", dark),
      path("M88 128Q100 140 112 128L120 206Q100 214 80 206Z", accent),
      [150, 168, 186].map((y) => circle(100, y, 2.6, shade(accent, -0.45))),
      line("M50 212Q100 226 150 212", shade(dark, -0.35), 9),
      svg("rect", { x: 92, y: 209, width: 16, height: 13, rx: 3, fill: trim }),
    ],
    armour: () => [
      path("M70 138Q100 124 130 138L134 202Q100 216 66 202Z", "#8d949c"),
      path("M100 130L130 138L134 202Q118 210 100 210Z", "#747b84"),
      line("M100 132V210", "#5c636b", 2.5),
      line("M68 176Q100 188 132 176", "#5c636b", 2.5),
      path("M48 158Q52 128 80 132Q86 150 74 166Q58 170 48 158Z", "#a2a9b1"),
      path("M152 158Q148 128 120 132Q114 150 126 166Q142 170 152 158Z", "#858c95"),
      line("M49 212Q100 228 151 212", "#4a3524", 10),
      svg("rect", { x: 91, y: 211, width: 18, height: 14, rx: 3, fill: trim }),
      path("M84 150l16 -8l16 8q0 20 -16 30q-16 -10 -16 -30Z", trim, { opacity: 0.9 }),
    ],
    coat: () => [
      path("M90 127L66 212L60 276Q78 281 94 281L98 180Z", dark),
      path("M110 127L134 212L140 276Q122 281 106 281L102 180Z", dark),
      path("M90 127Q100 138 110 127L104 186H96Z", accent),
      line("M90 127L80 170M110 127L120 170", trim, 4),
      [196, 216, 236].map((y) => [circle(88, y, 3.2, trim), circle(112, y, 3.2, trim)]),
    ],
    cloak: () => [
      path("M84 128Q100 150 116 128L124 280Q100 286 76 280Z", shade(accent, -0.25)),
      line("M54 214Q100 228 146 214", "#3b291b", 8),
      path("M100 124C60 122 48 168 40 270Q52 280 66 279Q72 190 90 146Z", dark),
      path("M100 124C140 122 152 168 160 270Q148 280 134 279Q128 190 110 146Z", shade(dark, -0.15)),
      circle(100, 142, 8, trim), circle(100, 142, 4, shade(trim, -0.4)),
    ],
  };
  return [
    oval(80, 284, 17, 8, "#2a1a12"), oval(120, 284, 17, 8, "#22150e"),
    path(robe, cloth),
    svg("rect", { x: 88, y: 108, width: 24, height: 26, rx: 11, fill: shade(skin, -0.16) }),
    layers[over]?.(),
    path(robe, "url(#figure-shade)"),
  ];
}

function arms({ cloth, skin, over }) {
  const sleeve = over === "armour" ? "#6f767f" : over === "vest" ? "#e6d8bd" : shade(cloth, -0.14);
  return [
    line("M62 150Q46 178 58 204", sleeve, 23),
    line("M138 150Q154 176 146 202", shade(sleeve, -0.18), 23),
    circle(61, 211, 10.5, skin), circle(145, 209, 10.5, shade(skin, -0.1)),
  ];
}

const PROPS = {
  tankard: () => [
    line("M164 196q14 2 12 16q-2 12 -14 11", "#c8a25c", 5),
    svg("rect", { x: 136, y: 188, width: 28, height: 38, rx: 4, fill: "#8a5a30" }),
    svg("rect", { x: 136, y: 196, width: 28, height: 4, fill: "#d9b46d" }),
    svg("rect", { x: 136, y: 216, width: 28, height: 4, fill: "#d9b46d" }),
    path("M133 190q2 -12 12 -9q6 -8 13 -1q11 -2 9 10q-18 7 -34 0Z", "#fdf3dc"),
  ],
  ladle: () => [
    line("M150 222L160 156", "#b9854c", 5), path("M148 150q14 -8 26 4q-4 18 -18 16q-10 -6 -8 -20Z", "#9aa1a8"),
  ],
  lute: () => [
    line("M70 236L142 158", "#5a371d", 9), line("M136 164L154 150", "#3f2514", 12),
    oval(68, 238, 32, 25, "#c08443", { transform: "rotate(-46 68 238)" }),
    oval(68, 238, 32, 25, "none", { transform: "rotate(-46 68 238)", stroke: "#7c4b20", "stroke-width": 3 }),
    circle(72, 233, 8.5, "#3a2211"), line("M54 252L146 155", "#f3e3bd", 1.2), line("M58 256L149 158", "#f3e3bd", 1.2),
    circle(104, 206, 10, "currentColor"),
  ],
  sword: () => [
    line("M154 214L136 282", "#5b4028", 9), line("M140 204L168 214", "#d8b06a", 6),
    line("M154 209L158 194", "#3b2718", 7), circle(159, 190, 5.5, "#e8c983"),
  ],
  pouch: () => [
    path("M146 206q18 0 20 22q0 16 -20 16q-20 0 -20 -16q2 -22 20 -22Z", "#8d5c2c"),
    line("M134 210Q146 218 158 210", "#e0bd74", 4), path("M136 208q10 -14 20 0Z", "#a56f38"),
    circle(146, 229, 6, "#eecb73"), circle(146, 229, 3, "#c59a3f"),
  ],
  bow: () => [
    line("M40 130Q10 202 46 276", "#7d532c", 6), line("M40 130L46 276", "#e8dcc0", 1.4),
    line("M142 128L158 96M150 132L168 102", "#c9b48c", 3), path("M154 100l8 -14l4 16Z", "#b8c4a6"),
    path("M164 106l10 -13l2 15Z", "#b8c4a6"),
  ],
  book: () => [
    svg("rect", { x: 126, y: 192, width: 40, height: 48, rx: 3, fill: "#6a2e33", transform: "rotate(8 146 216)" }),
    svg("rect", { x: 131, y: 196, width: 33, height: 41, rx: 2, fill: "none", stroke: "#d8b06a", "stroke-width": 2, transform: "rotate(8 146 216)" }),
    circle(147, 216, 6, "#d8b06a"),
  ],
  pipe: () => [
    line("M120 114Q138 120 150 112", "#4a2f1c", 4), path("M145 98h15q2 17 -8 18q-9 -1 -7 -18Z", "#5e3b22"),
    line("M153 92q-6 -10 2 -18q7 -9 -1 -19", "#f6ead7", 3, { opacity: 0.35, class: "smoke" }),
  ],
  bowl: () => [
    path("M60 196H134Q132 224 97 226Q62 224 60 196Z", "#8a5a30"), oval(97, 196, 37, 8, "#5d3a1e"),
    oval(97, 196, 31, 5.5, "#d39a45"), line("M84 182q-5 -8 0 -14M104 182q5 -8 0 -16", "#f6ead7", 3, { opacity: 0.4, class: "smoke" }),
    circle(62, 206, 9, "currentColor"), circle(133, 206, 9, "currentColor"),
  ],
  fiddle: () => [
    line("M92 196L150 140", "#2e1a10", 8), circle(153, 136, 6, "#2e1a10"),
    path("M88 184Q104 188 104 202Q96 208 92 218Q90 236 70 244Q46 246 44 224Q48 206 64 202Q72 198 76 190Q80 182 88 184Z", "#a4562a"),
    path("M88 184Q104 188 104 202Q96 208 92 218Q90 236 70 244Q46 246 44 224Q48 206 64 202Q72 198 76 190Q80 182 88 184Z", "none", { stroke: "#6a3114", "stroke-width": 2.5 }),
    line("M58 232L150 140", "#f3e3bd", 1.3), line("M66 206q6 8 14 10", "#43200f", 2.4),
    line("M150 204L52 184", "#e8dcc0", 2.4), line("M150 206L54 188", "#6b4424", 2), circle(147, 205, 10, "currentColor"),
  ],
  scroll: () => [
    svg("rect", { x: 128, y: 178, width: 34, height: 52, rx: 3, fill: "#f1e0b8" }),
    svg("rect", { x: 124, y: 173, width: 42, height: 9, rx: 4.5, fill: "#d7bd86" }),
    svg("rect", { x: 124, y: 226, width: 42, height: 9, rx: 4.5, fill: "#d7bd86" }),
    line("M135 192h20M135 200h20M135 208h13", "#a5854f", 2.2), circle(154, 217, 6.5, "#b23a32"),
  ],
};

function hairBehind({ hair, style, hat }) {
  const dark = shade(hair, -0.22);
  return {
    long: () => path("M58 78Q52 40 100 36Q148 40 142 78L148 140Q128 152 122 124H78Q72 152 52 140Z", dark),
    braid: () => [
      path("M58 84Q54 40 100 36Q146 40 142 84L138 112H62Z", dark),
      line("M140 106Q150 130 140 156T146 190", dark, 13), circle(146, 192, 6, "#b8453a"),
    ],
    braids: () => [
      path("M58 84Q54 40 100 36Q146 40 142 84L138 108H62Z", dark),
      line("M60 104Q50 128 58 150T54 176", dark, 12), circle(54, 180, 5.5, "#b8453a"),
      line("M140 104Q150 128 142 150T146 176", dark, 12), circle(146, 180, 5.5, "#b8453a"),
    ],
    bun: () => (hat ? null : circle(100, 30, 19, dark)),
    curly: () => [[64, 60], [58, 80], [62, 100], [136, 60], [142, 80], [138, 100], [82, 44], [118, 44], [100, 38]]
      .map(([x, y]) => circle(x, y, 17, dark)),
  }[style]?.();
}

function hairFront({ hair, style, hat }) {
  if (hat === "hood") return path("M66 76Q72 50 100 50Q128 50 134 76Q118 58 98 62Q78 62 66 76Z", hair);
  return {
    short: () => path("M59 82Q54 38 100 36Q146 38 141 82Q136 62 120 58Q96 66 74 60Q62 66 59 82Z", hair),
    swept: () => path("M58 84Q50 34 104 34Q150 38 142 84Q138 58 112 54Q84 48 58 84Z", hair),
    long: () => path("M58 92Q52 38 100 36Q148 38 142 92Q138 66 102 52Q66 66 58 92Z", hair),
    braid: () => path("M58 90Q52 38 100 36Q148 38 142 90Q132 56 84 54Q64 66 58 90Z", hair),
    braids: () => path("M58 90Q52 38 100 36Q148 38 142 90Q136 60 101 50Q64 60 58 90Z", hair),
    bun: () => path("M59 86Q54 40 100 38Q146 40 141 86Q134 60 100 55Q66 60 59 86Z", hair),
    curly: () => [[68, 58], [82, 50], [98, 47], [114, 49], [130, 57]].map(([x, y]) => circle(x, y, 13, hair)),
    bald: () => [path("M58 92Q56 76 62 70L64 96Z", hair), path("M142 92Q144 76 138 70L136 96Z", hair)],
  }[style]?.();
}

function beardOf({ hair, beard }) {
  return {
    full: () => [
      path("M60 88Q62 104 76 102Q88 94 100 98Q112 94 124 102Q138 104 140 88Q144 128 122 144Q100 158 78 144Q56 128 60 88Z", hair),
      path("M78 103Q88 94 100 100Q112 94 122 103Q110 110 100 106Q90 110 78 103Z", shade(hair, 0.12)),
    ],
    goatee: () => path("M88 117Q100 112 112 117Q112 138 100 142Q88 138 88 117Z", hair),
    moustache: () => path("M76 106Q88 95 100 101Q112 95 124 106Q112 110 100 106Q88 110 76 106Z", hair),
  }[beard]?.();
}

function hatOf({ hat, cloth, trim, hatColour }) {
  const colour = hatColour ?? shade(cloth, -0.2);
  return {
    hood: () => [
      path("M100 22C52 22 44 74 50 118Q58 132 70 132Q58 96 66 72Q76 50 100 50Q124 50 134 72Q142 96 130 132Q142 132 150 118C156 74 148 22 100 22Z", colour),
      path("M66 72Q76 50 100 50Q124 50 134 72Q124 58 100 58Q76 58 66 72Z", shade(colour, -0.35)),
    ],
    brim: () => [
      oval(100, 56, 62, 13, shade(colour, -0.2)), path("M64 54Q64 14 100 14Q136 14 136 54Q100 66 64 54Z", colour),
      path("M64 46Q100 58 136 46V55Q100 67 64 55Z", trim),
    ],
    feather: () => [
      line("M126 40Q158 26 160 -2", "#f2e6cf", 3), path("M128 40Q138 4 166 -6Q172 18 128 40Z", "#d7553f"),
      path("M56 60Q60 24 104 24Q146 26 144 52Q100 46 56 60Z", colour),
      path("M50 62Q96 40 148 52Q150 60 142 60Q96 52 58 70Q48 70 50 62Z", shade(colour, -0.25)),
    ],
    cap: () => [
      path("M57 68Q54 28 100 28Q146 28 143 68Q100 54 57 68Z", colour),
      path("M54 70Q100 50 146 70Q146 60 140 56Q100 42 60 56Q54 60 54 70Z", shade(colour, -0.28)),
    ],
    scarf: () => [
      path("M57 74Q54 32 100 32Q146 32 143 74Q100 50 57 74Z", colour),
      [[76, 52], [98, 44], [122, 52]].map(([x, y]) => circle(x, y, 3, trim)),
      path("M142 68q16 2 14 18q-10 -2 -16 -8Z", shade(colour, -0.2)),
    ],
  }[hat]?.();
}

function face({ skin, hair, style, stern, old, beard, freckled }) {
  const dark = shade(skin, -0.3);
  const brow = style === "bald" && beard === "none" ? dark : shade(hair, -0.15);
  return [
    circle(59, 86, 9, shade(skin, -0.08)), circle(141, 86, 9, shade(skin, -0.16)),
    path("M60 78Q60 40 100 40Q140 40 140 78Q140 104 124 118Q100 134 76 118Q60 104 60 78Z", skin),
    oval(77, 100, 9, 6, "#e0705a", { opacity: 0.22 }), oval(123, 100, 9, 6, "#e0705a", { opacity: 0.22 }),
    freckled && [[74, 95], [80, 99], [86, 95], [114, 95], [120, 99], [126, 95]]
      .map(([x, y]) => circle(x, y, 1.3, dark, { opacity: 0.7 })),
    old && line("M70 96q4 4 9 3M130 96q-4 4 -9 3M86 62q14 -4 28 0", dark, 1.6, { opacity: 0.6 }),
    svg("g", { class: "eyes" },
      oval(84, 84, 4.6, 5.6, "#2a1a14"), oval(116, 84, 4.6, 5.6, "#2a1a14"),
      circle(85.6, 82, 1.6, "#fff"), circle(117.6, 82, 1.6, "#fff")),
    stern
      ? line("M75 71L92 75M125 71L108 75", brow, 4)
      : line("M75 73Q83 68 91 72M125 73Q117 68 109 72", brow, 3.4),
    line("M100 86Q104 96 98 98", dark, 2.4),
  ];
}

function mouth({ stern }) {
  return svg("g", { class: "mouth" },
    svg("g", { class: "mouth-shut" },
      line(stern ? "M91 110Q100 109 109 110" : "M89 108Q100 117 111 108", "#8d3f33", 2.8)),
    oval(100, 111, 7, 5.5, "#6b241f", { class: "mouth-open" }));
}

/** The whole figure of an NPC, {id, role, quest_giver}, decorative: names stand beside it. */
export const figure = (npc) => draw(lookOf(npc));

/** The hue of a player's own colours, the same on every screen. */
export const hueOf = (player) => (hash(player) % 997) * 137.5 % 360;

/** A strong, not too light colour of a hue, as #rrggbb. */
function cloth(hue) {
  const [saturation, lightness] = [0.46, 0.42];
  const channel = (offset) => {
    const k = (offset + hue / 30) % 12;
    const value = lightness - saturation * lightness * Math.max(-1, Math.min(k - 3, 9 - k, 1));
    return Math.round(255 * value).toString(16).padStart(2, "0");
  };
  return `#${channel(0)}${channel(8)}${channel(4)}`;
}

/** A player's whole figure: a traveller in a hooded cloak of the player's colour. */
export function traveller(player) {
  return draw({ ...lookOf({ id: player }), cloth: cloth(hueOf(player)), trim: "#d8b06a", over: "cloak", prop: "none", hat: "hood" });
}

function draw(look) {
  const { broad = 1, tall = 1 } = look;
  const drawing = svg("svg", { viewBox: "0 -12 200 312", class: "figure", "aria-hidden": "true" },
    svg("defs", {},
      svg("linearGradient", { id: "figure-shade", x1: 0, x2: 1, y1: 0, y2: 0.25 },
        svg("stop", { offset: 0, "stop-color": "#ffb765", "stop-opacity": 0.22 }),
        svg("stop", { offset: 0.45, "stop-color": "#000", "stop-opacity": 0 }),
        svg("stop", { offset: 1, "stop-color": "#0a0410", "stop-opacity": 0.42 }))),
    oval(100, 288, 64, 9, "#000", { opacity: 0.42 }),
    svg("g", { transform: `translate(${100 - 100 * broad * Math.min(tall, 1)} ${288 - 288 * tall}) scale(${broad * Math.min(tall, 1)} ${tall})` },
      svg("g", { class: "breath" },
        packOf(look), hairBehind(look), body(look),
        svg("g", { class: "head" }, face(look), hairFront(look), beardOf(look), mouth(look), hatOf(look)),
        arms(look), PROPS[look.prop]?.())));
  // Bubbles and badges hang above the head, wherever it is.
  drawing.dataset.tall = tall;
  drawing.style.color = look.skin;
  return drawing;
}

/** Head and shoulders of the same figure, for a line in the journal. */
export function bust(npc) {
  const drawing = figure(npc);
  const { tall } = drawing.dataset;
  const size = 124 * Math.min(tall, 1);
  drawing.setAttribute("viewBox", `${100 - size / 2} ${288 - 274 * tall} ${size} ${size}`);
  drawing.setAttribute("class", "bust");
  return drawing;
}

/** A player's hooded head and shoulders from behind, in the current colour. */
export function hood() {
  const cloak = "M4 80Q6 50 34 44Q24 36 26 20Q30 2 48 2Q66 2 70 20Q72 36 62 44Q90 50 92 80Z";
  return svg("svg", { viewBox: "0 0 96 80", class: "hood", "aria-hidden": "true" },
    path(cloak, "currentColor"),
    path(cloak, "#160a05", { opacity: 0.42 }),
    path("M4 80Q6 50 34 44Q24 36 26 20Q30 2 48 2Q40 6 38 22Q38 36 46 44Q26 54 24 80Z", "#ffd9a0", { opacity: 0.2 }),
    line("M48 4Q50 30 48 46M34 45Q48 54 62 45", "#160a05", 2, { opacity: 0.5 }));
}
