//! Telling others how jobs ended: at least once, in a process of its own that holds up nobody.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::harness::{Queue, call, eventually, make_executable, now, text};

/// A queue with one notifier: a script with this body; `$SCRATCH` in it is the queue's directory.
fn telling(on: &str, body: &str) -> Queue {
    let queue = Queue::new();
    let script = write_script(&queue, "told", body);
    let text = fs::read_to_string(queue.path("config.toml")).unwrap();
    let command = format!("[\"{}\", \"{{state}}\", \"{{reason}}\", \"{{title}}\", \"{{meta}}\"]", script.display());
    queue.configure(&format!("{text}[[notify]]\nname = \"web\"\non = {on}\ntimeout = \"2s\"\ncommand = {command}\n"));
    queue
}

fn write_script(queue: &Queue, name: &str, body: &str) -> PathBuf {
    let script = queue.path(name);
    fs::write(&script, format!("#!/bin/bash\nSCRATCH={}\n{body}\n", queue.path("").display())).unwrap();
    make_executable(&script);
    script
}

const NOTE: &str = r#"printf '%s|' "$@" >>"$SCRATCH/TOLD"; echo >>"$SCRATCH/TOLD""#;

/// Ticks that wait for nobody until a file is ready.
fn tick_until_ready(queue: &Queue, title: &str) {
    eventually(&format!("{title} is ready"), || {
        queue.run(["dispatch"]).code(0).silent();
        (queue.state("ok", title) == "ready").then_some(())
    });
}

fn deliveries(queue: &Queue) -> Vec<Value> {
    queue.run(["--json", "deliveries"]).code(0).lines()
}

#[test]
fn listeners_are_told_what_they_listen_for() {
    let queue = telling("[\"ready\", \"failed\"]", NOTE);
    let text = fs::read_to_string(queue.path("config.toml")).unwrap();
    let other = write_script(&queue, "other", r#"echo "$1" >>"$SCRATCH/OTHER""#);
    queue.configure(&format!(
        "{text}[[notify]]\non = [\"failed\"]\ncommand = [\"{}\", \"{{title}}\"]\n",
        other.display()
    ));
    queue.run(["request", "A", "--meta", r#"{"page": 7}"#]).code(3);
    queue.request("code1", "$(touch PWNED) B");
    queue.run(["request", "C", "--max-wait", "0"]).code(3);
    queue.dispatch().code(0).silent();
    let mut told = queue.scratch("TOLD");
    told.sort();
    assert_eq!(
        told,
        [
            "failed_unknown|exit_nonzero|$(touch PWNED) B||",
            "failed_unknown|wait_expired|C||",
            "ready||A|{\"page\": 7}|"
        ]
    );
    let mut other = queue.scratch("OTHER");
    other.sort();
    assert_eq!(other, ["$(touch PWNED) B", "C"]);
    assert_eq!(deliveries(&queue), [Value::Null; 0], "what was told is over");
    queue.assert_quiet();
}

#[test]
fn a_notifier_has_a_clean_place_of_its_own() {
    let queue = telling(
        "[\"ready\"]",
        r#"cat >"$SCRATCH/STDIN"; env >"$SCRATCH/ENVOUT"; pwd >"$SCRATCH/PWD"; umask >>"$SCRATCH/PWD""#,
    );
    queue.request("ok", "A");
    let mut command = queue.command(["dispatch", "--wait"]);
    command.env("SECRET", "of cron");
    call(&mut command).code(0).silent();
    let env = queue.scratch("ENVOUT");
    let status = queue.status("ok", "A");
    let value = |name: &str| env.iter().find_map(|line| line.strip_prefix(&format!("{name}="))).map(str::to_owned);
    assert_eq!(value("SECRET"), None);
    assert_eq!(value("EXPORT_QUEUE_STATE").as_deref(), Some("ready"));
    assert_eq!(value("EXPORT_QUEUE_OUTPUT"), Some(text(&status["path"])));
    assert_eq!(value("EXPORT_QUEUE_TITLE").as_deref(), Some("A"));
    assert!(value("EXPORT_QUEUE_DELIVERY").is_some() && value("EXPORT_QUEUE_RUN").is_some(), "{env:?}");
    assert_eq!(value("LANG").as_deref(), Some("C.UTF-8"));
    assert_eq!(fs::read_to_string(queue.path("STDIN")).unwrap(), "");
    assert!(queue.scratch("PWD")[0].contains("/cache/.work/"), "{:?}", queue.scratch("PWD"));
    assert_eq!(queue.scratch("PWD")[1], "0027");
    queue.assert_quiet();
}

#[test]
fn a_notifier_that_fails_is_tried_again_for_a_day_and_then_stays_visible() {
    let mut queue = telling("[\"failed\"]", &format!("{NOTE}; echo 'no route' >&2; exit 7"));
    queue.request("code1", "A");
    queue.dispatch().code(0).silent();
    let delivery = deliveries(&queue).pop().expect("it is kept");
    assert_eq!((&delivery["tries"], &delivery["error"]), (&json!(1), &json!("exit 7: no route")));
    assert_eq!((&delivery["listener"], &delivery["given_up"]), (&json!("web"), &json!(false)));
    queue.dispatch().code(0).silent();
    assert_eq!(queue.scratch("TOLD").len(), 1, "not before its time");
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "11");
    queue.dispatch().code(0).silent();
    assert_eq!(queue.scratch("TOLD").len(), 2);
    queue.run(["health"]).code(0).silent();
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "3700");
    let health = |queue: &Queue| queue.run(["health"]).out;
    let late = "deliveries: of what web is to be told: 1 late by more than an hour\n";
    assert!(health(&queue).ends_with(late), "{}", health(&queue));
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "86390");
    queue.dispatch().code(0).silent();
    assert_eq!(health(&queue), "deliveries: of what web is to be told: 1 given up\n");
    let delivery = deliveries(&queue).pop().expect("it is kept");
    assert_eq!((&delivery["given_up"], &delivery["due_at"]), (&json!(true), &Value::Null));
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "180000");
    queue.dispatch().code(0).silent();
    assert_eq!(health(&queue), "", "it was shown for a day");
    assert_eq!(queue.scratch("TOLD").len(), 3, "it was given up");
    let table = queue.run(["deliveries"]).code(0).out;
    assert!(table.contains("given up") && table.contains("exit 7: no route"), "{table}");

    write_script(&queue, "told", NOTE);
    queue.run(["deliveries", "--retry", "99"]).code(6);
    queue.run(["deliveries", "--retry", &delivery["id"].to_string()]).code(0);
    queue.dispatch().code(0).silent();
    assert_eq!(queue.scratch("TOLD").len(), 4);
    assert_eq!(queue.run(["deliveries"]).code(0).out, "");
}

#[test]
fn a_notifier_that_hangs_holds_up_neither_ticks_nor_exports() {
    let queue = telling("[\"ready\"]", r#"echo $$ >>"$SCRATCH/PIDS"; trap '' TERM; (setsid sleep 600) & sleep 600"#);
    queue.request("ok", "A");
    tick_until_ready(&queue, "A");
    eventually("the notifier hangs", || {
        queue.run(["dispatch"]).code(0).silent();
        (!queue.scratch("PIDS").is_empty()).then_some(())
    });
    let start = now();
    queue.request("ok", "B");
    tick_until_ready(&queue, "B");
    // Its own time limit ends it, and everything that came of it.
    eventually("it is ended", || {
        queue.run(["dispatch"]).code(0).silent();
        deliveries(&queue).iter().all(|delivery| delivery["tries"] == 1).then_some(())
    });
    println!("two hanging notifiers were ended after {:?}", start.elapsed());
    for delivery in deliveries(&queue) {
        assert_eq!(delivery["error"], "time limit of 2s");
    }
    queue.assert_quiet();
    assert!(!queue.processes().iter().any(|process| process.command.contains("sleep")), "something escaped");
}

#[test]
fn a_listener_that_fails_does_not_hold_up_the_others() {
    let queue = telling("[\"ready\"]", "exit 1");
    let text = fs::read_to_string(queue.path("config.toml")).unwrap();
    let other = write_script(&queue, "other", r#"echo "$1" >>"$SCRATCH/OTHER""#);
    let missing = "[[notify]]\non = [\"ready\"]\ncommand = [\"/nowhere/told\"]\n";
    let other =
        format!("[[notify]]\nname = \"other\"\non = [\"ready\"]\ncommand = [\"{}\", \"{{title}}\"]\n", other.display());
    queue.configure(&format!("{text}{missing}{other}"));
    for title in ["A", "B", "C"] {
        queue.request("ok", title);
    }
    queue.dispatch().code(0).silent();
    let mut told = queue.scratch("OTHER");
    told.sort();
    assert_eq!(told, ["A", "B", "C"]);
    let left = deliveries(&queue);
    assert_eq!(left.len(), 6);
    let error = text_of_listener(&left, "2");
    assert!(error.starts_with("/nowhere/told is not installed"), "{error}");
    let checked = queue.run(["check"]).out;
    assert!(checked.contains("2: /nowhere/told is not installed"), "{checked}");
    queue.assert_quiet();
}

fn text_of_listener(deliveries: &[Value], listener: &str) -> String {
    text(&deliveries.iter().find(|delivery| delivery["listener"] == listener).expect("a delivery")["error"])
}

#[test]
fn who_dies_between_telling_and_noting_tells_twice() {
    for (moment, was_told) in [("errand.after_exit", true), ("errand.before_spawn", false)] {
        let queue = telling("[\"ready\"]", NOTE);
        queue.request("ok", "A");
        let mut command = queue.command(["dispatch", "--wait"]);
        command.env("EXPORT_QUEUE_FAULT", format!("{moment}=abort"));
        command.env("EXPORT_QUEUE_FAULT_HITS", queue.path("HITS"));
        call(&mut command);
        assert!(!queue.scratch("HITS").is_empty(), "{moment} was never reached");
        assert_eq!(deliveries(&queue).len(), 1, "{moment}");
        let before = queue.scratch("TOLD").len();
        assert_eq!(before > 0, was_told, "{moment}");
        queue.dispatch().code(0).silent();
        assert_eq!(queue.scratch("TOLD").len(), before + 1, "{moment}");
        assert_eq!(deliveries(&queue), [Value::Null; 0], "{moment}");
        assert_eq!(queue.state("ok", "A"), "ready");
        queue.assert_quiet();
    }
}

#[test]
fn what_troubles_a_notifier_is_no_trouble_of_exports() {
    let queue = telling("[\"ready\"]", NOTE);
    for title in ["A", "B", "C", "D"] {
        queue.request("ok", title);
    }
    let mut command = queue.command(["dispatch", "--wait"]);
    command.env("EXPORT_QUEUE_FAULT", "errand.before_spawn=error");
    call(&mut command).code(0).silent();
    for title in ["A", "B", "C", "D"] {
        assert_eq!(queue.state("ok", title), "ready");
    }
    assert_eq!(deliveries(&queue).len(), 4);
    queue.dispatch().code(0).silent();
    assert_eq!((deliveries(&queue).len(), queue.scratch("TOLD").len()), (0, 4));
    queue.assert_quiet();
}
