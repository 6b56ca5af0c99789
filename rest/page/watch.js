// Keeps a stream of statuses open: lines of JSON, {"result": {"status": ...}} each. It comes back by itself, after 0.5 s at first and at most 5 s
// later, and rests while nobody sees the page. A stream that is silent for too long is given up.
const FIRST_WAIT_S = 0.5;
const LONGEST_WAIT_S = 5;
const LONGEST_LINE = 4_000_000;

export async function watch({ path, silenceS, key, onStatus, onState, onKeyAsked }) {
  let waitS = FIRST_WAIT_S;
  for (;;) {
    await seen();
    try {
      await readOnce(path, silenceS, key(), (status) => {
        waitS = FIRST_WAIT_S;
        onStatus(status);
        onState("live", "live");
      });
      onState("lost", "the server ended the stream: coming back");
    } catch (failure) {
      if (document.hidden) onState("resting", "resting");
      else if (failure.status === 401) {
        onState("lost", "an API key is needed");
        await onKeyAsked();
        waitS = FIRST_WAIT_S;
        continue;
      } else onState("lost", `${failure.message}: coming back`);
    }
    await new Promise((done) => setTimeout(done, waitS * 1000));
    waitS = Math.min(LONGEST_WAIT_S, waitS * 2);
  }
}

async function readOnce(path, silenceS, key, onStatus) {
  const control = new AbortController();
  let reason = "the server can't be reached";
  const giveUp = () => {
    reason = "the server is silent";
    control.abort();
  };
  const hide = () => document.hidden && control.abort();
  let silence = setTimeout(giveUp, silenceS * 1000);
  document.addEventListener("visibilitychange", hide);
  try {
    const response = await fetch(path, { signal: control.signal, headers: key ? { Authorization: `Bearer ${key}` } : {} });
    if (!response.ok) throw Object.assign(new Error(await said(response)), { status: response.status });
    for await (const line of linesOf(response)) {
      clearTimeout(silence);
      silence = setTimeout(giveUp, silenceS * 1000);
      const message = JSON.parse(line);
      if (message.error) throw Object.assign(new Error(message.error.message), { status: 0 });
      onStatus(message.result.status);
    }
  } catch (failure) {
    // A broken connection has as many texts as there are browsers.
    throw failure.status === undefined ? Object.assign(new Error(reason), { status: 0 }) : failure;
  } finally {
    clearTimeout(silence);
    document.removeEventListener("visibilitychange", hide);
    control.abort();
  }
}

export async function* linesOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    if (rest.length > LONGEST_LINE) throw new Error("a line is too long");
    for (const line of lines) if (line !== "") yield line;
  }
}

export async function said(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

function seen() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((done) => {
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      done();
    };
    document.addEventListener("visibilitychange", look);
  });
}
