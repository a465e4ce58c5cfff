"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const runs = new Map();  // by directory
  const hidden = new Set(), shown = new Set();  // choices of the reader
  let columns = [], styles = [], phaseColours = {}, spareColours = [], focusId = null, isChosen = false, axisName = "round", ended = false;

  const AXES = {
    round: { label: "Rounds", title: "rounds", value: (row) => row.round },
    up: { label: "Bytes up", title: "bytes uploaded per client", value: (row) => row.up_bytes_mean, bytes: true },
    down: { label: "Bytes down", title: "bytes downloaded per client", value: (row) => row.down_bytes_mean, bytes: true },
    server: { label: "Server bytes", title: "bytes at the server, up and down", value: (row) => row.up_bytes + row.down_bytes, bytes: true },
    seconds: { label: "Seconds", title: "seconds", value: (row) => row.seconds },
  };
  const PLOTTED = 8;  // runs that are plotted at first

  const bytes = (value) => (value === null || value === undefined ? "–" : value < 1000 ? `${Math.round(value)} B` : `${Charts.si(value, 3).replace(/(\D)$/, " $1")}B`);
  const ratio = (dense, sent) => (dense && sent ? `${(dense / sent).toLocaleString("en", { maximumSignificantDigits: 3 })}×` : "–");
  const quality = (metric, value) => (value === null || value === undefined ? "–" : metric.name === "accuracy" ? `${(100 * value).toFixed(2)} %` : String(+value.toPrecision(4)));
  function duration(seconds) {
    if (seconds === null || seconds === undefined) return "–";
    if (seconds < 10) return `${seconds.toFixed(1)} s`;
    const s = Math.round(seconds);
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
    return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  }
  function element(name, text, attributes = {}) {
    const made = document.createElement(name);
    if (text !== undefined && text !== null) made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  }
  const capitalised = (text) => text.charAt(0).toUpperCase() + text.slice(1);
  const ranks = new Map();  // a run keeps its colour
  function rankOf(id) {
    if (!ranks.has(id)) ranks.set(id, ranks.size);
    return ranks.get(id);
  }
  const last = (run) => run.rows[run.rows.length - 1] || {};
  // The status is newer than the last evaluation while a run trains.
  const now = (run) => (run.status && run.status.round >= (last(run).round || 0) ? run.status : last(run));
  const order = () => [...runs.values()].sort((a, b) => (b.state === "running") - (a.state === "running") || (b.updated || 0) - (a.updated || 0));
  function plotted() {
    const first = new Set(order().slice(0, PLOTTED).map((run) => run.id));
    return [...runs.values()].filter((run) => run.rows.length && !hidden.has(run.id) && (first.has(run.id) || shown.has(run.id)));
  }
  function focused() {
    if (isChosen && runs.has(focusId)) return runs.get(focusId);
    return order()[0];
  }

  function traces(list, key, axis, hover) {
    return list.map((run) => {
      const points = run.rows.filter((row) => Number.isFinite(axis.value(row)) && (!axis.bytes || axis.value(row) > 0) && row[key] !== null);
      const look = styles[run.rank % styles.length];
      return {
        type: "scatter", mode: "lines+markers", name: run.label, legendgroup: run.id,
        x: points.map(axis.value), y: points.map((row) => row[key]), customdata: points.map((row) => row.round),
        line: { color: look.colour, dash: look.dash, width: 2.25 },
        marker: { symbol: look.symbol, size: 7, maxdisplayed: 9, color: look.colour },
        hovertemplate: `${hover}<br>round %{customdata:,}`,
      };
    });
  }
  function drawPlots(run) {
    const axis = AXES[axisName], list = plotted();
    const xaxis = { title: { text: axis.title }, ...(axis.bytes ? { type: "log", ticksuffix: "B" } : { rangemode: "tozero" }) };
    const options = { hidden, onLegend: toggle, redraw: () => drawPlots(run) };
    const same = list.filter((each) => each.metric.name === run.metric.name);
    const isShare = run.metric.name === "accuracy";
    byId("metric-title").textContent = capitalised(run.metric.name);
    Charts.draw(byId("metric"), traces(same, "metric", axis, isShare ? "%{y:.2%}" : "%{y:.4~g}"), { xaxis, yaxis: isShare ? { tickformat: ".0%" } : {} }, options);
    Charts.draw(byId("loss"), traces(list, "loss", axis, "%{y:.4~g}"), { xaxis, yaxis: {} }, options);
  }
  function toggle(id) {
    const visible = plotted().some((run) => run.id === id);
    if (visible) { hidden.add(id); shown.delete(id); } else { hidden.delete(id); shown.add(id); }
    schedule();
  }

  function tile(name, value, note) {
    const made = element("dl", null, { class: "tile" });
    made.append(element("dt", name), element("dd", value), element("dd", note, { class: "small" }));
    return made;
  }
  function drawFocus(run) {
    const state = now(run), row = last(run), sample = run.samples[run.samples.length - 1];
    byId("focus-name").textContent = run.label;
    const badge = byId("focus-state");
    badge.dataset.state = run.state;
    badge.textContent = run.state === "running" && run.status ? run.status.activity : run.state;
    const size = run.parameters ? `, ${run.parameters.toLocaleString("en")} parameters` : "";
    byId("focus-about").textContent = `${run.task}${size}, engine ${run.engine}`;
    const done = state.iteration || 0, share = run.iterations ? Math.min(done / run.iterations, 1) : run.state === "finished" ? 1 : 0;
    byId("progress").firstElementChild.style.width = `${(100 * share).toFixed(1)}%`;
    byId("progress").setAttribute("aria-valuenow", Math.round(100 * share));
    const total = run.rounds ? ` of ${run.rounds.toLocaleString("en")}` : "";
    byId("progress-text").textContent = `Round ${(state.round || 0).toLocaleString("en")}${total}`;
    byId("eta").textContent = run.state !== "running" ? run.state : run.eta === null ? "" : `about ${duration(run.eta)} left`;
    const values = run.rows.map((each) => each.metric).filter((v) => v !== null);
    const best = values.length ? (run.metric.best === "lower" ? Math.min(...values) : Math.max(...values)) : null;
    const isLive = run.state === "running" && sample;
    const dense = run.rows.length ? row.dense_bytes : null;
    byId("cards").replaceChildren(
      tile(capitalised(run.metric.name), quality(run.metric, row.metric), `best ${quality(run.metric, best)}, loss ${row.loss === null || row.loss === undefined ? "–" : +row.loss.toPrecision(4)}`),
      tile("Per client, up", bytes(state.up_bytes_mean), "per participating client, summed over rounds"),
      tile("Per client, down", bytes(state.down_bytes_mean), "per participating client, summed over rounds"),
      tile("At the server", bytes((state.up_bytes || 0) + (state.down_bytes || 0)), `${bytes(state.up_bytes)} received, ${bytes(state.down_bytes)} sent`),
      tile("Smaller than dense", ratio(dense, row.up_bytes_mean), `up; ${ratio(dense, row.down_bytes_mean)} down`),
    );
    drawTraffic(run, isLive ? sample : null);
    drawClients(run);
    drawPhases(run);
  }
  function drawTraffic(run, sample) {
    const figure = byId("traffic-figure");
    figure.hidden = run.samples.length < 2;
    if (figure.hidden) return;
    const begin = run.samples[0][0];
    const rate = (name, index, look) => ({
      type: "scatter", mode: "lines", name, x: run.samples.map((s) => s[0] - begin), y: run.samples.map((s) => s[index]),
      line: { color: look.colour, dash: look.dash, width: 2 }, hovertemplate: "%{y:.3s}B/s",
    });
    byId("traffic-note").textContent = sample ? `${bytes(sample[1])}/s up, ${bytes(sample[2])}/s down` : "The run no longer trains.";
    Charts.draw(byId("traffic"), [rate("up", 1, styles[0]), rate("down", 2, styles[1])],
      { xaxis: { title: { text: "seconds" }, rangemode: "tozero" }, yaxis: { rangemode: "tozero", ticksuffix: "B/s" }, hovermode: "x unified", height: 220 }, { redraw: schedule });
  }
  function facts(pairs) {
    const list = element("dl", null, { class: "facts" });
    for (const [name, value] of pairs) if (value !== null && value !== undefined && value !== "") list.append(element("dt", name), element("dd", value));
    return list;
  }
  function drawClients(run) {
    const found = run.status && run.status.clients;
    byId("clients-figure").hidden = !found;
    if (!found) return;
    const names = (list, count) => (list.length ? list.join(", ") + (count > list.length ? ` and ${count - list.length} more` : "") : "");
    const refused = Object.entries(found.refused).map(([reason, count]) => `${count.toLocaleString("en")} ${reason}`).join(", ");
    const parts = [facts([
      ["Clients", found.total], ["Present", found.present], ["In the cohort", found.cohort],
      ["Waiting for", run.state === "running" ? names(found.waiting_for, found.awaited) : ""],
      ["Unresponsive", names(found.unresponsive, found.unresponsive.length)],
      ["Refused", refused || (run.engine === "local" ? null : "none")],
      ["Capped uploads", found.capped],
    ])];
    if (found.behind.length) {
      const lags = element("div", null, { class: "lags" }), most = found.behind[0].rounds;
      for (const lag of found.behind.slice(0, 6)) {
        const bar = element("i");
        bar.style.width = `${(100 * lag.rounds / most).toFixed(1)}%`;
        lags.append(element("span", `client ${lag.client}`), bar, element("span", `${lag.rounds.toLocaleString("en")} rounds`));
      }
      parts.push(element("div", "Furthest behind", { class: "soft small" }), lags);
    }
    byId("clients").replaceChildren(...parts);
  }
  function drawPhases(run) {
    const seconds = Object.entries((run.status && run.status.seconds) || {}).filter(([, value]) => value > 0);
    byId("phases-figure").hidden = !seconds.length;
    if (!seconds.length) return;
    const total = seconds.reduce((sum, [, value]) => sum + value, 0);
    const stack = element("div", null, { class: "stack" }), names = element("ul", null, { class: "names" });
    let unknown = 0;
    seconds.forEach(([name, value]) => {
      const look = phaseColours[name] || spareColours[unknown++ % spareColours.length];
      const part = element("div", null, { title: name });
      part.style.width = `${100 * value / total}%`; part.style.background = look;
      stack.append(part);
      const item = element("li"), key = element("span", null, { class: "key" });
      key.style.background = look;
      item.append(key, `${name} ${duration(value)}, ${(100 * value / total).toFixed(0)} %`);
      names.append(item);
    });
    byId("phases").replaceChildren(stack, names);
  }
  function drawRuns(current) {
    const visible = new Set(plotted().map((run) => run.id));
    byId("runs").replaceChildren(...order().map((run) => {
      const state = now(run), row = element("tr", null, { "aria-current": run === current });
      const box = element("input", null, { type: "checkbox", "aria-label": `Plot ${run.label}` });
      box.checked = visible.has(run.id);
      box.addEventListener("click", (event) => event.stopPropagation());
      box.addEventListener("change", () => toggle(run.id));
      const name = element("th", null, { scope: "row" }), key = element("span", null, { class: "key" });
      key.style.background = styles[run.rank % styles.length].colour;
      name.append(key, run.label, element("small", run.task));
      const first = element("td"), badge = element("span", run.state, { class: "badge", "data-state": run.state }), stateCell = element("td");
      first.append(box); stateCell.append(badge);
      row.append(first, name, stateCell);
      for (const text of [
        run.iterations ? `${Math.floor(100 * Math.min((state.iteration || 0) / run.iterations, 1))} %` : (state.round || 0).toLocaleString("en"),
        quality(run.metric, last(run).metric), bytes(state.up_bytes_mean), bytes(state.down_bytes_mean),
        bytes((state.up_bytes || 0) + (state.down_bytes || 0)), run.state === "running" ? duration(run.eta) : "",
      ]) row.append(element("td", text));
      row.addEventListener("click", () => { focusId = run.id; isChosen = true; schedule(); });
      return row;
    }));
  }

  let pending = false;
  function draw() {
    pending = false;
    const run = focused(), isEmpty = !run;
    byId("empty").hidden = !isEmpty;
    for (const id of ["focus", "details", "runs-section"]) byId(id).hidden = isEmpty;
    byId("plots").hidden = isEmpty || ![...runs.values()].some((each) => each.rows.length);
    if (isEmpty) return;
    drawFocus(run);
    drawRuns(run);
    if (!byId("plots").hidden) drawPlots(run);
    const running = [...runs.values()].filter((each) => each.state === "running").length;
    document.title = running ? `${quality(run.metric, last(run).metric)} · fedtern watch` : "fedtern watch";
    document.documentElement.setAttribute("data-drawn", "");
  }
  function schedule() {
    if (!pending) { pending = true; requestAnimationFrame(draw); }
  }

  for (const [name, axis] of Object.entries(AXES)) {
    const button = element("button", axis.label, { type: "button", "aria-pressed": name === axisName });
    button.addEventListener("click", () => {
      axisName = name;
      for (const each of byId("axis").children) each.setAttribute("aria-pressed", each === button);
      for (const id of ["metric", "loss"]) if (byId(id).chart) byId(id).chart.zoom = undefined;
      schedule();
    });
    byId("axis").append(button);
  }
  function connection(state, text) {
    byId("connection").dataset.state = state;
    byId("connection").textContent = text;
  }

  const source = new EventSource("events");
  const on = (name, handle) => source.addEventListener(name, (event) => { handle(JSON.parse(event.data)); schedule(); });
  source.onopen = () => connection("live", "live");
  source.onerror = () => { if (!ended) connection("lost", "connection lost, retrying"); };
  on("hello", (data) => {
    ({ columns, styles, phases: phaseColours, spare: spareColours } = data);
    runs.clear();  // the events that follow contain all runs
  });
  on("run", (data) => {
    const before = runs.get(data.id);
    const rows = data.rows.map((row) => Object.fromEntries(row.map((value, i) => [columns[i], value])));
    const kept = before && !data.replace ? before.rows.concat(rows) : rows;
    runs.set(data.id, { ...data, rows: kept, rank: rankOf(data.id) });
  });
  on("gone", ({ ids }) => ids.forEach((id) => runs.delete(id)));
  on("end", () => { ended = true; source.close(); connection("ended", "the command has ended"); });
  let width = 0;  // a drawing changes the height
  new ResizeObserver(([entry]) => {
    if (entry.contentRect.width !== width) { width = entry.contentRect.width; schedule(); }
  }).observe(document.querySelector("main"));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", schedule);
})();
