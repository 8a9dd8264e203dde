"use strict";
// docs/development/graph-layout.md specifies the layout, which layout/sugiyama.py and layout/view.py
// do in Python: a picture that a reader opens and closes looks as if it had been saved that way.

const GAP_X = 18, GAP_BEND = 10, GAP_Y = 30, GAP_PORT = 10;
const BENDS_AT_MOST = 120000, ORDER_SWEEPS = 8, PLACE_SWEEPS = 10;
const COUNT_CROSSINGS_UP_TO = 6000, BEND_WEIGHT = 4;
const HEADER = 24, PADDING = 12, PORT = 6;

// sizes: [[width, height]]; arcs: [[source, target, net, sourceShift, targetShift]].
function layered(sizes, arcs, top, bottom) {
  const count = sizes.length;
  const widths = sizes.map((size) => size[0]), heights = sizes.map((size) => size[1]);
  const isTop = new Set(top), isBottom = new Set(bottom);

  // Ranks.
  const after = sizes.map(() => []), waiting = new Array(count).fill(0);
  for (const [source, target] of arcs) { after[source].push(target); waiting[target]++; }
  const order = [], done = new Array(count).fill(false), queue = [];
  for (let box = 0; box < count; box++) if (!waiting[box]) { queue.push(box); done[box] = true; }
  let read = 0, forced = 0;
  while (order.length < count) {
    if (read === queue.length) {
      while (done[forced]) forced++;
      done[forced] = true;
      queue.push(forced);
    }
    const box = queue[read++];
    order.push(box);
    for (const target of after[box]) {
      waiting[target]--;
      if (!waiting[target] && !done[target]) { done[target] = true; queue.push(target); }
    }
  }
  const turn = new Array(count);
  order.forEach((box, position) => { turn[box] = position; });
  const links = arcs.map(([source, target, net, out, into]) =>
    turn[source] < turn[target] ? [source, target, net, out, into]
      : [target, source, -1 - net, into, out]);
  const under = sizes.map(() => []), hasAbove = new Array(count).fill(false);
  for (const [upper, lower] of links) { under[upper].push(lower); hasAbove[lower] = true; }
  const first = isTop.size ? 1 : 0;
  const ranks = sizes.map((_, box) => (isTop.has(box) ? 0 : first));
  for (const box of order)
    for (const lower of under[box]) ranks[lower] = Math.max(ranks[lower], ranks[box] + 1);
  for (let position = count - 1; position >= 0; position--) {
    const box = order[position];
    if (!hasAbove[box] && !isTop.has(box) && under[box].length) {
      let least = Infinity;
      for (const lower of under[box]) least = Math.min(least, ranks[lower]);
      ranks[box] = least - 1;
    }
  }
  if (isBottom.size) {
    let last = first;
    for (let box = 0; box < count; box++) if (!isBottom.has(box)) last = Math.max(last, ranks[box]);
    for (const box of isBottom) ranks[box] = Math.max(last + 1, 1);
  }

  // Bends.
  const uppermost = new Map();
  for (const [upper, lower, net] of links) {
    const key = net + "," + lower, known = uppermost.get(key);
    if (known === undefined) uppermost.set(key, [lower, ranks[upper]]);
    else known[1] = Math.min(known[1], ranks[upper]);
  }
  let total = 0;
  for (const [lower, rank] of uppermost.values()) total += ranks[lower] - rank - 1;
  const isBend = new Array(count).fill(false), rankOf = ranks.slice();
  const above = sizes.map(() => []), below = sizes.map(() => []);
  const steps = [], straight = [], chains = new Map(), known = new Set();
  let bendsLeft = BENDS_AT_MOST;
  const step = (upper, lower, net, upperShift, lowerShift) => {
    const key = upper + "," + lower + "," + net;
    if (known.has(key)) return;
    known.add(key);
    steps.push([upper, lower, net, upperShift, lowerShift]);
    const onLower = lowerShift / (widths[lower] + 1), onUpper = upperShift / (widths[upper] + 1);
    below[upper].push([lower, lowerShift - upperShift, onLower, upperShift]);
    above[lower].push([upper, upperShift - lowerShift, onUpper, lowerShift]);
  };
  for (const [upper, lower, net, upperShift, lowerShift] of links) {
    const start = ranks[upper], end = ranks[lower], key = net + "," + lower;
    if (!chains.has(key)) chains.set(key, new Map());
    const chain = chains.get(key);
    if (end - start > 1 && total > BENDS_AT_MOST && end - start > bendsLeft) {
      straight.push([upper, lower, net, upperShift, lowerShift]);
      continue;
    }
    let previous = upper, shift = upperShift;
    for (let rank = start + 1; rank < end; rank++) {
      let bend = chain.get(rank);
      if (bend === undefined) {
        bend = isBend.length;
        chain.set(rank, bend);
        bendsLeft--;
        isBend.push(true); rankOf.push(rank); widths.push(0); heights.push(0);
        above.push([]); below.push([]);
      }
      step(previous, bend, net, shift, 0);
      previous = bend; shift = 0;
    }
    step(previous, lower, net, shift, lowerShift);
  }

  // Order.
  const all = isBend.length;
  let last = 0;
  for (let box = 0; box < all; box++) last = Math.max(last, rankOf[box]);
  const firstRows = Array.from({ length: last + 1 }, () => []);
  const seen = new Array(all).fill(false);
  for (let start = 0; start < count; start++) {
    const stack = [start];
    while (stack.length) {
      const box = stack.pop();
      if (seen[box]) continue;
      seen[box] = true;
      firstRows[rankOf[box]].push(box);
      for (let near = below[box].length - 1; near >= 0; near--)
        if (!seen[below[box][near][0]]) stack.push(below[box][near][0]);
    }
  }
  let rows = firstRows;
  const place = new Array(all).fill(0);
  for (const row of rows) row.forEach((box, position) => { place[box] = position; });
  const crossings = () => {
    let found = 0;
    for (let number = 0; number + 1 < rows.length; number++) {
      const ends = [];
      for (const box of rows[number])
        ends.push(...below[box].map((near) => [near[3], place[near[0]]])
          .sort((a, b) => a[0] - b[0] || a[1] - b[1]).map((near) => near[1]));
      const size = rows[number + 1].length, tree = new Array(size + 1).fill(0);
      ends.forEach((end, counted) => {
        let smaller = 0;
        for (let index = end + 1; index; index -= index & -index) smaller += tree[index];
        found += counted - smaller;
        for (let index = end + 1; index <= size; index += index & -index) tree[index]++;
      });
    }
    return found;
  };
  const countCrossings = steps.length <= COUNT_CROSSINGS_UP_TO;
  let best = rows.map((row) => row.slice()), fewest = countCrossings ? crossings() : 0;
  const sweepRows = (sweep, visit) => {
    const down = sweep % 2 === 0;
    if (down) for (let number = 1; number <= last; number++) visit(number, above);
    else for (let number = last - 1; number >= 0; number--) visit(number, below);
  };
  for (let sweep = 0; sweep < ORDER_SWEEPS; sweep++) {
    if (countCrossings && !fewest) break;
    sweepRows(sweep, (number, neighbours) => {
      const row = rows[number], means = new Map();
      for (const box of row) {
        const near = neighbours[box];
        let mean = 0;
        for (const [other, , attached] of near) mean += place[other] + attached;
        means.set(box, near.length ? mean / near.length : place[box]);
      }
      row.sort((a, b) => means.get(a) - means.get(b));
      row.forEach((box, position) => { place[box] = position; });
    });
    if (countCrossings) {
      const now = crossings();
      if (now < fewest) { fewest = now; best = rows.map((row) => row.slice()); }
    }
  }
  if (countCrossings) rows = best;

  // Places.
  const x = new Array(all).fill(0), offsets = [];
  for (const row of rows) {
    let offset = 0;
    const ofRow = [];
    row.forEach((box, position) => {
      if (position) {
        const left = row[position - 1];
        offset += (widths[left] + widths[box]) / 2;
        offset += isBend[left] || isBend[box] ? GAP_BEND : GAP_X;
      }
      ofRow.push(offset);
      x[box] = offset;
    });
    offsets.push(ofRow);
  }
  const settle = (number, neighbours) => {
    const row = rows[number], offset = offsets[number];
    const sums = [], weights = [], counts = [];
    row.forEach((box, position) => {
      const near = neighbours[box];
      let weight = 1, wanted = 0;
      if (near.length) {
        for (const [other, shift] of near) wanted += x[other] + shift;
        wanted /= near.length;
        if (isBend[box]) weight = BEND_WEIGHT;
      } else { wanted = x[box]; weight = 0.25; }
      sums.push((wanted - offset[position]) * weight);
      weights.push(weight);
      counts.push(1);
      for (let end = sums.length; end > 1; end = sums.length) {
        if (!(sums[end - 2] / weights[end - 2] > sums[end - 1] / weights[end - 1])) break;
        sums[end - 2] += sums.pop();
        weights[end - 2] += weights.pop();
        counts[end - 2] += counts.pop();
      }
    });
    let position = 0;
    counts.forEach((size, block) => {
      const moved = sums[block] / weights[block];
      for (let member = 0; member < size; member++, position++)
        x[row[position]] = moved + offset[position];
    });
  };
  for (let sweep = 0; sweep < PLACE_SWEEPS; sweep++) sweepRows(sweep, settle);
  for (let number = last; number >= 0; number--) settle(number, below);

  // Coordinates.
  let left = 0, right = 0;
  for (let box = 0; box < all; box++) {
    const low = x[box] - widths[box] / 2, high = x[box] + widths[box] / 2;
    left = box ? Math.min(left, low) : low;
    right = box ? Math.max(right, high) : high;
  }
  const tops = [], tall = [];
  let y = 0;
  rows.forEach((row, number) => {
    let height = 0;
    for (const box of row) height = Math.max(height, heights[box]);
    if (number) y += !height || !tall[tall.length - 1] ? GAP_PORT : GAP_Y;
    tops.push(y);
    tall.push(height);
    y += height;
  });
  const xs = x.map((value) => value - left);
  // In the middle of its row; beside far taller boxes, what ends there on top.
  const goesOn = new Set(steps.concat(straight).map(([upper]) => upper));
  const ys = sizes.map((_, box) => {
    const top = tops[rankOf[box]], height = heights[box], spare = tall[rankOf[box]] - height;
    return !goesOn.has(box) && spare > height && height > 0 ? top : top + spare / 2;
  });
  const seat = [];
  for (const row of rows) row.forEach((box, position) => { seat[box] = position; });
  // Whether a box of the same row lies between a box and where a line leads: one that reaches
  // further up, for a line from above, or further down.
  const isBlocked = (box, start, end, fromAbove) => {
    const row = rows[rankOf[box]], step = end > start ? 1 : -1;
    for (let at = seat[box] + step; at >= 0 && at < row.length; at += step) {
      const other = row[at];
      if ((xs[other] - end) * step >= widths[other] / 2) return false;
      if (isBend[other]) continue;
      const up = ys[box] - ys[other], down = heights[other] - heights[box] - up;
      if ((fromAbove ? up : down) > 0) return true;
    }
    return false;
  };
  const segments = new Map();
  for (const [upper, lower, signed, upperShift, lowerShift] of steps.concat(straight)) {
    const net = signed >= 0 ? signed : -1 - signed;
    if (!segments.has(net)) segments.set(net, []);
    const pieces = segments.get(net);
    const x1 = xs[upper] + upperShift, x2 = xs[lower] + lowerShift;
    const bottomOfUpper = tops[rankOf[upper]] + tall[rankOf[upper]];
    let y1 = isBend[upper] ? bottomOfUpper : ys[upper] + heights[upper];
    if (!isBend[upper] && heights[upper] < tall[rankOf[upper]] && isBlocked(upper, x1, x2, false)) {
      pieces.push([x1, y1, x1, bottomOfUpper]);
      y1 = bottomOfUpper;
    }
    const topOfRow = tops[rankOf[lower]];
    if (isBend[lower]) {
      const bottomOfRow = topOfRow + tall[rankOf[lower]];
      pieces.push([x1, y1, x2, topOfRow]);
      if (bottomOfRow > topOfRow) pieces.push([x2, topOfRow, x2, bottomOfRow]);
    } else if (ys[lower] > topOfRow && isBlocked(lower, x2, x1, true))
      pieces.push([x1, y1, x2, topOfRow], [x2, topOfRow, x2, ys[lower]]);
    else pieces.push([x1, y1, x2, ys[lower]]);
  }
  for (const [net, pieces] of segments)
    segments.set(net, [...new Map(pieces.map((piece) => [piece.join(), piece])).values()]);
  return { x: xs.slice(0, count), y: ys, segments, width: right - left, height: y };
}

// Items are written "n5" (node) and "g3" (group); "top" and "bottom" are ports.
function draw(graph, states) {
  const groups = graph.groups, nodes = graph.nodes;
  const isOpen = (number) => states[number] !== "closed";
  const isGroup = (item) => item[0] === "g";
  const numberOf = (item) => Number(item.slice(1));

  const likes = nodes.map((_, index) => index + 1);
  likes.unshift(0);
  const turning = [];
  groups.forEach((group, id) => {
    if (group.kind !== "repeat" || states[id] !== "once") return;
    for (let node = 1; node < likes.length; node++) {
      const like = group.standsFor.get(likes[node]);
      if (like !== undefined) likes[node] = like;
    }
    turning.push(group.memberOf);
  });

  const closedAt = [], paths = [], levels = new Map();
  groups.forEach((group, id) => {
    let closed = group.parent === null ? null : closedAt[group.parent];
    if (closed === null && !isOpen(id)) closed = id;
    closedAt.push(closed);
    paths.push(group.parent === null ? [id] : paths[group.parent].concat(id));
    if (closed === null)
      levels.set(id, { items: [], ways: new Map(), tops: new Set(), bottoms: new Set() });
  });
  const itemOf = new Array(likes.length), pathOf = new Map();
  nodes.forEach((_, index) => {
    const like = likes[index + 1], inner = nodes[like - 1].group, closed = closedAt[inner];
    const item = closed === null ? "n" + like : "g" + closed;
    itemOf[index + 1] = item;
    if (pathOf.has(item)) return;
    const parent = closed === null ? inner : groups[closed].parent;
    pathOf.set(item, parent === null ? [0] : paths[parent]);
    levels.get(pathOf.get(item).at(-1)).items.push(item);
  });
  const inUse = [0];
  for (const number of inUse)
    for (const child of groups[number].children) {
      const hidden = groups[number].kind === "repeat" && states[number] === "once" &&
        child !== groups[number].children[0];
      if (isOpen(child) && levels.has(child) && !hidden) {
        levels.get(number).items.push("g" + child);
        inUse.push(child);
      }
    }
  const firstNode = (item) => {
    if (!isGroup(item)) return numberOf(item);
    let group = groups[numberOf(item)];
    while (!group.nodes.length) group = groups[group.children[0]];
    return group.nodes[0];
  };
  for (const number of inUse) levels.get(number).items.sort((a, b) => firstNode(a) - firstNode(b));

  const way = (level, source, target, net) => {
    const key = source + ">" + target + ">" + net;
    if (!level.ways.has(key)) level.ways.set(key, [source, target, net]);
  };
  // What an edge carries: NaN or infinity ("bad"), zeros alone ("zero"), or anything else ("").
  const stateOf = ([, , , , norm, zeros, elements, nonFinite]) => norm === undefined ? ""
    : nonFinite ? "bad" : (elements ? zeros === elements : norm === null) ? "zero" : "";
  const pairs = new Map();
  for (const edge of graph.edges) {
    const [from, to] = edge, source = itemOf[from], target = itemOf[to];
    if (source === target) continue;
    if (turning.some((members) => members.has(from) && members.has(to) &&
        members.get(from) !== members.get(to))) continue;
    const key = source + ">" + target, known = pairs.get(key), state = stateOf(edge);
    if (!known) pairs.set(key, [source, target, state]);
    else if (known[2] !== state)
      known[2] = known[2] === "bad" || state === "bad" ? "bad" : "";
  }
  for (const [source, target, state] of pairs.values()) {
    // Edges that lead to one box and carry the same share a way.
    const net = target + ":" + state;
    const down = pathOf.get(source), up = pathOf.get(target);
    let shared = 0;
    while (shared < down.length && shared < up.length && down[shared] === up[shared]) shared++;
    way(levels.get(down[shared - 1]), shared < down.length ? "g" + down[shared] : source,
      shared < up.length ? "g" + up[shared] : target, net);
    for (let place = shared; place < down.length; place++) {
      const level = levels.get(down[place]);
      level.bottoms.add(net);
      way(level, place + 1 < down.length ? "g" + down[place + 1] : source, "bottom", net);
    }
    for (let place = shared; place < up.length; place++) {
      const level = levels.get(up[place]);
      level.tops.add(net);
      way(level, "top", place + 1 < up.length ? "g" + up[place + 1] : target, net);
    }
  }

  const openGroups = [0];
  for (const number of openGroups)
    for (const item of levels.get(number).items)
      if (isGroup(item) && isOpen(numberOf(item))) openGroups.push(numberOf(item));
  const laid = new Map();
  const labelOf = (item) => graph.labels[
    isGroup(item) ? groups[numberOf(item)].label : nodes[numberOf(item) - 1].label];
  const isFrame = (item) => isGroup(item) && isOpen(numberOf(item));
  const sizeOf = (item) => {
    if (isFrame(item)) { const { width, height } = laid.get(numberOf(item)); return [width, height]; }
    const label = labelOf(item);
    return [label.width, label.height];
  };
  for (let index = openGroups.length - 1; index >= 0; index--) {
    const number = openGroups[index], level = levels.get(number);
    const sizes = level.items.map(sizeOf);
    const places = new Map(level.items.map((item, place) => [item, place]));
    const tops = new Map(), bottoms = new Map();
    for (const net of level.tops) { tops.set(net, sizes.length); sizes.push([PORT, 0]); }
    for (const net of level.bottoms) { bottoms.set(net, sizes.length); sizes.push([PORT, 0]); }
    const nets = new Map(), arcs = [], targets = [];
    for (const [source, target, net] of level.ways.values()) {
      if (!nets.has(net)) nets.set(net, nets.size);
      const code = nets.get(net);
      targets[code] = [net, target === net.split(":")[0]];
      arcs.push([
        source === "top" ? tops.get(net) : places.get(source),
        target === "bottom" ? bottoms.get(net) : places.get(target),
        code,
        isFrame(source) ? laid.get(numberOf(source)).bottoms.get(net) : 0,
        isFrame(target) ? laid.get(numberOf(target)).tops.get(net) : 0,
      ]);
    }
    const placed = layered(sizes, arcs, [...tops.values()], [...bottoms.values()]);
    const [, titleWidth] = number ? graph.frameTitle(number, states[number]) : ["", 0];
    const inner = Math.max(placed.width, titleWidth);
    const shiftX = (inner - placed.width) / 2 + PADDING;
    const width = Math.trunc(inner + 2 * PADDING + 1);
    const fromMiddle = (ports) => new Map([...ports].map(
      ([net, place]) => [net, placed.x[place] + shiftX - width / 2]));
    laid.set(number, {
      placed, items: level.items, width, shiftX, targets,
      height: placed.height + 2 * PADDING + (number ? HEADER : 0),
      tops: fromMiddle(tops), bottoms: fromMiddle(bottoms),
    });
  }

  const boxes = [], frames = [], wires = [], pending = [[0, 0, 0, 0]];
  while (pending.length) {
    const [number, left, top, depth] = pending.pop();
    const group = laid.get(number);
    if (number)
      frames.push({ group: number, title: graph.frameTitle(number, states[number])[0], depth,
        x: left, y: top, width: group.width, height: group.height });
    const x0 = left + group.shiftX, y0 = top + PADDING + (number ? HEADER : 0);
    for (const [code, segments] of group.placed.segments) {
      const [net, ends] = group.targets[code];
      const moved = segments.map(([x1, y1, x2, y2]) => [x0 + x1, y0 + y1, x0 + x2, y0 + y2]);
      if (group.tops.has(net)) {
        const x = left + group.width / 2 + group.tops.get(net);
        moved.push([x, top, x, y0]);
      }
      if (group.bottoms.has(net)) {
        const x = left + group.width / 2 + group.bottoms.get(net);
        moved.push([x, y0 + group.placed.height, x, top + group.height]);
      }
      const [target, state] = net.split(":");
      wires.push({ target, state, segments: moved, ends });
    }
    group.items.forEach((item, place) => {
      const [width] = sizeOf(item);
      const x = x0 + group.placed.x[place] - width / 2, y = y0 + group.placed.y[place];
      if (isFrame(item)) pending.push([numberOf(item), x, y, depth + 1]);
      else boxes.push({ item, label: labelOf(item), x, y });
    });
  }
  const root = laid.get(0);
  return { boxes, frames, wires, itemOf, width: root.width, height: root.height };
}
