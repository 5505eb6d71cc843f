//! Other queues on the same server, each doing jobs that do nothing: graphile-worker (npm) and procrastinate (PyPI).

use std::path::PathBuf;
use std::process::Command;

use crate::NODES;
use crate::harness::server::Server;

/// How many jobs a figure is made of.
const JOBS: usize = 4_000;

/// A peer: its name, what runs its script, the script.
type Peer = (&'static str, &'static str, &'static str);

const PEERS: [Peer; 2] =
    [("graphile-worker", "node", "graphile.cjs"), ("procrastinate", "python3", "procrastinated.py")];

/// Jobs a second, by depth and by jobs at once in one process: friendlier to a peer than a process each.
pub(crate) fn peers(server: &'static Server, depths: &[usize]) {
    println!("| peer | depth | at once | jobs/s |\n|---|--:|--:|--:|");
    'peers: for (name, interpreter, script) in PEERS {
        for depth in depths {
            for at_once in NODES {
                let Some(rate) = once(server, (interpreter, script), *depth, at_once) else {
                    eprintln!("{name} does not run here: not compared (benches/peers installs it)");
                    continue 'peers;
                };
                println!("| {name} | {depth} | {at_once} | {rate:.0} |");
            }
        }
    }
}

fn once(server: &'static Server, (interpreter, script): (&str, &str), depth: usize, at_once: usize) -> Option<f64> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/benches/nodes")).join(script);
    let url = server.url(&server.fresh_database());
    let mut command = Command::new(interpreter);
    let output =
        command.arg(path).args([&url, &depth.to_string(), &JOBS.to_string(), &at_once.to_string()]).output().ok()?;
    let seconds: Option<f64> = String::from_utf8_lossy(&output.stdout).trim().parse().ok();
    if seconds.is_none() {
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    }
    Some(JOBS as f64 / seconds?)
}
