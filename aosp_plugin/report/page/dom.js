// Creates elements. Strings become text nodes, never markup, because pods and processes choose their own names.

export function element(name, className = "", ...children) {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

export function svgElement(name, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

export function button(className, onClick, ...children) {
  const node = element("button", className, ...children);
  node.type = "button";
  node.addEventListener("click", onClick);
  return node;
}

// Returns a command that a click selects as a whole, to be copied.
export function command(text) {
  const code = element("code", "command", text);
  code.title = "Click to select";
  return code;
}

// Returns a function that renders only if its arguments differ from those of the last call. Rendering again would close
// what is open, and a screen reader would announce it.
export function onChange(render) {
  let shown = null;
  return (...values) => {
    const key = JSON.stringify(values);
    if (key === shown) return;
    shown = key;
    render(...values);
  };
}
