//! Many front ends at once, each one call after another.

use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::Row;
use crate::place::Place;
use crate::timer::{Contender, Times, interleave, span, time, whole};

const CALLERS: usize = 64;

/// How old the files are that a sweep takes.
const OLD: Duration = Duration::from_secs(11 * 60);

/// A call about a title; its exit code.
type Call<'a> = &'a (dyn Fn(&str) -> i32 + Sync);

/// So many callers at once, each making these calls in turn, so many times: the times of each call, and how many of all
/// neither were answered nor said "queued" or "started".
pub(crate) fn at_once(callers: usize, rounds: usize, calls: &[Call<'_>]) -> (Vec<Times>, usize) {
    let call_all = |caller: usize| {
        let titles = (0..rounds).map(|round| format!("{caller} {round}"));
        titles.flat_map(|title| calls.iter().map(move |call| time(|| call(&title))).collect::<Vec<_>>()).collect()
    };
    let answers: Vec<Vec<(Duration, i32)>> = thread::scope(|scope| {
        let callers: Vec<_> = (0..callers).map(|caller| scope.spawn(move || call_all(caller))).collect();
        callers.into_iter().map(|caller| caller.join().expect("a caller")).collect()
    });
    let mut times = vec![Times(Vec::new()); calls.len()];
    let mut errors = 0;
    for (at, (took, code)) in answers.iter().flat_map(|calls| calls.iter().enumerate()) {
        times[at % calls.len()].0.push(*took);
        errors += usize::from(!matches!(code, 0 | 3 | 4));
    }
    (times, errors)
}

/// 64 front ends, each `request` and `status`, while exports run and a sweep goes on; beside as many `/bin/true`.
pub(crate) fn crowd(rounds: usize) -> Vec<Row> {
    let place = Place::new();
    let idle = {
        let _dispatcher = place.start(&["dispatch", "--for", "1h"]);
        let mut calls = 0;
        let contenders: Vec<Contender<'_>> = vec![
            Box::new(|| {
                calls += 1;
                place.time(&["--quiet", "request", &format!("idle {calls}")])
            }),
            Box::new(|| place.time(&["status", "idle 1"])),
            Box::new(|| whole(&mut Command::new("/bin/true"))),
        ];
        interleave(rounds.max(50), contenders)
    };
    place.fill("backlog", 5_000);
    place.publish("due", 50_000, OLD, true);
    let call = |verb: &'static str| {
        let place = &place;
        move |title: &str| place.run(&["--quiet", verb, title])
    };
    let (mut times, errors) = {
        let _dispatcher = place.start(&["dispatch", "--for", "1h"]);
        thread::scope(|scope| {
            scope.spawn(|| place.run(&["sweep"]));
            at_once(CALLERS, rounds, &[&call("request"), &call("status")])
        })
    };
    let truth = |_: &str| i32::from(!Command::new("/bin/true").status().expect("it can be started").success());
    times.extend(at_once(CALLERS, 2 * rounds, &[&truth]).0);
    let names = [
        (format!("`request` from {CALLERS} processes at once, exports and a sweep going on"), Some(25.0)),
        (format!("`status` from {CALLERS} processes at once, exports and a sweep going on"), Some(25.0)),
        (format!("`/bin/true` from {CALLERS} processes at once, nothing else going on"), None),
    ];
    let rows = names.into_iter().zip(times.iter().zip(&idle));
    let mut rows: Vec<Row> = rows.map(|((what, bar), (times, idle))| row(what, bar, times, idle)).collect();
    let raw = format!("of {} calls", 2 * rounds * CALLERS);
    rows.push(Row { what: "errors among them".into(), against: "calls", figure: errors as f64, bar: Some(0.0), raw });
    rows
}

fn row(what: String, bar: Option<f64>, times: &Times, idle: &Times) -> Row {
    let (idle, slow) = (idle.median(), times.quantile(0.99));
    Row {
        what,
        against: "p99 ÷ its median when idle",
        figure: slow.as_secs_f64() / idle.as_secs_f64(),
        bar,
        raw: format!(
            "p50 {}, p99 {}, most {}; idle {}",
            span(times.median()),
            span(slow),
            span(times.quantile(1.0)),
            span(idle)
        ),
    }
}
