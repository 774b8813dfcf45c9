// One conversation with the server that this page came from. All addresses are relative, so the
// page works under any path. Text from the model only ever becomes text nodes.
import { renderText } from "./text.js";

const $ = (id) => document.getElementById(id);
const fields = ["key", "system", "temperature", "top_p", "top_k", "min_p", "max_tokens", "seed",
                "where", "theme"];

let settings = load("settings", {});
let messages = load("chat", []);        // {role, content, facts?, error?}
let running = null;                     // the AbortController of the answer under way
let contextSize = 0;

function load(name, fallback) {
  try {
    return JSON.parse(localStorage.getItem("baton." + name)) ?? fallback;
  } catch {
    return fallback;
  }
}

function save(name, value) {
  try {
    localStorage.setItem("baton." + name, JSON.stringify(value));
  } catch {
    // A full or forbidden store: the page works without.
  }
}

function element(tag, className, text) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
}

function headers() {
  const h = { "Content-Type": "application/json" };
  if (settings.key) h.Authorization = "Bearer " + settings.key;
  return h;
}

// ---- numbers for people ----

const count = (n) => n.toLocaleString("en-US").replaceAll(",", "\u202f");

function milliseconds(ms) {
  if (ms >= 10000) return (ms / 1000).toFixed(1) + " s";
  if (ms >= 1000) return (ms / 1000).toFixed(2) + " s";
  return ms >= 10 ? Math.round(ms) + " ms" : ms.toFixed(1) + " ms";
}

function bytes(n) {
  if (n >= 1 << 30) return (n / (1 << 30)).toFixed(2) + " GiB";
  if (n >= 1 << 20) return (n / (1 << 20)).toFixed(1) + " MiB";
  return n >= 1024 ? Math.round(n / 1024) + " KiB" : n + " bytes";
}

// ---- the conversation ----

function atBottom() {
  const s = $("scroll");
  return s.scrollHeight - s.scrollTop - s.clientHeight < 48;
}

function toBottom() {
  const s = $("scroll");
  s.scrollTop = s.scrollHeight;
}

function place(prefill) {
  const tag = element("span", "tag " + prefill.place);
  tag.textContent = { remote: "prefilled on " + prefill.worker, mixed: "prefilled on "
    + prefill.worker + " and here", local: "prefilled here", cache: "prompt from cache" }
    [prefill.place] ?? prefill.place;
  tag.title = prefill.reason;
  return tag;
}

// How the time went: waiting, reading the prompt, rows still under way, writing.
function track(t, p) {
  const bar = element("div", "track");
  const exposed = Math.min(p.exposed_ms, t.prompt_ms);
  const parts = [["queue", t.queue_ms, "waiting"], ["read", t.prompt_ms - exposed, "reading the prompt"],
                 ["move", exposed, "waiting for KV rows"], ["write", t.predicted_ms, "writing"]];
  const all = parts.reduce((sum, part) => sum + part[1], 0);
  for (const [name, ms, what] of parts) {
    if (ms < all / 200) continue;
    const part = element("i", name);
    part.style.flexGrow = ms;
    part.title = `${what}: ${milliseconds(ms)}`;
    bar.append(part);
  }
  return bar;
}

function facts({ timings: t, prefill: p }) {
  const box = element("div", "facts");
  const line = element("div", "line");
  const add = (strong, rest) => {
    const s = element("span");
    s.append(element("b", "", strong), " " + rest);
    line.append(s);
  };
  add(count(t.predicted_n), t.predicted_n === 1 ? "token" : "tokens");
  if (t.predicted_per_second > 0) add(t.predicted_per_second.toFixed(1), "tokens/s");
  add(milliseconds(t.first_token_ms), "to the first");
  const second = element("div", "line");
  second.append(place(p));
  const says = [`${count(t.prompt_n + t.cache_n)} prompt tokens`];
  if (t.cache_n > 0) says.push(`${count(t.cache_n)} cached`);
  if (p.n_remote > 0) {
    says.push(`${bytes(p.bytes)} of KV pushed`, `${milliseconds(p.exposed_ms)} exposed`);
  } else if (t.prompt_n > 1 && t.prompt_per_second > 0) {
    says.push(`${count(Math.round(t.prompt_per_second))} tokens/s`);
  }
  for (const text of says) second.append(element("span", "", text));
  if (p.fallback) {
    const tag = element("span", "tag fallback", "fallback");
    tag.title = p.reason;
    second.append(tag, element("span", "", p.reason));
  }
  box.append(line, track(t, p), second);
  return box;
}

function show(message) {
  const item = element("li", message.role === "user" ? "user" : "answer");
  const body = element("div", "body");
  item.append(body);
  $("chat").append(item);
  const view = {
    item, body,
    draw(streaming) {
      if (message.role === "user") {
        body.textContent = message.content;
      } else {
        renderText(body, message.content);
        body.classList.toggle("caret", Boolean(streaming && message.content));
      }
    },
    wait(text) {
      this.waiting ??= item.insertBefore(element("div", "waiting"), body);
      this.waiting.textContent = text;
    },
    settle() {
      this.waiting?.remove();
      this.waiting = null;
      item.querySelectorAll(".facts, .error, .again").forEach((e) => e.remove());
      if (message.error) item.append(element("div", "error", message.error));
      if (message.facts) item.append(facts(message.facts));
    },
  };
  view.draw(false);
  view.settle();
  return view;
}

function offerAgain() {
  document.querySelectorAll(".again").forEach((e) => e.remove());
  const last = $("chat").lastElementChild;
  if (running || !last?.classList.contains("answer")) return;
  const again = element("div", "again");
  const retry = element("button", "link", "Regenerate");
  const copy = element("button", "link", "Copy");
  again.style.marginLeft = "-.45rem";
  retry.type = copy.type = "button";
  retry.onclick = () => {
    messages.pop();
    last.remove();
    answer();
  };
  copy.onclick = () => navigator.clipboard?.writeText(messages.at(-1).content);
  again.append(retry, copy);
  last.append(again);
}

function redraw() {
  $("chat").replaceChildren();
  for (const m of messages) show(m);
  $("hello").hidden = messages.length > 0;
  offerAgain();
  gauge();
  toBottom();
}

function gauge() {
  const t = messages.findLast((m) => m.facts)?.facts.timings;
  const used = t ? t.cache_n + t.prompt_n + t.predicted_n : 0;
  $("gauge").textContent = contextSize
    ? (used ? `${count(used)} of ` : "") + `${count(contextSize)} tokens of context` : "";
}

// ---- asking ----

function request() {
  const list = messages.filter((m) => m.content || m.role === "user")
                       .map(({ role, content }) => ({ role, content }));
  if (settings.system) list.unshift({ role: "system", content: settings.system });
  const body = { messages: list, stream: true, stream_options: { include_usage: true },
                 return_progress: true, sse_ping_interval: 5 };
  for (const name of ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"]) {
    if (settings[name] !== undefined && settings[name] !== "") body[name] = Number(settings[name]);
  }
  if (settings.where && settings.where !== "auto") body.prefill = { where: settings.where };
  return body;
}

// Event streams as the API sends them: "data: JSON" and comments, a blank line after each.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
    }
  }
}

async function failure(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text || `The server answered ${response.status}.`;
  }
}

function take(event, message, view) {
  if (event.error) throw new Error(event.error.message);
  const progress = event.prompt_progress;
  if (progress && progress.processed < progress.total) {
    view.wait(`reading the prompt: ${count(progress.processed)} of ${count(progress.total)} tokens`);
  }
  const text = event.choices?.[0]?.delta?.content;
  if (text) {
    message.content += text;
    view.waiting?.remove();
    view.waiting = null;
  }
  if (event.timings) message.facts = { timings: event.timings, prefill: event.prefill };
}

async function receive(message, view) {
  const response = await fetch("v1/chat/completions", { method: "POST", headers: headers(),
    body: JSON.stringify(request()), signal: running.signal });
  if (!response.ok) throw new Error(await failure(response));
  let drawn = true;
  for await (const event of events(response)) {
    take(event, message, view);
    if (!drawn) continue;
    drawn = false;
    requestAnimationFrame(() => {
      const follow = atBottom();
      if (running) view.draw(true);
      if (follow) toBottom();
      drawn = true;
    });
  }
}

async function answer() {
  running = new AbortController();
  busy(true);
  const message = { role: "assistant", content: "" };
  const view = show(message);
  view.wait("waiting");
  toBottom();
  try {
    const asked = receive(message, view);
    messages.push(message);
    await asked;
  } catch (e) {
    if (e.name !== "AbortError") message.error = e.message || String(e);
  }
  running = null;
  const follow = atBottom();
  view.draw(false);
  view.settle();
  busy(false);
  save("chat", messages);
  offerAgain();
  gauge();
  if (follow) toBottom();
}

function busy(is) {
  $("composer").classList.toggle("busy", is);
  $("send").title = $("send").ariaLabel = is ? "Stop" : "Send";
  enable();
}

function enable() {
  $("send").disabled = !running && !$("input").value.trim();
}

function send() {
  const text = $("input").value;
  if (running || !text.trim()) return;
  $("hello").hidden = true;
  const message = { role: "user", content: text };
  messages.push(message);
  show(message);
  $("input").value = "";
  grow();
  answer();
}

function grow() {
  const input = $("input");
  input.style.height = "auto";
  input.style.height = input.scrollHeight + "px";
  enable();
}

// ---- state of the server ----

async function look() {
  try {
    const response = await fetch("props", { headers: headers() });
    if (!response.ok) throw new Error(await failure(response));
    const props = await response.json();
    contextSize = props.default_generation_settings.n_ctx;
    $("model").textContent = props.model_alias;
    gauge();
    await lookAtWorkers();
  } catch (e) {
    $("model").textContent = e instanceof TypeError ? "no connection" : e.message;
  }
}

async function lookAtWorkers() {
  const status = await (await fetch("v1/prefill", { headers: headers() })).json();
  const pill = $("workers");
  pill.hidden = status.n_workers === 0;
  const all = status.n_ready === status.n_workers;
  pill.replaceChildren(element("span", "dot " + (all ? "ready" : status.n_ready ? "" : "bad")),
    `${status.n_ready} of ${status.n_workers} worker${status.n_workers === 1 ? "" : "s"}`);
  $("workers-list").replaceChildren(here(status), ...status.workers.map(worker));
  $("decisions-title").hidden = status.decisions.length === 0;
  $("decisions").replaceChildren(...status.decisions.slice(0, 12).map(decision));
  $("hello-text").textContent = status.n_workers === 0
    ? "Prompts are read and answers are written on this server."
    : "Long prompts are read by a worker; answers are written on this server.";
}

// Fitted costs: a fixed part, then each token, dearer the deeper it stands.
function costs(fixed, what, token, key) {
  if (!(fixed > 0 || token > 0 || key > 0)) return [];
  const says = [`${milliseconds(fixed)} a ${what}`, `${(token * 1000).toPrecision(3)} µs a token`];
  if (key > 0) says.push(`${(key * 1e6).toPrecision(3)} µs more per 1000 positions before it`);
  return [element("p", "quiet", "fitted: " + says.join(" + "))];
}

function here(status) {
  const box = element("div", "worker");
  const head = element("header");
  head.append(element("span", "dot ready"), "this server");
  box.append(head);
  const rate = status.local_tokens_per_second;
  box.append(element("p", "quiet", [`${count(status.n_local)} prompts kept here by decision`,
    ...(rate > 0 ? [`${count(Math.round(rate))} tokens/s`] : [])].join(" · ")));
  box.append(...costs(status.local_step_ms, "step", status.local_token_ms, status.local_attention_ms));
  return box;
}

function decision(d) {
  const item = element("li");
  const says = [`${count(d.n_tokens)} tokens`, d.worker ?? "here"];
  if (d.outcome !== "here" && d.outcome !== "remote") says.push(d.outcome);
  if (d.took_ms > 0) says.push("took " + milliseconds(d.took_ms));
  if (d.local_ms > 0) says.push(`${milliseconds(d.local_ms)} expected here`);
  if (d.remote_ms > 0) says.push(`${milliseconds(d.remote_ms)} there`);
  item.append(says.join(" · "), element("p", "quiet small", d.reason));
  return item;
}

function worker(w) {
  const box = element("div", "worker");
  const head = element("header");
  head.append(element("span", "dot " + (w.state === "ready" ? "ready" : "bad")), w.address,
              element("span", "quiet", w.state));
  box.append(head);
  if (w.reason) box.append(element("p", "quiet", w.reason));
  const says = [`${count(w.n_prompts)} prompts`, `${count(w.n_tokens)} tokens`, bytes(w.n_bytes)];
  if (w.tokens_per_second > 0) says.push(`${count(Math.round(w.tokens_per_second))} tokens/s`);
  if (w.round_trip_ms > 0) says.push(`${w.round_trip_ms.toFixed(2)} ms away`);
  if (w.n_fallbacks > 0) says.push(`${w.n_fallbacks} fallbacks`);
  box.append(element("p", "quiet", says.join(" · ")));
  box.append(...costs(w.step_ms, "step", w.token_ms, w.attention_ms));
  return box;
}

// ---- settings ----

function applyTheme() {
  if (settings.theme) {
    document.documentElement.dataset.theme = settings.theme;
  } else {
    delete document.documentElement.dataset.theme;
  }
}

function openSettings() {
  for (const name of fields) $("set-" + name).value = settings[name] ?? (name === "where" ? "auto" : "");
  $("settings-dialog").showModal();
}

function closeSettings() {
  for (const name of fields) settings[name] = $("set-" + name).value;
  save("settings", settings);
  applyTheme();
  look();
}

// ---- wiring ----

$("composer").addEventListener("submit", (e) => {
  e.preventDefault();
  if (running) running.abort();
  else send();
});
$("input").addEventListener("input", grow);
$("input").addEventListener("keydown", (e) => {
  // Enter also ends the choice of a character while one is being composed; 229 is Safari's way.
  if (e.key !== "Enter" || e.shiftKey || e.isComposing || e.keyCode === 229) return;
  e.preventDefault();
  send();
});
$("new").addEventListener("click", () => {
  running?.abort();
  messages = [];
  save("chat", messages);
  redraw();
  $("input").focus();
});
$("settings").addEventListener("click", openSettings);
$("settings-dialog").addEventListener("close", closeSettings);
$("workers").addEventListener("click", () => $("workers-dialog").showModal());
for (const dialog of document.querySelectorAll("dialog")) {
  dialog.addEventListener("click", (e) => e.target === dialog && dialog.close());
}

applyTheme();
redraw();
enable();
look();
setInterval(() => document.hidden || look(), 5000);
