//! Real offenders against each limit: what ended them, how soon after they crossed it, and what was left. Each prints a line
//! of the table in SECURITY.md (`cargo test --test all -- offenders:: --nocapture --test-threads 1`).

use std::collections::HashSet;
use std::fs;
use std::time::Duration;

use export_queue::identity::Identity;
use export_queue::process::{self, Stat};
use serde_json::Value;

use crate::converters::{heavy, need};
use crate::harness::{Queue, eventually, now, text};
use crate::scripts::add_format;

/// Above what any of these takes on a busy machine, from the crossing of its limit to its end.
const PROMPT: Duration = Duration::from_secs(20);

/// One offender, as it was seen from outside.
struct Offence {
    status: Value,
    /// From the first look that found the limit crossed (or, where none did, the most that was ever found) to the first that
    /// found no process left.
    took: Duration,
    /// The most that was measured.
    peak: u64,
}

/// The exporter's processes below a patient dispatcher.
fn exporters(dispatcher: i32) -> Vec<Stat> {
    let is_worker = |process: &Stat| {
        let command = fs::read(format!("/proc/{}/cmdline", process.identity.pid)).unwrap_or_default();
        String::from_utf8_lossy(&command).contains("\0work\0--queue\0")
    };
    process::descendants(dispatcher).into_iter().filter(|process| !is_worker(process)).collect()
}

/// Has an export made that measures more than `limit` one day, and watches it to its end: nothing of it may be left.
fn offend(queue: &Queue, format: &str, limit: u64, measure: impl Fn(&[Stat]) -> u64) -> Offence {
    queue.request(format, "A");
    let dispatch = queue.spawn(["dispatch", "--wait"]);
    let (mut everyone, mut since, mut peak) = (HashSet::<Identity>::new(), now(), 0);
    let took = eventually("the offender is gone", || {
        let tree = exporters(dispatch.pid());
        everyone.extend(tree.iter().map(|process| process.identity));
        let found = measure(&tree);
        if found > peak && peak <= limit {
            since = now();
        }
        peak = peak.max(found);
        // A look may miss one; whoever was ever seen must be dead.
        let is_over = tree.is_empty() && !everyone.is_empty();
        (is_over && !everyone.iter().any(|process| process::is_alive(*process))).then(|| since.elapsed())
    });
    dispatch.wait().code(0).silent();
    let left: Vec<_> = everyone.into_iter().filter(|process| process::is_alive(*process)).collect();
    assert!(left.is_empty(), "alive after the end of their run: {left:?}");
    assert!(queue.work_dirs().is_empty() && queue.published().is_empty());
    assert!(took < PROMPT, "{took:?}");
    queue.assert_quiet();
    Offence { status: queue.status(format, "A"), took, peak }
}

/// The bytes of the exporter's log; there is but one run in these queues.
fn log_bytes(queue: &Queue) -> u64 {
    let logs = fs::read_dir(queue.path("state/logs")).into_iter().flatten().flatten();
    let runs = logs.filter(|log| log.file_name() != "worker.txt");
    runs.filter_map(|log| log.metadata().ok()).map(|meta| meta.len()).sum()
}

/// Prints the line of the table, after the reason was found to be the right one.
#[track_caller]
fn report(offender: &str, limit: &str, reason: &str, peak: &str, offence: &Offence, queue: &Queue) {
    assert_eq!(text(&offence.status["reason"]), reason, "{}", offence.status);
    let took = offence.took.as_millis();
    let log = log_bytes(queue);
    assert!(log <= 256_000, "the log has {log} bytes");
    println!("| {offender} | `{limit}` | `{reason}` | {peak} | {took} ms | no process, no file; {log} bytes of log |");
}

fn megabytes(bytes: u64) -> String {
    format!("{} MB", bytes / 1_000_000)
}

#[test]
fn a_page_that_eats_memory_is_ended() {
    need(&["chromium"]);
    let _turn = heavy();
    let queue = Queue::new();
    let page = "<script>let all = []; for (;;) all.push(new Uint8Array(1 << 24).fill(1))</script>";
    fs::write(queue.path("page.html"), page).expect("a page");
    let command = "TMPDIR=. exec chromium --headless --no-sandbox --disable-gpu --user-data-dir=$TMPDIR/chromium \
                   --print-to-pdf=$output $SCRATCH/page.html";
    add_format(&queue, "page", "max_memory = \"1500MB\"", command);
    let memory = |tree: &[Stat]| tree.iter().map(|process| process::memory(process.identity.pid)).sum();
    let offence = offend(&queue, "page", 1_500_000_000, memory);
    report(
        "a page in Chromium that eats memory",
        "max_memory = \"1500MB\"",
        "out_of_memory",
        &megabytes(offence.peak),
        &offence,
        &queue,
    );
}

#[test]
fn yes_into_the_log_is_cut_and_the_export_goes_on() {
    let queue = Queue::new();
    add_format(
        &queue,
        "chatty",
        "max_log = \"64KB\"",
        "timeout 3 yes 'an exporter that does not stop to talk' >&2; whole",
    );
    queue.request("chatty", "A");
    let dispatch = queue.spawn(["dispatch", "--wait"]);
    let (mut peak, mut written) = (0, false);
    eventually("the chatterer has ended", || {
        peak = peak.max(log_bytes(&queue));
        let tree = exporters(dispatch.pid());
        written |= !tree.is_empty();
        (written && tree.is_empty()).then_some(())
    });
    dispatch.wait().code(0).silent();
    assert_eq!(queue.state("chatty", "A"), "ready");
    assert!(peak > 64_000, "it was never over its limit");
    queue.assert_quiet();
    let log = log_bytes(&queue);
    assert_eq!(log, 0, "the log of a run that went well is not kept");
    let peak = megabytes(peak);
    println!("| `yes` into the log for 3 s | `max_log = \"64KB\"` | none: cut, `ready` | {peak} | | nothing |");
}

#[test]
fn an_output_of_four_gibibytes_is_ended() {
    let _turn = heavy();
    let queue = Queue::new();
    add_format(&queue, "huge", "max_output = \"256MB\"", "exec head -c 4G /dev/zero >$output");
    let sizes = |_: &[Stat]| {
        let dirs = queue.work_dirs().into_iter().map(|dir| dir.join("out/export.txt"));
        dirs.filter_map(|file| fs::metadata(file).ok()).map(|meta| meta.len()).sum()
    };
    let offence = offend(&queue, "huge", 256_000_000, sizes);
    report("4 GiB of output", "max_output = \"256MB\"", "output_too_large", &megabytes(offence.peak), &offence, &queue);
}

#[test]
fn a_fork_bomb_is_ended() {
    let _turn = heavy();
    let queue = Queue::new();
    // The kernel's bound, which root does not have, is there for this machine's sake only: the bomb stays one.
    let bomb = "exec setpriv --reuid=65534 --clear-groups prlimit --nproc=500 \
                bash -c 'bomb() { bomb | bomb & }; bomb; sleep 600'";
    add_format(&queue, "bomb", "max_processes = 50", bomb);
    let offence = offend(&queue, "bomb", 50, |tree| tree.len() as u64);
    let peak = format!("{} processes", offence.peak);
    report("a fork bomb", "max_processes = 50", "too_many_processes", &peak, &offence, &queue);
}

#[test]
fn a_burner_of_processor_time_is_ended() {
    let queue = Queue::new();
    add_format(&queue, "burner", "max_cpu = \"2s\"", "while :; do :; done & while :; do :; done");
    let millis = |tree: &[Stat]| {
        let ticks: u64 = tree.iter().map(|process| process.cpu_ticks).sum();
        ticks * 1000 / process::ticks_per_second()
    };
    let offence = offend(&queue, "burner", 2000, millis);
    let peak = format!("{} ms", offence.peak);
    report("two endless loops", "max_cpu = \"2s\"", "cpu_exhausted", &peak, &offence, &queue);
}

#[test]
fn a_book_that_keeps_pandoc_busy_for_ever_is_ended() {
    need(&["pandoc"]);
    let queue = Queue::new();
    fs::write(queue.path("book.md"), "[".repeat(30)).expect("a book");
    add_format(&queue, "endless", "timeout = \"3s\"", "exec pandoc --to=html --output=$output $SCRATCH/book.md");
    let offence = offend(&queue, "endless", 3000, age_millis);
    let peak = format!("{} ms", offence.peak);
    report("30 open brackets in pandoc", "timeout = \"3s\"", "timed_out", &peak, &offence, &queue);
}

#[test]
fn one_that_ignores_term_is_killed() {
    let queue = Queue::new();
    let deaf = "trap '' TERM; (trap '' TERM; setsid sleep 600) & while :; do sleep 600; done";
    add_format(&queue, "deaf", "timeout = \"2s\"\nkill_grace = \"2s\"", deaf);
    let offence = offend(&queue, "deaf", 2000, age_millis);
    assert!(offence.took >= Duration::from_secs(1), "its grace was cut short: {:?}", offence.took);
    assert!(text(&offence.status["detail"]).contains("it ignored TERM"), "{}", offence.status);
    let peak = format!("{} ms", offence.peak);
    let limit = "timeout = \"2s\"`, `kill_grace = \"2s\"";
    report("one that ignores TERM, with a child in another session", limit, "timed_out", &peak, &offence, &queue);
}

/// How long the eldest of the processes has been running.
fn age_millis(tree: &[Stat]) -> u64 {
    let uptime = fs::read_to_string("/proc/uptime").expect("the time since boot");
    let seconds: f64 = uptime.split(' ').next().and_then(|text| text.parse().ok()).expect("seconds");
    let begun = tree.iter().map(|process| process.identity.start * 1000 / process::ticks_per_second()).min();
    begun.map_or(0, |begun| ((seconds * 1000.0) as u64).saturating_sub(begun))
}
