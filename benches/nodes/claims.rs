//! Claims through the store itself, by nodes that do nothing else.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use export_queue::clock;
use export_queue::job::{Job, Outcome, Run};
use export_queue::store::postgres::Postgres;
use export_queue::store::{Claim, Patience, Store};

use crate::harness::now;
use crate::harness::server::Server;
use crate::{NODES, percentile};

/// How many claims a figure is made of.
const CLAIMS: usize = 4_000;

/// A queue in a database of its own.
pub(crate) struct Deep {
    pub(crate) server: &'static Server,
    pub(crate) database: String,
    filled: usize,
}

/// What nodes did together.
pub(crate) struct Done {
    pub(crate) took: Duration,
    /// How long each claim took, sorted.
    pub(crate) claims: Vec<Duration>,
}

impl Deep {
    pub(crate) fn new(server: &'static Server) -> Self {
        let database = server.fresh_database();
        let deep = Self { server, database, filled: 0 };
        deep.store();
        deep
    }

    pub(crate) fn store(&self) -> Postgres {
        Postgres::open_or_create(&self.server.url(&self.database), "the id", Patience::OWNER).expect("a queue")
    }

    pub(crate) fn sql(&self, sql: &str) -> Vec<String> {
        self.server.sql(&self.database, sql)
    }

    /// Lets so many more jobs wait, behind all others.
    pub(crate) fn fill(&mut self, count: usize) {
        self.sql(&format!(
            "INSERT INTO jobs (title, lang, font, format, options, filename, queue, priority, rank, state, submitted_at)
             SELECT 'Book ' || n, 'en', 'default', 'epub', '{{}}', md5(n::text) || '.epub', 'default', 10, n, 0, n
             FROM generate_series({}, {}) AS n",
            self.filled + 1,
            self.filled + count
        ));
        self.filled += count;
    }

    /// Nodes claim `count` jobs together and end each, at once or afterwards.
    pub(crate) fn work(&self, nodes: usize, count: usize, ends_at_once: bool) -> Done {
        let left = AtomicUsize::new(count);
        let begun = now();
        let mut claims: Vec<Duration> = std::thread::scope(|scope| {
            let node = |number| self.node(number, &left, ends_at_once);
            let nodes: Vec<_> = (0..nodes).map(|number| scope.spawn(move || node(number))).collect();
            nodes.into_iter().flat_map(|node| node.join().expect("a node")).collect()
        });
        claims.sort();
        Done { took: begun.elapsed(), claims }
    }

    fn node(&self, number: usize, left: &AtomicUsize, ends_at_once: bool) -> Vec<Duration> {
        let mut store = self.store();
        let mut claims = Vec::new();
        while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
            let token = format!("{:020x}", fastrand::u64(..));
            let begun = now();
            // Where sixteen heads are held by others there is nothing for now: a worker would look again.
            let job = loop {
                if let Some(job) = store.claim(&wish(&token, number), clock::now()).expect("a claim") {
                    break job;
                }
            };
            claims.push(begun.elapsed());
            if ends_at_once {
                store.finish(&ended(&job), "node").expect("an end");
            }
        }
        claims
    }
}

fn wish(token: &str, node: usize) -> Claim {
    Claim {
        queue: "default".into(),
        formats: vec![("epub".into(), Duration::from_secs(300)), ("pdf".into(), Duration::from_secs(300))],
        token: token.into(),
        node: format!("node {node}"),
        slot: "default.0".into(),
        worker: "7.8".into(),
        max_running: 0,
        lease: Duration::from_secs(90),
    }
}

fn ended(job: &Job) -> Run {
    let now = clock::now();
    Run { published_at: Some(now), ..job.run(Outcome::Ready, now) }
}

/// Claims a second, by depth and nodes; then jobs a second, each claimed and ended.
pub(crate) fn claims(server: &'static Server, depths: &[usize]) {
    println!(
        "| depth | nodes | claims/s | a claim: p50, p95 (ms) | jobs/s, claimed and ended |\n|--:|--:|--:|--:|--:|"
    );
    for depth in depths {
        let mut deep = Deep::new(server);
        deep.fill(*depth);
        for nodes in NODES {
            deep.sql("DELETE FROM jobs WHERE state = 1");
            deep.fill(2 * CLAIMS);
            deep.sql("VACUUM ANALYZE jobs");
            let claimed = deep.work(nodes, CLAIMS, false);
            let ended = deep.work(nodes, CLAIMS, true);
            let rate = |done: &Done| CLAIMS as f64 / done.took.as_secs_f64();
            println!(
                "| {depth} | {nodes} | {:.0} | {:.2}, {:.2} | {:.0} |",
                rate(&claimed),
                percentile(&claimed.claims, 50).as_secs_f64() * 1e3,
                percentile(&claimed.claims, 95).as_secs_f64() * 1e3,
                rate(&ended)
            );
        }
    }
}
