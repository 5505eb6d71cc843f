//! From the call of `request` to the first line of the exporter, a hundred requests each.

use std::fs;
use std::time::Duration;

use crate::harness::{Queue, eventually, make_executable, since_epoch};
use crate::percentile;

const REQUESTS: usize = 100;

/// An exporter that notes when it began, in seconds, before it does anything else.
const STAMP: &str = "#!/bin/bash\necho \"$EPOCHREALTIME\" >\"$2.new\"; mv \"$2.new\" \"$2\"; echo x >\"$1\"\n";

pub(crate) fn measure() {
    println!("| {REQUESTS} requests each, milliseconds | p50 | p95 | slowest |\n|---|---|---|---|");
    row("`dispatch --for`, nothing else to do", &idle_queue());
    row("`dispatch --for`, the default queue full of big books, the request goes to the express queue", &full_queue());
}

fn row(name: &str, took: &[f64]) {
    let mut sorted = took.to_vec();
    sorted.sort_by(f64::total_cmp);
    let slowest = percentile(&sorted, 100);
    println!("| {name} | {:.1} | {:.1} | {slowest:.1} |", percentile(&sorted, 50), percentile(&sorted, 95));
}

fn queue_with_stamps(more: &str) -> Queue {
    let queue = Queue::new();
    fs::write(queue.path("stamp"), STAMP).expect("a script");
    make_executable(&queue.path("stamp"));
    let place = |name: &str| queue.path(name).display().to_string();
    let format = format!(
        "[format.stamp]\nextension = \"txt\"\ncommand = [\"{}\", \"{{output}}\", \"{}\"]\n",
        place("stamp"),
        place("began")
    );
    queue.configure(&format!("{}{format}{more}", queue.base_config()));
    queue
}

fn idle_queue() -> Vec<f64> {
    let queue = queue_with_stamps("");
    time_requests(&queue, &[])
}

fn full_queue() -> Vec<f64> {
    let lanes = "[queue.express]\nmin_free_disk = 0\n[bypass]\nmax_pages = 30\nqueue = \"express\"\n";
    let queue = queue_with_stamps(lanes);
    fs::write(queue.path("S"), "600").expect("a file");
    for book in 0..20 {
        queue.request("slow", &format!("Big book {book}"));
    }
    let took = time_requests(&queue, &["--pages", "12"]);
    assert_eq!(queue.sql("SELECT count(*) FROM jobs WHERE queue = 'default' AND state = 1"), ["2"]);
    took
}

/// Asks for one title after the other, each when the last one's worker has gone, and times each, in milliseconds.
fn time_requests(queue: &Queue, more: &[&str]) -> Vec<f64> {
    let dispatcher = queue.spawn(["dispatch", "--for", "1h"]);
    let before = loop {
        let workers = queue.workers().len();
        if queue.path("state/tick").exists()
            && queue.sql("SELECT count(*) FROM jobs WHERE state = 1") == [workers.to_string()]
        {
            break workers;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let took = (0..REQUESTS).map(|number| {
        let title = format!("Book {number}");
        let asked = since_epoch();
        queue.run([&["request", "--format", "stamp", &title], more].concat()).code(3);
        let began = eventually("the exporter starts", || fs::read_to_string(queue.path("began")).ok());
        fs::remove_file(queue.path("began")).expect("the note can be removed");
        eventually("the worker has gone", || (queue.workers().len() == before).then_some(()));
        (began.trim().parse::<f64>().expect("seconds") - asked.as_secs_f64()) * 1000.0
    });
    let took = took.collect();
    drop(dispatcher);
    took
}
