//! Whole processes: what a front end, cron and an operator wait for.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fs2::FileExt;

use crate::place::Place;
use crate::timer::{Contender, Times, interleave, now, span, time, whole};
use crate::{Row, floor, peers};

/// The argument by which the exporter of [`refill`] is this program.
pub(crate) const STAMP: &str = "--stamp";

const MINUTE: Duration = Duration::from_secs(60);

fn row(what: impl Into<String>, against: &'static str, (mine, other): (&Times, &Times), bar: Option<f64>) -> Row {
    let raw = format!("{} to {}", mine.shown(), other.shown());
    Row { what: what.into(), against, figure: mine.over(other), bar, raw }
}

fn truth<'a>() -> Contender<'a> {
    Box::new(|| whole(&mut Command::new("/bin/true")))
}

/// `status` of a ready file and of a queued job, 100,000 rows, a dispatcher alive.
pub(crate) fn status(rounds: usize) -> Vec<Row> {
    let peers = peers::status();
    let place = Place::new();
    place.run(&["--quiet", "request", "ready"]);
    place.run(&["dispatch", "--wait"]);
    place.run(&["pause", "default"]);
    place.fill("queued", 100_000);
    let _dispatcher = place.start(&["dispatch", "--for", "1h"]);
    let mut contenders: Vec<Contender<'_>> = vec![
        truth(),
        Box::new(|| place.time(&["status", "ready"])),
        Box::new(|| place.time(&["--json", "status", "ready"])),
        Box::new(|| place.time(&["status", "queued 50000"])),
        Box::new(|| place.time(&["--json", "status", "queued 50000"])),
    ];
    contenders.extend(peers.iter().map(|peer| -> Contender<'_> { Box::new(|| peer.time()) }));
    let times = interleave(rounds.max(50), contenders);
    let against = "÷ `/bin/true`";
    let mut rows = vec![
        row("`status` of a ready file", against, (&times[1], &times[0]), Some(1.4)),
        row("the same as JSON, which tells of a newer file under way", against, (&times[2], &times[0]), None),
        row("`status` of a queued job, 100,000 rows", against, (&times[3], &times[0]), Some(1.7)),
        row("the same as JSON", against, (&times[4], &times[0]), None),
    ];
    rows.extend(peers.iter().zip(&times[5..]).map(|(peer, took)| row(&peer.name, against, (took, &times[0]), None)));
    rows
}

/// `request` of a new job, durable, 100,000 rows, a dispatcher alive; beside the least that is durable.
pub(crate) fn request(rounds: usize) -> Vec<Row> {
    let peers = peers::request();
    let me = std::env::current_exe().expect("this program");
    let mut rows = Vec::new();
    for (place, medium) in [(Place::new(), "on the disk"), (Place::in_memory(), "in memory")] {
        place.run(&["pause", "default"]);
        place.fill("queued", 100_000);
        let _dispatcher = place.start(&["dispatch", "--for", "1h"]);
        let _held = floor::held(&place.path("floor.db"));
        let mut number = 0;
        let mut contenders: Vec<Contender<'_>> = vec![
            truth(),
            Box::new(|| {
                number += 1;
                place.time(&["request", &format!("new {number}")])
            }),
            Box::new(|| whole(Command::new(&me).arg(floor::INSERT).arg(place.path("floor.db")))),
        ];
        contenders.extend(peers.iter().map(|peer| -> Contender<'_> { Box::new(|| peer.time()) }));
        let times = interleave(rounds.max(50), contenders);
        let against = "÷ `/bin/true`";
        let named = |what: &str| format!("{what}, {medium}");
        rows.extend([
            row(named("`request` of a new job, 100,000 rows"), against, (&times[1], &times[0]), Some(3.0)),
            row(named("a process that commits one row of one table"), against, (&times[2], &times[0]), None),
        ]);
        let peers = peers.iter().zip(&times[3..]);
        rows.extend(peers.map(|(peer, took)| row(named(&peer.name), against, (took, &times[0]), None)));
    }
    rows
}

/// So many exports by `cp`, two at a time.
const EXPORTS: usize = 1000;

/// 1,000 exports by `cp`, each claimed, checked, synced and recorded, beside the same `cp`s by `xargs`.
pub(crate) fn exports(rounds: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    let peers = peers::exports();
    for (place, medium) in [(Place::new(), "on the disk"), (Place::in_memory(), "in memory")] {
        let mut round = 0;
        let (mut heap, mut peer_round, mut by_hand) = (0, 0, 0);
        let mut contenders: Vec<Contender<'_>> = vec![
            Box::new(|| {
                heap += 1;
                xargs(&place, &format!("heap-{heap}"))
            }),
            Box::new(|| {
                round += 1;
                place.fill(&format!("round {round}"), EXPORTS);
                place.time(&["dispatch", "--wait"])
            }),
            Box::new(|| {
                by_hand += 1;
                floor::copies(&place, &format!("hand-{by_hand}"), EXPORTS)
            }),
        ];
        for peer in &peers {
            let place = &place;
            contenders.push(Box::new(move || {
                peer_round += 1;
                peer.time(&place.path("sample"), &fresh(place, &format!("peer-{peer_round}")), EXPORTS)
            }));
        }
        let times = interleave(rounds, contenders);
        let against = "÷ `xargs -P2`";
        rows.push(row(format!("1,000 exports by `cp`, {medium}"), against, (&times[1], &times[0]), Some(1.8)));
        let what = format!("as durable by two threads that do nothing else, {medium}");
        rows.push(row(what, against, (&times[2], &times[0]), None));
        rows.extend(
            peers
                .iter()
                .zip(&times[3..])
                .map(|(peer, took)| row(format!("{}, {medium}", peer.name), against, (took, &times[0]), None)),
        );
    }
    rows
}

fn fresh(place: &Place, name: &str) -> std::path::PathBuf {
    let out = place.path(name);
    fs::create_dir_all(&out).expect("a directory");
    out
}

fn xargs(place: &Place, name: &str) -> Duration {
    let (out, list) = (fresh(place, name), place.path("list"));
    let names: Vec<String> = (0..EXPORTS).map(|number| format!("{}/{number}.bin\n", out.display())).collect();
    fs::write(&list, names.concat()).expect("a list");
    whole(Command::new("xargs").arg("-a").arg(&list).args(["-P2", "-n1", "cp"]).arg(place.path("sample")))
}

/// A tick with nothing to do: 100,000 fresh files, published a while before the last tick, and 100,000 jobs behind a pause, beside one on an empty queue.
pub(crate) fn tick(rounds: usize) -> Vec<Row> {
    let (empty, full) = (Place::new(), Place::new());
    full.publish("fresh", 100_000, 5 * MINUTE, true);
    full.run(&["pause", "default"]);
    full.fill("queued", 100_000);
    let contenders: Vec<Contender<'_>> =
        vec![truth(), Box::new(|| empty.time(&["dispatch"])), Box::new(|| full.time(&["dispatch"]))];
    let times = interleave(rounds, contenders);
    let what = "a tick with nothing to do, 100,000 fresh files, 100,000 jobs behind a pause";
    vec![
        row(what, "÷ a tick on an empty queue", (&times[2], &times[1]), Some(1.5)),
        row("a tick on an empty queue", "÷ `/bin/true`", (&times[1], &times[0]), None),
    ]
}

/// A sweep of 100,000 files beyond their time, beside `find -delete`.
pub(crate) fn sweep(rounds: usize) -> Vec<Row> {
    const FILES: usize = 100_000;
    let (place, other) = (Place::new(), Place::new());
    let mut longest = Duration::ZERO;
    let contenders: Vec<Contender<'_>> = vec![
        Box::new(|| {
            other.publish("due", FILES, 11 * MINUTE, false);
            let mut find = Command::new("find");
            whole(find.arg(other.path("cache")).args(["-type", "f", "-name", "due*", "-mmin", "+10", "-delete"]))
        }),
        Box::new(|| {
            place.publish("due", FILES, 11 * MINUTE, false);
            place.time(&["sweep"])
        }),
    ];
    let times = interleave(rounds.min(5), contenders);
    place.publish("due", FILES, 11 * MINUTE, false);
    std::thread::scope(|scope| {
        let sweeping = scope.spawn(|| place.run(&["sweep"]));
        while !sweeping.is_finished() {
            longest = longest.max(publisher_waits(&place.path("cache/.lock")));
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    let what = "longest that a publisher waits for that sweep";
    vec![
        row("`sweep` of 100,000 due files", "÷ `find -delete`", (&times[1], &times[0]), Some(1.0)),
        Row { what: what.into(), against: "ms", figure: millis(longest), bar: Some(20.0), raw: String::new() },
    ]
}

fn publisher_waits(lock: &Path) -> Duration {
    let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(lock).expect("the cache lock");
    let (waited, locked) = time(|| FileExt::lock_exclusive(&file));
    locked.expect("a lock");
    waited
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// From the end of a worker's exporter to the start of its next.
pub(crate) fn refill(rounds: usize) -> Vec<Row> {
    let me = std::env::current_exe().expect("this program");
    let place = Place::new();
    let log = place.path("stamps");
    let command = format!("[\"{}\", \"{STAMP}\", \"{}\", \"{{output}}\"]", me.display(), log.display());
    place.reconfigure(&[("slots = 2", "slots = 1"), (&place.cp(), &command)]);
    place.fill("refill", 20 * rounds);
    place.run(&["dispatch", "--wait"]);
    let stamps = fs::read_to_string(log).expect("the stamps");
    let stamps: Vec<u64> = stamps.split_ascii_whitespace().map(|stamp| stamp.parse().expect("a number")).collect();
    // Start, end, start, end…: the gaps are from each end to the next start.
    let gaps = stamps[1..].chunks_exact(2).map(|gap| Duration::from_nanos(gap[1].saturating_sub(gap[0])));
    let gaps = Times(gaps.collect());
    let raw = format!("p99 {}, of {}", span(gaps.quantile(0.99)), gaps.0.len());
    let what = "from an exporter's end to the next one's start";
    vec![Row { what: what.into(), against: "ms, p50", figure: millis(gaps.median()), bar: Some(5.0), raw }]
}

/// The exporter of [`refill`]: notes when it begins and when it ends.
pub(crate) fn stamp(log: &Path, output: &Path) {
    let stamp = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let mut log = fs::OpenOptions::new().create(true).append(true).open(log).expect("the log");
        writeln!(log, "{}", now.tv_sec * 1_000_000_000 + now.tv_nsec).expect("a stamp");
    };
    stamp();
    fs::write(output, "x").expect("a file");
    stamp();
}

/// Peaks of memory: of a `status`, and of a worker that waits for its exporter.
pub(crate) fn memory(_: usize) -> Vec<Row> {
    let place = Place::new();
    place.run(&["--quiet", "request", "book"]);
    // Only a small parent sees the peak of its child: a process inherits that of whoever starts it.
    let mut time = Command::new("time");
    let status = place.command(&["status", "book"]);
    let said = time.args(["-f", "%M"]).arg(status.get_program()).args(status.get_args()).output().expect("GNU time");
    let kib = String::from_utf8_lossy(&said.stderr).lines().last().and_then(|line| line.trim().parse::<f64>().ok());
    let against = "MiB at most";
    let status = Row {
        what: "`status`".into(),
        against,
        figure: kib.unwrap_or(f64::NAN) / 1024.0,
        bar: Some(3.0),
        raw: String::new(),
    };
    vec![
        status,
        Row {
            what: "a worker beside its exporter".into(),
            against,
            figure: worker_peak(&place),
            bar: Some(8.0),
            raw: String::new(),
        },
    ]
}

/// The most memory that the worker of an exporter that sleeps has had, in MiB.
fn worker_peak(place: &Place) -> f64 {
    place.reconfigure(&[(&place.cp(), "[\"sh\", \"-c\", \"sleep 2; echo x >$0\", \"{output}\"]")]);
    let _dispatcher = place.start(&["dispatch", "--wait"]);
    let until = now() + Duration::from_secs(10);
    loop {
        if let Some(kib) = supervising(place).and_then(|status| peak(&status)) {
            return kib / 1024.0;
        }
        assert!(now() < until, "no worker");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What the kernel says of the worker that has started an exporter.
fn supervising(place: &Place) -> Option<String> {
    let config = place.path("config.toml");
    let is_ours = |line: &str| line.contains("\0work\0--queue\0") && line.contains(&*config.to_string_lossy());
    fs::read_dir("/proc").expect("/proc").flatten().find_map(|process| {
        let (process, pid) = (process.path(), process.file_name());
        let line = fs::read_to_string(process.join("cmdline")).ok().filter(|line| is_ours(line));
        let children = line.and_then(|_| fs::read_to_string(process.join("task").join(pid).join("children")).ok());
        children.filter(|children| !children.is_empty()).and_then(|_| fs::read_to_string(process.join("status")).ok())
    })
}

fn peak(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}
