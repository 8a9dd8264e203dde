// The whole graph in a corner, with a frame round what is in view, for pictures that are larger than
// the window. Its two scales differ: what is very tall or wide would be a hair otherwise.
function makeMinimap(holder, centerOn) {
  const [picture, frame] = holder.children;
  const NARROWEST = 56, SMALLEST_FRAME = 6, BORDERS = 2;
  const KINDS = ["flagged", "leaf", "custom-function", "in-place", "group"];
  let size = null, drawing = null, shape = "";

  const rectangle = (x, y, width, height) => `M${Math.round(x)} ${Math.round(y)}` +
    `h${Math.round(width)}v${Math.round(height)}h${-Math.round(width)}z`;

  function paint() {
    const { width, height, boxes, frames } = drawing;
    const shapes = new Map([["frames", []], ["op", []]]);
    for (const { x, y, width: w, height: h } of frames)
      shapes.get("frames").push(rectangle(x, y, w, h));
    for (const { x, y, label } of boxes) {
      const classes = label.classes.split(" ");
      const isFlagged = ["error", "warning", "note", "has-marks"].some((c) => classes.includes(c));
      const kind = isFlagged ? "flagged" : KINDS.find((c) => classes.includes(c)) || "op";
      if (!shapes.has(kind)) shapes.set(kind, []);
      shapes.get(kind).push(rectangle(x, y, label.width, label.height));
    }
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.replaceChildren(...[...shapes].map(([kind, paths]) => {
      const path = document.createElementNS(picture.namespaceURI, "path");
      path.setAttribute("class", `map-${kind}`);
      path.setAttribute("d", paths.join(""));
      return path;
    }));
    drawing = null;
  }

  // Painting waits until there is something to see.
  function draw(given) {
    drawing = given;
    size = { width: given.width, height: given.height };
  }

  // Show what part of the drawing the window has, which is seen from `view` on.
  function show(view, width, height) {
    const whole = { width: size.width * view.k, height: size.height * view.k };
    holder.hidden = whole.width <= width && whole.height <= height;
    if (holder.hidden) return;
    if (drawing) paint();
    const most = { width: Math.min(220, width * 0.3), height: Math.min(320, height * 0.5) };
    const scale = Math.min(most.width / size.width, most.height / size.height);
    const wide = Math.max(NARROWEST, size.width * scale);
    const tall = Math.max(NARROWEST, size.height * scale);
    const wanted = `width:${wide}px;height:${tall}px`;
    if (wanted !== shape) holder.style.cssText = shape = wanted;
    const along = (start, seen, all, length) => {
      const from = Math.min(1, Math.max(0, start / all)), to = Math.min(1, Math.max(0,
        (start + seen) / all));
      const long = Math.max(SMALLEST_FRAME, (to - from) * length);
      return [Math.min(from * length, length - long), long];
    };
    const [x, w] = along(-view.x, width, whole.width, wide);
    const [y, h] = along(-view.y, height, whole.height, tall);
    frame.style.cssText =
      `transform:translate(${x}px,${y}px);width:${w - BORDERS}px;height:${h - BORDERS}px`;
  }

  // A press in the frame takes hold of it; one beside it brings it there.
  let grip = null;
  const drag = (event) => {
    const bounds = picture.getBoundingClientRect();
    centerOn((event.clientX - grip.x - bounds.x) / bounds.width * size.width,
      (event.clientY - grip.y - bounds.y) / bounds.height * size.height);
  };
  holder.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    event.preventDefault();
    const bounds = frame.getBoundingClientRect();
    const x = event.clientX - bounds.x - bounds.width / 2;
    const y = event.clientY - bounds.y - bounds.height / 2;
    const isHeld = event.target === frame;
    grip = isHeld ? { x, y } : { x: 0, y: 0 };
    holder.setPointerCapture(event.pointerId);
    if (!isHeld) drag(event);
  });
  holder.addEventListener("pointermove", (event) => { if (grip) drag(event); });
  for (const end of ["pointerup", "pointercancel"])
    holder.addEventListener(end, () => { grip = null; });
  return { draw, show };
}
