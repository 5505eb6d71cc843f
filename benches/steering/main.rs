//! How long people wait, in which order, and what the waiting costs: `cargo bench --bench steering [-- PART…]`.
//!
//! Each part prints a table. What must hold on any machine is asserted, and the same bounds stand as tests in
//! `tests/fair.rs`; times are only printed.

#[path = "../../tests/harness/mod.rs"]
#[expect(dead_code, reason = "the benches use a part of what the tests stand on")]
mod harness;

mod backlog;
mod batch;
mod day;
mod eta;
mod idle;
mod latency;
mod turns;

/// The parts, in the order of the table in the manual.
const PARTS: &[(&str, fn())] = &[
    ("turns", turns::measure),
    ("latency", latency::measure),
    ("idle", idle::measure),
    ("backlog", backlog::measure),
    ("batch", batch::measure),
    ("eta", eta::measure),
];

fn main() {
    // Cargo passes `--bench`.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if let Some(wrong) = wanted.iter().find(|wanted| PARTS.iter().all(|(name, _)| name != wanted)) {
        let names: Vec<&str> = PARTS.iter().map(|(name, _)| *name).collect();
        eprintln!("there is no part {wrong}; there are {}", names.join(", "));
        std::process::exit(2);
    }
    for (name, measure) in PARTS.iter().filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|one| one == name)) {
        println!("## {name}");
        measure();
        println!();
    }
}

/// Asks for so many titles at once; `more` are further fields of each line.
fn request_all(queue: &harness::Queue, count: usize, more: &str) {
    write_lines(queue, count, more);
    queue.run(["request", "--batch", queue.path("lines").to_str().expect("a path")]).code(0);
}

/// Writes the lines of a batch to the file `lines`.
fn write_lines(queue: &harness::Queue, count: usize, more: &str) {
    let line = |n| format!("{{\"title\":\"Book {n}\"{more}}}");
    let lines: Vec<String> = (0..count).map(line).collect();
    std::fs::write(queue.path("lines"), lines.join("\n")).expect("a file");
}

/// The value below which so many hundredths of the sorted values lie.
fn percentile(sorted: &[f64], hundredths: usize) -> f64 {
    sorted[(sorted.len() * hundredths).div_ceil(100).max(1) - 1]
}
