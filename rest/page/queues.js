// The groups with their pools, a row a level, a mark a job. Elements are made once and changed afterwards, so that a server of 10,000 jobs costs the
// page the same as one of as many jobs as are listed.
const STATES = { JOB_STATE_RUNNING: "running", JOB_STATE_WAITING: "waiting", JOB_STATE_SWAPPED_OUT: "swapped out" };
const PLACES = { KV_PLACE_DEVICE: "device", KV_PLACE_HOST: "host", KV_PLACE_NONE: "none" };
const KV_TEXTS = { device: "on the device", host: "in host memory", none: "none" };
const TABLE_ROWS = 100;
const whole = new Intl.NumberFormat("en");

export function showQueues(status, groups, leftOut, table) {
  if (groups.firstElementChild?.matches("p")) groups.replaceChildren();
  resize(groups, status.groups.length, newGroup);
  const byRow = new Map();
  for (const job of status.jobs) {
    const row = `${job.group} ${job.level}`;
    if (!byRow.has(row)) byRow.set(row, []);
    byRow.get(row).push(job);
  }
  status.groups.forEach((group, number) => showGroup(groups.children[number], group, byRow));
  const ofGroup = (group) => group.running + group.waiting + group.swapped_out;
  const all = status.groups.reduce((total, group) => total + ofGroup(group), status.unplaced_jobs);
  leftOut.hidden = all <= status.jobs.length;
  leftOut.textContent = `The first ${whole.format(status.jobs.length)} jobs have a mark, ${whole.format(all - status.jobs.length)} more have none.`;
  if (table.open) showTable(table.querySelector("tbody"), status.jobs.slice(0, TABLE_ROWS));
}

function showGroup(section, group, byRow) {
  const [title, pools, levels] = section.children;
  const place = group.device ? ` on ${group.device}` : "";
  text(title.firstElementChild, `Group ${group.group}${place}, up to ${group.max_batch} jobs an iteration `);
  text(title.lastElementChild, group.ready ? (group.draining ? "draining: its worker is about to end" : "") : "no worker");
  showPool(pools, 0, "device KV", "device", group.device_blocks_total, group.device_blocks_free, group.block_size);
  showPool(pools, 1, "host KV", "host", group.host_blocks_total, group.host_blocks_free, group.block_size);
  resize(levels, group.levels.length, newLevel);
  group.levels.forEach((level, number) => {
    const row = levels.children[number];
    const [name, counts, marks] = [row.firstElementChild.children[0], row.firstElementChild.children[1], row.lastElementChild];
    const quantum = level.quantum_s > 0 ? ` · ${(level.quantum_s * 1000).toFixed(1)} ms` : "";
    text(name, group.levels.length > 1 ? `level ${level.level}` : "all jobs");
    text(counts, `${quantum} · ${countsOf(level)}`);
    showMarks(marks, byRow.get(`${group.group} ${level.level}`) ?? []);
  });
}

function countsOf(level) {
  const counts = [[level.running, "running"], [level.waiting, "waiting"], [level.swapped_out, "swapped out"]];
  const told = counts.filter(([count]) => count > 0).map(([count, what]) => `${whole.format(count)} ${what}`);
  return told.join(", ") || "empty";
}

function showPool(pools, number, name, kind, total, free, blockSize) {
  if (pools.children.length < 3 * (number + 1)) {
    const bar = element("progress", kind);
    bar.setAttribute("aria-label", name);
    pools.append(element("span", "", name), bar, element("span", "number"));
  }
  const [bar, figures] = [pools.children[3 * number + 1], pools.children[3 * number + 2]];
  bar.max = total || 1;
  bar.value = total - free;
  text(figures, total ? `${whole.format((total - free) * blockSize)} of ${whole.format(total * blockSize)} tokens` : "none");
}

function showMarks(marks, jobs) {
  resize(marks, jobs.length, () => element("i", "mark"));
  jobs.forEach((job, number) => {
    const mark = marks.children[number];
    const kind = `mark ${PLACES[job.kv]}${job.state === "JOB_STATE_RUNNING" ? " running" : ""}`;
    if (mark.className !== kind) mark.className = kind;
    mark.title = `${job.alias}: ${STATES[job.state]}, KV ${KV_TEXTS[PLACES[job.kv]]}, ${job.prompt_tokens} prompt and ${job.output_tokens} output tokens`;
  });
}

function showTable(body, jobs) {
  resize(body, jobs.length, () => {
    const row = element("tr");
    for (let column = 0; column < 6; column++) row.append(element("td", column > 3 ? "number" : ""));
    return row;
  });
  jobs.forEach((job, number) => {
    const cells = [job.alias, job.level, STATES[job.state], KV_TEXTS[PLACES[job.kv]], job.prompt_tokens, job.output_tokens];
    cells.forEach((value, column) => text(body.children[number].children[column], String(value)));
  });
}

function newGroup() {
  const section = element("section", "group");
  const title = element("h3");
  title.append(element("span"), element("span", "lost"));
  section.append(title, element("div", "pools"), element("div"));
  return section;
}

function newLevel() {
  const row = element("div", "level");
  const name = element("p", "name");
  name.append(element("b"), element("span", "quiet"));
  const marks = element("div", "marks");
  marks.setAttribute("aria-hidden", "true"); // The counts and the table say it in words.
  row.append(name, marks);
  return row;
}

function resize(parent, count, make) {
  while (parent.children.length > count) parent.lastElementChild.remove();
  while (parent.children.length < count) parent.append(make());
}

function element(tag, className = "", content = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (content) made.textContent = content;
  return made;
}

function text(node, content) {
  if (node.textContent !== content) node.textContent = content;
}
