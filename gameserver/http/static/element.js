// Elements made by hand: text from outside becomes text, never markup.

/** An element with a class and children (nodes or strings); null and false children are left out. */
export function element(tag, className = "", ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children.flat().filter((child) => child !== null && child !== false));
  return node;
}

/** A button that does one thing. */
export function button(text, onClick, className = "") {
  const node = element("button", className, text);
  node.type = "button";
  node.addEventListener("click", onClick);
  return node;
}
