//! Commands that only look: figures of the past, what is wrong now, and what goes on.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::converters::need;
use crate::harness::{Queue, call, eventually};

/// A queue with two published files and a failure.
fn lived_in() -> Queue {
    let queue = Queue::new();
    for (format, title) in [("ok", "A"), ("ok", "B"), ("code1", "C")] {
        queue.request(format, title);
    }
    queue.dispatch().code(0).silent();
    queue
}

#[test]
fn statistics_tell_what_became_of_the_runs() {
    let queue = lived_in();
    let groups = queue.run(["--json", "stats"]).code(0).lines();
    let [code1, ok] = &groups[..] else { panic!("{groups:?}") };
    assert_eq!(
        (&ok["schema"], &ok["format"], &ok["runs"], &ok["ready"]),
        (&json!(1), &json!("ok"), &json!(2), &json!(2))
    );
    assert_eq!((&code1["failed_unknown"], &code1["took_seconds_p50"]), (&json!(1), &Value::Null));
    assert!(ok["took_seconds_p50"].as_f64() <= ok["took_seconds_max"].as_f64(), "{ok}");
    assert!(ok["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{ok}");
    let table = queue.run(["stats", "--by", "day,lang"]).code(0).out;
    assert!(table.lines().count() == 2 && table.trim_start().starts_with("day"), "{table}");
}

#[test]
fn statistics_are_a_table_for_other_programs_too() {
    let queue = lived_in();
    queue.run(["request", "D", "--client", "a,\"b\""]).code(3);
    queue.dispatch().code(0).silent();
    let csv = queue.run(["stats", "--by", "client", "--csv"]).code(0).out;
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines[0].starts_with("client,runs,ready,failed_timeout,"), "{csv}");
    assert!(lines[1].starts_with(",3,2,0,1,") && lines[2].starts_with("\"a,\"\"b\"\"\",1,1,0,0,"), "{csv}");
    assert!(queue.run(["stats", "--by", "size"]).code(2).err.contains("format, lang, day, client"));
}

#[test]
fn statistics_are_of_the_time_that_is_asked_for() {
    let mut queue = lived_in();
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "7200");
    queue.run(["stats", "--since", "1h"]).code(0).silent();
    assert_eq!(queue.run(["--json", "stats", "--since", "3h"]).code(0).lines().len(), 2);
}

#[test]
fn history_is_chosen_by_what_the_runs_were() {
    let mut queue = lived_in();
    let titles = |args: &[&str]| {
        let runs = queue.run([&["--json", "history"], args].concat()).code(0).lines();
        runs.iter().map(|run| run["title"].as_str().expect("a title").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(titles(&["--format", "code1"]), ["C"]);
    assert_eq!(titles(&["--outcome", "ready"]).len(), 2);
    assert_eq!(titles(&["--client", "nobody"]), [""; 0]);
    let file = queue.status("ok", "A")["filename"].as_str().expect("a name").to_owned();
    assert_eq!(titles(&["--filename", &file]), ["A"]);
    queue.run(["history", "--font", "mukta"]).code(2);
    queue.run(["history", "--outcome", "broken"]).code(2);
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "7200");
    queue.run(["history", "--since", "1h"]).code(0).silent();
}

fn findings(queue: &Queue, code: i32) -> String {
    queue.run(["health"]).code(code).out
}

#[test]
fn health_is_silent_when_all_is_well() {
    let queue = lived_in();
    queue.run(["health"]).code(0).silent();
}

#[test]
fn health_tells_that_nobody_dispatches_or_sweeps() {
    let mut queue = lived_in();
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "121");
    assert!(findings(&queue, 1).starts_with("dispatch: nobody has dispatched for two minutes"));
    let told = queue.run(["--json", "health"]).code(1).json();
    assert_eq!((&told["schema"], &told["about"]), (&json!(1), &json!("dispatch")));
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "0");
    Queue::age(&queue.path("state/logs/walked"), std::time::Duration::from_secs(7300));
    assert!(findings(&queue, 1).starts_with("sweep: the cache was last walked 2h 1m 4"), "{}", findings(&queue, 1));
}

#[test]
fn health_tells_what_the_setup_lacks() {
    let queue = lived_in();
    let more = "[format.gone]\ncommand = [\"/nowhere/exporter\", \"{output}\"]\n";
    queue.configure(
        &format!("{}{more}", queue.base_config()).replace("min_free_disk = 0", "min_free_disk = \"900000000GB\""),
    );
    let told = findings(&queue, 1);
    assert!(told.contains("exporter: format gone: /nowhere/exporter is not installed\n"), "{told}");
    assert!(
        told.contains("disk: queue default starts nothing: less than min_free_disk is left on the disk of "),
        "{told}"
    );
}

#[test]
fn health_tells_when_most_exports_fail() {
    let queue = lived_in();
    for book in 0..10 {
        queue.request("code1", &format!("Book {book}"));
    }
    queue.dispatch().code(0).silent();
    assert_eq!(findings(&queue, 1), "failures: 11 of 13 exports failed within an hour, most of them exit_nonzero\n");
}

#[test]
fn jobs_of_a_queue_or_format_that_was_taken_away_are_shown_everywhere() {
    let lane = "[queue.express]\nmin_free_disk = 0\n";
    let format = "[format.old]\nextension = \"txt\"\ncommand = [\"/bin/true\", \"{output}\"]\n";
    let queue = Queue::with(&format!("{lane}{format}"));
    queue.run(["request", "A", "--queue", "express"]).code(3);
    let of_old = queue.request("old", "B")["id"].to_string();
    queue.configure(&queue.base_config());
    let said = queue.run(["dispatch"]);
    assert!(said.err.contains("there is no [format.old] in the configuration any more"), "{said:?}");
    let told = findings(&queue, 1);
    assert!(told.contains("queue: 1 jobs wait in queue express, which is not configured any more\n"), "{told}");
    assert!(
        told.contains("format: jobs wait in queue default for format old, which is not configured any more\n"),
        "{told}"
    );
    let checked = queue.run(["check"]).out;
    assert!(checked.contains("2 jobs are of a queue or format that is not configured"), "{checked}");
    let told = queue.run(["explain", "A"]).code(3).out;
    assert!(told.contains("its queue express is not configured any more"), "{told}");
    let told = queue.run(["explain", "--id", &of_old]).code(3).out;
    assert!(told.contains("format old is not configured any more"), "{told}");
    assert_eq!(queue.run(["list"]).code(0).out.lines().count(), 3);
    assert_eq!(queue.run(["--json", "status", "--id", &of_old]).code(3).json()["reason"], "exporter_missing");
    let said = queue.run(["request", "--id", &of_old]).code(2);
    assert!(said.err.contains("format old is not configured any more"), "{said:?}");
    // And they go on when what they need is back.
    queue.configure(&format!("{}{lane}", queue.base_config()));
    queue.dispatch();
    assert_eq!(queue.state("ok", "A"), "ready");
    queue.run(["cancel", "--id", &of_old, "--force"]).code(0);
    queue.run(["explain", "--id", &of_old]).code(6);
}

/// What Prometheus' own library reads in a text: name, labels and value of each sample.
const PARSER: &str = "import json, sys\n\
    from prometheus_client.parser import text_string_to_metric_families as families\n\
    for family in families(sys.stdin.read()):\n\
    \x20   assert family.documentation and family.type == 'gauge', family\n\
    \x20   for sample in family.samples: print(json.dumps([sample.name, sample.labels, sample.value]))\n";

#[test]
fn metrics_are_what_prometheus_reads() {
    need(&["prometheus"]);
    let queue = Queue::with("[queue.express]\nmin_free_disk = 0\n");
    queue.request("ok", "A");
    queue.dispatch().code(0).silent();
    queue.run(["pause", "express"]).code(0);
    queue.run(["request", "B", "--queue", "express"]).code(3);
    let file = queue.path("queue.prom");
    queue.run(["metrics", "--output", file.to_str().expect("a path")]).code(0).silent();
    assert_eq!(fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o644);
    let mut parser = Command::new("/usr/bin/python3");
    let said = call(parser.args(["-c", PARSER]).stdin(fs::File::open(&file).expect("a file"))).code(0);
    let samples = said.lines();
    let value = |name: &str, labels: Value| {
        let found = samples.iter().find(|sample| sample[0] == name && sample[1] == labels);
        found.unwrap_or_else(|| panic!("no {name} {labels}: {said:?}"))[2].as_f64()
    };
    assert_eq!(value("export_queue_jobs", json!({"queue": "express", "state": "queued"})), Some(1.0));
    assert_eq!(value("export_queue_jobs", json!({"queue": "default", "state": "started"})), Some(0.0));
    assert_eq!(value("export_queue_paused", json!({"queue": "express"})), Some(1.0));
    assert_eq!(value("export_queue_slots", json!({"queue": "default"})), Some(2.0));
    assert_eq!(value("export_queue_recent_runs", json!({"format": "ok", "outcome": "ready"})), Some(1.0));
    assert!(value("export_queue_recent_run_seconds", json!({"format": "ok", "quantile": "0.95"})) > Some(0.0));
    assert_eq!(value("export_queue_health_findings", json!({})), Some(0.0));
    assert!(value("export_queue_last_dispatch_timestamp_seconds", json!({})) > Some(1.7e9));
}

#[test]
fn no_title_client_or_forgotten_format_makes_a_series() {
    let queue = Queue::with(
        "[format.old]\nextension = \"txt\"\ncommand = [\"/bin/sh\", \"-c\", \"echo x >\\\"$0\\\"\", \"{output}\"]\n",
    );
    let series =
        |queue: &Queue| queue.run(["metrics"]).code(0).out.lines().filter(|line| !line.starts_with('#')).count();
    queue.request("old", "A");
    queue.dispatch().code(0);
    let before = series(&queue);
    for book in ["B", "C", "D"] {
        queue.run(["request", book, "--format", "old", "--client", book]).code(3);
    }
    queue.dispatch().code(0);
    assert_eq!(series(&queue), before);
    queue.configure(&queue.base_config());
    assert_eq!(series(&queue), before);
    assert!(queue.run(["metrics"]).code(0).out.contains("recent_runs{format=\"other\",outcome=\"ready\"} 4"));
}

#[test]
fn watch_tells_each_change_and_ends_with_its_reader() {
    let queue = Queue::new();
    let mut watch = queue.command(["watch", "--interval", "50ms"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().expect("the program can be started");
    let mut lines = BufReader::new(watch.stdout.take().expect("its output")).lines();
    let mut next = || lines.next().expect("a line").expect("a line");
    assert!(next().ends_with("  default: 0 queued, 0 due, 0 of 2 started, 0 failed"));
    queue.request("ok", "A");
    assert!(next().ends_with("  default: 1 queued, 1 due, 0 of 2 started, 0 failed"));
    queue.run(["pause"]).code(0);
    assert!(next().ends_with("  default: 1 queued, 1 due, 0 of 2 started, 0 failed, paused"));
    drop(lines);
    let ended = eventually("it ends", || watch.try_wait().expect("the child can be waited for"));
    assert_eq!(ended.code(), Some(0));
}

#[test]
fn watch_paints_a_table_on_a_terminal() {
    let queue = Queue::new();
    fs::write(queue.path("S"), "600").expect("a file");
    queue.request("slow", "Emma");
    let _dispatcher = queue.spawn(["dispatch", "--for", "1h"]);
    queue.await_state("slow", "Emma", "started");
    let config = queue.path("config.toml");
    let line = format!("timeout 4 {} --config {} watch --interval 100ms", crate::harness::PROGRAM, config.display());
    let mut script = Command::new("script");
    let said = call(script.args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()));
    let last = said.out.rsplit("\x1b[H\x1b[J").next().expect("a look");
    assert!(said.out.matches("\x1b[H\x1b[J").count() > 1, "{said:?}");
    assert!(last.contains("queued") && last.contains("Emma"), "{last}");
}

#[test]
fn a_shell_completes_commands() {
    let queue = Queue::new();
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        assert!(queue.run(["completions", shell]).code(0).out.contains("dismiss"), "{shell}");
    }
    fs::write(queue.path("bash"), queue.run(["completions", "bash"]).code(0).out).expect("a file");
    let ask = ". \"$0\"; COMP_WORDS=(export-queue re) COMP_CWORD=1; _export__queue export-queue re export-queue; echo \"${COMPREPLY[@]}\"";
    let said = call(Command::new("bash").args(["-c", ask]).arg(queue.path("bash")).stdin(Stdio::null())).code(0);
    assert_eq!(said.out, "request retry resume\n");
    queue.run(["completions", "cmd"]).code(2);
}

#[test]
fn each_command_has_a_manual_page() {
    let queue = Queue::new();
    assert!(queue.run(["man"]).code(0).out.contains("export\\-queue\\-request(1)"));
    let page = queue.run(["man", "request"]).code(0).out;
    for part in [".TH export-queue-request 1", "Ask for a file; prints its status", "not\\-before"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    // What is said of arguments that several commands share is not what is said of the command.
    assert!(queue.run(["request", "--help"]).code(0).out.starts_with("Ask for a file; prints its status\n"));
    queue.run(["man", "work"]).code(2);
}
