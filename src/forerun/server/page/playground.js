"use strict";
const $ = id => document.getElementById(id);
const WRITING = "Writing …", BROKEN = "The answer broke off before its end: the connection is gone.";
const ABOUT_SPEED = "Tokens a second after the first ones.";
const SIZE = {left: 38, top: 6, bottom: 18};
let running = null;                 // of the request that is being answered: its AbortController
let runs = [newRun(), newRun()];    // with speculation, without
let turns = [];                     // what was said in this chat

function newRun() { return {rounds: [], num: 0, numFirst: 0, began: 0, first: 0, last: 0, rate: null, firstSeconds: null, depths: null, content: "", ended: ""}; }

// ---- asking ---------------------------------------------------------------------------------------------------------
function headers() {
  const key = $("key").value.trim();
  return {"Content-Type": "application/json", ...(key ? {Authorization: "Bearer " + key} : {})};
}

function body(kind, messages, speculates) {
  const asked = {stream: true, max_tokens: Number($("tokens").value), speculation: {enabled: speculates, explain: true}};
  for (const [id, name] of [["temperature", "temperature"], ["top-p", "top_p"], ["seed", "seed"]])
    if ($(id).value !== "") asked[name] = Number($(id).value);
  if (speculates && $("max-k").value !== "") asked.speculation.max_k = Number($("max-k").value);
  return {...asked, ...(kind === "chat" ? {messages} : {prompt: $("text").value})};
}

async function refusal(response) {
  const found = await response.json().catch(() => null);
  const said = found && found.error && found.error.message || "HTTP status " + response.status;
  if (response.status === 401) {
    $("more").open = true; $("key").focus();
    return "This server wants an API key. Enter it under More settings.";
  }
  const wait = response.headers.get("Retry-After");
  if (response.status === 429) return "The server is busy: " + said + (wait ? ` (in about ${wait} s)` : "");
  return (response.status >= 500 ? "The server cannot answer: " : "The server does not take this: ") + said;
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  for (let held = "";;) {
    const {value, done} = await reader.read();
    if (done) throw new Error(BROKEN);
    const parts = (held + value).split(/\r?\n\r?\n/);
    held = parts.pop();
    for (const part of parts) {
      const data = part.split(/\r?\n/).filter(line => line.startsWith("data:")).map(line => line.slice(5).trimStart()).join("\n");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}

async function write(place, kind, messages, signal) {
  const run = runs[place] = newRun(), out = $("out-" + place), painter = newPainter(out);
  run.began = performance.now();
  const answer = await fetch(kind === "chat" ? "v1/chat/completions" : "v1/completions",
    {method: "POST", headers: headers(), body: JSON.stringify(body(kind, messages, place === 0)), signal})
    .catch(error => { throw error.name === "AbortError" ? error : new Error("The server cannot be reached. Is it still running?"); });
  if (!answer.ok) throw new Error(await refusal(answer));
    for await (const event of events(answer.body)) {
    if (event.error) throw new Error("The server cannot go on: " + event.error.message);
    if (event.warnings) $("note").textContent = event.warnings.join("; ");
    if (event.speculation) settle(run, event.speculation.choices[0]);
    const choice = event.choices && event.choices[0], about = event.forerun;
    if (about) note(run, about);
    if (choice) {
      const delta = choice.delta || {content: choice.text};
      painter.know(about ? about.tokens : []);
      painter.paint(delta.reasoning_content, "reasoning");
      painter.paint(delta.content, "");
      run.content += delta.content || "";
      if (choice.finish_reason) run.ended = choice.finish_reason === "length" ? ", cut at the limit" : "";
    }
    redraw();
  }
}

function note(run, about) {
  const now = performance.now();
  run.rounds.push(...about.rounds);
  run.num += about.tokens.length;
  if (!about.tokens.length) return;
  if (!run.first) { run.first = now; run.numFirst = run.num; run.firstSeconds = (now - run.began) / 1e3; }
  run.last = now;
  if (run.num > run.numFirst && now > run.first) run.rate = 1e3 * (run.num - run.numFirst) / (now - run.first);
}

// The server's own figures, once it is done: they have no part of the network's.
function settle(run, told) {
  if (!told) return;
  run.rate = told.tokens_per_s || run.rate;
  run.firstSeconds = told.time_to_first_token_s || run.firstSeconds;
  run.depths = told.acceptance_by_depth;
}

// ---- text -----------------------------------------------------------------------------------------------------------
// Shows the answer's text, each part in the colour of the token it is from. Tokens that the answer leaves out (a tag
// around reasoning) are passed over. Text only ever becomes text nodes.
function newPainter(out) {
  out.replaceChildren();
  let known = [];
  const add = (text, origin, style) => {
    const span = document.createElement("span");
    span.className = (origin + " " + style).trim();
    span.textContent = text;
    span.title = origin;
    out.append(span);
  };
  const take = (count, show) => {
    while (count > 0) {
      const head = known[0], length = Math.min(count, head.text.length);
      show(head.text.slice(0, length), head.origin);
      head.text = head.text.slice(length);
      count -= length;
      if (!head.text) known.shift();
    }
  };
  return {
    know(tokens) { for (const {text, origin} of tokens) if (text) known.push({text, origin: origin === "decoded" ? "plain" : origin}); },
    paint(text, style) {
      if (!text) return;
      const sticks = out.scrollTop + out.clientHeight > out.scrollHeight - 8;
      const at = known.map(one => one.text).join("").indexOf(text);
      if (at < 0) add(text, "plain", style);
      else { take(at, () => {}); take(text.length, (part, origin) => add(part, origin, style)); }
      if (sticks) out.scrollTop = out.scrollHeight;
    },
  };
}

// ---- figures --------------------------------------------------------------------------------------------------------
let isDue = false;
function redraw() {
  if (isDue) return;
  isDue = true;
  const draw = () => { if (isDue) { isDue = false; show(); } };
  requestAnimationFrame(draw);
  setTimeout(draw, 250);            // a page in the background gets no frames
}

function show() {
  const fastest = Math.max(...runs.map(run => run.rate || 0), 1e-9);
  runs.forEach((run, place) => {
    const seconds = run.firstSeconds === null ? "" : `, first after ${time(run.firstSeconds)}`;
    $("speed-" + place).textContent = run.num ? `${run.num} tokens${place ? seconds : ""}${run.ended}` : "";
    $("rate-" + place).textContent = run.rate ? run.rate.toFixed(run.rate < 100 ? 1 : 0) + " /s" : "–";
    $("bar-" + place).style.width = run.rate ? 100 * run.rate / fastest + "%" : "0";
  });
  const run = runs[0], proposed = sum(run.rounds, "proposed"), accepted = sum(run.rounds, "accepted");
  $("per-pass").textContent = run.rounds.length ? (run.num / run.rounds.length).toFixed(2) : "–";
  $("accepted").textContent = proposed ? `${percent(accepted / proposed)}` : "–";
  $("rounds").textContent = run.rounds.length || "–";
  $("first").textContent = run.firstSeconds === null ? "–" : time(run.firstSeconds);
  depths(run); lengths(run);
}

// Depth i counts where depths before it were accepted. (Of a tree this is an estimate until the server tells.)
function byDepth(run) {
  if (run.depths) return run.depths;
  const seen = [], hits = [];
  for (const {proposed, accepted} of run.rounds)
    for (let i = 0; i < Math.min(proposed, accepted + 1); i++) { seen[i] = (seen[i] || 0) + 1; hits[i] = (hits[i] || 0) + (i < accepted); }
  return seen.map((count, i) => hits[i] / count);
}

function depths(run) {
  const values = byDepth(run).slice(0, 16), plot = frame("depths", [[0, "0 %"], [.5, "50 %"], [1, "100 %"]]);
  const width = plot.width / Math.max(values.length, 8);
  values.forEach((value, i) => {
    const x = SIZE.left + i * width, height = Math.max(plot.height * value, 1);
    plot.add("rect", {class: "full", x: x + 2, width: width - 4, y: plot.y(value, height), height});
    plot.add("text", {x: x + width / 2, y: plot.bottom + 14, "text-anchor": "middle"}, i + 1);
  });
  plot.about("Acceptance by depth: " + (values.map((value, i) => `${i + 1}: ${percent(value)}`).join(", ") || "nothing yet"));
}

function lengths(run) {
  const most = Math.max(4, ...run.rounds.slice(-4096).map(one => one.proposed));
  const plot = frame("lengths", [[0, "0"], [1, String(most)]]);
  const size = Math.max(1, Math.ceil(run.rounds.length / (plot.width / 3))), bins = [];
  for (let i = 0; i < run.rounds.length; i += size) bins.push(run.rounds.slice(i, i + size));
  const width = plot.width / Math.max(bins.length, 24), gap = width > 4 ? 1 : 0;
  for (const [name, style] of [["proposed", "empty"], ["accepted", "full"]]) {
    const parts = bins.map((bin, i) => {
      const height = plot.height * sum(bin, name) / bin.length / most;
      return height ? `M${(SIZE.left + i * width).toFixed(1)} ${plot.bottom}v${-height.toFixed(1)}h${(width - gap).toFixed(1)}v${height.toFixed(1)}z` : "";
    });
    plot.add("path", {class: style, d: parts.join("")});
  }
  const told = run.rounds.length ? `${run.rounds.length} rounds in ${time((run.last - run.began) / 1e3)}` : "";
  plot.add("text", {x: SIZE.left, y: plot.bottom + 14}, told);
  plot.about("Draft length over time: " + (told ? `${told}, ${(sum(run.rounds, "proposed") / run.rounds.length).toFixed(1)} draft tokens a round` : "nothing yet"));
}

function frame(id, lines) {
  const svg = $(id), width = svg.clientWidth || 300, height = svg.clientHeight || 120, bottom = height - SIZE.bottom;
  svg.replaceChildren();
  const add = (name, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    svg.append(made);
  };
  const plot = {add, width: width - SIZE.left, height: bottom - SIZE.top, bottom, about: text => svg.setAttribute("aria-label", text)};
  plot.y = (share, size) => bottom - Math.max(plot.height * share, size || 0);
  for (const [share, label] of lines) {
    add("line", {class: "grid", x1: SIZE.left, x2: width, y1: plot.y(share), y2: plot.y(share)});
    add("text", {x: SIZE.left - 5, y: plot.y(share) + 4, "text-anchor": "end"}, label);
  }
  return plot;
}

const sum = (items, name) => items.reduce((total, one) => total + one[name], 0);
const percent = share => Math.round(100 * share) + " %";
const time = seconds => seconds < 1 ? `${Math.max(Math.round(1e3 * seconds), 1)} ms` : `${seconds.toFixed(1)} s`;

function compare() {
  const [fast, slow] = runs.map(run => run.rate);
  const isFixed = Number($("temperature").value || 1) === 0 || $("seed").value !== "";
  const isSame = $("out-0").textContent === $("out-1").textContent;
  const speed = fast && slow ? `${(fast / slow).toFixed(2)} times the speed. ` : "";
  $("gain").textContent = speed + (!isFixed ? "Drawn at random, so the texts differ; with a seed they are the same." :
    isSame ? "The same text." : "The texts are not the same.");
}

// ---- doing ----------------------------------------------------------------------------------------------------------
async function submit(event) {
  event.preventDefault();
  if (running) return;
  const kind = document.querySelector("input[name=kind]:checked").value, both = $("compare").checked;
  const isChat = kind === "chat", question = {role: "user", content: $("text").value};
  keepTurn();
  const system = $("system").value ? [{role: "system", content: $("system").value}] : [];
  const messages = [...system, ...turns, question];
  running = new AbortController();
  runs = [newRun(), newRun()];
  for (const id of ["error", "out-0", "out-1"]) $(id).textContent = "";
  $("asked").textContent = question.content; $("asked").hidden = !isChat;
  $("gain").textContent = ABOUT_SPEED;
  $("note").textContent = WRITING;
  $("go").disabled = true; $("stop").disabled = false; $("plain").hidden = !both;
  $("panes").classList.toggle("both", both);
  show();
  try {
    await write(0, kind, messages, running.signal);
    // One after the other, so that neither takes the other's time.
    if (both) { await write(1, kind, messages, running.signal); compare(); }
    if ($("note").textContent === WRITING) $("note").textContent = "Done.";
  } catch (error) {
    const wasStopped = error.name === "AbortError";
    $("note").textContent = wasStopped ? "Stopped." : "";
    if (!wasStopped) $("error").textContent = error instanceof TypeError ? BROKEN : error.message;
  } finally {
    running = null;
    if (isChat && runs[0].content) {
      turns.push(question, {role: "assistant", content: runs[0].content});
      $("text").value = "";
    }
    $("go").disabled = false; $("stop").disabled = true; $("again").hidden = !turns.length;
    show();
  }
}

// The last question and its coloured answer move above the message that is being written.
function keepTurn() {
  if ($("turns").childElementCount >= turns.length) return;
  const asked = document.createElement("p"), answer = document.createElement("div");
  asked.textContent = turns.at(-2).content;
  answer.className = "out";
  answer.append(...$("out-0").childNodes);
  $("turns").append(asked, answer);
}

function forget() {
  $("text").value = $("text").value || turns[0].content;
  turns = [];
  $("turns").replaceChildren(); $("again").hidden = true; $("text").focus();
}

async function askModel() {
  const found = await fetch("v1/models", {headers: headers()}).then(answer => answer.json(), () => null);
  $("model").textContent = !found ? "cannot be reached" : found.data ? found.data[0].id : "an API key is needed (More settings)";
}

function setTheme(name) {
  if (name) document.documentElement.dataset.theme = name; else delete document.documentElement.dataset.theme;
  try { localStorage.setItem("forerun-theme", name); } catch { /* not allowed here: it lasts as long as the page */ }
}

$("form").addEventListener("submit", submit);
$("stop").addEventListener("click", () => running && running.abort());
$("again").addEventListener("click", forget);
$("key").addEventListener("change", askModel);
$("theme").addEventListener("change", () => setTheme($("theme").value));
document.addEventListener("keydown", event => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); $("form").requestSubmit(); }
  if (event.key === "Escape" && running) running.abort();
});
for (const radio of document.querySelectorAll("input[name=kind]"))
  radio.addEventListener("change", () => { $("text-label").textContent = radio.value === "chat" ? "Message" : "Prompt"; $("turns").hidden = radio.value !== "chat"; });
new ResizeObserver(redraw).observe($("depths"));
try { $("theme").value = localStorage.getItem("forerun-theme") || ""; setTheme($("theme").value); } catch { /* as above */ }
askModel();
