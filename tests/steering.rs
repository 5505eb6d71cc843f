//! A queue that people can steer: how an export is asked for, pauses, and what is done to many jobs at once.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Queue, Said, call, eventually, make_executable, now, text};

/// Nothing starts by itself: there is no slot. Beside `default` there is `express`.
fn still_queue(more: &str) -> Queue {
    let queue = Queue::with(&format!("[queue.express]\nslots = 0\nmin_free_disk = 0\n{more}"));
    queue.reconfigure("slots = 2", "slots = 0");
    queue
}

/// The status object of a request with these arguments, whatever its code.
fn ask(queue: &Queue, args: &[&str]) -> Value {
    queue.run([&["--json", "--exit-zero", "request"], args].concat()).json()
}

/// What a wrong call is told.
fn refusal(queue: &Queue, args: &[&str]) -> String {
    let said = queue.run([&["--json"], args].concat()).code(2);
    text(&said.json()["error"]["message"])
}

fn stored(queue: &Queue) -> Vec<String> {
    queue.sql("SELECT title FROM jobs ORDER BY rank, id")
}

#[test]
fn a_lower_priority_goes_first() {
    let queue = still_queue("");
    for (title, priority) in [("last", "1000"), ("third", "10"), ("first", "0")] {
        ask(&queue, &["--priority", priority, title]);
    }
    ask(&queue, &["second", "--priority", "9"]);
    assert_eq!(stored(&queue), ["first", "second", "third", "last"]);
    assert_eq!(refusal(&queue, &["request", "A", "--priority", "1001"]), "a priority is 0 to 1000");
}

#[test]
fn what_a_caller_gives_comes_back() {
    let queue = Queue::new();
    let meta = json!({"page": 7, "who": ["ä", null]});
    let status = ask(&queue, &["A", "--client", "web 1", "--meta", &meta.to_string()]);
    assert_eq!(status["meta"], meta);
    assert_eq!(queue.status("ok", "A")["meta"], meta);
    queue.dispatch().code(0);
    let status = queue.status("ok", "A");
    assert_eq!((&status["state"], &status["meta"]), (&"ready".into(), &meta));
    let run = queue.run(["--json", "history", "A"]).code(0).json();
    assert_eq!((&run["meta"], &run["client"]), (&meta, &"web 1".into()));
    let told = refusal(&queue, &["request", "B", "--meta", "{"]);
    assert!(told.starts_with("meta is not JSON: "), "{told}");
    let long = format!("\"{}\"", "x".repeat(4096));
    assert_eq!(refusal(&queue, &["request", "B", "--meta", &long]), "meta is longer than 4096 bytes");
    let told = refusal(&queue, &["request", "B", "--client", " "]);
    assert_eq!(told, "a client is 1 to 128 bytes, not blank, without control characters");
}

#[test]
fn a_later_job_waits_for_its_time_and_two_of_one_second_both_run() {
    let mut queue = Queue::new();
    ask(&queue, &["A", "--delay", "90s"]);
    let status = queue.status("ok", "A");
    assert_eq!((&status["state"], &status["reason"]), (&"queued".into(), &"not_before".into()));
    let far = chrono_like(&status, 90);
    ask(&queue, &["B", "--not-before", &far]);
    queue.dispatch().code(0).silent();
    assert!(queue.published().is_empty());
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "95");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.published().len(), 2);
    assert!(refusal(&queue, &["request", "C", "--delay", "500d"]).contains("days ahead"));
    queue.run(["request", "C", "--delay", "1s", "--not-before", &far]).code(2);
    queue.run(["request", "C", "--not-before", "tomorrow"]).code(2);
}

/// The time so many seconds after a job was asked for, as its caller would write it.
fn chrono_like(status: &Value, secs: i64) -> String {
    let submitted: chrono::DateTime<chrono::Utc> = text(&status["submitted_at"]).parse().expect("a time");
    (submitted + chrono::Duration::seconds(secs)).to_rfc3339()
}

#[test]
fn who_asks_without_delay_has_not_to_wait_for_others_who_did() {
    let queue = still_queue("");
    ask(&queue, &["A", "--delay", "1h"]);
    ask(&queue, &["A", "--delay", "2h"]);
    assert_eq!(queue.status("ok", "A")["reason"], "no_free_slot");
    assert_eq!(queue.sql("SELECT waits_for, due_at - submitted_at FROM jobs"), ["not_before|3600000"]);
    ask(&queue, &["A"]);
    assert_eq!(queue.sql("SELECT waits_for, due_at FROM jobs"), ["|"]);
}

#[test]
fn nobody_waits_any_more() {
    let mut queue = Queue::new();
    ask(&queue, &["A", "--max-wait", "60s"]);
    ask(&queue, &["B", "--max-wait", "60s"]);
    ask(&queue, &["B"]);
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "61");
    queue.dispatch().code(0).silent();
    let status = queue.status("ok", "A");
    assert_eq!((&status["state"], &status["reason"]), (&"failed_unknown".into(), &"wait_expired".into()));
    assert_eq!(status["retry_after_seconds"], Value::Null);
    assert_eq!(queue.state("ok", "B"), "ready");
    // That says nothing of the book: whoever asks again is not held off.
    assert_eq!(ask(&queue, &["A"])["state"], "queued");
}

#[test]
fn small_books_and_named_queues_have_lanes_of_their_own() {
    let queue = still_queue("[bypass]\nmax_pages = 30\nqueue = \"express\"\n");
    assert_eq!(ask(&queue, &["small", "--pages", "30"])["queue"], "express");
    assert_eq!(ask(&queue, &["big", "--pages", "31"])["queue"], "default");
    assert_eq!(ask(&queue, &["named", "--pages", "9", "--queue", "default"])["queue"], "default");
    let told = refusal(&queue, &["request", "A", "--queue", "expres"]);
    assert_eq!(told, "unknown queue `expres`: did you mean `express`?");
    assert_eq!(stored(&queue).len(), 3);
    assert!(!queue.run(["check"]).out.contains("has no effect"));
}

#[test]
fn big_books_wait_in_a_lane_of_their_own_by_their_pages() {
    let queue = still_queue(
        "[queue.big]\nmin_pages = 100\n[queue.huge]\nmin_pages = 1000\n[bypass]\nmax_pages = 30\nqueue = \"express\"\n",
    );
    for (pages, lane) in [("30", "express"), ("99", "default"), ("100", "big"), ("999", "big"), ("1000", "huge")] {
        assert_eq!(ask(&queue, &[pages, "--pages", pages])["queue"], lane, "{pages} pages");
    }
    assert_eq!(ask(&queue, &["A"])["queue"], "default");
    assert_eq!(ask(&queue, &["B", "--pages", "5000", "--queue", "express"])["queue"], "express");
    assert_eq!(batch(&queue, "{\"title\":\"C\",\"pages\":5000}").code(0).json()["accepted"], 1);
    assert_eq!(queue.sql("SELECT queue FROM jobs WHERE title = 'C'"), ["huge"]);
}

#[test]
fn a_client_may_have_so_many_jobs_and_no_more() {
    let queue = still_queue("");
    queue.reconfigure("min_free_disk = 0\n[limits]", "min_free_disk = 0\nmax_queued_per_client = 1\n[limits]");
    ask(&queue, &["A", "--client", "one"]);
    let said = queue.run(["--json", "request", "B", "--client", "one"]).code(75);
    let status = said.json();
    assert_eq!((&status["state"], &status["reason"]), (&"absent".into(), &"client_limit".into()));
    assert!(status["retry_after_seconds"].as_u64().is_some_and(|seconds| seconds > 0), "{status}");
    assert_eq!(ask(&queue, &["B", "--client", "two"])["state"], "queued");
    assert_eq!(ask(&queue, &["A", "--client", "one"])["state"], "queued");
}

#[test]
fn a_dry_run_says_what_would_happen_and_stores_nothing() {
    let queue = still_queue("");
    let would = |args: &[&str], code: i32| {
        let said = queue.run([&["--json", "request", "--dry-run"], args].concat()).code(code).json();
        assert_eq!(said["dry_run"], true);
        (text(&said["would"]), text(&said["status"]["state"]))
    };
    assert_eq!(would(&["A"], 3), ("queue".into(), "queued".into()));
    assert_eq!(stored(&queue), [""; 0]);
    ask(&queue, &["A"]);
    assert_eq!(would(&["A", "--priority", "1"], 3), ("join".into(), "queued".into()));
    assert_eq!(queue.sql("SELECT priority FROM jobs"), ["10"]);
    queue.reconfigure("slots = 0\nmin_free_disk = 0\n[limits]", "slots = 1\nmin_free_disk = 0\n[limits]");
    queue.dispatch().code(0);
    assert_eq!(would(&["A"], 0), ("answer".into(), "ready".into()));
    let said = queue.run(["request", "--dry-run", "B", "--queue", "express"]).code(3);
    assert_eq!(said.out, "would be queued: queued  B (en, default, ok)  no_free_slot  0 ahead\n");
}

#[test]
fn a_job_that_is_tried_again_stays_what_it_was() {
    let queue = Queue::new();
    ask(&queue, &["--format", "code1", "A", "--client", "c", "--meta", "7", "--priority", "3"]);
    queue.dispatch().code(0);
    assert_eq!(queue.state("code1", "A"), "failed_unknown");
    queue.run(["retry", "--format", "code1", "A"]).code(3);
    assert_eq!(queue.sql("SELECT client, meta, priority, state FROM jobs"), ["c|7|3|0"]);
}

#[test]
fn a_paused_queue_accepts_requests_and_starts_nothing() {
    let queue = Queue::with("[queue.express]\nmin_free_disk = 0\n");
    let said = queue.run(["pause", "default", "--message", "back at noon"]).code(0);
    assert_eq!(said.out, "queue default: paused\n");
    let said = queue.run(["--json", "request", "A"]).code(3);
    let status = said.json();
    assert_eq!((&status["reason"], &status["message"]), (&"paused".into(), &"back at noon".into()));
    assert_eq!(queue.run(["status", "A"]).code(3).out, "queued  A (en, default, ok)  paused  0 ahead  back at noon\n");
    let told = queue.run(["explain", "A"]).code(3).out;
    assert!(told.contains("its queue is paused: back at noon; `export-queue resume default`"), "{told}");
    ask(&queue, &["B", "--queue", "express"]);
    queue.dispatch().code(0).silent();
    assert_eq!((queue.state("ok", "A"), queue.state("ok", "B")), ("queued".into(), "ready".into()));
    assert_eq!(queue.run(["resume"]).code(0).out, "queue default: goes on\nqueue express: was not paused\n");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("ok", "A"), "ready");
    assert_eq!(refusal(&queue, &["pause", "defalt"]), "unknown queue `defalt`: did you mean `default`?");
}

#[test]
fn a_pause_lets_running_exports_finish_and_waits_for_them() {
    let queue = Queue::new();
    fs::write(queue.path("S"), "1").expect("a file");
    for title in ["A", "B", "C"] {
        queue.request("slow", title);
    }
    let dispatcher = queue.spawn(["dispatch", "--wait"]);
    queue.await_state("slow", "A", "started");
    queue.await_state("slow", "B", "started");
    let said = queue.run(["--json", "pause", "--wait"]).code(0);
    assert_eq!(said.json(), json!({"schema": 1, "queue": "default", "paused": true}));
    assert!(queue.exporters().is_empty());
    assert_eq!((queue.state("slow", "A"), queue.state("slow", "B")), ("ready".into(), "ready".into()));
    // Its workers do not take the next one either.
    dispatcher.wait().code(0);
    assert_eq!(queue.state("slow", "C"), "queued");
    queue.assert_quiet();
}

#[test]
fn all_failed_jobs_are_tried_again_or_forgotten_at_once() {
    let mut queue = Queue::new();
    for title in ["A", "B"] {
        queue.request("code1", title);
    }
    queue.dispatch().code(0).silent();
    let said = queue.run(["purge", "--state", "failed_unknown", "--older-than", "1h"]).code(0);
    assert_eq!(said.out, "forgot 0 failed jobs\n");
    assert_eq!(queue.run(["retry", "--all-failed"]).code(0).out, "queued 2 failed jobs again\n");
    assert_eq!(queue.state("code1", "A"), "queued");
    queue.dispatch().code(0).silent();
    queue.run(["retry", "--all-failed", "A"]).code(2);
    queue.run(["retry", "--all-failed", "--format", "ok"]).code(2);
    queue.run(["retry"]).code(2);
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "3601");
    let purge = ["--json", "purge", "--state", "failed_unknown", "--older-than", "1h"];
    let said = queue.run([&purge[..], &["--dry-run"]].concat()).code(0).json();
    assert_eq!(said, json!({"schema": 1, "dry_run": true, "purged": 2}));
    assert_eq!(queue.run(purge).code(0).json()["purged"], 2);
    assert_eq!(queue.state("code1", "A"), "absent");
    let told = refusal(&queue, &["purge", "--state", "queued", "--older-than", "0"]);
    assert_eq!(told, "only failed jobs are purged; `cancel` ends others");
}

#[test]
fn callers_are_told_when_to_look_again_and_what_to_expect() {
    let queue = Queue::new();
    for title in ["A", "B", "C"] {
        let status = queue.request("ok", title);
        assert_eq!((&status["eta_seconds"], &status["eta_seconds_max"]), (&Value::Null, &Value::Null));
        assert_eq!(status["poll_after_seconds"], if title == "C" { 2 } else { 1 });
    }
    queue.dispatch().code(0).silent();
    assert_eq!(queue.status("ok", "A")["poll_after_seconds"], Value::Null);
    let status = queue.request("ok", "D");
    assert_eq!((&status["eta_seconds"], &status["eta_seconds_max"]), (&0.into(), &1.into()));
    queue.run(["pause"]).code(0);
    let status = queue.status("ok", "D");
    assert_eq!((&status["eta_seconds"], &status["poll_after_seconds"]), (&Value::Null, &30.into()));
    let recent = include_str!("../sql/sqlite/recent_durations.sql").replace(":format", "'ok'").replace(":limit", "9");
    let plan = queue.sql(&format!("EXPLAIN QUERY PLAN {recent}"));
    assert!(plan.len() == 1 && plan[0].contains("COVERING INDEX runs_took"), "{plan:?}");
}

/// A batch of these lines on standard input.
fn batch(queue: &Queue, lines: &str) -> Said {
    fs::write(queue.path("batch"), lines).expect("a file");
    let mut command = queue.command(["--json", "request", "--batch", "-"]);
    call(command.stdin(fs::File::open(queue.path("batch")).expect("a file")))
}

#[test]
fn a_batch_is_taken_as_a_whole() {
    let queue = Queue::new();
    queue.request("ok", "ready");
    queue.dispatch().code(0).silent();
    queue.request("ok", "joined");
    let said = batch(
        &queue,
        "{\"title\":\"ready\"}\n\n{\"title\":\"joined\",\"priority\":2}\n\
         {\"title\":\"A\",\"format\":\"slow\",\"client\":\"c\",\"meta\":{\"a\":1},\"delay\":\"1h\",\"max_wait\":7200,\"pages\":3}\n\
         {\"title\":\"B\",\"not-before\":\"2020-01-01T00:00:00Z\"}",
    );
    assert_eq!(said.code(0).out, "{\"accepted\":2,\"joined\":1,\"ready\":1,\"failed\":0}\n");
    let rows =
        queue.sql("SELECT title, client, meta, priority, waits_for, wait_until - submitted_at FROM jobs ORDER BY id");
    assert_eq!(rows, ["joined|||2||", "A|c|{\"a\":1}|10|not_before|7200000", "B|||10||"]);
}

#[test]
fn each_bad_line_of_a_batch_is_named_and_nothing_is_stored() {
    let queue = Queue::with("[[deny]]\ntitle = \"^Special:\"\nmessage = \"not this\"\n");
    let said = batch(
        &queue,
        "{\"title\":\"A\"}\n{\"titel\":\"B\"}\n{\"title\":\"C\",\"priority\":-1}\nD\n{\"title\":\"Special:E\"}\n\
         {\"title\":\"F\",\"format\":\"slwo\"}\n",
    );
    let told = text(&said.code(2).json()["error"]["message"]);
    for part in [
        "line 2: unknown field `titel`",
        "line 3: a priority is 0 to 1000",
        "line 4: expected value",
        "line 5: denied: not this",
        "line 6: ",
        "`slow`",
        "nothing is stored",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(!told.contains("line 1"), "{told}");
    queue.request("ok", "Z");
    assert_eq!(stored(&queue), ["Z"]);
    queue.reconfigure("min_free_disk = 0\n[limits]", "min_free_disk = 0\nmax_queued = 2\n[limits]");
    let said = batch(&queue, "{\"title\":\"A\"}\n{\"title\":\"B\"}\n").code(75);
    let told = text(&said.json()["error"]["message"]);
    assert!(told.contains("line 2: the queue holds as many jobs as it may; nothing is stored"), "{told}");
    assert_eq!(stored(&queue), ["Z"]);
    for wrong in [&["A"][..], &["--priority", "1"], &["--lang", "en"], &["--wait", "1"], &["--dry-run"]] {
        queue.run([&["request", "--batch", "-"], wrong].concat()).code(2);
    }
}

#[test]
fn a_line_that_is_tried_again_takes_its_failed_base_along() {
    let queue = Queue::with(
        "[format.derived]\nextension = \"txt\"\nbase = \"code1\"\ncommand = [\"cp\", \"{input}\", \"{output}\"]\n",
    );
    queue.request("derived", "A");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("derived", "A"), "failed_unknown");
    let line = "{\"title\":\"A\",\"format\":\"derived\"";
    assert_eq!(batch(&queue, &format!("{line}}}")).code(0).json()["failed"], 1);
    assert_eq!(batch(&queue, &format!("{line},\"retry\":true}}")).code(0).json()["accepted"], 1);
    assert_eq!((queue.state("derived", "A"), queue.state("code1", "A")), ("queued".into(), "queued".into()));
}

#[test]
fn a_batch_shows_how_far_it_is_on_a_terminal_only() {
    let queue = still_queue("");
    let lines: Vec<String> = (0..2000).map(|n| format!("{{\"title\":\"Book {n}\"}}\n")).collect();
    assert_eq!(batch(&queue, &lines.concat()).code(0).err, "");
    let program = queue.command([""; 0]).get_program().to_string_lossy().into_owned();
    let (config, file) = (queue.path("config.toml"), queue.path("batch"));
    let on_terminal = |more: &str| {
        let line = format!("{program} --config {} {more} request --batch {}", config.display(), file.display());
        let mut script = std::process::Command::new("script");
        call(script.args(["--quiet", "--return", "--command", &line, "/dev/null"]).env("TERM", "xterm")).code(0).out
    };
    let seen = on_terminal("");
    assert!(seen.contains("reading ") && seen.contains("\"joined\":2000"), "{seen:?}");
    assert!(!on_terminal("--quiet").contains("reading "));
}

/// An outage in the small: everything that is tried fails in passing for a while, and new titles come meanwhile.
#[test]
fn an_outage_over_two_hundred_titles_neither_floods_nor_starves() {
    let queue = Queue::new();
    let text = fs::read_to_string(queue.path("config.toml")).expect("the configuration");
    let script = queue.path("outside");
    let (outage, starts) = (queue.path("OUTAGE"), queue.path("TRIES"));
    let body = format!(
        "#!/bin/sh\necho \"$2\" >>{}\n[ -e {} ] && exit 75\necho book >\"$1\"\n",
        starts.display(),
        outage.display()
    );
    fs::write(&script, body).expect("a script");
    make_executable(&script);
    let format = "[format.outside]\nextension = \"txt\"\nbackoff = [\"10m\", \"10m\"]\ncommand = ";
    queue.configure(&format!("{text}{format}[\"{}\", \"{{output}}\", \"{{title}}\"]\n", script.display()));
    fs::write(&outage, "").expect("a file");
    let lines: Vec<String> = (0..200).map(|n| format!("{{\"title\":\"Book {n}\",\"format\":\"outside\"}}\n")).collect();
    batch(&queue, &lines.concat()).code(0);
    queue.dispatch().code(0).silent();
    let waiting = "SELECT count(*) FROM jobs WHERE waits_for = 'backing_off'";
    assert_eq!(queue.sql(waiting), ["200"], "each waits for its next try, and none is tried before");
    assert_eq!(queue.scratch("TRIES").len(), 200);

    // Whoever comes now goes before all who wait for their next try.
    queue.request("outside", "new");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.scratch("TRIES").last().map(String::as_str), Some("new"));

    fs::remove_file(&outage).expect("the outage is over");
    let mut queue = queue;
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "800");
    queue.dispatch().code(0).silent();
    let mut tries = queue.scratch("TRIES");
    assert_eq!(tries.len(), 402, "each was tried twice");
    tries.sort();
    tries.dedup();
    assert_eq!((tries.len(), queue.published().len()), (201, 201));
    assert_eq!(queue.sql("SELECT count(*) FROM jobs"), ["0"]);
    queue.assert_quiet();
}

#[test]
fn what_took_too_long_is_tried_again_only_where_that_is_asked_for() {
    let format = |name: &str, more: &str| {
        format!(
            "[format.{name}]\nextension = \"txt\"\ncommand = [\"sh\", \"-c\", \"sleep 600\", \"{{output}}\"]\ntimeout = \"500ms\"\n\
             backoff = [\"10ms\", \"10ms\"]\n{more}"
        )
    };
    let queue = Queue::with(&(format("once", "") + &format("thrice", "retry_timeouts = true\n")));
    for (name, attempts) in [("once", 1), ("thrice", 3)] {
        queue.request(name, "A");
        let status = eventually("it has failed", || {
            queue.dispatch().code(0).silent();
            Some(queue.status(name, "A")).filter(|status| status["state"] == "failed_timeout")
        });
        assert_eq!((&status["reason"], &status["attempts"]), (&json!("timed_out"), &json!(attempts)), "{name}");
    }
    queue.assert_quiet();
}

#[test]
fn a_hundred_thousand_lines_are_one_batch() {
    let queue = still_queue("");
    let line = |n: u32| format!("{{\"title\":\"Book {n}\",\"client\":\"c{}\"}}\n", n % 10);
    let lines: Vec<String> = (0..100_000).map(line).collect();
    let began = now();
    let said = batch(&queue, &lines.concat()).code(0);
    assert_eq!(said.json()["accepted"], 100_000);
    assert!(began.elapsed() < Duration::from_secs(120), "{:?}", began.elapsed());
    assert_eq!(queue.sql("SELECT count(*) FROM jobs"), ["100000"]);
    queue.run(["request", "one more"]).code(75);
}
