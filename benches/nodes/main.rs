//! What many machines cost on one PostgreSQL: claims and exports a second by the number of nodes and the depth of the queue, how
//! a claim grows with depth and beside an old open transaction, and other queues on the same server in the same run.
//!
//! ```sh
//! benches/peers                     # installs graphile-worker and procrastinate, by name
//! benches/nodes/run                 # everything, about a quarter of an hour
//! benches/nodes/run claims 1000     # one part, at one depth
//! ```
//!
//! The server syncs, as an installed one does. Server, nodes and peers share this machine: read the ratios.

#[allow(dead_code, unused_imports)]
#[path = "../../tests/harness/mod.rs"]
mod harness;

mod aged;
mod claims;
mod exports;
mod peers;

use crate::harness::server::Server;

/// How many nodes work at once.
const NODES: [usize; 5] = [1, 2, 4, 8, 16];

/// How many jobs wait.
const DEPTHS: [usize; 3] = [1_000, 100_000, 1_000_000];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let depths: Vec<usize> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    let depths = if depths.is_empty() { DEPTHS.to_vec() } else { depths };
    let is_wanted =
        |name: &str| !args.iter().any(|arg| arg.parse::<usize>().is_err()) || args.iter().any(|arg| arg == name);
    let server = Server::own(&["-c", "fsync=on", "-c", "full_page_writes=on", "-c", "shared_buffers=512MB"]);
    if is_wanted("claims") {
        claims::claims(server, &depths);
    }
    if is_wanted("peers") {
        peers::peers(server, &depths);
    }
    if is_wanted("exports") {
        exports::exports(server, &depths);
    }
    if is_wanted("aged") {
        aged::aged(server);
    }
}

/// The value that so many of a hundred are not above.
fn percentile(sorted: &[std::time::Duration], percent: usize) -> std::time::Duration {
    sorted[(sorted.len() - 1) * percent / 100]
}
