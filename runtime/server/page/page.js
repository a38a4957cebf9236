"use strict";
// Everything is drawn from /loads, /batch, /tree and /generate: the same JSON that any client can ask for.

const $ = (id) => document.getElementById(id);
const state = { key: sessionStorage.getItem("ramet-key") || "", tree: null, chosen: null, queue: [], asking: null };

function headers() {
  return { "content-type": "application/json", ...(state.key ? { authorization: "Bearer " + state.key } : {}) };
}

async function ask(path, body, signal) {
  const options = body ? { method: "POST", body: JSON.stringify(body) } : {};
  const response = await fetch(path, { ...options, headers: headers(), signal });
  if (response.status === 401) $("key-form").hidden = false;
  if (!response.ok) throw new Error((await response.json()).error.message);
  return response;
}

function make(parent, name, attributes, text) {
  const inSvg = parent instanceof SVGElement;
  const node = inSvg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

const percent = (x) => Math.round(100 * x) + "%";
const seconds = (x) => (x < 1 ? Math.round(1000 * x) + " ms" : x.toFixed(2) + " s");

function median(values) {
  const sorted = values.slice().sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor(sorted.length / 2)] : null;
}

// ---- the tree: an icicle, the root on top

function weigh(node) {
  node.weight = node.tokens + node.children.reduce((sum, child) => sum + weigh(child), 0);
  return node.weight;
}

function newest(node) {
  return node.children.reduce((latest, child) => Math.max(latest, newest(child)), node.last_used);
}

function colourOf(node, extremes) {
  if ($("colour").value === "hits") {
    const heat = Math.log1p(node.hits) / Math.log1p(Math.max(1, extremes.hits));
    return `hsl(${145 - 110 * heat} ${35 + 40 * heat}% ${84 - 26 * heat}%)`;
  }
  const age = extremes.used ? 1 - node.last_used / extremes.used : 0;
  return `hsl(210 ${60 - 45 * age}% ${66 + 24 * age}%)`;
}

function extremesOf(roots) {
  const found = { hits: 0, used: 0 };
  (function visit(node) {
    found.hits = Math.max(found.hits, node.hits);
    found.used = Math.max(found.used, node.last_used);
    node.children.forEach(visit);
  })({ hits: 0, last_used: 0, children: roots });
  return found;
}

function drawTree() {
  const svg = $("tree"), roots = state.tree.roots, row = 24, width = svg.clientWidth || 900;
  svg.replaceChildren();
  const extremes = extremesOf(roots);
  const all = roots.reduce((sum, root) => sum + weigh(root), 0);
  let depth = 0;
  function place(node, left, scale, level, path) {
    const here = [...path, node], name = here.map((n) => n.text).join("\u0000");
    let top = level;
    if (node.tokens) {
      const wide = node.weight * scale;
      if (wide < 1) return;
      const box = make(svg, "rect", { x: left, y: level * row, width: wide, height: row - 1, fill: colourOf(node, extremes), "data-tokens": node.tokens });
      make(box, "title", {}, `${node.tokens} tokens, ${node.hits} hits, ${node.refs} running`);
      if (state.chosen === name) { box.classList.add("chosen"); show(here); }
      box.addEventListener("click", () => { state.chosen = name; show(here); drawTree(); });
      if (wide > 30) {
        const words = node.text.replace(/\s+/g, " ").trim(), fits = Math.floor(wide / 6.4) - 1;
        make(svg, "text", { x: left + 4, y: level * row + 16 }, words.length > fits ? words.slice(0, Math.max(0, fits - 1)) + "…" : words);
      }
      depth = Math.max(depth, level + 1);
      top = level + 1;
    }
    let at = left;
    for (const child of node.children.slice().sort((a, b) => b.weight - a.weight)) {
      place(child, at, scale, top, here);
      at += child.weight * scale;
    }
  }
  let at = 0;
  for (const root of roots) {
    place(root, at, all ? width / all : 0, 0, []);
    at += all ? root.weight * width / all : 0;
  }
  svg.setAttribute("height", Math.max(1, depth) * row);
  svg.setAttribute("viewBox", `0 0 ${width} ${Math.max(1, depth) * row}`);
  $("tree-size").textContent = `${state.tree.size} tokens kept`;
}

function show(path) {
  const box = $("prefix"), node = path[path.length - 1], before = path.slice(0, -1);
  const upTo = path.reduce((sum, n) => sum + n.tokens, 0), saved = path.reduce((sum, n) => sum + n.tokens * n.hits, 0);
  box.replaceChildren();
  make(box, "span", {}, `${node.tokens} tokens here, ${upTo} from the root; read again ${node.hits} times; this path saved ${saved} tokens of computing.`);
  const text = make(box, "pre");
  make(text, "span", {}, before.map((n) => n.text).join(""));
  make(text, "mark", {}, node.text);
}

// ---- the batch, the tiles, the charts

function drawBatch(rows) {
  const body = $("batch").tBodies[0];
  body.replaceChildren();
  for (const row of rows) {
    const line = make(body, "tr"), computed = Math.max(0, Math.min(row.computed, row.prompt_tokens) - row.cached_tokens);
    make(line, "td", { title: row.rid }, row.rid.slice(0, 10) + (row.index ? "/" + row.index : ""));
    const bar = make(make(line, "td"), "div", { class: "bar", title: `${row.prompt_tokens} tokens: ${row.cached_tokens} cached` });
    const parts = { cached: row.cached_tokens, prompt: computed, todo: row.prompt_tokens - row.cached_tokens - computed };
    for (const [name, count] of Object.entries(parts)) make(bar, "i", { class: name, style: `width:${100 * count / row.prompt_tokens}%` });
    make(line, "td", {}, row.output_tokens);
    make(line, "td", {}, row.forced_tokens);
    make(line, "td", {}, row.todo > 1 ? `prefill ${row.todo}` : row.todo === 1 ? "decode" : "–");
  }
}

function chart(svg, label, series, format) {
  svg.replaceChildren();
  svg.setAttribute("viewBox", "0 0 100 60");
  svg.setAttribute("preserveAspectRatio", "none");
  const most = Math.max(...series.flat(), 1e-9);
  series.forEach((values, number) => {
    const points = values.map((v, i) => `${(100 * i / Math.max(1, values.length - 1)).toFixed(2)},${(57 - 52 * v / most).toFixed(2)}`);
    make(svg, "polyline", { points: points.join(" "), class: number ? "second" : "first" });
  });
  label.textContent = series[0].length ? `up to ${format(most)}` : "";
}

// the batch comes as it changes, up to ten times a second, while somebody looks
async function watchBatch() {
  for (;;) {
    while (document.hidden) await new Promise((seen) => document.addEventListener("visibilitychange", seen, { once: true }));
    const leaving = new AbortController(), hide = () => document.hidden && leaving.abort();
    document.addEventListener("visibilitychange", hide);
    try {
      for await (const now of eventsOf(await ask("batch", null, leaving.signal))) {
        const pool = now.pool || { slots: 0, free: 0 };
        $("running").textContent = now.running ?? 0;
        $("waiting").textContent = now.waiting ?? 0;
        $("pool").textContent = percent(pool.slots ? 1 - pool.free / pool.slots : 0);
        drawBatch(now.requests || []);
      }
    } catch { /* refresh says what is wrong */ }
    document.removeEventListener("visibilitychange", hide);
    await new Promise((later) => setTimeout(later, 1000));
  }
}

async function refresh() {
  if (document.hidden) return;
  try {
    const loads = await (await ask("loads")).json();
    const latencies = loads.latencies || [];
    $("hits").textContent = percent(loads.cache_hit_rate || 0);
    const ttft = latencies.map((x) => x.ttft), tpot = latencies.map((x) => x.tpot);
    $("ttft").textContent = ttft.length ? seconds(median(ttft)) : "–";
    $("tpot").textContent = tpot.length ? seconds(median(tpot)) : "–";
    state.queue.push([loads.running ?? 0, loads.waiting ?? 0]);
    if (state.queue.length > 120) state.queue.shift();
    chart($("ttft-chart"), $("ttft-range"), [ttft], seconds);
    chart($("tpot-chart"), $("tpot-range"), [tpot], seconds);
    chart($("queue-chart"), $("queue-range"), [state.queue.map((x) => x[0]), state.queue.map((x) => x[1])], (x) => Math.round(x));
    $("health").className = "dot up";
    if ($("live").checked) await refreshTree();
  } catch (error) {
    $("health").className = "dot down";
    $("health").title = error.message;
  }
}

async function refreshTree() {
  state.tree = await (await ask(`tree?depth=${$("depth").value || 12}&min_tokens=${$("min-tokens").value || 1}`)).json();
  drawTree();
}

async function about() {
  const info = await (await ask("model_info")).json();
  $("model").textContent = `${info.served_model_name} · context ${info.context_length}`;
}

// ---- the playground

function tokenSpan(kind, text, title) {
  return make($("answer"), "span", { class: kind, title }, text);
}

async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: {")) yield JSON.parse(part.slice(6));
  }
}

async function play(signal) {
  const messages = [{ role: "user", content: $("message").value }], schema = $("schema").value.trim();
  const prompt = await (await ask("tokenize", { messages, return_token_strs: true }, signal)).json();
  const spans = prompt.token_strs.map((text) => tokenSpan("prompt", text, "prompt"));
  const sampling_params = { max_new_tokens: +$("max-tokens").value, temperature: +$("temperature").value, ...(schema ? { json_schema: schema } : {}) };
  const body = { input_ids: prompt.tokens, sampling_params, stream: true, incremental: true, return_logprob: true, return_text_in_logprobs: true };
  for await (const event of eventsOf(await ask("generate", body, signal))) {
    if (event.error) throw new Error(event.error.message);
    const meta = event.meta_info, tokens = meta.output_token_logprobs || [];
    tokens.forEach(([logprob, id, text], i) => {
      const forced = (event.forced || [])[i];
      tokenSpan(forced ? "forced" : "drawn", text, forced ? "forced by the schema" : `probability ${percent(Math.exp(logprob))}`);
    });
    if (meta.finish_reason) {
      spans.slice(0, meta.cached_tokens).forEach((span) => { span.className = "cached"; span.title = "cached"; });
      $("meta").textContent = `${meta.prompt_tokens} prompt tokens, ${meta.cached_tokens} cached; ${meta.completion_tokens} output tokens, `
        + `${meta.forced_tokens} forced; TTFT ${seconds(meta.ttft)}, TPOT ${seconds(meta.tpot)}; ended by ${meta.finish_reason.type}`;
    }
  }
}

$("ask").addEventListener("submit", async (submitted) => {
  submitted.preventDefault();
  state.asking?.abort();
  state.asking = new AbortController();
  $("answer").replaceChildren();
  $("meta").textContent = "";
  $("stop").disabled = false;
  try {
    await play(state.asking.signal);
  } catch (error) {
    if (error.name !== "AbortError") tokenSpan("error", error.message, "");
  }
  $("stop").disabled = true;
  refreshTree();
});
$("stop").addEventListener("click", () => state.asking?.abort());
$("colour").addEventListener("change", drawTree);
$("key-form").addEventListener("submit", (submitted) => {
  submitted.preventDefault();
  state.key = $("key").value;
  sessionStorage.setItem("ramet-key", state.key);
  $("key-form").hidden = true;
  about();
});

about().catch(() => {});
refresh();
setInterval(refresh, 1000);
watchBatch();
