//! A backlog drains without waiting for the clock, and a slot that is free is taken at once.

use std::fs;

use crate::harness::Queue;
use crate::request_all;

const JOBS: usize = 1000;
const SLOTS: usize = 4;

pub(crate) fn measure() {
    let queue = Queue::new();
    fs::write(queue.path("book"), "a good book\n").expect("a file");
    let copy = format!(
        "[format.copy]\nextension = \"txt\"\ncommand = [\"cp\", \"{}\", \"{{output}}\"]\n",
        queue.path("book").display()
    );
    queue.configure(&format!("{}{copy}", queue.base_config()).replace("slots = 2", &format!("slots = {SLOTS}")));
    request_all(&queue, JOBS, ",\"format\":\"copy\"");
    queue.dispatch().code(0).silent();
    let figures = "SELECT count(*), max(finished_at) - min(started_at), sum(finished_at - started_at) FROM runs";
    let row = queue.sql(figures).remove(0);
    let figures: Vec<f64> = row.split('|').map(|figure| figure.parse().expect("a number")).collect();
    let [count, span, busy] = figures[..] else { panic!("{row}") };
    assert!((count - JOBS as f64).abs() < 0.5, "{count} of {JOBS} jobs ran");
    let idle = 100.0 * (1.0 - busy / (span * SLOTS as f64));
    println!("| {JOBS} exports that only copy, N = {SLOTS} | |\n|---|---|");
    println!("| jobs a second | {:.0} |\n| slot time between two runs | {idle:.0} % |", 1000.0 * count / span);
}
