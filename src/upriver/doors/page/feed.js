// The pictures of the app as they come, and calls of its JSON API.

const RETRY_MS_MIN = 1000;
const RETRY_MS_MAX = 15000;
const SILENCE_MS_MAX = 20000; // the server sends a picture each second: after this much silence the connection is lost
const POINTS_MAX = 600;

export class ApiProblem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** Ask the API. Throws ApiProblem with the server's own sentence. */
export async function call(method, path, body) {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      credentials: "same-origin",
      headers: { accept: "application/json", ...(body === undefined ? {} : { "content-type": "application/json" }) },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new ApiProblem(0, "The app cannot be reached.");
  }
  let told = {};
  try { told = await answer.json(); } catch { /* an answer without a body */ }
  if (!answer.ok) throw new ApiProblem(answer.status, told.detail ?? `The app has answered ${answer.status}.`);
  return told;
}

/** Follow the app. onPicture(picture); onLost(why) with "unreachable" or "session"; it goes on by itself. */
export function follow(onPicture, onLost) {
  let pause = RETRY_MS_MIN, source = null, watch = null, history = null;

  const merge = (picture) => {
    const grown = picture.history;
    if (picture.history_is_whole || !history) history = grown;
    else for (const name of Object.keys(grown)) history[name] = [...history[name], ...grown[name]].slice(-POINTS_MAX);
    return { ...picture, history };
  };
  const heard = () => {
    clearTimeout(watch);
    watch = setTimeout(lost, SILENCE_MS_MAX);
  };
  const lost = async () => {
    source?.close();
    clearTimeout(watch);
    let why = "unreachable";
    try { await call("GET", "/v1/session"); } catch (error) { if (error.status === 401) why = "session"; }
    onLost(why);
    setTimeout(open, pause);
    pause = Math.min(2 * pause, RETRY_MS_MAX);
  };
  const open = () => {
    source = new EventSource("/v1/river/events");
    heard();
    source.addEventListener("river", (event) => {
      pause = RETRY_MS_MIN;
      heard();
      onPicture(merge(JSON.parse(event.data)));
    });
    source.onerror = lost;
    source.addEventListener("problem", lost);
  };
  open();
}
