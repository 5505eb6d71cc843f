//! The crash walk: for each named moment and each way to go, a real export is driven into it; then, without the fault, the
//! next ticks must restore everything. A new moment is a new test without writing one.

use std::fs;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use export_queue::fault::MOMENTS;

use crate::harness::{Queue, eventually, text};

const WAYS: &[&str] = &["abort", "error", "delay:150", "full"];

/// A derived format with a base and a verify command, beside the fake exporter's kinds.
const DERIVED: &str = "[format.derived]\nextension = \"txt\"\nbase = \"ok\"\n\
    command = [\"cp\", \"--\", \"{input}\", \"{output}\"]\nverify = [\"test\", \"-s\", \"{output}\"]\n";

/// A queue that notes in `TOLD` what it tells others.
fn telling() -> Queue {
    let queue = Queue::with(DERIVED);
    let told = queue.path("TOLD");
    let script = format!("echo \"$1 $2 $3\" >>{}", told.display());
    let command = format!("[\"sh\", \"-c\", {script:?}, \"told\", \"{{state}}\", \"{{format}}\", \"{{title}}\"]");
    let text = fs::read_to_string(queue.path("config.toml")).expect("the configuration");
    queue.configure(&format!("{text}[[notify]]\non = [\"ready\", \"failed\"]\ncommand = {command}\n"));
    queue
}

/// Ages a file beyond its time.
const OLD: Duration = Duration::from_secs(700);

#[test]
fn whatever_dies_at_whatever_moment_the_next_ticks_restore_everything() {
    let only = std::env::var("CRASH_ONLY").unwrap_or_default();
    // A move has a walk of its own, in tests/migrate.rs, and only a cache of many machines has files aside: tests/nodes.rs.
    let is_elsewhere = |moment: &str| moment.starts_with("migrate.") || moment == "sweep.aside";
    let moments = MOMENTS.iter().filter(|moment| moment.contains(&only) && !is_elsewhere(moment));
    let walks: Vec<(&str, &str)> = moments.flat_map(|moment| WAYS.iter().map(move |way| (*moment, *way))).collect();
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some((moment, way)) = walks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let walked = std::panic::catch_unwind(|| walk(moment, way));
                    if walked.is_err() {
                        failed.lock().expect("the list").push(format!("{moment}={way}"));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("the list");
    println!("{} moments, {} walks, {} failed", walks.len() / WAYS.len(), walks.len(), failed.len());
    assert!(failed.is_empty(), "{failed:?}");
}

/// Calls the program with the fault in force; however it ends is fine, but for a panic and for hanging.
fn call_with(queue: &Queue, fault: &str, args: &[&str]) {
    let mut command = queue.command(args);
    command.env("EXPORT_QUEUE_FAULT", fault).env("EXPORT_QUEUE_FAULT_HITS", queue.path("HITS"));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program can be started");
    let status = eventually(&format!("{fault}: {args:?} ends"), || child.try_wait().expect("it can be waited for"));
    assert_ne!(status.code(), Some(101), "{fault}: {args:?} panicked");
}

/// A queue with an expired file, a job whose worker was killed, and a queued job that a ready file fulfils.
fn battered() -> Queue {
    let queue = telling();
    fs::write(queue.path("S"), "30").expect("a scratch file");
    queue.request("ok", "old");
    queue.request("ok", "fulfilled");
    queue.dispatch().code(0);
    queue.request("mark", "lost");
    queue.run(["dispatch"]).code(0);
    eventually("the exporter of `lost` runs", || (queue.scratch("LOG").len() == 1).then_some(()));
    for worker in queue.workers() {
        worker.slay();
    }
    let old = text(&queue.status("ok", "old")["path"]);
    Queue::age(old.as_ref(), OLD);
    queue.sql("UPDATE runs SET published_at = published_at - 700000 WHERE title = 'old'");
    queue.sql(
        "INSERT INTO jobs (title, lang, font, format, options, filename, queue, priority, rank, state, submitted_at)
         SELECT title, lang, font, format, options, filename, queue, 10, 0, 0, submitted_at FROM runs WHERE title = 'fulfilled'",
    );
    queue.sql("UPDATE jobs SET due_at = submitted_at + 3600000, waits_for = 'not_before' WHERE title = 'fulfilled'");
    fs::write(queue.path("S"), "0").expect("a scratch file");
    queue
}

fn walk(moment: &str, way: &str) {
    let fault = format!("{moment}={way}");
    let queue = if moment.starts_with("setup.") { telling() } else { battered() };
    call_with(&queue, &fault, &["request", "--format", "derived", "--", "new"]);
    call_with(&queue, &fault, &["dispatch", "--wait"]);
    call_with(&queue, &fault, &["dispatch", "--wait"]);
    call_with(&queue, &fault, &["sweep"]);
    let hits = queue.scratch("HITS");
    assert!(!hits.is_empty(), "{moment} was never reached");

    // Without the fault: whoever was refused asks again, and a few ticks put everything right.
    queue.run(["--exit-zero", "request", "--retry", "--format", "derived", "--", "new"]).code(0);
    let wanted: &[(&str, &str)] =
        if moment.starts_with("setup.") { &[("derived", "new")] } else { &[("derived", "new"), ("mark", "lost")] };
    eventually(&format!("{fault}: all is ready"), || {
        queue.dispatch();
        let states: Vec<_> = wanted.iter().map(|(format, title)| queue.status(format, title)).collect();
        for status in &states {
            // Whatever is said meanwhile must be true: a failure can only be the one that was asked for.
            if status["state"].as_str().is_some_and(|state| state.starts_with("failed")) {
                let (reason, detail) = (text(&status["reason"]), text(&status["detail"]));
                let is_true = reason == "no_space" && way == "full"
                    || reason == "interrupted" && !way.starts_with("delay")
                    || reason == "base_failed" && (detail.contains("no_space") || detail.contains("its worker died"));
                assert!(is_true, "{fault}: {status}");
                queue.run(["--exit-zero", "request", "--retry", "--filename", &text(&status["filename"])]).code(0);
            }
        }
        states.iter().all(|status| status["state"] == "ready").then_some(())
    });
    let derived = fs::read_to_string(text(&queue.status("derived", "new")["path"])).expect("the path opens");
    assert_eq!(derived, "a good book: new\n", "{fault}");
    eventually(&format!("{fault}: the end of each job was told, and noted"), || {
        queue.dispatch();
        let told = queue.scratch("TOLD");
        // An error after the rename fails the job although its file is there.
        let state = if fault == "publish.after_rename=full" { "failed_unknown" } else { "ready" };
        let is_told = wanted.iter().all(|(format, title)| told.contains(&format!("{state} {format} {title}")));
        (is_told && queue.sql("SELECT id FROM deliveries").is_empty()).then_some(())
    });
    if !moment.starts_with("setup.") {
        eventually(&format!("{fault}: the old file is swept"), || {
            queue.dispatch();
            (queue.state("ok", "old") == "absent" && !queue.published().iter().any(|path| path.ends_with("old")))
                .then_some(())
        });
        assert_eq!(queue.status("ok", "fulfilled")["state"], "ready", "{fault}");
        assert!(
            queue.sql("SELECT id FROM jobs WHERE title = 'fulfilled'").is_empty(),
            "{fault}: a fulfilled job is left"
        );
    }
    queue.assert_quiet();
}
