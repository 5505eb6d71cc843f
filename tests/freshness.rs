//! Fingerprints: a file whose source changed is stale before its age says so.

use std::fs;

use crate::harness::{Queue, eventually, make_executable, text};

/// A queue whose format copies `SOURCE`, slowly if `S` says so, and has a fingerprint that notes each call.
fn fresh(fingerprint: &str) -> Queue {
    let queue = Queue::new();
    let dir = queue.path("").display().to_string();
    let script = queue.path("look");
    fs::write(&script, format!("#!/bin/sh\necho \"$1\" >>{dir}/LOOKS\n{}\n", fingerprint.replace("DIR", &dir)))
        .unwrap();
    make_executable(&script);
    let copy = format!("cat {dir}/SOURCE >\"$1\"; sleep \"$(cat {dir}/S)\"");
    let text = fs::read_to_string(queue.path("config.toml")).unwrap();
    queue.configure(&format!(
        "{text}[format.copy]\nextension = \"txt\"\nfingerprint = [\"{}\", \"{{title}}\"]\n\
         command = [\"sh\", \"-c\", {copy:?}, \"copy\", \"{{output}}\"]\n",
        script.display()
    ));
    fs::write(queue.path("S"), "0").unwrap();
    fs::write(queue.path("SOURCE"), "one\n").unwrap();
    queue
}

const LOOK: &str = "cat DIR/SOURCE";

fn later(queue: &mut Queue, seconds: &str) {
    queue.set("EXPORT_QUEUE_TEST_CLOCK", seconds);
    queue.dispatch().code(0).silent();
}

#[test]
fn a_file_whose_source_changed_is_stale() {
    let mut queue = fresh(LOOK);
    queue.request("copy", "A");
    queue.dispatch().code(0).silent();
    let path = text(&queue.status("copy", "A")["path"]);
    later(&mut queue, "61");
    assert_eq!(queue.state("copy", "A"), "ready", "nothing changed");
    fs::write(queue.path("SOURCE"), "two\n").unwrap();
    later(&mut queue, "100");
    assert_eq!(queue.state("copy", "A"), "ready", "it was looked at less than a minute ago");
    later(&mut queue, "122");
    assert_eq!(queue.state("copy", "A"), "absent");
    assert_eq!(fs::read_to_string(&path).unwrap(), "one\n", "a path that was handed out opens for one grace");
    queue.request("copy", "A");
    queue.dispatch().code(0).silent();
    assert_eq!(fs::read_to_string(text(&queue.status("copy", "A")["path"])).unwrap(), "two\n");
    assert_eq!(queue.scratch("LOOKS").len(), 4, "before each export, and once a minute");
    queue.assert_quiet();
}

#[test]
fn nobody_who_asks_runs_a_fingerprint() {
    let mut queue = fresh(LOOK);
    queue.request("copy", "A");
    queue.dispatch().code(0).silent();
    queue.set("EXPORT_QUEUE_TEST_CLOCK", "61");
    for _ in 0..20 {
        assert_eq!(queue.state("copy", "A"), "ready");
        queue.request("copy", "A");
    }
    assert_eq!(queue.scratch("LOOKS"), ["A"]);
}

#[test]
fn what_changes_during_an_export_makes_it_stale() {
    let mut queue = fresh(LOOK);
    fs::write(queue.path("S"), "3").unwrap();
    queue.request("copy", "A");
    let mut dispatcher = queue.spawn(["dispatch", "--wait"]);
    eventually("the export has read its source", || {
        let made = queue.work_dirs().into_iter().map(|dir| dir.join("out/export.txt"));
        made.into_iter().any(|file| fs::read_to_string(file).is_ok_and(|text| text == "one\n")).then_some(())
    });
    fs::write(queue.path("SOURCE"), "two\n").unwrap();
    eventually("the tick ends", || dispatcher.is_over().then_some(()));
    assert_eq!(queue.state("copy", "A"), "ready");
    later(&mut queue, "70");
    assert_eq!(queue.state("copy", "A"), "absent");
}

#[test]
fn a_fingerprint_that_fails_takes_nothing_away() {
    let mut queue = fresh("[ -e DIR/BROKEN ] && exit 1\ncat DIR/SOURCE");
    queue.request("copy", "A");
    fs::write(queue.path("BROKEN"), "").unwrap();
    queue.dispatch().code(0).silent();
    assert_eq!(queue.state("copy", "A"), "ready", "it was made all the same");
    fs::remove_file(queue.path("BROKEN")).unwrap();
    queue.request("copy", "B");
    queue.dispatch().code(0).silent();
    fs::write(queue.path("BROKEN"), "").unwrap();
    fs::write(queue.path("SOURCE"), "two\n").unwrap();
    later(&mut queue, "70");
    assert_eq!((queue.state("copy", "A"), queue.state("copy", "B")), ("ready".into(), "ready".into()));
    fs::remove_file(queue.path("BROKEN")).unwrap();
    later(&mut queue, "140");
    assert_eq!((queue.state("copy", "A"), queue.state("copy", "B")), ("ready".into(), "absent".into()));
    queue.assert_quiet();
}
