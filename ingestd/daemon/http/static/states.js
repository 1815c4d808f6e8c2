// The states of mappings and policies: the order of the former by urgency, and their badges.

import { h, setAttribute, setText } from "./dom.js";

/** From the most urgent to the least urgent. */
export const STATES = ["failed", "waiting", "recovering", "starting", "paused", "running", "standby", "stopped"];

const MEANINGS = {
  failed: "An error ended this mapping",
  waiting: "Retrying after an error",
  recovering: "Became owner, restores the committed position and asks Kafka for records",
  starting: "Has not become owner yet",
  paused: "Paused by an operator",
  running: "Owned by this daemon, which moves records",
  standby: "Owned by another daemon; this one takes over when it ends",
  stopped: "Ended",
  idle: "This policy waits for its next execution",
  disabled: "An operator has disabled this policy",
  needs_resume: "An error that a retry cannot fix has stopped this policy until it is resumed",
  needs_bootstrap: "Changes of the source are no longer available, so the database must be copied again",
  invalid: "This policy is not a statement of replication",
};

/** Return a badge; `setBadge` sets its state. */
export function badge(state) {
  const made = h("span", { class: "badge" });
  setBadge(made, state);
  return made;
}

/** Show a state in a badge. */
export function setBadge(node, state) {
  setText(node, state.replace("_", " "));
  setAttribute(node, "data-state", state);
  setAttribute(node, "title", MEANINGS[state] ?? state);
}

/** Return the rank of a state: 0 is the most urgent. */
export function urgency(state) {
  const rank = STATES.indexOf(state);
  return rank < 0 ? STATES.length : rank;
}
