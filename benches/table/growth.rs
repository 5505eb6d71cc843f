//! How costs grow: with rows, files, slots and callers. Writes one table for each into a directory; `benches/growth` plots them.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::place::Place;
use crate::timer::{Contender, interleave};
use crate::{crowd, inside};

const OLD: Duration = Duration::from_secs(300);
const DAY: Duration = Duration::from_secs(86_400);

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A table's name and head, and how it is measured.
type Growth = (&'static str, &'static str, fn(usize) -> Vec<Vec<f64>>);

const GROWTHS: &[Growth] = &[
    ("rows", "rows,status,request,tick,claim", rows),
    ("files", "files,status,tick,sweep a file (µs)", files),
    ("slots", "slots,wall ÷ ideal", slots),
    ("callers", "callers,request p50,request p99,status p50,status p99", callers),
];

/// Measures all of them, or those, and writes each as NAME.csv.
pub(crate) fn growth(dir: &Path, names: &[&str], rounds: usize) {
    fs::create_dir_all(dir).expect("a directory");
    for (name, head, measure) in GROWTHS.iter().filter(|(name, ..)| names.is_empty() || names.contains(name)) {
        let mut table = format!("{head}\n");
        for line in measure(rounds) {
            let cells: Vec<String> = line.iter().map(|cell| format!("{cell:.3}")).collect();
            let _ = writeln!(table, "{}", cells.join(","));
        }
        println!("{table}");
        fs::write(dir.join(format!("{name}.csv")), table).expect("a table");
    }
}

fn medians(rounds: usize, contenders: Vec<Contender<'_>>) -> Vec<f64> {
    interleave(rounds, contenders).iter().map(|times| millis(times.median())).collect()
}

/// Queued jobs: milliseconds of a status, a request, a tick, and a claim.
fn rows(rounds: usize) -> Vec<Vec<f64>> {
    [1_000, 10_000, 100_000, 1_000_000]
        .into_iter()
        .map(|count| {
            let place = Place::in_memory();
            inside::insert(&mut place.database(), count);
            let claim = inside::claims(&place, rounds * 10);
            place.run(&["pause", "default"]);
            let mut asked = 0;
            let mut line = vec![count as f64];
            line.extend(medians(
                rounds,
                vec![
                    Box::new(|| place.time(&["status", "row 500"])),
                    Box::new(|| {
                        asked += 1;
                        place.time(&["request", &format!("new {asked}")])
                    }),
                    Box::new(|| place.time(&["dispatch"])),
                ],
            ));
            line.push(millis(claim.median()));
            line
        })
        .collect()
}

/// Files in the cache, five minutes old: milliseconds of a status and a tick; then all of them due: microseconds a file of a sweep.
fn files(rounds: usize) -> Vec<Vec<f64>> {
    [1_000, 10_000, 100_000, 1_000_000]
        .into_iter()
        .map(|count| {
            let place = Place::in_memory();
            place.publish("file", count, OLD, true);
            place.run(&["dispatch"]);
            let mut line = vec![count as f64];
            let status: Contender<'_> = Box::new(|| place.time(&["status", "file 500"]));
            line.extend(medians(rounds, vec![status, Box::new(|| place.time(&["dispatch"]))]));
            place.publish("due", count, DAY, false);
            line.push(millis(place.time(&["sweep"])) * 1e3 / count as f64);
            line
        })
        .collect()
}

/// Slots: how much longer than they must so many exports take that only sleep.
fn slots(_: usize) -> Vec<Vec<f64>> {
    const NAP: f64 = 0.5;
    const EACH: usize = 10;
    [1_usize, 2, 4, 8, 16, 32, 64]
        .into_iter()
        .map(|slots| {
            let place = Place::in_memory();
            let nap = format!("[\"sh\", \"-c\", \"sleep {NAP}; echo x >$0\", \"{{output}}\"]");
            place.reconfigure(&[("slots = 2", &format!("slots = {slots}")), (&place.cp(), &nap)]);
            place.fill("nap", slots * EACH);
            vec![slots as f64, place.time(&["dispatch", "--wait"]).as_secs_f64() / (NAP * EACH as f64)]
        })
        .collect()
}

/// Callers at once, each a request and a status, one after another: milliseconds.
fn callers(rounds: usize) -> Vec<Vec<f64>> {
    [1_usize, 2, 4, 8, 16, 32, 64]
        .into_iter()
        .map(|callers| {
            let place = Place::new();
            place.run(&["pause", "default"]);
            let _dispatcher = place.start(&["dispatch", "--for", "1h"]);
            let call = |verb: &'static str| {
                let place = &place;
                move |title: &str| place.run(&["--quiet", verb, title])
            };
            let (times, _) = crowd::at_once(callers, rounds, &[&call("request"), &call("status")]);
            let quantiles = times.iter().flat_map(|times| [times.quantile(0.5), times.quantile(0.99)]);
            std::iter::once(callers as f64).chain(quantiles.map(millis)).collect()
        })
        .collect()
}
