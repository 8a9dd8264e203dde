// The search: how many nodes match, a list of them that grows as it is scrolled, and a way from each
// to the next. `words` are what the nodes are found by, `describe` names a node and where it is.
function makeSearch(words, describe, goTo, leave) {
  const $ = (id) => document.getElementById(id);
  const field = $("search"), list = $("hits"), steps = $("steps"), place = $("place");
  const AT_ONCE = 50;
  let matches = [], current = -1, first = 0, last = 0;

  function line(position) {
    const element = document.createElement("li"), node = matches[position] + 1;
    const [name, where] = describe(node), small = document.createElement("small");
    element.id = "hit" + position;
    element.dataset.node = node;
    element.setAttribute("role", "option");
    element.setAttribute("aria-setsize", matches.length);
    element.setAttribute("aria-posinset", position + 1);
    small.textContent = where;
    element.append(name + " ", small);
    element.addEventListener("click", () => choose(position));
    return element;
  }
  const lines = (from, to) => Array.from({ length: to - from }, (_, by) => line(from + by));
  function listFrom(position) {
    first = position;
    last = Math.min(matches.length, first + AT_ONCE);
    list.replaceChildren(...lines(first, last));
    list.scrollTop = 0;
  }
  list.addEventListener("scroll", () => {
    const { scrollTop, scrollHeight, clientHeight } = list;
    if (last < matches.length && scrollTop + clientHeight > scrollHeight - 100) {
      const to = Math.min(matches.length, last + AT_ONCE);
      list.append(...lines(last, to));
      last = to;
    } else if (first && scrollTop < 100) {
      const from = Math.max(0, first - AT_ONCE);
      list.prepend(...lines(from, first));
      first = from;
      list.scrollTop = scrollTop + list.scrollHeight - scrollHeight;
    }
  });

  function open(isOpen) {
    list.hidden = !isOpen || !matches.length;
    field.setAttribute("aria-expanded", String(!list.hidden));
  }
  function tell() {
    const count = matches.length, all = `${count} ${count === 1 ? "hit" : "hits"}`;
    steps.hidden = !field.value.trim();
    place.textContent = !count ? "nothing found" : current < 0 ? all : `${current + 1} of ${all}`;
    for (const button of [$("previous"), $("next")]) button.disabled = !count;
  }
  function mark() {
    if (current >= 0 && (current < first || current >= last))
      listFrom(Math.max(0, Math.min(current - AT_ONCE / 2, matches.length - AT_ONCE)));
    for (const element of list.querySelectorAll(".on")) {
      element.classList.remove("on");
      element.removeAttribute("aria-selected");
    }
    const element = current < 0 ? null : $("hit" + current);
    if (!element) return field.removeAttribute("aria-activedescendant");
    element.classList.add("on");
    element.setAttribute("aria-selected", "true");
    element.scrollIntoView({ block: "nearest" });
    field.setAttribute("aria-activedescendant", element.id);
  }
  function find() {
    const wanted = field.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    matches = [];
    current = -1;
    if (wanted.length)
      words.forEach((text, index) => {
        if (wanted.every((word) => text.includes(word))) matches.push(index);
      });
    listFrom(0);
    mark();
    tell();
    open(true);
  }
  function turn(by) {
    if (!matches.length) return;
    current = current < 0 && by < 0 ? matches.length - 1
      : (current + by + matches.length) % matches.length;
    tell();
  }
  function choose(position) {
    current = position;
    tell();
    open(false);
    goTo(matches[current] + 1);
    leave();
  }
  function step(by) {
    turn(by);
    if (matches.length) goTo(matches[current] + 1);
  }

  field.addEventListener("input", find);
  field.addEventListener("blur", () => open(false));
  field.addEventListener("focus", () => { open(true); mark(); });
  // The list keeps the focus where it is, also while its scroll bar is dragged.
  list.addEventListener("mousedown", (event) => event.preventDefault());
  field.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      open(true);
      turn(event.key === "ArrowDown" ? 1 : -1);
      mark();
      event.preventDefault();
    } else if (event.key === "Enter" && matches.length) choose(Math.max(current, 0));
    else if (event.key === "Escape") { field.value = ""; find(); leave(); }
    event.stopPropagation();
  });
  $("previous").addEventListener("click", () => step(-1));
  $("next").addEventListener("click", () => step(1));
  return { step };
}
