// The page at `/`: what the server does now, and a box to try it. Each module owns a part of the page.
import { startPrompt, key, askForKey } from "./prompt.js";
import { showQueues } from "./queues.js";
import { Rates } from "./rates.js";
import { watch } from "./watch.js";

const MOST_JOBS = 1000; // as many as the server lists
const INTERVAL_S = 1;

const at = (id) => document.getElementById(id);
const main = document.querySelector("main");
const rates = new Rates(at("rate"), at("rate-line"));
const whole = new Intl.NumberFormat("en");

function show(status) {
  const groups = status.groups;
  const sum = (name) => whole.format(groups.reduce((total, group) => total + group[name], 0));
  const policies = `${status.policy} + ${status.kv_policy || "?"}`;
  at("served").textContent = `${status.model} · ${policies} · up ${lasting(status.uptime_s)}`;
  at("running").textContent = sum("running");
  const placed = groups.reduce((total, group) => total + group.waiting, 0);
  at("waiting").textContent = whole.format(placed + status.unplaced_jobs);
  at("swapped").textContent = sum("swapped_out");
  // 64-bit numbers come as strings.
  at("finished").textContent = whole.format(Number(status.counters.jobs_finished));
  at("preemptions").textContent = whole.format(Number(status.counters.preemptions));
  rates.add(status.uptime_s, Number(status.counters.generation_tokens));
  showQueues(status, at("groups"), at("left-out"), at("job-table"));
}

function lasting(seconds) {
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  return `${Math.floor(seconds / 3600)} h`;
}

function tell(state, text) {
  const badge = at("link");
  if (badge.dataset.state !== state || badge.textContent !== text) {
    badge.dataset.state = state;
    badge.textContent = text;
  }
  main.classList.toggle("stale", state !== "live");
  if (state !== "live") rates.forget();
}

startPrompt();
watch({
  path: `/fastserve/v1/status:watch?interval_s=${INTERVAL_S}&max_jobs=${MOST_JOBS}`,
  silenceS: INTERVAL_S + 5,
  key,
  onStatus: show,
  onState: tell,
  onKeyAsked: askForKey,
});
