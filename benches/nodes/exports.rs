//! Exports by the program itself: each node a state directory with two slots, the exporter a `cp`.

use std::fmt::Write as _;
use std::fs;

use crate::NODES;
use crate::harness::server::Server;
use crate::harness::{Queue, eventually, now};

/// How many exports a figure is made of.
const EXPORTS: usize = 1_000;

/// Exports a second, by depth and nodes.
pub(crate) fn exports(server: &'static Server, depths: &[usize]) {
    println!("| depth | nodes × 2 slots | exports/s |\n|--:|--:|--:|");
    for depth in depths {
        for nodes in NODES {
            println!("| {depth} | {nodes} | {:.0} |", once(server, *depth, nodes));
        }
    }
}

fn once(server: &'static Server, depth: usize, count: usize) -> f64 {
    let first = Queue::on(server, "");
    let sample = first.path("sample");
    fs::write(&sample, [7; 4096]).expect("a sample");
    let format = format!(
        "[format.copy]\nextension = \"bin\"\ncommand = [\"/bin/cp\", \"--\", \"{}\", \"{{output}}\"]\n[format.ok]\n",
        sample.display()
    );
    first.reconfigure("[format.ok]\n", &format);
    let mut nodes = vec![first];
    nodes.extend((1..count).map(|_| Queue::beside(&nodes[0])).collect::<Vec<_>>());
    let mut lines = String::new();
    for number in 0..EXPORTS {
        writeln!(lines, "{{\"title\":\"Book {number}\",\"format\":\"copy\"}}").expect("a string");
    }
    let first = &nodes[0];
    fs::write(first.path("batch"), lines).expect("a batch");
    first.run(["request", "--batch", &first.path("batch").to_string_lossy()]).code(0);
    // The others wait behind them, and end as failures when it comes to them: their names are not their keys'.
    first.sql(&format!(
        "INSERT INTO jobs (title, lang, font, format, options, filename, queue, priority, rank, state, submitted_at)
         SELECT 'Filler ' || n, 'en', 'default', 'copy', '{{}}', md5(n::text) || '.bin', 'default', 10,
             9000000000000000000 + n, 0, 1 FROM generate_series(1, {}) AS n",
        depth.saturating_sub(EXPORTS)
    ));
    first.sql("VACUUM ANALYZE jobs");
    let begun = now();
    let ticks: Vec<_> = nodes.iter().map(|node| node.spawn(["dispatch", "--wait"])).collect();
    eventually("all are made", || {
        let ready = first.sql("SELECT count(*) FROM runs WHERE outcome = 'ready'");
        (ready == [EXPORTS.to_string()]).then_some(())
    });
    let rate = EXPORTS as f64 / begun.elapsed().as_secs_f64();
    first.run(["pause"]).code(0);
    for tick in ticks {
        tick.wait();
    }
    rate
}
