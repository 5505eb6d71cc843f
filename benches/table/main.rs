//! What this program costs, beside what people would use instead: one table, ratios taken in one run.
//!
//! ```sh
//! benches/peers                     # installs what it is compared with, by name
//! benches/run                       # the whole table, about a quarter of an hour
//! benches/run 50 status request     # some rows, 50 rounds each
//! benches/run growth DIR [rows…]    # how costs grow, into tables; benches/growth plots them
//! benches/run month                 # a month of a large wiki on a scaled clock
//! ```
//!
//! Contenders take turns, round by round; a figure is the median of the ratios of each round, so that whatever else the
//! machine does slows both down. Times stand beside it only as colour.

mod crowd;
mod floor;
mod growth;
mod inside;
mod month;
mod peers;
mod place;
mod rows;
mod timer;

use std::fmt::Write;

/// One line of the table.
pub(crate) struct Row {
    /// What is measured.
    what: String,
    /// Against what.
    against: &'static str,
    /// The figure.
    figure: f64,
    /// What it must not exceed, where something was promised.
    bar: Option<f64>,
    /// The times behind it.
    raw: String,
}

/// A row's name on the command line, and how it is measured.
type Measure = (&'static str, fn(usize) -> Vec<Row>);

const MEASURES: &[Measure] = &[
    ("status", rows::status),
    ("request", rows::request),
    ("batch", inside::batch),
    ("exports", rows::exports),
    ("claim", inside::claim),
    ("tick", rows::tick),
    ("sweep", rows::sweep),
    ("crowd", crowd::crowd),
    ("refill", rows::refill),
    ("memory", rows::memory),
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let (numbers, words): (Vec<&str>, Vec<&str>) =
        args.iter().map(String::as_str).partition(|arg| arg.parse::<usize>().is_ok());
    let number = numbers.first().and_then(|number| number.parse().ok());
    match words.as_slice() {
        [floor::INSERT, database] => floor::insert(database.as_ref()),
        [rows::STAMP, log, output] => rows::stamp(log.as_ref(), output.as_ref()),
        ["month"] => month::month(number.unwrap_or(30)),
        ["growth", dir, plots @ ..] => growth::growth(dir.as_ref(), plots, number.unwrap_or(15)),
        names => table(names, number.unwrap_or(15)),
    }
}

/// Prints the table, or those rows of it.
fn table(names: &[&str], rounds: usize) {
    println!("{}\n", machine());
    println!("| what | measured as | reached | bar | |\n|---|---|---|---|---|");
    for (_, measure) in MEASURES.iter().filter(|(name, _)| names.is_empty() || names.contains(name)) {
        for row in measure(rounds) {
            println!("{}", row.line());
        }
    }
}

impl Row {
    fn line(&self) -> String {
        let Self { what, against, figure, bar, raw } = self;
        let mut line = format!("| {what} | {against} | {figure:.2} |");
        let shown = bar.map_or(String::new(), |bar| format!("{} {bar}", if *figure <= bar { "≤" } else { "over" }));
        let _ = write!(line, " {shown} | {raw} |");
        line
    }
}

/// When and on what this was measured.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model =
        cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("").trim_start_matches(['\t', ' ', ':']);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "{}; {model}, {cores} cores; Linux {}; load before: {}",
        export_queue::clock::now().format("%d %b %Y"),
        read("/proc/sys/kernel/osrelease").trim(),
        read("/proc/loadavg").split(' ').next().unwrap_or_default()
    )
}
