// Requests to the plugin's routes.

const ROOT = new URL("../", import.meta.url);

/** An answer of the server that is no answer. */
export class ServerError extends Error {
  constructor(message, traceback = "", code = 0) {
    super(message);
    this.traceback = traceback;
    this.code = code;
  }
}

/** JSON from a route; a list as value repeats the parameter. */
export async function get(route, parameters = {}, signal = undefined) {
  const url = new URL(route, ROOT);
  for (const [key, value] of Object.entries(parameters)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== null && one !== undefined) url.searchParams.append(key, one);
  }
  let answer;
  try {
    answer = await fetch(url, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("TensorBoard does not answer");
  }
  let told;
  try {
    told = await answer.json();
  } catch {
    throw new ServerError(`TensorBoard answered ${answer.status} ${answer.statusText}`, "", answer.status);
  }
  if (!answer.ok) throw new ServerError(told.error ?? `error ${answer.status}`, told.traceback, answer.status);
  return told;
}
