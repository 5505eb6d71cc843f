//! A claim beside an old open transaction, which keeps every dead row.

use std::io::Write;
use std::process::Stdio;

use crate::claims::Deep;
use crate::harness::eventually;
use crate::harness::server::Server;
use crate::percentile;

/// After how many jobs that came and went a claim is looked at.
const CYCLES: [usize; 4] = [0, 10_000, 50_000, 100_000];

/// How a claim grows with the rows that came and went while a transaction was open.
pub(crate) fn aged(server: &'static Server) {
    println!("| jobs that came and went beside an open transaction | a claim: p50, p95 (ms) |\n|--:|--:|");
    let mut deep = Deep::new(server);
    deep.fill(1_000);
    let mut psql = server.program("psql");
    psql.args(["-X", "-q", "-U", "queue", "-d", &deep.database, "-h"]).arg(server.dir());
    let mut old = psql.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("psql can be started");
    let mut input = old.stdin.take().expect("its input");
    writeln!(input, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM export_queue.jobs;").expect("a pipe");
    eventually("it is open", || {
        (deep.sql("SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction'") == ["1"]).then_some(())
    });
    let mut gone = 0;
    for cycles in CYCLES {
        deep.fill(cycles - gone);
        deep.work(4, cycles - gone, true);
        gone = cycles;
        deep.fill(200);
        let done = deep.work(1, 200, true);
        let ms = |percent| percentile(&done.claims, percent).as_secs_f64() * 1e3;
        println!("| {cycles} | {:.2}, {:.2} |", ms(50), ms(95));
    }
    drop(input);
    old.wait().expect("psql ends");
}
