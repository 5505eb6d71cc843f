//! What shows only over time: edits, outages, and files that must not grow.

use std::fs;
use std::time::Duration;

use crate::harness::{Queue, eventually, text};
use crate::scripts::add_format;

const MINUTE: Duration = Duration::from_secs(60);

/// The books of the outage.
const TITLES: usize = 16;

fn content(queue: &Queue, format: &str, title: &str) -> String {
    fs::read_to_string(text(&queue.status(format, title)["path"])).expect("the path opens")
}

// CASES 65
#[test]
fn an_edit_shows_when_the_file_has_expired_or_a_refresh_is_asked_for() {
    let queue = Queue::new();
    let source = queue.path("source");
    add_format(&queue, "page", "", &format!("cat '{}' >\"$output\"", source.display()));
    let edit = |to: &str| fs::write(&source, to).expect("the source can be written");
    edit("first");
    queue.request("page", "A");
    queue.dispatch().code(0).silent();
    edit("second");
    let file = queue.published().pop().expect("a file");
    for age in [MINUTE, 9 * MINUTE + Duration::from_secs(29)] {
        Queue::age(&file, age);
        assert_eq!(queue.request("page", "A")["state"], "ready", "at {age:?}");
        assert_eq!(content(&queue, "page", "A"), "first", "at {age:?}");
    }
    Queue::age(&file, 10 * MINUTE + Duration::from_secs(1));
    assert_eq!(queue.request("page", "A")["state"], "queued");
    queue.dispatch().code(0).silent();
    assert_eq!(content(&queue, "page", "A"), "second");
    edit("third");
    queue.run(["request", "--refresh", "--format", "page", "A"]).code(0);
    queue.dispatch().code(0).silent();
    assert_eq!(content(&queue, "page", "A"), "third");
    let other = queue.run(["--json", "--exit-zero", "request", "--format", "page", "--lang", "fr", "A"]).code(0).json();
    assert_eq!(other["state"], "queued", "another language is another file");
    queue.dispatch().code(0).silent();
    queue.assert_quiet();
}

// CASES 70
#[test]
fn an_outage_fails_nobody_for_good_and_all_come_back_spread() {
    let queue = Queue::new();
    let outage = queue.path("outage");
    // Long enough that all have failed before the first comes back: a retry keeps its place before later ones.
    let delays = "[\"8s\", \"8s\", \"8s\"]";
    let body = format!(
        "note LOG start; [ ! -e '{0}' ] || {{ note LOG end; exit 75; }}; echo whole >\"$output\"; note LOG end",
        outage.display()
    );
    add_format(&queue, "flaky", &format!("backoff = {delays}"), &body);
    fs::write(&outage, "").expect("the outage begins");
    for n in 0..TITLES {
        queue.request("flaky", &format!("book {n}"));
    }
    let tick = queue.spawn(["dispatch", "--for", "50s"]);
    eventually("every book has failed once", || (queue.scratch("LOG").len() >= 2 * TITLES).then_some(()));
    queue.request("ok", "another");
    queue.await_state("ok", "another", "ready");
    fs::remove_file(&outage).expect("the outage ends");
    eventually("all are ready", || (queue.published().len() == TITLES + 1).then_some(()));
    let log = queue.scratch("LOG");
    let most = log.iter().scan(0_i32, |open, line| {
        *open += if line == "start" { 1 } else { -1 };
        Some(*open)
    });
    assert!(most.max().is_some_and(|most| most <= 2), "never more than N");
    eventually("no row is left", || queue.sql("SELECT id FROM jobs").is_empty().then_some(()));
    tick.signal("TERM");
    tick.wait().code(0).silent();
    queue.assert_quiet();
}

// CASES 75
#[test]
fn the_write_ahead_log_stays_small_while_exports_run_and_people_poll() {
    let queue = Queue::new();
    fs::write(queue.path("S"), "600").expect("a scratch file");
    queue.request("slow", "A");
    queue.run(["dispatch"]).code(0).silent();
    queue.await_state("slow", "A", "started");
    let wal = || fs::metadata(queue.path("state/queue.db-wal")).map_or(0, |meta| meta.len());
    let lines = |round: usize| {
        let lines: Vec<_> = (0..3_000).map(|n| format!("{{\"title\":\"{round} {n}\"}}")).collect();
        lines.join("\n")
    };
    for round in 0..4 {
        fs::write(queue.path("batch"), lines(round)).expect("a batch");
        queue.run(["request", "--batch", &queue.path("batch").to_string_lossy()]).code(0);
        queue.status("slow", "A");
        queue.request("ok", &format!("after {round}"));
        assert!(wal() < 8_000_000, "{} bytes after round {round}", wal());
    }
    queue.run(["cancel", "--format", "slow", "A"]).code(0);
    queue.await_state("slow", "A", "failed_unknown");
    queue.sql("DELETE FROM jobs WHERE state = 0");
    queue.assert_quiet();
}
