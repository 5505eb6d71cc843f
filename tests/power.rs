//! Power loss: what must be on the disk before what, read off a trace of the system calls, line by line.
//!
//! `tests/cache.rs` shows that a file is synced before its name appears and the name before the row goes; here is the whole
//! chain from the claim to the end of the row, and that of a request.

use std::fs;
use std::process::Command;

use crate::harness::Queue;

/// Calls the program under strace; each line of the trace begins with a process id, calls in pieces are put together.
fn traced(queue: &Queue, args: &[&str], code: i32) -> Vec<String> {
    let trace = queue.path("trace");
    let program = queue.command(args);
    let mut strace = Command::new("strace");
    let calls = "trace=execve,mkdir,mkdirat,fsync,fdatasync,rename,renameat,renameat2,pwrite64,unlink,unlinkat,rmdir,exit_group";
    strace.args(["-f", "-y", "-s", "8", "-e", calls, "-o"]).arg(&trace);
    let done = strace.arg(program.get_program()).args(program.get_args()).output().expect("strace runs");
    assert_eq!(done.status.code(), Some(code), "{done:?}");
    let mut lines: Vec<String> = Vec::new();
    for line in fs::read_to_string(trace).expect("the trace").lines() {
        let pid = line.split_ascii_whitespace().next().unwrap_or_default();
        let begun = lines.iter_mut().rfind(|begun| begun.starts_with(pid) && begun.ends_with(" <unfinished ...>"));
        match (line.contains(" resumed>"), begun) {
            // A call counts as done where it came back, for that is when its promise holds.
            (true, Some(begun)) => {
                let whole = begun.replace(" <unfinished ...>", line.split(" resumed>").nth(1).unwrap_or_default());
                *begun = String::new();
                lines.push(whole);
            }
            _ => lines.push(line.to_owned()),
        }
    }
    lines
}

fn is_sync(line: &str) -> bool {
    (line.contains(" fsync(") || line.contains(" fdatasync(")) && line.ends_with("= 0")
}

fn syncs_log(line: &str) -> bool {
    is_sync(line) && line.contains("queue.db-wal>")
}

fn writes_log(line: &str) -> bool {
    line.contains(" pwrite64(") && line.contains("queue.db-wal>")
}

type Step<'s> = (&'s str, &'s dyn Fn(&str) -> bool);

/// Finds one after the other; each must come after the one before.
fn in_order(lines: &[String], steps: &[Step<'_>]) -> Vec<usize> {
    let mut from = 0;
    let mut places = Vec::new();
    for (story, is_step) in steps {
        let place = lines.iter().skip(from).position(|line| is_step(line));
        let place = from + place.unwrap_or_else(|| panic!("no {story} after line {from}:\n{}", lines.join("\n")));
        println!("{:5} {story}: {}", place, lines[place]);
        places.push(place);
        from = place + 1;
    }
    places
}

#[test]
fn everything_is_on_the_disk_before_what_relies_on_it() {
    let queue = Queue::new();
    queue.run(["init", "--quiet"]).code(0);
    queue.request("ok", "A");
    let lines = traced(&queue, &["dispatch", "--wait"], 0);
    let file = queue.published().pop().expect("a file");
    let name = file.file_name().and_then(|name| name.to_str()).expect("its name");
    let shard = file.parent().expect("its shard").to_str().expect("its shard's name");
    let cache = queue.path("cache").to_str().expect("a path").to_owned();
    let renames = |line: &str| line.contains(" rename") && line.contains(name) && line.ends_with("= 0");
    let worker = lines.iter().find(|line| renames(line)).and_then(|line| line.split(' ').next()).expect("a worker");
    let by_worker = |line: &str| line.starts_with(worker);
    let places = in_order(
        &lines,
        &[
            ("write of the claim", &|line| by_worker(line) && writes_log(line)),
            ("sync of the claim", &|line| by_worker(line) && syncs_log(line)),
            ("start of the exporter", &|line| {
                line.contains(" execve(") && line.contains("/fake") && line.ends_with("= 0")
            }),
            ("sync of the file", &|line| by_worker(line) && is_sync(line) && line.contains("/out/export.txt>")),
            ("making of the shard", &|line| by_worker(line) && line.contains(" mkdir") && line.contains(shard)),
            ("sync of the shard's name", &|line| {
                by_worker(line) && is_sync(line) && line.contains(&format!("{cache}>"))
            }),
            ("rename", &renames),
            ("sync of the shard", &|line| by_worker(line) && is_sync(line) && line.contains(&format!("{shard}>"))),
            ("write of the row's end", &|line| by_worker(line) && writes_log(line)),
            ("sync of the row's end", &|line| by_worker(line) && syncs_log(line)),
            ("removal of the work directory", &|line| {
                by_worker(line) && line.contains("/.work") || line.contains(" rmdir(")
            }),
        ],
    );
    let (exporter, renamed, shard_synced) = (places[2], places[6], places[7]);
    // No row changes between the exporter's end and the moment when its file can be found after a power cut.
    let early = lines[places[3]..shard_synced].iter().find(|line| by_worker(line) && writes_log(line));
    assert_eq!(early, None, "a row was written before the name was on the disk");
    let late = lines[..exporter].iter().rposition(|line| by_worker(line) && writes_log(line)).expect("the claim");
    assert!(lines[late..exporter].iter().any(|line| by_worker(line) && syncs_log(line)), "the claim was not synced");
    assert!(renamed < shard_synced);
    queue.assert_quiet();
}

#[test]
fn a_request_is_on_the_disk_before_its_answer() {
    let queue = Queue::new();
    queue.run(["init", "--quiet"]).code(0);
    for title in ["A", "B"] {
        let lines = traced(&queue, &["request", "--format", "ok", title], 3);
        let last = lines.iter().rposition(|line| writes_log(line)).expect("a write");
        in_order(
            &lines[last..],
            &[
                ("last write of the row", &|line| writes_log(line)),
                ("sync of the row", &syncs_log),
                ("end", &|line| line.contains(" exit_group(3)")),
            ],
        );
    }
    queue.assert_quiet();
}

#[test]
fn a_request_that_joins_syncs_what_it_rests_on() {
    let queue = Queue::new();
    queue.request("ok", "A");
    let batch = queue.path("batch");
    fs::write(&batch, "{\"title\": \"A\", \"format\": \"ok\"}\n").expect("a batch of one");
    let batch = batch.to_str().expect("a path");
    for (args, code) in [(&["request", "--format", "ok", "A"][..], 3), (&["request", "--batch", batch], 0)] {
        let lines = traced(&queue, args, code);
        in_order(&lines, &[("sync of the log", &syncs_log), ("end", &|line| line.contains(" exit_group("))]);
    }
    queue.assert_quiet();
}

#[test]
fn a_delivery_is_on_the_disk_before_it_is_told() {
    let queue = Queue::with("[[notify]]\non = [\"ready\"]\ncommand = [\"true\", \"{filename}\"]\n");
    queue.run(["init", "--quiet"]).code(0);
    queue.request("ok", "A");
    let lines = traced(&queue, &["dispatch", "--wait"], 0);
    let is_told = |line: &str| line.contains(" execve(") && line.contains("/true\"") && line.ends_with("= 0");
    let told = lines.iter().position(|line| is_told(line)).expect("somebody is told");
    let ends = lines.iter().position(|line| writes_log(line)).expect("a write of the worker");
    let worker = lines[ends].split(' ').next().expect("its number");
    let synced = |line: &&String| syncs_log(line) && !line.starts_with(worker);
    assert!(lines[ends..told].iter().any(|line| synced(&line)), "by who tells it:\n{}", lines.join("\n"));
    queue.assert_quiet();
}

/// Calls the program where the log cannot be synced but once in each of its processes: SQLite does that when it begins the
/// log anew.
fn with_one_sync(queue: &Queue, args: &[&str]) -> std::process::Output {
    let program = queue.command(args);
    let mut strace = Command::new("strace");
    let (log, fault) = (queue.path("state/queue.db-wal"), "inject=fdatasync:error=EIO:when=2+");
    strace.args(["-f", "-e", "trace=fdatasync", "-e", fault, "-P"]).arg(log).arg("-o").arg(queue.path("trace"));
    strace.arg(program.get_program()).args(program.get_args()).output().expect("strace runs")
}

#[test]
fn a_request_that_the_disk_does_not_keep_is_not_accepted() {
    let queue = Queue::new();
    queue.run(["init", "--quiet"]).code(0);
    let done = with_one_sync(&queue, &["request", "--format", "ok", "A"]);
    assert_eq!(done.status.code(), Some(75), "{done:?}");
    assert!(String::from_utf8_lossy(&done.stderr).contains("the disk does not keep what is written"), "{done:?}");
}

#[test]
fn a_claim_that_the_disk_does_not_keep_starts_no_exporter() {
    let queue = Queue::new();
    queue.run(["init", "--quiet"]).code(0);
    queue.request("ok", "A");
    with_one_sync(&queue, &["dispatch", "--wait"]);
    assert_eq!(queue.sql("SELECT attempts FROM jobs"), ["1"], "it was claimed");
    assert_eq!(queue.scratch("STARTS"), Vec::<String>::new(), "nothing was started");
    queue.dispatch().code(0);
    assert_eq!(queue.state("ok", "A"), "ready");
    queue.assert_quiet();
}
