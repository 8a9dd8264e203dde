// The viewer: draws what layout.js has laid out, and answers to mouse and keyboard. Texts from the
// graph reach the page as text nodes only.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const text = (number) => (number === null || number === undefined ? "" : data.strings[number]);
  const graph = {
    labels: data.labels.map(([title, lines, classes, width, height]) =>
      ({ title, lines, classes, width, height })),
    nodes: data.nodes.map(([label, group, op, number, module, call, source, location, leaf,
      outputs, saved, flags]) => ({ label, group, op: text(op), number, module: text(module),
      call: text(call), source: text(source), location: text(location), leaf: text(leaf),
      outputs: outputs.map(text), saved, flags: text(flags) })),
    groups: data.groups,
    edges: data.edges,
    frameTitle(number, state) {
      const group = data.groups[number];
      return state === "once" ? [group.once, group.onceWidth] : [group.title, group.titleWidth];
    },
  };
  const MANY_MEMBERS = 200;
  for (const group of graph.groups) { group.standsFor = new Map(); group.memberOf = new Map(); }
  for (const [repeat, pairs] of Object.entries(data.repeats)) {
    const group = graph.groups[repeat];
    group.standsFor = new Map(pairs);
    for (const child of group.children) {
      const pending = [child];
      while (pending.length) {
        const inner = graph.groups[pending.pop()];
        for (const node of inner.nodes) group.memberOf.set(node, child);
        pending.push(...inner.children);
      }
    }
  }
  const into = graph.nodes.map(() => []), outOf = graph.nodes.map(() => []);
  for (const edge of graph.edges) { outOf[edge[0] - 1].push(edge); into[edge[1] - 1].push(edge); }

  const SVG = "http://www.w3.org/2000/svg";
  const $ = (id) => document.getElementById(id);
  const canvas = $("canvas"), world = $("world"), panel = $("panel");
  const states = data.states.slice();
  let drawing = null, selected = null, view = { x: 0, y: 0, k: 1 }, elements = new Map(), wires = [];

  const round = (value) => {
    const tenths = Math.trunc(Math.abs(value) * 10 + 0.5);
    const sign = value < 0 && tenths ? "-" : "";
    return sign + Math.trunc(tenths / 10) + (tenths % 10 ? "." + (tenths % 10) : "");
  };
  const svg = (name, attributes, parent) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    parent.append(element);
    return element;
  };
  // Names without end would push everything else out of sight; the pointer tells the whole.
  const cut = (word) => {
    const signs = Array.from(word);
    return signs.slice(0, 60).join("") + "\u2026" + signs.slice(-30).join("");
  };
  const short = (words) => String(words).replace(/\S{97,}/g, cut);
  const html = (name, parent, words, className) => {
    const element = document.createElement(name);
    if (words !== undefined) {
      element.textContent = short(words);
      if (element.textContent !== String(words)) element.title = words;
    }
    if (className) element.className = className;
    parent.append(element);
    return element;
  };
  const bytes = (count) => {
    if (count === null) return "?";
    if (count < 1024) return count === 1 ? "1 byte" : count + " bytes";
    const units = ["KiB", "MiB", "GiB", "TiB"];
    let value = count, unit = -1;
    do { value /= 1024; unit++; } while (Math.round(value * 10) / 10 >= 1024 && unit < 3);
    return value.toFixed(1) + " " + units[unit];
  };
  const isGroup = (item) => item[0] === "g", numberOf = (item) => Number(item.slice(1));

  // Large pictures are drawn tile by tile, when a tile comes into view: browsers take most of the
  // time that a page needs for words that nobody can see.
  const ALL_AT_ONCE = 600, TILE = 1200, IN_ONE_GO = 400;
  let tiles = [];

  function render() {
    drawing = draw(graph, states);
    minimap.draw(drawing);
    world.replaceChildren();
    elements = new Map();
    wires = [];
    const [below, ways, titles, above] = [0, 1, 2, 3].map(() => svg("g", {}, world));
    for (const frame of drawing.frames) {
      const g = svg("g", { class: "f", "data-group": frame.group }, below);
      svg("rect", { x: round(frame.x), y: round(frame.y), width: round(frame.width),
        height: round(frame.height), rx: 8 }, g);
      elements.set("g" + frame.group, g);
      const title = svg("g", { class: "f", "data-group": frame.group }, titles);
      svg("text", { class: "halo", x: round(frame.x + 10), y: round(frame.y + 16) }, title).textContent =
        frame.title;
      svg("text", { class: "halo sign", x: round(frame.x + frame.width - 20),
        y: round(frame.y + 17) }, title).textContent = "\u2212";
    }
    const isLarge = drawing.boxes.length > ALL_AT_ONCE, size = isLarge ? TILE : Infinity;
    canvas.classList.toggle("large", isLarge);
    const found = new Map();
    const tile = (column, line) => {
      const key = column + "," + line;
      if (!found.has(key)) found.set(key, { boxes: [], pieces: [], ways, above,
        // Lines cross many columns: they belong to a tile as wide as the picture.
        left: column < 0 ? -Infinity : column * size, right: column < 0 ? Infinity
          : (column + 1) * size, top: line * size || 0, bottom: (line + 1) * size });
      return found.get(key);
    };
    const at = (value) => (isLarge ? Math.max(0, Math.floor(value / size)) : 0);
    for (const wire of drawing.wires) {
      const parts = new Map();
      let end = null;
      for (const segment of wire.segments) {
        const line = at(segment[1]);
        if (!parts.has(line)) parts.set(line, []);
        parts.get(line).push(segment);
        if (!end || segment[3] > end[3]) end = segment;
      }
      for (const [line, segments] of parts)
        tile(-1, line).pieces.push([wire, segments, null]);
      if (wire.ends && end) tile(-1, at(end[1])).pieces.push([wire, null, end]);
    }
    for (const box of drawing.boxes) tile(at(box.x), at(box.y)).boxes.push(box);
    tiles = [...found.values()];
    if (isLarge) askToFill(); else for (const each of tiles.splice(0)) fill(each);
    highlight();
    document.documentElement.dataset.ready = "yes";
  }

  function fill({ boxes, pieces, ways, above }) {
    for (const [{ target, state }, segments, end] of pieces) {
      if (end) {
        svg("path", { class: "a", d: `M${round(end[2])} ${round(end[3])}l-3.5 -7h7z` }, ways);
        continue;
      }
      const d = segments.map(([x1, y1, x2, y2]) => {
        if (x1 === x2) return `M${round(x1)} ${round(y1)}V${round(y2)}`;
        const m = round((y1 + y2) / 2);
        return `M${round(x1)} ${round(y1)}C${round(x1)} ${m} ${round(x2)} ${m} ` +
          `${round(x2)} ${round(y2)}`;
      }).join("");
      const path = svg("path", { class: state ? "w " + state : "w", d }, ways);
      if (target === selected) path.classList.add("on");
      wires.push([target, path]);
    }
    for (const box of boxes) {
      const { label } = box, g = svg("g", { class: "b " + label.classes }, above);
      g.setAttribute(isGroup(box.item) ? "data-group" : "data-node", numberOf(box.item));
      const rx = label.classes.split(" ").includes("leaf") ? 11 : 4;
      if (isGroup(box.item)) {
        const repeat = label.classes.includes("repeat");
        for (const by of repeat ? [6, 3] : [3])
          svg("rect", { x: round(box.x + by), y: round(box.y + by), width: round(label.width),
            height: round(label.height), rx }, g);
      }
      svg("rect", { x: round(box.x), y: round(box.y), width: round(label.width),
        height: round(label.height), rx }, g);
      const middle = box.x + label.width / 2;
      svg("text", { class: "t", x: round(middle), y: round(box.y + 17) }, g).textContent =
        label.title;
      label.lines.forEach((line, place) => {
        svg("text", { class: "s", x: round(middle), y: round(box.y + 31 + 13 * place) }, g)
          .textContent = line;
      });
      if (/\b(error|warning|note|has-marks)\b/.test(label.classes))
        svg("text", { class: "flag", x: round(box.x + label.width - 9), y: round(box.y + 16) }, g)
          .textContent = "!";
      if (box.item === selected) g.classList.add("selected");
      elements.set(box.item, g);
    }
  }

  // Draw the tiles in view: some at once, and more before the next frame.
  let isAsked = false;
  function fillView() {
    isAsked = false;
    if (!tiles.length) return;
    const margin = 200, { clientWidth: width, clientHeight: height } = canvas;
    const left = -view.x / view.k - margin, right = (width - view.x) / view.k + margin;
    const top = -view.y / view.k - margin, bottom = (height - view.y) / view.k + margin;
    let drawn = 0;
    tiles = tiles.filter((each) => {
      if (drawn > IN_ONE_GO || each.left > right || each.right < left || each.top > bottom ||
          each.bottom < top) return true;
      fill(each);
      drawn += each.boxes.length + each.pieces.length / 4;
      return false;
    });
    if (drawn > IN_ONE_GO) askToFill();
  }
  function askToFill() {
    if (!isAsked) { isAsked = true; requestAnimationFrame(fillView); }
  }
  addEventListener("beforeprint", () => { for (const each of tiles.splice(0)) fill(each); });

  function apply() {
    world.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.k})`);
    canvas.classList.toggle("far", view.k < 0.3);
    minimap.show(view, canvas.clientWidth, canvas.clientHeight);
    fillView();
  }
  const scaleOfAll = () => Math.min(canvas.clientWidth / (drawing.width + 24),
    canvas.clientHeight / (drawing.height + 24));
  // Show the whole graph, however small.
  function fit() {
    const k = Math.min(1.25, scaleOfAll());
    view = { k, x: (canvas.clientWidth - drawing.width * k) / 2,
      y: (canvas.clientHeight - drawing.height * k) / 2 };
    apply();
  }
  // Show what can be read: what is too tall from its top on, what is too wide where backward starts.
  function start() {
    const { clientWidth: w, clientHeight: h } = canvas;
    const whole = scaleOfAll(), wide = w / (drawing.width + 24);
    const k = Math.min(1.25, whole >= 0.55 ? whole : Math.min(1, Math.max(0.55, wide)));
    let x = (w - drawing.width * k) / 2;
    if (x < 0) {
      const top = drawing.boxes.reduce((a, b) => (b.y < a.y ? b : a));
      const middle = top.x + top.label.width / 2;
      x = Math.max(w - drawing.width * k - 12, Math.min(12, w / 2 - middle * k));
    }
    view = { k, x, y: Math.max(8, (h - drawing.height * k) / 2) };
    apply();
  }
  function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
    const k = Math.min(8, Math.max(Math.min(0.005, scaleOfAll()), view.k * factor));
    view.x = x - (x - view.x) * k / view.k;
    view.y = y - (y - view.y) * k / view.k;
    view.k = k;
    apply();
  }
  const minimap = makeMinimap($("minimap"), (x, y) => {
    view.x = canvas.clientWidth / 2 - x * view.k;
    view.y = canvas.clientHeight / 2 - y * view.k;
    apply();
  });
  function placeOf(item) {
    const box = drawing.boxes.find((candidate) => candidate.item === item);
    if (box) return [box.x + box.label.width / 2, box.y + box.label.height / 2];
    const frame = drawing.frames.find((candidate) => "g" + candidate.group === item);
    return frame ? [frame.x + frame.width / 2, frame.y + 40] : null;
  }
  function center(item) {
    const place = placeOf(item);
    if (!place) return;
    view.k = Math.max(view.k, 0.8);
    view.x = canvas.clientWidth / 2 - place[0] * view.k;
    view.y = canvas.clientHeight / 2 - place[1] * view.k;
    apply();
  }
  function highlight() {
    for (const element of world.querySelectorAll(".selected")) element.classList.remove("selected");
    for (const [target, path] of wires) path.classList.toggle("on", target === selected);
    const element = selected && elements.get(selected);
    if (element) element.classList.add("selected");
  }

  // Redraw so that what the reader looked at stays where it was.
  function change(anchor, turn) {
    const before = placeOf(anchor);
    turn();
    render();
    const after = placeOf(anchor);
    if (before && after) {
      view.x += (before[0] - after[0]) * view.k;
      view.y += (before[1] - after[1]) * view.k;
      apply();
    }
  }
  function openGroup(number, how) {
    const group = graph.groups[number];
    states[number] = how || (group.kind === "repeat" ? "once" : "open");
    if (states[number] === "once") states[group.children[0]] = "open";
  }
  function toggle(item) {
    if (!isGroup(item)) return;
    const number = numberOf(item);
    if (!number) return;
    change(item, () => {
      if (states[number] === "closed") openGroup(number); else states[number] = "closed";
    });
    select(item, false);
  }
  function reveal(node) {
    for (let number = graph.nodes[node - 1].group; number !== null;
      number = graph.groups[number].parent) {
      const group = graph.groups[number];
      if (group.kind === "repeat" && group.standsFor.has(node)) {
        if (group.children.length <= MANY_MEMBERS) states[number] = "open";
        else { openGroup(number, "once"); return reveal(group.standsFor.get(node)); }
      } else if (states[number] === "closed") openGroup(number);
    }
    return node;
  }
  function goTo(node) {
    const shown = reveal(node);
    render();
    select("n" + shown, true, node);
  }
  function level(more) {
    const chosen = graph.groups.map((group, number) => number).filter((number) => {
      if (!number) return false;
      const parents = [];
      for (let above = graph.groups[number].parent; above !== null;
        above = graph.groups[above].parent) parents.push(above);
      if (!parents.every((above) => states[above] !== "closed")) return false;
      if (more) return states[number] === "closed";
      return states[number] !== "closed" &&
        graph.groups[number].children.every((child) => states[child] === "closed");
    });
    for (const number of chosen) if (more) openGroup(number); else states[number] = "closed";
    render();
    start();
  }

  // The panel.
  const row = (table, ...cells) => {
    const line = html("tr", table);
    cells.forEach((cell, place) => html("td", line, cell, place ? "n" : ""));
    return line;
  };
  const link = (parent, words, action) => {
    const anchor = html("a", parent, words);
    anchor.tabIndex = 0;
    anchor.setAttribute("role", "link");
    anchor.addEventListener("click", action);
    anchor.addEventListener("keydown", (event) => { if (event.key === "Enter") action(); });
    return anchor;
  };
  const nameOf = (node) => {
    const { leaf, op } = graph.nodes[node - 1];
    return `#${node} ${leaf || op}`;
  };
  const gradient = (edge) => {
    if (edge.length <= 4) return "";
    const [, , , , norm, zeros, elements, nonFinite] = edge;
    if (nonFinite) return nonFinite === "nan" ? "holds NaN" : "holds infinity";
    if (!elements) return "no gradient";
    if (zeros === elements) return "all zero";
    const share = zeros ? `, ${Math.round(100 * zeros / elements)} % zeros` : "";
    return `norm ${Number(norm.toPrecision(3))}${share}`;
  };
  function edges(title, list, end) {
    if (!list.length) return;
    html("h3", panel, title);
    const table = html("table", panel);
    for (const edge of list.slice(0, 60)) {
      const line = html("tr", table), cell = html("td", line);
      link(cell, nameOf(edge[end]), () => goTo(edge[end]));
      html("td", line, gradient(edge), "n");
    }
    if (list.length > 60) html("p", panel, `and ${list.length - 60} more`, "hint");
  }
  function showNode(node, instead) {
    const known = graph.nodes[node - 1];
    html("h2", panel, known.leaf || known.op);
    const facts = [`#${node} in the order of backward`];
    if (known.number !== null) facts.push(`sequence number ${known.number}`);
    html("p", panel, facts.join(", "), "hint");
    if (instead && instead !== node)
      html("p", panel, `One of many like it is shown for ${nameOf(instead)}.`, "hint");
    if (known.module) {
      html("h3", panel, "Module");
      html("p", panel, known.call ? `${known.module} (${known.call})` : known.module);
    }
    if (known.source) { html("h3", panel, "Source"); html("code", html("p", panel), known.source); }
    if (known.location) {
      html("h3", panel, "Custom function at");
      html("code", html("p", panel), known.location);
    }
    if (known.outputs.length) {
      html("h3", panel, known.outputs.length > 1 ? "Outputs" : "Output");
      known.outputs.forEach((type, place) => html("p", panel,
        known.outputs.length > 1 ? `${place}: ${type}` : type));
    }
    if (known.saved.length) {
      html("h3", panel, "Saved for backward");
      const table = html("table", panel);
      for (const [name, type, size, words] of known.saved) {
        row(table, `${text(name)}  ${text(type)}`, bytes(size));
        if (words !== null) row(table, text(words)).className = "hint";
      }
    }
    if (known.flags) html("p", panel, known.flags, "hint");
    edges("Gradient comes from", into[node - 1], 0);
    edges("Gradient goes to", outOf[node - 1], 1);
    for (const finding of data.findings) if (finding[4].includes(node)) showFinding(finding);
  }
  function showGroup(number) {
    const group = graph.groups[number];
    html("h2", panel, group.title);
    html("p", panel, `${group.size} nodes, ${bytes(group.bytes)} saved for backward`);
    const buttons = html("p", panel);
    const button = (words, how) => html("button", buttons, words).addEventListener("click", () => {
      change("g" + number, () => {
        if (how === "closed") states[number] = how; else openGroup(number, how);
      });
      select("g" + number, false);
    });
    if (states[number] !== "closed") button("Close", "closed");
    if (group.kind === "repeat") {
      if (states[number] !== "once") button("Show one", "once");
      if (states[number] !== "open" && group.children.length <= MANY_MEMBERS)
        button(`Show all ${group.children.length}`, "open");
    } else if (states[number] === "closed") button("Open");
  }
  function showFinding([severity, rule, message, hint, nodes, where]) {
    const block = html("div", panel, undefined, "finding");
    html("strong", block, `${severity} ${rule}`);
    html("p", block, message);
    if (where) html("code", html("p", block), where);
    if (hint) html("p", block, hint, "hint");
    if (nodes.length) link(block, `show #${nodes[0]}`, () => goTo(nodes[0]));
  }
  function showSummary() {
    if (data.notes) {
      html("h2", panel, "What changed");
      for (const note of data.notes) html("p", panel, note);
      const table = html("table", panel);
      for (const cells of data.changes) row(table, ...cells);
      if (data.changes.length) html("p", panel, "What there is more of is flagged with !", "hint");
    }
    html("h2", panel, "What backward will do");
    html("p", panel, data.headline);
    html("p", panel, data.state);
    if (data.findings.length) html("h3", panel, "Findings");
    data.findings.forEach(showFinding);
    html("h3", panel, "Backward starts from");
    for (const [name, node, type] of data.roots)
      link(html("p", panel), `${name || "tensor"} ${type}`, () => goTo(node));
    if (data.ignored.length)
      html("p", panel, `Without a graph: ${data.ignored.join(", ")}`, "hint");
    if (data.memory.length) {
      html("h3", panel, "Saved by module");
      const table = html("table", panel);
      for (const [name, size] of data.memory) row(table, name, bytes(size));
      if (data.memory_more[0])
        row(table, `and ${data.memory_more[0]} more`, bytes(data.memory_more[1]));
    }
    if (data.not_covered.length) html("h3", panel, "Not covered");
    for (const line of data.not_covered) html("p", panel, line, "hint");
  }
  function select(item, move, instead) {
    selected = item;
    highlight();
    panel.replaceChildren();
    if (!item) showSummary();
    else if (isGroup(item)) showGroup(numberOf(item));
    else showNode(numberOf(item), instead);
    panel.scrollTop = 0;
    if (item && move) center(item);
  }

  const search = makeSearch(
    graph.nodes.map((known, index) =>
      [`#${index + 1}`, known.op, known.leaf, known.module, known.source].join(" ").toLowerCase()),
    (node) => {
      const { module, source } = graph.nodes[node - 1];
      return [nameOf(node), [module, source].filter(Boolean).join(" \u00b7 ")].map(short);
    },
    goTo, () => canvas.focus());

  // Mouse and touch.
  const itemAt = (target) => {
    const g = target.closest("[data-node], [data-group]");
    if (!g) return null;
    return g.dataset.node ? "n" + g.dataset.node : "g" + g.dataset.group;
  };
  let drag = null;
  const fingers = new Map();
  const middle = () => {
    const [one, other] = fingers.values(), bounds = canvas.getBoundingClientRect();
    return { x: (one.x + other.x) / 2 - bounds.left, y: (one.y + other.y) / 2 - bounds.top,
      apart: Math.max(1, Math.hypot(one.x - other.x, one.y - other.y)) };
  };
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    drag = fingers.size > 1 ? null
      : { x: event.clientX, y: event.clientY, moved: false, target: event.target };
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.size === 2 && fingers.has(event.pointerId) ? middle() : null;
    if (fingers.has(event.pointerId))
      fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    if (before) {
      const after = middle();
      view.x += after.x - before.x; view.y += after.y - before.y;
      zoom(after.apart / before.apart, after.x, after.y);
      return;
    }
    if (!drag || !event.buttons) return;
    const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
    if (!drag.moved && Math.abs(dx) + Math.abs(dy) < 4) return;
    if (!drag.moved) canvas.setPointerCapture(event.pointerId);
    drag.moved = true;
    canvas.classList.add("dragging");
    view.x += dx; view.y += dy;
    drag.x = event.clientX; drag.y = event.clientY;
    apply();
  });
  const release = (event) => {
    fingers.delete(event.pointerId);
    canvas.classList.remove("dragging");
    if (drag && !drag.moved && event.type === "pointerup") {
      const item = itemAt(drag.target);
      if (drag.target.classList.contains("sign")) toggle(item);
      else select(item, false);
    }
    drag = null;
  };
  for (const end of ["pointerup", "pointercancel", "pointerleave"])
    canvas.addEventListener(end, release);
  canvas.addEventListener("dblclick", (event) => {
    const item = itemAt(event.target);
    if (item) toggle(item);
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const bounds = canvas.getBoundingClientRect();
    if (event.ctrlKey || !event.shiftKey)
      zoom(Math.exp(-event.deltaY * 0.0015), event.clientX - bounds.left, event.clientY - bounds.top);
    else { view.x -= event.deltaY; apply(); }
  }, { passive: false });

  // Keyboard.
  const theme = () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  };
  function neighbour(by) {
    if (!selected || isGroup(selected)) return;
    const node = numberOf(selected), list = by > 0 ? outOf[node - 1] : into[node - 1];
    if (list.length) goTo(list[0][by > 0 ? 1 : 0]);
  }
  const keys = {
    "/": () => $("search").focus(), n: () => search.step(1), N: () => search.step(-1),
    "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8),
    0: fit, 1: start, t: theme, "?": () => $("legend").showModal(), "[": () => level(false),
    "]": () => level(true), j: () => neighbour(1), k: () => neighbour(-1),
    Escape: () => select(null), Enter: () => selected && toggle(selected),
    ArrowLeft: () => { view.x += 60; apply(); }, ArrowRight: () => { view.x -= 60; apply(); },
    ArrowUp: () => { view.y += 60; apply(); }, ArrowDown: () => { view.y -= 60; apply(); },
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || $("legend").open) return;
    if (event.key === "Enter" && event.target.closest("button, a")) return;
    const action = keys[event.key];
    if (action) { event.preventDefault(); action(); }
  });
  $("in").addEventListener("click", () => zoom(1.25));
  $("out").addEventListener("click", () => zoom(0.8));
  $("fit").addEventListener("click", fit);
  $("more").addEventListener("click", () => level(true));
  $("less").addEventListener("click", () => level(false));
  $("theme").addEventListener("click", theme);
  $("help").addEventListener("click", () => $("legend").showModal());

  // The legend.
  const legend = $("legend");
  html("h2", legend, "Legend");
  html("p", legend, "Backward runs from the top down: each box is a step of it, each line a " +
    "gradient on its way to the leaves.");
  const samples = html("table", legend);
  for (const [classes, name, meaning] of [
    ["op", "Add", "an op, with the type of its output and what it saved"],
    ["leaf parameter", "weight", "a parameter: backward puts a gradient into it"],
    ["leaf input", "unnamed leaf", "another leaf tensor (dashed)"],
    ["custom-function", "Custom", "an autograd.Function of yours"],
    ["in-place", "CopySlices", "an in-place write into a view"],
    ["op cast", "ToCopy", "a change of device, or of dtype, which is flagged too (thick line)"],
    ["op freed", "Exp", "an op whose saved tensors are freed (dashed)"],
    ["op error", "Sqrt", "an op that a finding is about (with !)"],
    ["group module", "layers.0", "a closed group: double-click or Enter opens it"],
  ]) {
    const line = html("tr", samples), picture = svg("svg", { width: 110, height: 34 },
      html("td", line));
    const g = svg("g", { class: "b " + classes }, picture);
    svg("rect", { x: 4, y: 4, width: 100, height: 25, rx: classes.startsWith("leaf") ? 11 : 4 }, g);
    svg("text", { class: "t", x: 54, y: 21 }, g).textContent = name;
    html("td", line, meaning);
  }
  for (const [state, meaning] of [["", "a gradient"], ["zero", "a gradient that is zero everywhere, "
    + "or none"], ["bad", "a gradient with NaN or infinity"]]) {
    const line = html("tr", samples), picture = svg("svg", { width: 110, height: 20 },
      html("td", line));
    svg("path", { class: "w " + state, d: "M6 10H104" }, picture);
    html("td", line, meaning);
  }
  html("h3", legend, "Keys");
  const table = html("table", legend);
  for (const [key, meaning] of [["/", "search"], ["n N", "go to the next hit, or the one before"],
    ["+ \u2212", "zoom in, out"], ["0 1", "show the whole graph, or what can be read of it"],
    ["arrows", "move"], ["Enter", "open or close what is selected"], ["[ ]", "close or open a level"],
    ["j k", "follow the gradient to the next box, or back"], ["t", "light or dark"],
    ["Esc", "select nothing"]]) {
    const line = html("tr", table);
    html("kbd", html("td", line), key);
    html("td", line, meaning);
  }
  html("button", html("p", legend), "Close").addEventListener("click", () => legend.close());

  $("headline").textContent = data.headline;
  render();
  start();
  select(null);
  performance.mark("ready");
  document.documentElement.dataset.readyAfter = Math.round(performance.now());
  addEventListener("resize", apply);
  window.gradcheckSuite = { graph, states, draw: (given) => draw(graph, given || states), goTo, view: () => view };
})();
