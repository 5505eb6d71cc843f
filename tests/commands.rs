//! Every command as a front end or an operator calls it: what it prints, in which fields, and with which code it ends.

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::harness::{PROGRAM, Queue, Said, call, eventually, make_executable, text};

/// The fields of the status object, in the order of the interface.
const STATUS_FIELDS: &[&str] = &[
    "schema",
    "title",
    "lang",
    "font",
    "format",
    "options",
    "filename",
    "state",
    "reason",
    "detail",
    "path",
    "bytes",
    "published_at",
    "expires_at",
    "id",
    "queue",
    "position",
    "ahead",
    "eta_seconds",
    "eta_seconds_max",
    "progress",
    "message",
    "submitted_at",
    "started_at",
    "finished_at",
    "elapsed_seconds",
    "deadline_at",
    "attempts",
    "interruptions",
    "retry_after_seconds",
    "poll_after_seconds",
    "meta",
];

/// It is a status object with every field, and `given` are exactly those that are not null, beside those that never are.
#[track_caller]
fn assert_status(status: &Value, state: &str, given: &[&str]) {
    let object = status.as_object().expect("an object");
    assert_eq!(object.keys().map(String::as_str).collect::<Vec<_>>(), STATUS_FIELDS);
    assert_eq!((&status["schema"], &status["state"]), (&1.into(), &state.into()));
    let always = [
        "schema",
        "title",
        "lang",
        "font",
        "format",
        "options",
        "filename",
        "state",
        "queue",
        "attempts",
        "interruptions",
    ];
    let optional = ["eta_seconds", "eta_seconds_max", "poll_after_seconds"];
    for (name, value) in object {
        let name = name.as_str();
        if always.contains(&name) || given.contains(&name) {
            assert!(!value.is_null(), "{name} is null in {status}");
        } else if !optional.contains(&name) {
            assert!(value.is_null(), "{name} is not null in {status}");
        }
        if name.ends_with("_at") && !value.is_null() {
            assert_is_time(&text(value));
        }
    }
}

/// RFC 3339, UTC, milliseconds and `Z`.
#[track_caller]
fn assert_is_time(text: &str) {
    let pattern = "0000-00-00T00:00:00.000Z";
    let same = |(a, b): (char, char)| if b == '0' { a.is_ascii_digit() } else { a == b };
    assert!(text.len() == pattern.len() && text.chars().zip(pattern.chars()).all(same), "{text} is no time");
}

/// It is an error object with that code.
#[track_caller]
fn assert_error(said: &Said, code: i32) {
    assert_eq!(said.code, code, "{said:?}");
    let object = said.json();
    let keys: Vec<&String> = object.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["schema", "error"], "{object}");
    let error: Vec<&String> = object["error"].as_object().expect("an object").keys().collect();
    assert_eq!(error, ["code", "message"], "{object}");
    assert_eq!((&object["schema"], &object["error"]["code"]), (&1.into(), &code.into()), "{object}");
    assert!(!text(&object["error"]["message"]).is_empty());
}

fn names(object: &Value) -> Vec<String> {
    object.as_object().expect("an object").keys().cloned().collect()
}

/// A queue in which A is ready, F has failed, S has started and Q is queued behind it; the dispatcher goes on.
fn queue_of_all_states() -> (Queue, crate::harness::Running) {
    let queue = Queue::with("");
    queue.reconfigure("slots = 2", "slots = 1");
    queue.request("ok", "A");
    queue.request("code1", "F");
    queue.dispatch().code(0).silent();
    queue.request("slow", "S");
    let dispatcher = queue.spawn(["dispatch", "--wait"]);
    queue.await_state("slow", "S", "started");
    eventually("the exporter runs", || (!queue.scratch("PIDS").is_empty()).then_some(()));
    queue.request("ok", "Q");
    (queue, dispatcher)
}

/// Ends what runs, so that nothing is left.
fn end(queue: &Queue, dispatcher: crate::harness::Running) {
    dispatcher.signal("TERM");
    dispatcher.wait().code(0);
    queue.assert_quiet();
}

#[test]
fn status_and_request_print_every_field_in_every_state_and_end_with_its_code() {
    let (queue, dispatcher) = queue_of_all_states();
    let ready = ["path", "bytes", "published_at", "expires_at"];
    let failed = ["reason", "detail", "id", "submitted_at", "finished_at", "retry_after_seconds"];
    let started = ["id", "submitted_at", "started_at", "elapsed_seconds", "deadline_at"];
    let queued = ["reason", "id", "submitted_at", "position", "ahead"];
    let cases: [(&str, &str, &str, i32, &[&str]); 4] = [
        ("ok", "A", "ready", 0, &ready),
        ("ok", "Q", "queued", 3, &queued),
        ("slow", "S", "started", 4, &started),
        ("code1", "F", "failed_unknown", 5, &failed),
    ];
    for (format, title, state, code, given) in cases {
        for verb in ["status", "request"] {
            let said = queue.run(["--json", verb, "--format", format, title]).code(code);
            assert_status(&said.json(), state, given);
            let line = queue.run([verb, "--format", format, title]).code(code);
            assert!(line.out.starts_with(&format!("{state}  {title} (en, default, {format})")), "{}", line.out);
            assert_eq!((line.out.lines().count(), line.err.as_str()), (1, ""));
            queue.run(["--exit-zero", verb, "--format", format, title]).code(0);
        }
    }
    assert_status(&queue.run(["--json", "status", "nobody asked"]).code(6).json(), "absent", &[]);
    queue.run(["--exit-zero", "status", "nobody asked"]).code(0);
    let waiting = queue.status("ok", "Q");
    assert_eq!(
        (&waiting["reason"], &waiting["position"], &waiting["ahead"]),
        (&"no_free_slot".into(), &1.into(), &0.into())
    );
    end(&queue, dispatcher);
}

#[test]
fn a_refresh_is_ready_and_carries_the_job_that_makes_it_anew() {
    let queue = Queue::new();
    queue.request("ok", "A");
    queue.dispatch().code(0).silent();
    let said = queue.run(["--json", "request", "--refresh", "A"]).code(0);
    let given = ["path", "bytes", "published_at", "expires_at", "id", "position", "ahead", "submitted_at"];
    assert_status(&said.json(), "ready", &given);
    queue.dispatch().code(0).silent();
    assert_status(&queue.status("ok", "A"), "ready", &given[..4]);
    queue.assert_quiet();
}

#[test]
fn the_documented_shape_of_a_ready_answer_is_kept() {
    let queue = Queue::new();
    queue.request("ok", "War and Peace");
    queue.dispatch().code(0).silent();
    let status = queue.status("ok", "War and Peace");
    let (name, path) = (text(&status["filename"]), text(&status["path"]));
    assert!(
        name.starts_with("War_and_Peace-en-default-") && Path::new(&name).extension() == Some("txt".as_ref()),
        "{name}"
    );
    assert!(path.ends_with(&name) && Path::new(&path).is_absolute());
    assert_eq!(status["bytes"], fs::metadata(&path).expect("the file").len());
    assert_eq!((&status["options"], &status["queue"]), (&serde_json::json!({}), &"default".into()));
    let line = queue.run(["status", "War and Peace"]).code(0).out;
    let until = &text(&status["expires_at"])[11..19];
    assert_eq!(line, format!("ready  War and Peace (en, default, ok)  27 B  until {until}\n"));
    queue.assert_quiet();
}

#[test]
fn a_call_that_is_wrong_ends_with_2_and_stores_nothing() {
    let queue = Queue::new();
    let calls: &[&[&str]] = &[
        &[],
        &["nonsense"],
        &["request"],
        &["request", "A", "B"],
        &["request", "A", "--nonsense"],
        &["request", "A", "--format", "nonsense"],
        &["request", "A", "--opt", "nonsense"],
        &["request", "A", "--opt", "images=true"],
        &["request", "A", "--wait", "soon"],
        &["request", "A", "--wait", "-1s"],
        &["request", "A", "--id", "1"],
        &["status", "--id", "one"],
        &["fetch", "A"],
        &["dispatch", "--for", "ever"],
        &["dispatch", "A"],
        &["sweep", "--all", "--older-than", "1h"],
        &["list", "--state", "done"],
        &["list", "--limit", "-1"],
        &["config", "nonsense"],
        &["--color", "pink", "queues"],
    ];
    for args in calls {
        let said = queue.run(*args).code(2);
        assert!(said.out.is_empty() && !said.err.is_empty(), "{said:?}");
        assert_error(&queue.run([&["--json"], *args].concat()), 2);
        assert_error(&queue.run([&["--json", "--exit-zero"], *args].concat()), 2);
    }
    assert!(!queue.path("state").exists(), "a wrong call made something");
}

#[test]
fn help_and_version_are_data_and_end_with_0() {
    let version = format!("export-queue {}\n", env!("CARGO_PKG_VERSION"));
    let mut calls = vec![vec!["--version"], vec!["--help"], vec!["-h"]];
    for verb in
        ["init", "check", "config", "request", "status", "fetch", "dispatch", "sweep", "list", "queues", "explain"]
    {
        calls.push(vec![verb, "--help"]);
    }
    for verb in ["log", "retry", "dismiss", "cancel", "history"] {
        calls.push(vec![verb, "--help"]);
    }
    for args in calls {
        let said = call(Command::new(PROGRAM).args(&args).stdin(Stdio::null())).code(0);
        assert!(!said.out.is_empty() && said.err.is_empty(), "{said:?}");
        if args == ["--version"] {
            assert_eq!(said.out, version);
        }
    }
}

#[test]
fn without_a_configuration_every_command_ends_with_78_and_says_where_it_looked() {
    let home = tempfile::tempdir().expect("a directory");
    for verb in [&["status", "A"][..], &["request", "A"], &["dispatch"], &["sweep"], &["list"], &["queues"], &["check"]]
    {
        let run = |args: &[&str]| {
            let mut command = Command::new(PROGRAM);
            command.args(args).args(verb).env_clear().env("HOME", home.path()).env("XDG_CONFIG_HOME", home.path());
            call(command.current_dir(home.path()).stdin(Stdio::null()))
        };
        let missing = home.path().join("missing.toml");
        let said = run(&["--config", missing.to_str().expect("a path")]).code(78);
        // `check` reports what it finds as data.
        let told = if verb == ["check"] { &said.out } else { &said.err };
        assert!(told.contains("missing.toml") && told.lines().count() == 1, "{said:?}");
        let said = run(&["--json", "--config", missing.to_str().expect("a path")]);
        if verb == ["check"] {
            assert_eq!(said.code(78).json()["result"], "fail");
        } else {
            assert_error(&said, 78);
        }
    }
    assert_eq!(fs::read_dir(home.path()).expect("a directory").count(), 0, "something was made");
}

#[test]
fn a_wrong_configuration_is_named_by_file_line_and_nearest_name() {
    let queue = Queue::new();
    queue.reconfigure("slots = 2", "slost = 2");
    let said = queue.run(["status", "A"]).code(78);
    let line = queue.base_config().lines().position(|line| line.starts_with("slots")).expect("the line") + 1;
    assert_eq!(said.err.lines().count(), 1, "{}", said.err);
    for word in ["config.toml", &format!("line {line}"), "slost", "slots"] {
        assert!(said.err.contains(word), "{word} is not in {}", said.err);
    }
    assert_error(&queue.run(["--json", "dispatch"]), 78);
}

#[test]
fn a_full_queue_is_an_answer_with_75_and_its_reason() {
    let queue = Queue::new();
    queue.reconfigure("slots = 2", "slots = 2\nmax_queued = 1");
    queue.request("ok", "A");
    let said = queue.run(["--json", "request", "B"]).code(75);
    assert_status(&said.json(), "absent", &["reason", "retry_after_seconds"]);
    assert_eq!(said.json()["reason"], "queue_full");
    queue.run(["--json", "--exit-zero", "request", "B"]).code(75);
    let line = queue.run(["request", "B"]).code(75);
    assert!(line.out.starts_with("absent  B (en, default, ok)  queue_full"), "{}", line.out);
    queue.run(["request", "A"]).code(3);
    queue.assert_quiet();
}

#[test]
fn a_denied_title_is_an_answer_with_77_and_its_message() {
    let queue = Queue::with("[[deny]]\ntitle = \"^Special:\"\nmessage = \"Special pages cannot be exported.\"\n");
    let said = queue.run(["--json", "request", "Special:All"]).code(77);
    assert_status(&said.json(), "absent", &["reason", "message"]);
    assert_eq!(said.json()["reason"], "denied");
    let line = queue.run(["request", "Special:All"]).code(77);
    assert!(line.out.contains("Special pages cannot be exported."), "{}", line.out);
    queue.run(["request", "Not Special:All"]).code(3);
    assert_eq!(queue.sql("SELECT count(*) FROM jobs"), ["1"]);
    queue.assert_quiet();
}

#[test]
fn a_busy_database_is_an_error_with_75() {
    let queue = Queue::new();
    queue.request("ok", "A");
    let conn = rusqlite::Connection::open(queue.path("state/queue.db")).expect("the database opens");
    conn.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    assert_error(&queue.run(["--json", "request", "B"]), 75);
    // Reading goes on.
    assert_eq!(queue.state("ok", "A"), "queued");
    conn.execute_batch("ROLLBACK").expect("the lock goes");
    assert_eq!(queue.request("ok", "B")["state"], "queued");
    queue.assert_quiet();
}

#[test]
fn a_missing_exporter_ends_dispatch_and_check_with_69_and_jobs_stay_queued() {
    let queue = Queue::with("[format.gone]\ncommand = [\"no-such-converter\", \"{output}\"]\ncheck = \"none\"\n");
    queue.request("gone", "A");
    queue.request("ok", "B");
    let said = queue.dispatch().code(69);
    assert_eq!((said.out.as_str(), said.err.lines().count()), ("", 1), "{said:?}");
    assert!(said.err.contains("no-such-converter is not installed"), "{}", said.err);
    let status = queue.run(["--json", "status", "--format", "gone", "A"]).code(3).json();
    assert_eq!((&status["reason"], &status["attempts"]), (&"exporter_missing".into(), &0.into()));
    assert_eq!(queue.state("ok", "B"), "ready");
    let check = queue.run(["check"]).code(69);
    assert!(check.out.lines().any(|line| line.starts_with("fail  format: gone: no-such-converter")), "{}", check.out);
    let explained = queue.run(["explain", "--format", "gone", "A"]).code(3);
    assert!(explained.out.contains("no-such-converter is not installed"), "{}", explained.out);
    queue.assert_quiet();
}

/// A queue whose format `brief` is made by a program of its own, which may go.
fn with_program(script: &str) -> (Queue, std::path::PathBuf) {
    let queue =
        Queue::with("[format.brief]\nextension = \"txt\"\ncheck = \"none\"\ncommand = [\"./brief\", \"{output}\"]\n");
    let program = queue.path("brief");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("a program");
    make_executable(&program);
    queue.reconfigure("./brief", &program.to_string_lossy());
    (queue, program)
}

#[test]
fn an_exporter_that_goes_under_a_worker_lets_its_next_job_wait() {
    let (queue, program) = with_program("sleep 2\necho text >\"$1\"");
    queue.reconfigure("slots = 2", "slots = 1");
    queue.request("brief", "A");
    queue.request("brief", "B");
    queue.run(["dispatch"]).code(0);
    queue.await_state("brief", "A", "started");
    eventually("its exporter runs", || (!queue.exporters().is_empty()).then_some(()));
    fs::remove_file(&program).expect("it goes");
    eventually("the worker has ended", || queue.workers().is_empty().then_some(()));
    assert_eq!(queue.state("brief", "A"), "ready");
    let waiting = queue.run(["--json", "status", "--format", "brief", "B"]).code(3).json();
    assert_eq!((&waiting["state"], &waiting["attempts"]), (&"queued".into(), &0.into()), "{waiting}");
    assert_eq!(queue.sql("SELECT outcome FROM runs"), ["ready"], "nobody tried");
    queue.assert_quiet();
}

#[test]
fn an_exporter_that_goes_when_its_job_has_been_claimed_fails_no_book() {
    let (queue, program) = with_program("echo text >\"$1\"");
    queue.request("brief", "A");
    let mut tick = queue.command(["dispatch", "--wait"]);
    tick.env("EXPORT_QUEUE_FAULT", "work.after_claim=delay:1000").env("EXPORT_QUEUE_FAULT_HITS", queue.path("HITS"));
    let mut tick = tick.spawn().expect("it can be started");
    eventually("it is claimed", || queue.scratch("HITS").first().cloned());
    fs::rename(&program, queue.path("away")).expect("it goes");
    tick.wait().expect("it ends");
    let waiting = queue.run(["--json", "status", "--format", "brief", "A"]).code(3).json();
    assert_eq!((&waiting["state"], &waiting["attempts"]), (&"queued".into(), &0.into()), "{waiting}");
    assert!(queue.sql("SELECT outcome FROM runs").is_empty(), "nobody tried");
    fs::rename(queue.path("away"), &program).expect("it comes back");
    eventually("it is made", || {
        queue.dispatch();
        (queue.state("brief", "A") == "ready").then_some(())
    });
    queue.assert_quiet();
}

#[test]
fn a_file_is_looked_for_by_a_title_that_is_no_pattern() {
    let queue = Queue::with(
        "[format.named]\nextension = \"txt\"\ncheck = \"none\"\nproduces = \"{workdir}/{title:path}.txt\"\n\
         command = [\"sh\", \"-c\", \"echo text >\\\"$EXPORT_QUEUE_TITLE.txt\\\"\"]\n",
    );
    for title in ["What [now]?", "All *s", "Plain"] {
        queue.request("named", title);
        queue.dispatch().code(0);
        let status = queue.status("named", title);
        assert_eq!(status["state"], "ready", "{status}");
    }
    queue.assert_quiet();
}

#[test]
fn what_an_exporter_said_of_a_file_that_it_made_is_kept() {
    let queue = Queue::with(
        "[format.warns]\nextension = \"txt\"\ncheck = \"none\"\n\
         command = [\"sh\", \"-c\", \"echo one picture is missing >&2; echo text >{output}\"]\n",
    );
    queue.request("warns", "A");
    queue.dispatch().code(0);
    let runs = queue.run(["--json", "history"]).code(0).lines();
    assert_eq!(runs[0]["detail"], "one picture is missing", "{runs:?}");
    queue.request("ok", "Quiet");
    queue.dispatch().code(0);
    let runs = queue.run(["--json", "history", "--format", "ok"]).code(0).lines();
    assert!(runs[0]["detail"].is_null(), "{runs:?}");
}

#[test]
fn somebody_else_may_neither_dispatch_nor_sweep_and_hears_who_may() {
    let queue = Queue::new();
    queue.request("ok", "A");
    let program = queue.path("export-queue");
    fs::copy(PROGRAM, &program).expect("a copy of the program");
    make_executable(&program);
    for dir in ["", "state", "cache"] {
        make_executable(&queue.path(dir));
    }
    let as_nobody = |args: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("--config").arg(queue.path("config.toml")).args(args).uid(65534).gid(65534);
        call(command.stdin(Stdio::null()).current_dir("/"))
    };
    for verb in
        [&["dispatch"][..], &["dispatch", "--dry-run"], &["sweep"], &["work", "--queue", "default", "--slot", "0"]]
    {
        let said = as_nobody(&[&["--json"], verb].concat());
        if verb[0] == "work" {
            assert_ne!(said.code, 0, "{said:?}");
            continue;
        }
        assert_error(&said, 77);
        let message = text(&said.json()["error"]["message"]);
        assert!(message.contains("only root, the owner of"), "{message}");
    }
    assert_error(&as_nobody(&["--json", "status", "A"]), 77);
    assert_error(&as_nobody(&["--json", "request", "A"]), 77);
    assert_eq!(queue.state("ok", "A"), "queued");
    queue.assert_quiet();
}

#[test]
fn a_lost_database_is_noticed_and_init_adopt_is_the_way_back() {
    let queue = Queue::new();
    queue.request("ok", "A");
    queue.dispatch().code(0).silent();
    for suffix in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(queue.path(format!("state/queue.db{suffix}")));
    }
    assert_eq!(queue.state("ok", "A"), "ready");
    let said = queue.run(["--json", "request", "B"]);
    assert_error(&said, 78);
    assert!(text(&said.json()["error"]["message"]).contains("init --adopt"));
    assert_error(&queue.run(["--json", "dispatch"]), 78);
    let adopted = queue.run(["init", "--adopt"]).code(0);
    assert!(adopted.err.contains("belong together now") && adopted.out.is_empty(), "{adopted:?}");
    queue.request("ok", "B");
    queue.dispatch().code(0).silent();
    assert_eq!((queue.state("ok", "A"), queue.state("ok", "B")), ("ready".to_owned(), "ready".to_owned()));
    queue.assert_quiet();
}

#[test]
fn two_dashes_before_a_title_are_always_honoured() {
    let queue = Queue::new();
    for title in ["--json", "--version", "-o", "--", "-", "--config=/x", "--help"] {
        for verb in ["status", "explain", "log", "dismiss", "cancel", "retry"] {
            let said = queue.run(["--exit-zero", verb, "--", title]);
            assert!(said.code == 0 && !said.out.contains('{'), "{verb} {title}: {said:?}");
        }
        assert_eq!(queue.request("ok", title)["title"], title);
        queue.run(["history", "--", title]).code(0).silent();
        let output = queue.path("out");
        queue.run(["fetch", "--output", output.to_str().expect("a path"), "--", title]).code(3);
        assert!(!output.exists());
    }
    queue.assert_quiet();
}

#[test]
fn a_title_may_come_from_standard_input() {
    let queue = Queue::new();
    let mut command = queue.command(["--json", "request", "--title-file", "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
    child.stdin.take().expect("its input").write_all("--Fétis – Ö 剪燈餘話\n".as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("its output");
    assert_eq!(output.status.code(), Some(3));
    let status: Value = serde_json::from_slice(&output.stdout).expect("a status object");
    assert_eq!(status["title"], "--Fétis – Ö 剪燈餘話");
    queue.assert_quiet();
}

#[test]
fn an_export_can_be_named_by_id_and_by_file_name() {
    let queue = Queue::new();
    let asked = queue.request("code1", "A");
    let (id, name) = (asked["id"].to_string(), text(&asked["filename"]));
    for named in [["--id", id.as_str()], ["--filename", name.as_str()]] {
        for verb in ["status", "request"] {
            let status = queue.run(["--json", verb].iter().chain(&named)).code(3).json();
            assert_eq!((&status["title"], &status["format"]), (&"A".into(), &"code1".into()));
        }
    }
    for unknown in [["--id", "9999"], ["--filename", "x"]] {
        assert_error(&queue.run(["--json", "status"].iter().chain(&unknown)), 6);
        let said = queue.run(["--json", "--exit-zero", "status"].iter().chain(&unknown)).code(0);
        assert_eq!(said.json()["error"]["code"], 6);
    }
    queue.dispatch().code(0).silent();
    assert_eq!(queue.run(["--json", "status", "--id", &id]).code(5).json()["reason"], "exit_nonzero");
    queue.assert_quiet();
}

#[test]
fn request_waits_until_the_answer_is_final_or_the_time_is_over() {
    let mut queue = Queue::new();
    queue.request("ok", "A");
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "200");
    let waiting = queue.run(["request", "--wait", "50ms", "A"]).code(3);
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "0");
    assert!(waiting.err.contains("nobody has dispatched for two minutes"), "{waiting:?}");
    let asking = queue.spawn(["--json", "request", "--wait", "60s", "A"]);
    queue.dispatch().code(0).silent();
    assert_eq!(asking.wait().code(0).json()["state"], "ready");
    queue.assert_quiet();
}

#[test]
fn fetch_copies_a_ready_file_whole_to_a_file_or_standard_output() {
    let queue = Queue::new();
    queue.request("ok", "A");
    queue.dispatch().code(0).silent();
    let output = queue.path("copy.txt");
    fs::write(&output, "something longer that was here before, to be replaced").expect("a file");
    let path = output.to_str().expect("a path");
    let said = queue.run(["--json", "fetch", "A", "--output", path]).code(0);
    assert_eq!(said.json()["state"], "ready");
    assert_eq!(fs::read_to_string(&output).expect("the copy"), "a good book: A\n");
    let said = queue.run(["fetch", "--output", "-", "A"]).code(0);
    assert_eq!((said.out.as_str(), said.err.as_str()), ("a good book: A\n", ""));
    // What cannot be fetched leaves what is there alone.
    let said = queue.run(["--json", "fetch", "B", "--output", path]).code(6);
    assert_status(&said.json(), "absent", &[]);
    assert_eq!(
        fs::read_to_string(&output).expect("the copy"),
        "a good book: A
"
    );
    let nowhere = queue.run(["fetch", "A", "--output", "/nonexistent/copy.txt"]);
    assert!(nowhere.code == 1 && nowhere.err.contains("/nonexistent/copy.txt"), "{nowhere:?}");
    queue.assert_quiet();
}

#[test]
fn fetch_writes_through_links_and_pipes_and_leaves_them_there() {
    let queue = Queue::new();
    queue.request("ok", "A");
    queue.dispatch().code(0).silent();
    let (link, target, pipe) = (queue.path("link"), queue.path("target"), queue.path("pipe"));
    std::os::unix::fs::symlink(&target, &link).expect("a link");
    queue.run(["fetch", "A", "--output", link.to_str().expect("a path")]).code(0);
    assert!(fs::symlink_metadata(&link).expect("the link").is_symlink(), "the link was replaced by a file");
    assert_eq!(fs::read_to_string(&target).expect("its target"), "a good book: A\n");
    call(Command::new("mkfifo").arg(&pipe)).code(0);
    let reader = Command::new("cat").arg(&pipe).stdout(Stdio::piped()).spawn().expect("cat");
    queue.run(["fetch", "A", "--output", pipe.to_str().expect("a path")]).code(0);
    assert_eq!(reader.wait_with_output().expect("what was read").stdout, b"a good book: A\n");
    queue.assert_quiet();
}

/// Calls of all commands that print.
const PRINTING: &[&[&str]] = &[
    &["status", "A"],
    &["--json", "status", "A"],
    &["request", "A"],
    &["explain", "A"],
    &["--json", "explain", "A"],
    &["list"],
    &["--json", "list"],
    &["queues"],
    &["--json", "queues"],
    &["history"],
    &["--json", "history"],
    &["log", "--format", "flood", "F"],
    &["fetch", "A", "--output", "-"],
    &["config", "show"],
    &["--json", "config", "show"],
    &["check"],
    &["dispatch", "--dry-run"],
    &["sweep", "--dry-run"],
    &["--help"],
    &["--version"],
    &["nonsense"],
    &["status", "--format", "nonsense", "A"],
];

#[test]
fn a_reader_that_went_away_changes_neither_code_nor_prints_a_trace() {
    let queue = Queue::new();
    queue.request("ok", "A");
    queue.request("flood", "F");
    queue.request("code1", "C");
    queue.dispatch().code(0).silent();
    for args in PRINTING {
        let expected = queue.run(*args).code;
        let line = |script: &str| {
            let mut shell = Command::new("bash");
            shell.args(["-c", script, PROGRAM, "--config"]).arg(queue.path("config.toml")).args(*args);
            call(shell.stdin(Stdio::null()).env("BASH_ENV", ""))
        };
        let closed_pipe = line("set -o pipefail; \"$0\" \"$@\" | sh -c 'exec <&-; exit 0'; exit ${PIPESTATUS[0]}");
        for said in [
            closed_pipe,
            line("exec \"$0\" \"$@\" >&-"),
            line("exec \"$0\" \"$@\" 2>&-"),
            line("exec \"$0\" \"$@\" <&- >&- 2>&-"),
        ] {
            assert_eq!(said.code, expected, "{args:?}: {said:?}");
            assert!(!said.err.contains("panicked") && !said.err.contains("Broken pipe"), "{said:?}");
        }
    }
    queue.assert_quiet();
}

#[test]
fn list_shows_live_and_failed_jobs_and_filters_them() {
    let (queue, dispatcher) = queue_of_all_states();
    let titles = |args: &[&str]| {
        let lines = queue.run([&["--json", "list"], args].concat()).code(0).lines();
        let mut titles: Vec<String> = lines.iter().map(|line| text(&line["title"])).collect();
        titles.sort();
        titles
    };
    assert_eq!(titles(&[]), ["F", "Q", "S"]);
    assert_eq!(titles(&["--state", "queued"]), ["Q"]);
    assert_eq!(titles(&["--state", "started"]), ["S"]);
    assert_eq!(titles(&["--state", "failed_unknown"]), ["F"]);
    assert!(titles(&["--state", "failed_timeout"]).is_empty());
    assert_eq!(titles(&["--format", "slow"]), ["S"]);
    assert_eq!(titles(&["--queue", "default"]), ["F", "Q", "S"]);
    assert!(titles(&["--queue", "other"]).is_empty());
    assert_eq!(titles(&["--limit", "1"]).len(), 1);
    let started = queue.run(["--json", "list", "--state", "started"]).code(0).json();
    let fields = [
        "schema",
        "id",
        "title",
        "lang",
        "font",
        "format",
        "options",
        "filename",
        "state",
        "queue",
        "client",
        "priority",
        "submitted_at",
        "attempts",
        "interruptions",
        "reason",
        "detail",
        "started_at",
        "finished_at",
        "slot",
        "progress",
    ];
    assert_eq!(names(&started), fields);
    let table = queue.run(["list"]).code(0).out;
    assert!(table.lines().next().expect("a header").trim_start().starts_with("id"), "{table}");
    assert_eq!(table.lines().count(), 4, "{table}");
    end(&queue, dispatcher);
}

#[test]
fn queues_counts_what_each_queue_holds() {
    let (queue, dispatcher) = queue_of_all_states();
    let row = queue.run(["--json", "queues"]).code(0).json();
    assert_eq!(
        names(&row),
        ["schema", "queue", "queued", "due", "started", "failed", "slots_used", "slots", "paused_at", "oldest_seconds"]
    );
    let counted = ["queue", "queued", "due", "started", "failed", "slots_used", "slots"].map(|name| row[name].clone());
    assert_eq!(Value::from(counted.to_vec()), serde_json::json!(["default", 1, 1, 1, 1, 1, 1]));
    assert!(queue.run(["queues"]).code(0).out.lines().count() == 2);
    end(&queue, dispatcher);
}

#[test]
fn an_empty_queue_has_nothing_to_show_and_no_fault() {
    let queue = Queue::new();
    for args in [&["list"][..], &["history"], &["--json", "list"], &["--json", "history"]] {
        queue.run(args).code(0).silent();
    }
    assert_eq!(queue.run(["--json", "queues"]).code(0).json()["queued"], 0);
    for verb in ["log", "retry", "explain"] {
        queue.run([verb, "A"]).code(6);
    }
    assert!(!queue.path("state").exists(), "a look made something");
}

#[test]
fn history_tells_each_run_once() {
    let queue = Queue::new();
    queue.request("ok", "A");
    queue.request("code1", "A");
    queue.dispatch().code(0).silent();
    let runs = queue.run(["--json", "history"]).code(0).lines();
    assert_eq!(runs.len(), 2, "{runs:?}");
    let fields = [
        "schema",
        "run",
        "job_id",
        "title",
        "lang",
        "font",
        "format",
        "options",
        "filename",
        "queue",
        "client",
        "outcome",
        "reason",
        "detail",
        "submitted_at",
        "started_at",
        "finished_at",
        "published_at",
        "bytes",
        "exit_code",
        "signal",
        "peak_memory",
        "cpu_seconds",
        "meta",
    ];
    assert_eq!(names(&runs[0]), fields);
    let failed = queue.run(["--json", "history", "--format", "code1", "A"]).code(0).json();
    assert_eq!((&failed["reason"], &failed["exit_code"]), (&"exit_nonzero".into(), &1.into()));
    assert!(failed["published_at"].is_null());
    let made = queue.run(["--json", "history", "--format", "ok", "A"]).code(0).json();
    assert_eq!((&made["exit_code"], &made["bytes"]), (&0.into(), &15.into()));
    assert_eq!(queue.run(["--json", "history", "--limit", "1"]).code(0).lines().len(), 1);
    assert_eq!(queue.run(["history"]).code(0).out.lines().count(), 3);
    queue.assert_quiet();
}

#[test]
fn explain_says_what_happens_next() {
    let (queue, dispatcher) = queue_of_all_states();
    let cases = [
        ("ok", "A", 0, "promised until"),
        ("ok", "Q", 3, "all slots of its queue are taken; 0 jobs go before it"),
        ("slow", "S", 4, "its time is up at"),
        ("code1", "F", 5, "a request starts it afresh in"),
        ("ok", "nobody asked", 6, "nobody has asked for it"),
    ];
    for (format, title, code, word) in cases {
        let said = queue.run(["explain", "--format", format, title]).code(code);
        assert!(said.out.contains(word), "{}", said.out);
        let object = queue.run(["--json", "explain", "--format", format, title]).code(code).json();
        assert_eq!(names(&object), ["schema", "status", "explanation"]);
        assert_eq!(names(&object["status"]), STATUS_FIELDS);
    }
    end(&queue, dispatcher);
}

#[test]
fn log_shows_the_kept_output_without_anything_a_terminal_obeys() {
    let queue = Queue::new();
    let mut config = queue.base_config();
    config.push_str(
        "[format.loud]\nextension = \"txt\"\ncommand = [\"sh\", \"-c\", \
         '''printf 'one\\r\\n\\033]0;title\\007two\\n\\302\\233 31m \\342\\200\\256three\\n\\tfour' >&2; exit 3''', \
         \"sh\", \"{output}\"]\n",
    );
    queue.configure(&config);
    queue.request("loud", "A");
    queue.dispatch().code(0).silent();
    let log = queue.run(["log", "--format", "loud", "A"]).code(0);
    assert_eq!(log.out, "one\n\u{fffd}]0;title\u{fffd}two\n\u{fffd} 31m \u{fffd}three\n    four\n");
    let detail = "exit 3: one | \u{fffd}]0;title\u{fffd}two | \u{fffd} 31m \u{fffd}three | four";
    assert_eq!(queue.status("loud", "A")["detail"], detail);
    for args in
        [&["status", "--format", "loud", "A"][..], &["explain", "--format", "loud", "A"], &["list"], &["history"]]
    {
        let said = queue.run(args);
        let obeyed = |letter: char| (letter.is_control() && letter != '\n') || letter == '\u{202e}';
        assert!(!said.out.contains(obeyed) && !said.out.is_empty(), "{said:?}");
    }
    queue.assert_quiet();
}

#[test]
fn progress_of_an_exporter_shows_as_one_clean_line() {
    let queue = Queue::new();
    let mut config = queue.base_config();
    config.push_str(&format!(
        "[format.steps]\nextension = \"txt\"\ncommand = [\"sh\", \"-c\", \
         '''printf '0.42 chap\\033[31mter \\342\\200\\2567\\n' >\"$EXPORT_QUEUE_PROGRESS\"; \
         while [ ! -e {}/GO ]; do sleep 0.05; done; echo x >\"$1\"''', \"sh\", \"{{output}}\"]\n",
        queue.path("").display()
    ));
    queue.configure(&config);
    queue.request("steps", "A");
    let dispatcher = queue.spawn(["dispatch", "--wait"]);
    let progress = eventually("progress is seen", || {
        let status = queue.status("steps", "A");
        status["progress"].as_str().map(str::to_owned)
    });
    assert_eq!(progress, "0.42 chap\u{fffd}[31mter \u{fffd}7");
    for args in [&["status", "--format", "steps", "A"][..], &["list"], &["explain", "--format", "steps", "A"]] {
        let said = queue.run(args);
        assert!(said.out.contains(&progress) || args[0] != "status", "{said:?}");
        assert!(!said.out.contains(['\u{1b}', '\u{202e}']), "{said:?}");
    }
    fs::write(queue.path("GO"), "").expect("a file");
    dispatcher.wait().code(0).silent();
    assert_eq!(queue.state("steps", "A"), "ready");
    queue.assert_quiet();
}

#[test]
fn retry_queues_a_failed_job_again_and_touches_no_other() {
    let queue = Queue::new();
    queue.request("code1", "A");
    queue.dispatch().code(0).silent();
    queue.run(["request", "--format", "code1", "A"]).code(5);
    assert_eq!(queue.run(["--json", "retry", "--format", "code1", "A"]).code(3).json()["state"], "queued");
    queue.run(["retry", "--format", "code1", "A"]).code(3);
    queue.dispatch().code(0).silent();
    assert_eq!(queue.scratch("STARTS").len(), 2);
    queue.run(["retry", "nobody asked"]).code(6);
    queue.request("ok", "R");
    queue.dispatch().code(0).silent();
    queue.run(["retry", "R"]).code(0);
    assert_eq!(queue.scratch("STARTS").len(), 3);
    queue.assert_quiet();
}

#[test]
fn request_with_retry_does_not_wait_for_the_hold() {
    let queue = Queue::new();
    queue.request("code1", "A");
    queue.dispatch().code(0).silent();
    let held = queue.run(["--json", "request", "--format", "code1", "A"]).code(5).json();
    let left = held["retry_after_seconds"].as_u64().expect("a number");
    assert!((1..=60).contains(&left), "{left}");
    queue.run(["request", "--retry", "--format", "code1", "A"]).code(3);
    queue.assert_quiet();
}

#[test]
fn dismiss_forgets_a_failed_job_and_only_that() {
    let queue = Queue::new();
    queue.request("code1", "A");
    queue.dispatch().code(0).silent();
    queue.request("ok", "Q");
    assert_eq!(queue.run(["--json", "dismiss", "--format", "code1", "A"]).code(0).json()["state"], "absent");
    queue.run(["dismiss", "--format", "code1", "A"]).code(6);
    queue.run(["dismiss", "Q"]).code(3);
    assert_eq!(queue.state("ok", "Q"), "queued");
    queue.assert_quiet();
}

#[test]
fn cancel_removes_a_queued_job_and_ends_a_started_one() {
    let (queue, dispatcher) = queue_of_all_states();
    assert_eq!(queue.run(["--json", "cancel", "Q"]).code(0).json()["state"], "absent");
    queue.run(["cancel", "Q"]).code(6);
    queue.run(["cancel", "A"]).code(0);
    assert_eq!(queue.state("ok", "A"), "ready");
    queue.run(["cancel", "--format", "code1", "F"]).code(5);
    queue.run(["cancel", "--format", "slow", "S"]).code(0);
    let status = queue.await_state("slow", "S", "failed_unknown");
    assert_eq!(status["reason"], "cancelled");
    dispatcher.wait().code(0).silent();
    queue.assert_quiet();
}

#[test]
fn a_sweep_counts_what_it_deletes_and_a_dry_one_deletes_nothing() {
    let queue = Queue::new();
    for title in ["A", "B", "C"] {
        queue.request("ok", title);
    }
    queue.dispatch().code(0).silent();
    let files = queue.published();
    Queue::age(&files[0], Duration::from_secs(3600));
    let report = |args: &[&str]| queue.run([&["--json", "sweep"], args].concat()).code(0).json();
    let dry = report(&["--dry-run"]);
    assert_eq!(names(&dry), ["schema", "dry_run", "deleted", "bytes", "aged", "trouble", "left_over"]);
    assert_eq!((&dry["dry_run"], &dry["deleted"], &dry["bytes"]), (&true.into(), &1.into(), &15.into()));
    assert_eq!(queue.published().len(), 3);
    assert_eq!(queue.run(["sweep", "--dry-run"]).code(0).out, "would delete 1 files, 15 B\n");
    assert_eq!(queue.run(["sweep"]).code(0).out, "deleted 1 files, 15 B\n");
    assert_eq!(queue.published().len(), 2);
    let dry = report(&["--dry-run", "--all"]);
    assert_eq!((&dry["deleted"], &dry["aged"]), (&0.into(), &2.into()));
    let dry = report(&["--dry-run", "--older-than", "1h"]);
    assert_eq!((&dry["deleted"], &dry["aged"]), (&0.into(), &0.into()));
    let dry = report(&["--dry-run", "--all", "--force"]);
    assert_eq!((&dry["deleted"], &dry["aged"]), (&2.into(), &0.into()));
    assert_eq!(queue.published().len(), 2);
    assert!(queue.run(["sweep", "--force"]).code(2).err.contains("--all"));
    assert_eq!(report(&["--all", "--force"])["deleted"], 2);
    assert!(queue.published().is_empty());
    queue.assert_quiet();
}

#[test]
fn a_sweep_of_all_takes_files_out_of_ready_now_and_deletes_them_one_grace_later() {
    let queue = Queue::new();
    queue.reconfigure("dir = \"cache\"\n", "dir = \"cache\"\nserve_grace = \"3s\"\n");
    queue.request("ok", "A");
    queue.dispatch().code(0).silent();
    let path = text(&queue.status("ok", "A")["path"]);
    let sweeping = queue.spawn(["sweep", "--all"]);
    eventually("it is not ready any more", || (queue.state("ok", "A") == "absent").then_some(()));
    assert!(Path::new(&path).exists(), "the promise was broken");
    let said = sweeping.wait().code(0);
    assert_eq!(said.out, "deleted 1 files, 15 B\n");
    assert!(said.err.contains("deleted in 3 s"), "{}", said.err);
    assert!(!Path::new(&path).exists());
    queue.assert_quiet();
}

#[test]
fn a_dry_dispatch_says_what_a_tick_would_do_and_does_nothing() {
    let queue = Queue::new();
    assert_eq!(queue.run(["dispatch", "--dry-run"]).code(0).out, "set up a new queue\n");
    assert!(!queue.path("state").exists());
    for title in ["A", "B", "C"] {
        queue.request("ok", title);
    }
    let plan = queue.run(["dispatch", "--dry-run"]).code(0);
    assert!(plan.out.contains("queue default: start 2 of 3 due; 0 of 2 slots taken\n"), "{}", plan.out);
    assert_eq!(queue.run(["list", "--state", "queued"]).code(0).out.lines().count(), 4);
    assert!(queue.workers().is_empty() && queue.scratch("STARTS").is_empty());
    queue.assert_quiet();
}

#[test]
fn a_worker_whose_slot_is_no_longer_in_force_ends_although_jobs_are_due() {
    let queue = Queue::new();
    fs::write(queue.path("S"), "3").expect("the seconds");
    for title in ["A", "B", "C", "D"] {
        queue.request("slow", title);
    }
    queue.run(["dispatch"]).code(0).silent();
    eventually("two exporters run", || (queue.scratch("PIDS").len() == 2).then_some(()));
    queue.reconfigure("slots = 2", "slots = 1");
    eventually("two books are made and the third runs", || (queue.scratch("PIDS").len() == 3).then_some(()));
    eventually("one worker is left", || (queue.workers().len() == 1).then_some(()));
    assert_eq!(queue.state("slow", "D"), "queued", "it ended only when nothing was due");
    for title in ["A", "B", "C", "D"] {
        queue.await_state("slow", title, "ready");
    }
    queue.assert_quiet();
}

#[test]
fn config_show_says_where_each_value_comes_from_and_hides_secrets() {
    let mut queue =
        Queue::with("[format.epub]\ncommand = [\"pandoc\", \"{output}\"]\nenv = { TOKEN = \"hush-hush\" }\n");
    queue.set("EXPORT_QUEUE__QUEUE__DEFAULT__SLOTS", "7");
    queue.set("EXPORT_QUEUE__DATABASE", "postgres://user:sesame@db/exports");
    let said = queue.run(["config", "show", "--origin"]).code(0);
    let has = |start: &str, end: &str| said.out.lines().any(|line| line.starts_with(start) && line.ends_with(end));
    assert!(has("slots = 7", "# environment EXPORT_QUEUE__QUEUE__DEFAULT__SLOTS"), "{}", said.out);
    assert!(has("timeout = \"60s\"", "config.toml") || has("timeout = \"1m\"", "config.toml"), "{}", said.out);
    assert!(has("nice = 0", "# default"), "{}", said.out);
    for args in [&["config", "show"][..], &["config", "show", "--origin"], &["--json", "config", "show"]] {
        let said = queue.run(args).code(0);
        assert!(!said.out.contains("hush-hush") && !said.out.contains("sesame"), "{}", said.out);
        assert!(said.out.contains("***"), "{}", said.out);
    }
    for row in queue.run(["--json", "config", "show"]).code(0).lines() {
        assert_eq!(names(&row), ["schema", "key", "value", "origin"]);
    }
}

#[test]
fn what_config_show_prints_is_a_configuration() {
    let queue = Queue::new();
    let shown = queue.run(["config", "show"]).code(0).out;
    let copy = queue.path("copy.toml");
    fs::write(&copy, shown.replace("\"***\"", "\"x\"")).expect("a file");
    let mut command = Command::new(PROGRAM);
    let again = call(command.arg("--config").arg(&copy).args(["config", "show"]).stdin(Stdio::null())).code(0);
    assert_eq!(again.out, shown);
}

#[test]
fn check_says_ok_where_all_is_well_and_warns_without_a_dispatcher() {
    let queue = Queue::new();
    let before = queue.run(["check"]).code(0);
    assert!(before.out.lines().any(|line| line.starts_with("warn  dispatch: nobody has dispatched")), "{}", before.out);
    queue.dispatch().code(0).silent();
    let said = queue.run(["check"]).code(0);
    for about in ["configuration", "owner", "database", "cache", "lock", "format", "dispatch"] {
        let well = format!("ok    {about}: ");
        assert!(said.out.lines().any(|line| line.starts_with(&well)), "{well} is not in {}", said.out);
    }
    for line in queue.run(["--json", "check"]).code(0).lines() {
        assert_eq!(names(&line), ["schema", "result", "about", "message"]);
        assert!(["ok", "warn", "fail"].contains(&text(&line["result"]).as_str()));
    }
    queue.assert_quiet();
}

#[test]
fn check_fails_with_78_on_a_configuration_that_cannot_work() {
    let queue = Queue::with("[format.bad]\ncommand = [\"sh\", \"/srv/{title}.md\", \"{output}\"]\n");
    let said = queue.run(["check"]).code(78);
    assert!(said.out.contains("{title:path}"), "{}", said.out);
    let queue = Queue::with("[format.bad]\ncommand = [\"sh\", \"{titel}\", \"{output}\"]\n");
    let said = queue.run(["check"]).code(78);
    assert!(said.out.contains("titel") && said.out.contains("title"), "{}", said.out);
}

#[test]
fn init_writes_a_configuration_once_and_sets_the_queue_up() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("etc/config.toml");
    let run = |args: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.arg("--config").arg(&path).args(args).stdin(Stdio::null());
        command.env("EXPORT_QUEUE__STATE_DIR", dir.path().join("state"));
        call(command.env("EXPORT_QUEUE__CACHE__DIR", dir.path().join("cache")))
    };
    let first = run(&["init"]).code(0);
    assert!(first.out.is_empty() && first.err.contains("wrote ") && first.err.contains("crontab"), "{first:?}");
    let written = fs::read_to_string(&path).expect("a configuration");
    assert!(written.contains("[queue.default]") && dir.path().join("state/queue.db").exists());
    assert!(dir.path().join("cache/.export-queue").exists());
    fs::write(&path, format!("{written}# mine\n")).expect("an edit");
    let second = run(&["init"]).code(0);
    assert!(!second.err.contains("wrote "), "{second:?}");
    assert_eq!(fs::read_to_string(&path).expect("a configuration"), format!("{written}# mine\n"));
    run(&["check"]).code(0);
    run(&["list"]).code(0).silent();
    let unknown = run(&["init", "--user", "no-such-user"]).code(2);
    assert!(unknown.err.contains("no-such-user"), "{unknown:?}");
}

#[test]
fn quiet_and_verbose_change_messages_and_never_data() {
    let mut queue = Queue::new();
    queue.request("ok", "A");
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "200");
    let plain = queue.run(["request", "--wait", "1ms", "A"]).code(3);
    let quiet = queue.run(["--quiet", "request", "--wait", "1ms", "A"]).code(3);
    let loud = queue.run(["-vv", "request", "--wait", "1ms", "A"]).code(3);
    assert!(!plain.err.is_empty() && quiet.err.is_empty(), "{plain:?} {quiet:?}");
    assert_eq!((&plain.out, &quiet.out), (&loud.out, &loud.out));
    queue.assert_quiet();
}
