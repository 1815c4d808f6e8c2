// Creates and updates elements. Text is always set as text, so nothing that the daemon reports can become markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** Return an HTML element. Children are nodes or texts. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Return an SVG element. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

const ROLES = { TABLE: "table", THEAD: "rowgroup", TBODY: "rowgroup", TR: "row", TD: "cell" };

/** Give a table, or a part of one, the roles that its elements lose when a narrow screen shows them as blocks. */
export function named(node) {
  for (const part of [node, ...node.querySelectorAll("*")]) {
    const role = part.tagName === "TH" ? `${part.scope === "col" ? "column" : "row"}header` : ROLES[part.tagName];
    if (role) part.setAttribute("role", role);
  }
  return node;
}

/** Set the text of a node only if it differs, so that a selection and a screen reader are not disturbed. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set an attribute only if it differs; null removes it. */
export function setAttribute(node, name, value) {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}
