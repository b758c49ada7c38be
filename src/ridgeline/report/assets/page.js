// Draws the page's charts from its inlined data. No request, no state beyond the chosen experiment.
"use strict";
(function () {
  const holder = document.getElementById("payload");
  const rows = Array.from(document.querySelectorAll("table.main tr[data-name]"));
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let printing = false;

  const light = {
    ink: "#1b232b", muted: "#5b6672", line: "#c9d0d6", grid: "#edf0f2", panel: "#ffffff", bad: "#b3400a",
    forbidden: "rgba(179,64,10,0.07)", shade: "rgba(91,102,114,0.09)", base: "#7a828a",
    c0: "#0072b2", c1: "#d55e00", c2: "#009e73", c3: "#cc79a7", c4: "#b87f00", c5: "#56b4e9",
    p0: "#3a4a5a", p0t: "#ffffff", p1: "#8497a8", p1t: "#10161c", p2: "#c3ced8", p2t: "#10161c",
    p3: "#5f7183", p3t: "#ffffff", p4: "#e3e9ee", p4t: "#10161c", p5: "#9db0a8", p5t: "#10161c",
  };
  const night = {
    ink: "#e3e8ec", muted: "#9aa6b1", line: "#3c4650", grid: "#242b32", panel: "#14181c", bad: "#ff9566",
    forbidden: "rgba(255,149,102,0.10)", shade: "rgba(154,166,177,0.12)", base: "#9aa2aa",
    c0: "#4ca6e0", c1: "#f08a4b", c2: "#35c79a", c3: "#dd9cc0", c4: "#e6ac3a", c5: "#9bd6f7",
    p0: "#c9d4de", p0t: "#10161c", p1: "#75899b", p1t: "#ffffff", p2: "#46586a", p2t: "#ffffff",
    p3: "#9fb0c0", p3t: "#10161c", p4: "#2e3b47", p4t: "#ffffff", p5: "#5e7a6e", p5t: "#ffffff",
  };

  function theme() { return dark.matches && !printing ? night : light; }

  // "@name" anywhere in a figure is a colour of the theme.
  function coloured(value, colours) {
    if (typeof value === "string") {
      return value[0] === "@" && Object.hasOwn(colours, value.slice(1)) ? colours[value.slice(1)] : value;
    }
    if (Array.isArray(value)) { return value.map((one) => coloured(one, colours)); }
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v, colours)]));
    }
    return value;
  }

  const data = holder ? JSON.parse(holder.textContent) : { charts: [], chosen: "" };
  let chosen = data.chosen;
  const shown = new Map(data.charts.map((chart) => [chart.key, chart.first]));

  function viewOf(chart) {
    if (chart.byExperiment && Object.hasOwn(chart.views, chosen)) { return chart.views[chosen]; }
    return chart.views[shown.get(chart.key)];
  }

  function boxOf(x, y, dx, dy, width, height) {
    const left = dx > 0 ? x + dx : dx < 0 ? x + dx - width : x - width / 2;
    const top = dy > 0 ? y + dy : dy < 0 ? y + dy - height : y - height / 2;
    return { left: left, top: top, right: left + width, bottom: top + height };
  }
  function meets(a, b) {
    return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  }

  // Puts each name at the nearest free place around its point; a far one gets a thin leader.
  function placeLabels(element, view, drop, colours) {
    const full = element._fullLayout;
    if (!view.labels.length) { return null; }
    const width = full.xaxis._length, height = full.yaxis._length;
    const points = view.labels.map((l) => ({ x: full.xaxis.l2p(l.x), y: full.yaxis.l2p(l.y) }));
    const frame = element.getBoundingClientRect();
    const taken = points.map((p) => ({ left: p.x - 5, right: p.x + 5, top: p.y - 5, bottom: p.y + 5 }));
    element.querySelectorAll(".annotation-text").forEach((node) => {
      const b = node.getBoundingClientRect();
      const x = frame.left + full._size.l, y = frame.top + full._size.t;
      taken.push({ left: b.left - x, right: b.right - x, top: b.top - y, bottom: b.bottom - y });
    });
    // The crosses of the intervals are obstacles too.
    view.data.forEach((trace) => {
      if (!trace.error_x && !trace.error_y) { return; }
      const x = full.xaxis, y = full.yaxis, px = x.d2p(trace.x[0]), py = y.d2p(trace.y[0]);
      if (trace.error_x) {
        taken.push({ left: x.d2p(trace.x[0] - trace.error_x.arrayminus[0]),
          right: x.d2p(trace.x[0] + trace.error_x.array[0]), top: py - 1, bottom: py + 1 });
      }
      if (trace.error_y) {
        taken.push({ left: px - 1, right: px + 1, top: y.d2p(trace.y[0] + trace.error_y.array[0]),
          bottom: y.d2p(trace.y[0] - trace.error_y.arrayminus[0]) });
      }
    });
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = "11px " + full.font.family;
    const placed = [];
    view.labels.forEach((label, i) => {
      const plain = new DOMParser().parseFromString(label.text, "text/html").documentElement.textContent;
      const w = pen.measureText(plain).width + 3, h = 13;
      let best = null;
      for (const r of [7, 13, 20, 28, 38, 50, 64]) {
        for (const [ux, uy] of [[1, 0], [1, -1], [1, 1], [-1, 0], [0, -1], [0, 1], [-1, -1], [-1, 1]]) {
          const dx = ux * r, dy = uy * r;
          const box = boxOf(points[i].x, points[i].y, dx, dy, w, h);
          const inside = box.left >= 1 && box.right <= width - 1 && box.top >= 1 && box.bottom <= height - 1;
          const free = inside && taken.every((other, k) => (k === i && r > 6) || !meets(box, other));
          if (free) { best = { dx: dx, dy: dy, far: r > 13, box: box }; break; }
        }
        if (best) { break; }
      }
      if (!best) {
        if (drop) { return; }
        best = { dx: 7, dy: 0, far: false, box: boxOf(points[i].x, points[i].y, 7, 0, w, h) };
      }
      taken.push(best.box);
      placed.push({
        x: label.x, y: label.y, text: label.text, showarrow: true, arrowhead: 0,
        arrowwidth: 0.7, arrowcolor: best.far ? colours.muted : "rgba(0,0,0,0)",
        ax: best.dx, ay: best.dy, standoff: 4, captureevents: false,
        xanchor: best.dx > 0 ? "left" : best.dx < 0 ? "right" : "center",
        yanchor: best.dy > 0 ? "top" : best.dy < 0 ? "bottom" : "middle",
        font: { size: 11, color: coloured(label.colour, colours) }, borderpad: 0,
      });
    });
    return placed;
  }

  // Breaks the texts that ask for it at the width of the plot.
  function wrapped(element, annotations) {
    const width = element._fullLayout.xaxis._length;
    const pen = document.createElement("canvas").getContext("2d");
    const y = element._fullLayout.yaxis, row = y._length / Math.abs(y.range[1] - y.range[0]);
    return annotations.map((one) => {
      if (one.name !== "wrap") { return one; }
      const most = Math.max(1, Math.floor(0.61 * row / (1.3 * one.font.size)));  // up to the next bar
      pen.font = one.font.size + "px " + element._fullLayout.font.family;
      let line = "", lines = [];
      one.text.split(" ").forEach((word) => {
        if (line && pen.measureText(line + " " + word).width > width - 6) { lines.push(line); line = word; }
        else { line = line ? line + " " + word : word; }
      });
      lines.push(line);
      if (lines.length > most) { lines = lines.slice(0, most); lines[most - 1] += " …"; }  // whole in the table
      return Object.assign({}, one, { text: lines.join("<br>") });
    });
  }

  function emphasised(traces) {
    return traces.map((trace) => {
      if (trace.meta && trace.meta === chosen && trace.marker && trace.mode === "markers") {
        return Object.assign({}, trace, { marker: Object.assign({}, trace.marker, { size: 13 }) });
      }
      return trace;
    });
  }

  async function draw(chart) {
    const element = document.getElementById("chart-" + chart.key);
    if (!element) { return; }
    const view = viewOf(chart), colours = theme();
    const look = coloured(view, colours);
    document.getElementById("title-" + chart.key).textContent = view.title;
    const layout = Object.assign({
      width: element.clientWidth, height: heightOf(chart, element), showlegend: false, dragmode: false,
      paper_bgcolor: colours.panel, plot_bgcolor: colours.panel, hovermode: "closest", separators: ".\u2009",
      font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: colours.muted },
      hoverlabel: { bgcolor: colours.panel, bordercolor: colours.line, align: "left",
        font: { color: colours.ink, size: 11.5 } },
    }, look.layout);
    if (chart.key === "seconds" && element.clientWidth < 520) {
      // The totals stand right of their bars and need a larger share of a narrow picture.
      layout.xaxis.range = [0, layout.xaxis.range[1] * 1.25];
    }
    layout.margin = Object.assign({ l: 52, r: 10, t: 8, b: 40 }, look.layout.margin || {});
    const annotations = look.layout.annotations || [];
    layout.annotations = annotations;
    await window.Plotly.react(element, emphasised(look.data), layout, { displayModeBar: false, responsive: false });
    const labels = placeLabels(element, view, chart.dropLabels, colours) || [];
    if (labels.length || annotations.some((one) => one.name === "wrap")) {
      await window.Plotly.relayout(element, { annotations: wrapped(element, annotations).concat(labels) });
    }
    element.dataset.drawn = "true";
  }

  function heightOf(chart, element) {
    if (chart.key !== "tradeoff" || printing) {
      // Words under bars need more lines where the page is narrow.
      const height = chart.key === "seconds" && element.clientWidth < 520 ? Math.round(chart.height * 1.7) : chart.height;
      element.style.height = height + "px";
      return height;
    }
    // Beside the table the picture is as tall as the table; below it, its own height.
    const table = document.querySelector("#experiments .scroll");
    const beside = element.getBoundingClientRect().left > table.getBoundingClientRect().right - 4;
    const room = table.getBoundingClientRect().bottom - element.getBoundingClientRect().top - 20;
    const height = beside ? Math.max(chart.height, Math.min(room, 560)) : chart.height;
    element.style.height = height + "px";
    return height;
  }

  function drawAll() { return data.charts.reduce((before, chart) => before.then(() => draw(chart)), Promise.resolve()); }

  function mark() {
    rows.forEach((row) => {
      const on = row.dataset.name === chosen;
      row.classList.toggle("chosen", on);
      row.querySelector("button.pick").setAttribute("aria-pressed", String(on));
    });
  }

  rows.forEach((row) => row.addEventListener("click", () => {
    chosen = row.dataset.name;
    mark();
    drawAll();
  }));
  document.querySelectorAll(".views button").forEach((button) => button.addEventListener("click", () => {
    shown.set(button.dataset.chart, button.dataset.view);
    button.parentElement.querySelectorAll("button").forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
    draw(data.charts.find((chart) => chart.key === button.dataset.chart));
  }));
  document.querySelectorAll("button.copy").forEach((button) => button.addEventListener("click", async () => {
    const text = document.getElementById(button.dataset.copy);
    try { await navigator.clipboard.writeText(text.textContent); button.textContent = "copied"; } catch {
      const range = document.createRange();
      range.selectNodeContents(text);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = "selected: press Ctrl+C";
    }
  }));

  let waiting = 0, width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width || printing) { return; }
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 120);
  });
  dark.addEventListener("change", drawAll);
  window.addEventListener("beforeprint", () => { printing = true; drawAll(); });
  window.addEventListener("afterprint", () => { printing = false; drawAll(); });
  mark();
  drawAll().then(() => { document.documentElement.dataset.ready = "true"; });
})();
