// The prompt box: one request at a time, streamed by OpenAI's API as any client would.
import { linesOf, said } from "./watch.js";

const at = (id) => document.getElementById(id);
let keyWanted = []; // what goes on when a key was given

// The key lives in the page alone: it is gone with the page.
export const key = () => at("key").value.trim();

// Shows the field for a key; the promise ends when one was given.
export function askForKey() {
  at("key-row").hidden = false;
  return new Promise((done) => keyWanted.push(done));
}

export function startPrompt() {
  let control = null;
  at("key").addEventListener("change", () => {
    for (const goOn of keyWanted.splice(0)) goOn();
  });
  at("stop").addEventListener("click", () => control?.abort());
  at("prompt-text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("prompt").requestSubmit();
  });
  at("prompt").addEventListener("submit", async (event) => {
    event.preventDefault();
    if (control !== null) return;
    control = new AbortController();
    begin();
    try {
      await ask(control.signal);
    } catch (failure) {
      if (!control.signal.aborted) fail(failure.message);
      if (failure.status === 401) askForKey();
    }
    control = null;
    end();
  });
}

function begin() {
  at("failure").hidden = true;
  at("timing").textContent = "waiting";
  at("send").disabled = true;
  at("stop").disabled = false;
  at("answer").setAttribute("aria-busy", "true"); // A reader hears the whole answer, not each token.
  at("answer").replaceChildren();
}

function end() {
  at("send").disabled = false;
  at("stop").disabled = true;
  at("answer").setAttribute("aria-busy", "false");
  if (at("timing").textContent === "waiting") at("timing").textContent = "";
}

function fail(message) {
  at("failure").textContent = message;
  at("failure").hidden = false;
}

async function ask(signal) {
  const prompt = at("prompt-text").value;
  const isChat = at("as-chat").checked;
  const headers = { "Content-Type": "application/json", ...(key() ? { Authorization: `Bearer ${key()}` } : {}) };
  const models = await fetch("/v1/models", { signal, headers });
  if (!models.ok) throw await refused(models);
  const body = {
    model: (await models.json()).data[0].id,
    max_tokens: at("max-tokens").valueAsNumber,
    temperature: at("temperature").valueAsNumber,
    stream: true,
    ...(isChat ? { messages: [{ role: "user", content: prompt }] } : { prompt }),
  };
  const asked = performance.now();
  const path = isChat ? "/v1/chat/completions" : "/v1/completions";
  const response = await fetch(path, { method: "POST", signal, headers, body: JSON.stringify(body) });
  if (!response.ok) throw await refused(response);
  if (!isChat) add(prompt, "asked");
  await show(response, asked);
}

async function show(response, asked) {
  let first = 0;
  let pieces = 0;
  for await (const line of linesOf(response)) {
    if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
    const piece = JSON.parse(line.slice("data: ".length));
    if (piece.error) throw new Error(piece.error.message);
    const choice = piece.choices[0];
    const content = choice?.text ?? choice?.delta?.content ?? "";
    if (content === "") continue;
    add(content);
    pieces += 1;
    const now = performance.now();
    first ||= now;
    const gap = pieces > 1 ? `, ${((now - first) / (pieces - 1)).toFixed(0)} ms a piece` : "";
    at("timing").textContent = `first piece after ${(first - asked).toFixed(0)} ms${gap}`;
  }
}

function add(content, className = "") {
  const answer = at("answer");
  const isAtEnd = answer.scrollHeight - answer.scrollTop - answer.clientHeight < 40;
  const last = answer.lastElementChild;
  if (last !== null && last.className === className) last.textContent += content;
  else {
    const made = document.createElement("span");
    made.className = className;
    made.textContent = content;
    answer.append(made);
  }
  if (isAtEnd) answer.scrollTop = answer.scrollHeight;
}

async function refused(response) {
  return Object.assign(new Error(await said(response)), { status: response.status });
}
