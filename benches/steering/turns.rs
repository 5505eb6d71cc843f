//! Whoever floods the queue waits for others, and nobody waits for ever: counted, not timed.

use crate::harness::{Queue, eventually};
use crate::request_all;

const FLOOD: usize = 10_000;

pub(crate) fn measure() {
    let queue = Queue::new();
    queue.reconfigure("slots = 2", "slots = 1");
    request_all(&queue, FLOOD, ",\"client\":\"flood\"");
    queue.run(["request", "--client", "one", "The one"]).code(3);
    let dispatcher = queue.spawn(["dispatch", "--for", "1h"]);
    eventually("the one is ready", || (queue.state("ok", "The one") == "ready").then_some(()));
    drop(dispatcher);
    let before = "SELECT count(*) FROM runs WHERE started_at < (SELECT started_at FROM runs WHERE title = 'The one')";
    println!("| one client floods {FLOOD} jobs, another asks for one; N = 1 | |\n|---|---|");
    println!("| jobs that start before the one | {} |", queue.sql(before)[0]);
}
